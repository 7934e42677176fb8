// The compiled core: what every instruction set provides. No torch headers, no Python.
//
// All arrays are contiguous. h independent kernels, each with n targets, k sources and m rows of x:
//     x (h, m, k) -> even, odd (h, m, n)        target (h, n), source (h, k), tau (h,)
// An index is (h, channels, size) int32; see laplex/_ops.py for what the channels hold.
#pragma once

#include <cstdint>

namespace laplex {

enum Status : int { OK = 0, STALE_PLAN = 1, BAD_TAU = 2, NOT_FINITE_A = 3, NOT_FINITE_B = 4, OUT_OF_MEMORY = 5 };

// What was done since the module was loaded, for tests: parallel regions opened, and sides sorted.
struct Tally {
    int64_t regions, sorts;
};
extern Tally tally;

struct Scan {
    const void* x;
    const void* target;
    const void* source;
    const double* tau;
    const int32_t* target_index;
    const int32_t* source_index;
    const void* target_values;  // (h, 2, n) or null: the anchors the plan was built from, as given and in order
    const void* source_values;  // (h, 2, k) or null
    void* even;
    void* odd;            // null if not wanted
    const void* weights;  // (h, m, n) or null: then the odd sums are not kept but pulled together,
    void* pull;           // (h, n): sum over rows of weights * odd / tau
    int64_t h, m, n, k;
    int target_channels, source_channels;
    int degree;  // 0, or 1: every exp(-u), u = |target - source| / tau, is u exp(-u) instead; no weights then
    int threads;
};

struct Order {
    const void* a;
    const void* b;
    int32_t* a_index;
    int32_t* b_index;
    void* a_values;  // as in Scan; null for a short-axis plan
    void* b_values;
    int64_t h, n, k;
    int a_channels, b_channels;
    bool from_old;  // the indices hold an earlier order, likely close to the new one
    int threads;
};

struct RowDot {
    const void* x;  // (h, m, n)
    const void* y;  // (h, m, n)
    const double* tau;
    void* out;  // (h, n): sum over rows of x * y / tau
    int64_t h, m, n;
    int threads;
};

// Quasiseparable matrices in order, of order r with blocks of size `block` (laplex/_solve_ops.py); doubles throughout.
// decay, diag, d (h, n); p, q, z (h, n, r); mass (h, n, 0, 1 or 3); states (h, n, r, r); bars as what they belong to.
struct Factor {
    const double* decay;
    const double* p;
    const double* q;
    const double* mass;
    const double* diag;
    double* d;
    double* z;
    double* states;  // null if not wanted
    int64_t h, n;
    int r, block;
    int threads;
};

struct FactorPullback {
    const double* decay;
    const double* p;
    const double* mass;
    const double* d;
    const double* z;
    const double* states;
    const double* d_bar;
    const double* z_bar;
    double* p_bar;
    double* q_bar;
    double* mass_bar;  // zeros before
    double* diag_bar;
    double* gap_bar;  // (h, n): the gradient of log rho
    int64_t h, n;
    int r, block;
    int threads;
};

struct Sweep {  // y = L (x / divisor), or L^T, L^-1, L^-T
    const double* decay;
    const double* p;
    const double* z;
    const double* mass;
    const int64_t* order;   // (h, n) or null: which rows of x (of y, if transposed) the points are
    const double* divisor;  // (h, n) or null
    const double* x;        // (h, n, m)
    double* y;
    int64_t h, n, m;
    int r, block;
    bool transposed, inverse;
    int threads;
};

struct SweepPullback {  // of sum over i > j of left_i L_ij right_j
    const double* decay;
    const double* p;
    const double* z;
    const double* mass;
    const double* left;  // (h, n, m)
    const double* right;
    double* p_bar;  // zeros before, all four
    double* z_bar;
    double* mass_bar;
    double* gap_bar;
    int64_t h, n, m;
    int r, block;
    int threads;
};

struct Gram {
    const double* sums;       // (h, m, channels, 4, n): U, V, and the high and the low part of W; laplex/_kernels/gram.py
    const double* direction;  // (h, 2, n): cos phi, sin phi; null if there is one channel, without phases
    const double* target;     // (h, n)
    const double* tau;        // (h,)
    void* matrix;             // (h, m, n, n): M, to be filled; with pulls its cotangent, to be read
    double* pulls;            // (h, m, 4 or 10, n) or null
    int64_t h, m, n;
    int channels;  // 1 or 3
    int threads;
};

// Each is compiled once an instruction set, from the same source, into a namespace of its own. Templates of the standard
// library are kept out of the kernels: the linker keeps one copy, and it might be one this processor cannot run.
#define LAPLEX_DECLARE(isa)                           \
    namespace isa {                                   \
    template <class T> Status scan(const Scan&);      \
    template <class T> Status order(const Order&);    \
    template <class T> Status row_dot(const RowDot&); \
    void factor(const Factor&);                       \
    void factor_pullback(const FactorPullback&);      \
    void sweep(const Sweep&);                         \
    Status sweep_pullback(const SweepPullback&);      \
    template <class R> Status gram(const Gram&);      \
    }
LAPLEX_DECLARE(baseline)
LAPLEX_DECLARE(avx2)
LAPLEX_DECLARE(avx512)

}  // namespace laplex
