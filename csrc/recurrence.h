// The recurrence of the scan: sums of decayed sources up to every source, from the left and from the right.
//
// src/laplex/_scan/__init__.py derives it, also for degree 1, and shows that it is associative. For sources in order,
//
//     v_j = exp(-(s_j - s_{j-1}) / tau) v_{j-1} + x_j        degree 1, over a gap of u: (v, p) -> exp(-u) (v, p + u v)
//
// The right state is the same from the last source to the first. A target between s_j and s_{j+1} multiplies the left
// state of s_j and the right state of s_{j+1} by its own decays to them (neighbours.h).
//
// Chunks. A state is "referred to" a position if the decays of its terms end there. A long run is cut into chunks:
// `chunk_total` reduces every chunk on its own, `carry` scans the totals, and `chunk_states` scans every chunk from the
// state that enters it. Chunks are independent in the first and in the last step, and run in parallel.
//
// Precision. The decay over a long span is one exponential of the difference of its end points. Only within a chunk is
// it a product of decays, of at most CHUNK factors. The state is float64 for float32 data, too: in float32 the decays
// between close neighbours round to 1, and their product would miss the decay of the whole span.
//
// Ties. A source at distance 0 from a target belongs to the even sum, E = left + tied + right, with weight 1. It does
// not belong to the odd sum, O = right - left, because the derivative of exp(-|t - s| / tau) is taken as 0 at t = s.
// With below = #{s < t} and upto = #{s <= t}, in order, a target reads
//
//     left            sources [0, below)    from the left state of source below - 1
//     right           sources [upto, k)     from the right state of source upto
//     right + tied    sources [below, k)    from the right state of source below; at a tie s[below] = t, and the decay
//                                           is exactly 1
#pragma once

#include "decay.h"
#include "parallel.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t CHUNK = 512;

// One batch of a Scan, with its indices split into channels. A pointer to a channel that the plan does not have is
// invalid and is not read.
template <class T>
struct Problem {
    const T *x, *target, *source;                                            // (m, k - pads), (n,), (k,)
    const int32_t *target_order, *target_rank, *target_below, *target_upto;  // (n,) each
    const int32_t *source_order, *source_rank, *source_below, *source_upto;  // (k,) each
    const T *target_values, *source_values;                                  // (2, n), (2, k), or null
    T *even, *odd;                                                           // (m, n - pads); odd may be null
    const T* weights;                                                        // (m, n - pads), or null
    double* pull;                                                            // (n - pads,), or null: weights * odd,
                                                                             // summed over rows, is added to it
    const T* tail;                                                           // (m, pads): x of the last sources
    int64_t m, n, k, pads;
    int degree;
    double rate;  // 1 / tau
    bool wants_odd() const { return odd || pull; }
};

// Move a state over a gap of u = gap / tau with the decay d = exp(-u). state and out are (DEGREE + 1, ROWS): v, then p.
template <int ROWS, int DEGREE>
inline void move_state(const double* state, double u, double d, double* out) {
    if (DEGREE)
        for (int r = 0; r < ROWS; ++r) out[ROWS + r] = d * (state[ROWS + r] + u * state[r]);
    for (int r = 0; r < ROWS; ++r) out[r] = d * state[r];
}

// The sources in order, ROWS rows of x, and the states that enter the chunks.
template <class T, int ROWS, int DEGREE>
struct Sources {
    static constexpr int STATE = ROWS * (DEGREE + 1);
    const T* s;  // (k,)
    int64_t k;
    double rate;
    T* x;           // (k, ROWS)
    // (chunks + 1, STATE): left[c] enters chunk c from the left, and right[c + 1] enters it from the right. Before
    // `carry`, left[c + 1] and right[c] hold the totals of chunk c.
    double *left, *right;

    static int64_t chunks(int64_t k) { return block_count(k, CHUNK); }
    int64_t first(int64_t c) const { return c * CHUNK; }
    int64_t last(int64_t c) const { return smaller(k, (c + 1) * CHUNK) - 1; }
    // u = gap / tau from source i to source j. In degree 1 it is limited, because its decay is multiplied by it.
    double scaled_gap(int64_t i, int64_t j) const {
        const double u = (double(s[j]) - double(s[i])) * rate;
        return DEGREE ? smaller(u, MAX_U) : u;
    }
};

// Copy `rows` rows of x (rows, k) into out (k, ROWS), in the order of the sources; missing rows become 0. The rows are
// read contiguously, a tile at a time, and every source is one random write of ROWS numbers.
template <class T, int ROWS>
void sort_rows(const T* x, int64_t rows, int64_t k, const int32_t* rank, T* out, int threads) {
    constexpr int64_t TILE = 256;
    parallel_for(threads, block_count(k, TILE), [=](int64_t block, int) {
        const int64_t from = block * TILE, size = smaller(TILE, k - from);
        T tile[TILE][ROWS];
        for (int64_t r = 0; r < ROWS; ++r)
            for (int64_t j = 0; j < size; ++j) tile[j][r] = r < rows ? x[r * k + from + j] : T(0);
        for (int64_t j = 0; j < size; ++j) std::memcpy(out + int64_t(rank[from + j]) * ROWS, tile[j], sizeof(T) * ROWS);
        return true;
    });
}

