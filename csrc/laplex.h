// The interface of the compiled core: the functions that every instruction set provides, and their arguments. The core
// knows neither torch nor Python.
//
// All arrays are contiguous. h is the number of batches, which are independent problems. In a batch there are n targets
// (the side of the output), k sources (the side of the input) and m rows of x. "In order" means sorted by position;
// "the caller's order" is that of the arrays as they were given. T is float or double.
#pragma once

#include <cstdint>

namespace laplex {

enum Status : int { OK = 0, STALE_PLAN = 1, BAD_TAU = 2, NOT_FINITE_A = 3, NOT_FINITE_B = 4, OUT_OF_MEMORY = 5 };

// Counters since the module was loaded, for tests: parallel regions opened, and sides sorted.
struct Tally {
    int64_t regions, sorts;
};
extern Tally tally;

// When a thread last began late, in seconds of omp_get_wtime; 0 if none has (parallel.h).
extern double late_at;

// The plan of two sides: an index (h, channels, size) for each side. The number of channels tells which arrays it
// holds:
//     4   order, rank, below, upto    both sides are sorted; below and upto are in order
//     1   order                       the short side of a short-axis plan
//     2   below, upto                 the long side of a short-axis plan, in the caller's order
// `order` sorts the side and `rank` is its inverse. `below` and `upto` count the anchors of the other side that are <
// and <= each anchor.

// Products with the Laplace kernel matrix (scan.cpp). With u_ij = |target_i - source_j| / tau,
//     even_i = sum over j of exp(-u_ij) x_j        odd_i = sum over j of sign(source_j - target_i) exp(-u_ij) x_j
// In degree 1, u_ij exp(-u_ij) replaces exp(-u_ij). At a tie, target_i = source_j, the sign is 0.
struct Scan {
    const void* x;                // (h, m, k) T
    const void* target;           // (h, n) T
    const void* source;           // (h, k) T
    const double* tau;            // (h,)
    const int32_t* target_index;  // (h, target_channels, n)
    const int32_t* source_index;  // (h, source_channels, k)
    const void* target_values;    // (h, 2, n) T: the anchors the plan was built from, as given and in order; or null
    const void* source_values;    // (h, 2, k) T, or null
    void* even;                   // (h, m, n) T
    void* odd;                    // (h, m, n) T, or null if not wanted
    const void* weights;          // (h, m, n) T, or null; in degree 0 only
    void* pull;                   // (h, n) T: the sum over rows of weights * odd / tau; null without weights
    const void* tail;             // (h, m, pads) T: x of the last sources; null without pads
    int64_t h, m, n, k;
    int64_t pads;  // The last `pads` targets and sources have no place in x, even, odd, weights and pull, whose rows
                   // have n - pads or k - pads numbers. 0 unless both sides are sorted.
    int target_channels, source_channels;
    int degree;  // 0 or 1
    int threads;
};

// Build a plan of the row anchors a and the column anchors b (order.cpp).
struct Order {
    const void* a;     // (h, n) T
    const void* b;     // (h, k) T
    int32_t* a_index;  // (h, a_channels, n), output
    int32_t* b_index;  // (h, b_channels, k), output
    void* a_values;    // (h, 2, n) T, output, as in Scan; null in a short-axis plan
    void* b_values;    // (h, 2, k) T, output
    int64_t h, n, k;
    int a_channels, b_channels;
    bool from_old;  // a_index and b_index hold an earlier order, likely close to the new one
    int threads;
};

// out_i = sum over rows of x_i y_i / tau (scan.cpp).
struct RowDot {
    const void* x;      // (h, m, n) T
    const void* y;      // (h, m, n) T
    const double* tau;  // (h,)
    void* out;          // (h, n) T
    int64_t h, m, n;
    int threads;
};

// The sum of the sources, each with its decay up to a point that is not between them (reduce.cpp). With
// u_j = |end - source_j| / tau,
//     v = sum over j of exp(-u_j) x_j        p = sum over j of u_j exp(-u_j) x_j
struct Reduce {
    const void* x;       // (m, k) T, of rows that are `stride` numbers apart
    const void* source;  // (k,) T, in order
    double end, tau;
    double* out;  // (degree + 1, m), output: v, and in degree 1 p
    int64_t m, k, stride;
    int degree;  // 0 or 1
    int threads;
};

// Quasiseparable matrices of order r with blocks of size `block` (quasiseparable.h), n points in order, A = L diag(d)
// L^T. `packed` is the number of entries of a symmetric block: 0, 1 or 3.

// Find d and z, and with them L (solve.cpp).
struct Factor {
    const double* decay;  // (h, n): rho, or rho - 1 for block = 0
    const double* p;      // (h, n, r)
    const double* q;      // (h, n, r)
    const double* mass;   // (h, n, packed): W
    const double* diag;   // (h, n)
    double* d;            // (h, n), output
    double* z;            // (h, n, r), output
    double* states;       // (h, n, r, r), output: S, or I - S for block = 0; null if not wanted
    int64_t h, n;
    int r, block;
    int threads;
};

// The gradients of Factor's inputs, from those of d and z (solve_pullback.cpp).
struct FactorPullback {
    const double* decay;   // (h, n)
    const double* p;       // (h, n, r)
    const double* mass;    // (h, n, packed)
    const double* d;       // (h, n)
    const double* z;       // (h, n, r)
    const double* states;  // (h, n, r, r)
    const double* d_bar;   // (h, n)
    const double* z_bar;   // (h, n, r)
    double* p_bar;         // (h, n, r), output
    double* q_bar;         // (h, n, r), output
    double* mass_bar;      // (h, n, packed), zeros on entry; the gradient is added
    double* diag_bar;      // (h, n), output
    double* gap_bar;       // (h, n), output: the gradient of log rho
    int64_t h, n;
    int r, block;
    int threads;
};

// y = L (x / divisor), or with L^T, L^-1 or L^-T in place of L (solve.cpp).
struct Sweep {
    const double* decay;    // (h, n)
    const double* p;        // (h, n, r)
    const double* z;        // (h, n, r)
    const double* mass;     // (h, n, packed)
    const int64_t* order;   // (h, n), or null: the row of x (of y, if transposed) that belongs to each point
    const double* divisor;  // (h, n), or null
    const double* x;        // (h, n, m)
    double* y;              // (h, n, m), output
    int64_t h, n, m;
    int r, block;
    bool transposed, inverse;
    int threads;
};

// The gradients of the sum over i > j, and over columns, of left_i L_ij right_j (solve_pullback.cpp). They are added to
// the four outputs, which are zeros on entry.
struct SweepPullback {
    const double* decay;  // (h, n)
    const double* p;      // (h, n, r)
    const double* z;      // (h, n, r)
    const double* mass;   // (h, n, packed)
    const double* left;   // (h, n, m)
    const double* right;  // (h, n, m)
    double* p_bar;        // (h, n, r)
    double* z_bar;        // (h, n, r)
    double* mass_bar;     // (h, n, packed)
    double* gap_bar;      // (h, n): the gradient of log rho
    int64_t h, n, m;
    int r, block;
    int threads;
};

// Gaussian processes whose kernel is a sum of `blocks` state-space blocks, `size` states in all, observed at n points
// (states.h; src/laplex/_states/__init__.py has the mathematics). The batches are series.
constexpr int MAX_STATES = 32;

struct StateProblem {
    const double* times;    // (h, n): in order
    const int32_t* kinds;   // (blocks,): 1, 2 or 3 states, the same for all series
    const double* numbers;  // (h, 2 blocks + size): the rates a, the squares b (read for two states only), and g
    const int64_t* counts;  // (h,): the number of points of every series; null if all have n
    const int64_t* order;   // (h, n): where a point's y and diag are; null if in order
    const double* diag;     // (h, n), with the strides diag_row and diag_column, which may be 0
    const double* y;        // (h, n)
    int64_t h, n, diag_row, diag_column;
    int blocks, size;
    int threads;
};

// The logarithm of the density of y under N(0, K + diag) (states.cpp).
struct StateLikelihood {
    StateProblem problem;
    double* value;        // (h,), output
    double* loss;         // (h,), output: the sum of k(0) / d, by which rounding errors grow; 0 for one state
    int64_t* failed;      // (h,), output: the first point whose pivot is not positive and finite, or -1
    double* checkpoints;  // (h, state_checkpoint_size), output, for the pullback; null if not wanted
};

// The gradients of sum(value_bar * value) (states_pullback.cpp). Those of points are not written beyond `counts`, and
// are null if not wanted.
struct StatePullback {
    StateProblem problem;
    const double* checkpoints;  // (h, state_checkpoint_size): what StateLikelihood wrote
    const double* value_bar;    // (h,)
    double* times_bar;          // (h, n), output: as diag and y in the caller's order
    double* diag_bar;           // (h, n), output
    double* y_bar;              // (h, n), output
    double* numbers_bar;        // (h, 2 blocks + size), output
};

// Times and their order (times.cpp). The batches are series.
struct Times {
    const double* times;    // (h, n), n < 2^31; if one is not finite, the status says so
    const int64_t* counts;  // (h,): the number of times of every series; null if all have n
    int64_t* order;         // (h, n), output: the index of the i-th smallest time; equal times keep their order
    double* sorted;         // (h, n), output: the times in order; infinite beyond `counts`
    int64_t h, n;
    int threads;
};

struct Values {
    const double* values;  // (size,)
    int64_t size;
};

// The smallest and the largest value; both NaN if one is.
struct Extremes {
    double low, high;
};

// A chain of `size` states at n points (chain.cpp): T_n = steps[n] leads from point n - 1 to point n; the first is not
// used. The batches are series.
constexpr int MAX_CHAIN = 64;

struct ChainScan {
    const double* steps;   // (h, n, size, size)
    const double* source;  // (h, n, size, m)
    double* result;        // (h, n, size, m), output
    int64_t h, n, m;
    int size;
    bool reverse;
    int threads;
};

struct ChainMatrices {
    const double* steps;   // (h, n, size, size)
    const double* source;  // (h, n, size, size), symmetric
    double* result;        // (h, n, size, size), output, symmetric
    int64_t h, n;
    int size;
    bool reverse;
    int threads;
};

struct ChainFactor {
    const double* steps;  // (h, n, size, size)
    const double* p;      // (h, n, size)
    const double* q;      // (h, n, size)
    const double* diag;   // (h, n); infinite where nothing is observed
    double* states;       // (h, n, size, size), output: S before every point
    int64_t* failed;      // (h,), output: the first point whose pivot is not positive, or -1
    int64_t h, n;
    int size;
    int threads;
};

// m weighted Gram matrices per batch, or their pullback (gram.cpp). The matrix's entries have type R, float or double.
struct Gram {
    const double* sums;       // (h, m, channels, 4, n): U, V, and the high and the low part of W
    const double* direction;  // (h, 2, n): cos phi, sin phi; not read with one channel
    const double* target;     // (h, n)
    const double* tau;        // (h,)
    void* matrix;             // (h, m, n, n) R: M, output; if pulls is given, the cotangent of M, input
    double* pulls;            // (h, m, 4 or 10, n), output, or null: the gradients of the sums
    int64_t h, m, n;
    int channels;  // 1, or 3 with phases
    int threads;
};

// r kernel matrices per batch, whose weighted sum is one matrix W = sum over q of w_q K_q.
struct Kernels {
    const void* target;            // (h, r, n) T
    const void* source;            // (h, r, k) T
    const double* tau;             // (h, r)
    const double* weight;          // (h, r), or null: all 1
    const void* target_direction;  // (h, r, 2, n) T: cos phi, sin phi; null without phases
    const void* source_direction;  // (h, r, 2, k) T: cos psi, sin psi
    int64_t h, r, n, k;
};

// Form W (formed.cpp).
struct Form {
    Kernels kernels;
    void* matrix;  // (h, n, k) T: W, output
    int threads;
};

// The gradients of sum(g * W) (formed_pullback.cpp). All are outputs; those of type T may be null if not wanted.
struct FormPullback {
    Kernels kernels;
    const void* g;       // (h, n, k) T
    void* target_bar;    // (h, r, n) T
    void* source_bar;    // (h, r, k) T
    double* tau_bar;     // (h, r)
    double* weight_bar;  // (h, r)
    void* phi_bar;       // (h, r, n) T, null without phases
    void* psi_bar;       // (h, r, k) T
    int threads;
};

// out = a b in single precision, summed in double precision (multiply.cpp). Strides are in elements, and may be any.
struct Multiply {
    const float* a;  // (h, m, k)
    const float* b;  // (h, k, n)
    float* out;      // (h, m, n), contiguous, output
    int64_t h, m, n, k;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col;  // strides
    int threads;
};

// Soft ranks and soft sorts of rows, with the sums of the kernel of a row with itself (soft.cpp;
// src/laplex/_sorted/__init__.py has the formulas). A batch is a row of n numbers. `descending`: of the largest first.
struct SoftRank {
    const void* x;      // (h, n) T
    const double* tau;  // (h,)
    void* sorted;       // (h, n) T, output: x in order
    int32_t* order;     // (h, n), output: the index of each of them
    void* ranks;        // (h, n) T, output
    int64_t h, n;
    bool descending;
    int threads;
};

struct SoftSort {
    const void* x;      // (h, n) T
    const double* tau;  // (h,)
    void* sorted;       // (h, n) T, output
    int32_t* order;     // (h, n), output
    void* values;       // (h, n) T, output: largest first if `descending`
    void* factors;      // (h, 3, n) T, output, in ascending order: 1 / E, D / E and C
    int64_t h, n;
    bool descending;
    int threads;
};

// x_bar from the gradient g of the ranks, or with `factors` that of the values.
struct SoftPullback {
    const void* g;         // (h, n) T
    const void* sorted;    // (h, n) T
    const int32_t* order;  // (h, n)
    const double* tau;     // (h,)
    const void* factors;   // (h, 3, n) T: what SoftSort wrote
    void* x_bar;           // (h, n) T, output
    int64_t h, n;
    bool descending;
    int threads;
};

// Soft masks of the k largest (soft_mask.cpp): mask_i = F((x_i - anchor - offset) / tau), whose sum is k.
struct SoftMask {
    const void* x;      // (h, n) T
    const double* tau;  // (h,)
    const double* k;    // (h,)
    void* mask;         // (h, n) T, output
    double* threshold;  // (h, 3), output: anchor, offset, and the distance to the nearest number over tau
    int64_t h, n;
    int threads;
};

struct SoftMaskPullback {
    const void* g;            // (h, n) T
    const void* x;            // (h, n) T
    const double* tau;        // (h,)
    const double* k;          // (h,)
    const double* threshold;  // (h, 3): what SoftMask wrote
    void* x_bar;              // (h, n) T, output
    double* k_bar;            // (h,), output
    double* tau_bar;          // (h,), output
    int64_t h, n;
    int threads;
};

// Every function is compiled once per instruction set, from the same source, into a namespace of its own. These files
// use no templates of the standard library: the linker keeps one copy of a template, and that copy might need
// instructions that this processor does not have.
#define LAPLEX_DECLARE(isa)                                       \
    namespace isa {                                               \
    template <class T> Status scan(const Scan&);                  \
    template <class T> Status order(const Order&);                \
    template <class T> Status row_dot(const RowDot&);             \
    template <class T> Status reduce(const Reduce&);              \
    void large_pages(void* data, int64_t bytes);                  \
    void factor(const Factor&);                                   \
    void factor_pullback(const FactorPullback&);                  \
    void sweep(const Sweep&);                                     \
    Status sweep_pullback(const SweepPullback&);                  \
    int64_t state_checkpoint_size(const StateProblem&);           \
    Status state_likelihood(const StateLikelihood&);              \
    Status state_pullback(const StatePullback&);                  \
    bool times_in_order(const Times&);                            \
    Status sort_times(const Times&);                              \
    Extremes extremes(const Values&);                             \
    void chain_scan(const ChainScan&);                            \
    void chain_matrices(const ChainMatrices&);                    \
    void chain_factor(const ChainFactor&);                        \
    template <class R> Status gram(const Gram&);                  \
    template <class T> Status form(const Form&);                  \
    template <class T> Status form_pullback(const FormPullback&); \
    Status multiply(const Multiply&);                             \
    template <class T> Status soft_rank(const SoftRank&);         \
    template <class T> Status soft_sort(const SoftSort&);         \
    template <class T> Status pull_rank(const SoftPullback&);     \
    template <class T> Status pull_sort(const SoftPullback&);     \
    template <class T> Status soft_mask(const SoftMask&);         \
    template <class T> Status pull_mask(const SoftMaskPullback&); \
    }
LAPLEX_DECLARE(baseline)
LAPLEX_DECLARE(avx2)
LAPLEX_DECLARE(avx512)

}  // namespace laplex