// The total of chunk c, referred to its last source (left) and to its first source (right).
template <class T, int ROWS, int DEGREE>
void chunk_total(const Sources<T, ROWS, DEGREE>& src, int64_t c) {
    constexpr int STATE = src.STATE;
    const int64_t from = src.first(c), size = src.last(c) + 1 - from;
    const T* x = src.x + from * ROWS;
    double u_end[CHUNK], u_start[CHUNK], to_end[CHUNK], to_start[CHUNK];
    for (int64_t j = 0; j < size; ++j) {
        u_end[j] = src.scaled_gap(from + j, from + size - 1);
        u_start[j] = src.scaled_gap(from, from + j);
        to_end[j] = decay<T>(u_end[j]);
        to_start[j] = decay<T>(u_start[j]);
    }
    double left[STATE] = {}, right[STATE] = {};
    if (STATE == 1) {
        double l = 0, r = 0;
#pragma omp simd reduction(+ : l, r)
        for (int64_t j = 0; j < size; ++j) {
            l += to_end[j] * double(x[j]);
            r += to_start[j] * double(x[j]);
        }
        left[0] = l, right[0] = r;
    } else {
        for (int64_t j = 0; j < size; ++j)
            for (int r = 0; r < ROWS; ++r) {
                const double l = to_end[j] * double(x[j * ROWS + r]), b = to_start[j] * double(x[j * ROWS + r]);
                left[r] += l;
                right[r] += b;
                if (DEGREE) left[STATE - ROWS + r] += u_end[j] * l;
                if (DEGREE) right[STATE - ROWS + r] += u_start[j] * b;
            }
    }
    std::memcpy(src.left + (c + 1) * STATE, left, sizeof left);
    std::memcpy(src.right + c * STATE, right, sizeof right);
}

// Turn the chunks' totals into the states that enter the chunks. left[c] is the sum of all sources before chunk c,
// referred to the last of them. right[c + 1] is the sum of all sources after chunk c, referred to the first of them.
template <class T, int ROWS, int DEGREE>
void carry(const Sources<T, ROWS, DEGREE>& src) {
    constexpr int STATE = src.STATE;
    const int64_t chunks = src.chunks(src.k);
    double moved[STATE];
    for (int q = 0; q < STATE; ++q) src.left[q] = src.right[chunks * STATE + q] = 0;
    for (int64_t c = 1; c < chunks; ++c) {
        const double u = src.scaled_gap(src.last(c - 1), src.last(c));
        move_state<ROWS, DEGREE>(src.left + c * STATE, u, decay<T>(u), moved);
        for (int q = 0; q < STATE; ++q) src.left[(c + 1) * STATE + q] += moved[q];
    }
    for (int64_t c = chunks - 2; c >= 0; --c) {
        const double u = src.scaled_gap(src.first(c), src.first(c + 1));
        move_state<ROWS, DEGREE>(src.right + (c + 1) * STATE, u, decay<T>(u), moved);
        for (int q = 0; q < STATE; ++q) src.right[c * STATE + q] += moved[q];
    }
}

// The states at the sources of chunk c, which has `size` of them: left (size + 1, STATE), left[i] for the sources up to
// the chunk's source i - 1, referred to it; right (size + 1, STATE), right[i] for the sources from the chunk's source i
// on. One loop computes both directions, so that their latencies overlap.
template <class T, int ROWS, int DEGREE>
void chunk_states(const Sources<T, ROWS, DEGREE>& src, int64_t c, double* left, double* right) {
    constexpr int STATE = src.STATE;
    const int64_t from = src.first(c), size = src.last(c) + 1 - from;
    const T* x = src.x + from * ROWS;
    double u[CHUNK + 1], step[CHUNK + 1];  // from source i - 1 to source i; the state beyond an end of the sources is 0
    u[0] = from > 0 ? src.scaled_gap(from - 1, from) : MAX_U;
    for (int64_t i = 1; i < size; ++i) u[i] = src.scaled_gap(from + i - 1, from + i);
    u[size] = from + size < src.k ? src.scaled_gap(from + size - 1, from + size) : MAX_U;
    for (int64_t i = 0; i <= size; ++i) step[i] = decay<T>(u[i]);
    double l[STATE], r[STATE];
    for (int q = 0; q < STATE; ++q) {
        l[q] = left[q] = src.left[c * STATE + q];
        r[q] = right[size * STATE + q] = src.right[(c + 1) * STATE + q];
    }
    for (int64_t i = 0; i < size; ++i) {
        const int64_t j = size - 1 - i;
        move_state<ROWS, DEGREE>(l, u[i], step[i], l);
        for (int row = 0; row < ROWS; ++row) l[row] += double(x[i * ROWS + row]);
        for (int q = 0; q < STATE; ++q) left[(i + 1) * STATE + q] = l[q];
        move_state<ROWS, DEGREE>(r, u[j + 1], step[j + 1], r);
        for (int row = 0; row < ROWS; ++row) r[row] += double(x[j * ROWS + row]);
        for (int q = 0; q < STATE; ++q) right[j * STATE + q] = r[q];
    }
}

}  // namespace laplex::LAPLEX_ISA
