// Running sums over sources in order: the scan itself.
//
// The sources are cut into chunks. A chunk's total is taken from the decays between its points and its end, the totals
// are scanned, and each chunk is then scanned with what came before it. So no product of step decays is longer than a
// chunk: a longer span is always exp of the difference of its end points.
#pragma once

#include "common.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t CHUNK = 512;

// One kernel's part of a Scan, its indices taken apart.
template <class T>
struct Problem {
    const T *x, *target, *source;
    const int32_t *target_order, *target_rank, *target_below, *target_upto;
    const int32_t *source_order, *source_rank, *source_below, *source_upto;
    const T *target_values, *source_values;
    T *even, *odd;
    const T* weights;
    double* pull;  // (n,), to be added to; odd sums are wanted if this or odd is there
    int64_t m, n, k;
    int degree;
    double rate;  // 1 / tau
    bool wants_odd() const { return odd || pull; }
};

// A state is the sums v of ROWS rows; of DEGREE 1 the sums p of u exp(-u) x behind them. Over a gap of u = gap / tau, whose
// decay is d = exp(-u), both are carried without subtracting: (v, p) -> d (v, p + u v).
template <int ROWS, int DEGREE>
inline void carry_over(const double* state, double u, double d, double* out) {
    if (DEGREE)
        for (int r = 0; r < ROWS; ++r) out[ROWS + r] = d * (state[ROWS + r] + u * state[r]);
    for (int r = 0; r < ROWS; ++r) out[r] = d * state[r];
}

// ROWS rows of x, in the order of the sources, and the states that enter each chunk from the left and from the right.
template <class T, int ROWS, int DEGREE>
struct Sources {
    static constexpr int STATE = ROWS * (DEGREE + 1);
    const T* s;      // (k,) in order
    int64_t k;
    double rate;
    T* x;            // (k, ROWS)
    double* left;    // (chunks + 1, STATE): before the carries, the chunks' totals
    double* right;   // (chunks + 1, STATE): right[c + 1] enters chunk c

    static int64_t chunks(int64_t k) { return (k + CHUNK - 1) / CHUNK; }
    int64_t first(int64_t c) const { return c * CHUNK; }
    int64_t last(int64_t c) const { return smaller(k, (c + 1) * CHUNK) - 1; }
    double apart(int64_t i, int64_t j) const {  // cut where it is multiplied with its decay
        const double u = (double(s[j]) - double(s[i])) * rate;
        return DEGREE ? smaller(u, BEYOND) : u;
    }
};

// Several rows of x, starting at x, into the order of the sources, ROWS side by side (absent ones are 0): read along and put
// where they belong, one random access for all of them.
template <class T, int ROWS>
void rows_in_order(const T* x, int64_t rows, int64_t k, const int32_t* rank, T* out, int threads) {
    constexpr int64_t TILE = 256;
    for_all(threads, (k + TILE - 1) / TILE, [=](int64_t block, int) {
        const int64_t from = block * TILE, size = smaller(TILE, k - from);
        T tile[TILE][ROWS];
        for (int64_t r = 0; r < ROWS; ++r)
            for (int64_t j = 0; j < size; ++j) tile[j][r] = r < rows ? x[r * k + from + j] : T(0);
        for (int64_t j = 0; j < size; ++j) std::memcpy(out + int64_t(rank[from + j]) * ROWS, tile[j], sizeof(T) * ROWS);
        return true;
    });
}

// Sum a chunk, referred to its ends. With `row`, a single row of x in the caller's order, gather it into src.x first.
template <class T, int ROWS, int DEGREE>
void chunk_total(const Sources<T, ROWS, DEGREE>& src, const T* row, const int32_t* order, int64_t c) {
    constexpr int STATE = src.STATE;
    const int64_t from = src.first(c), size = src.last(c) + 1 - from;
    T* x = src.x + from * ROWS;
    if (ROWS == 1 && row)
        for (int64_t j = 0; j < size; ++j) x[j] = row[order[from + j]];
    double u_end[CHUNK], u_start[CHUNK], to_end[CHUNK], to_start[CHUNK];
    for (int64_t j = 0; j < size; ++j) {
        u_end[j] = src.apart(from + j, from + size - 1);
        u_start[j] = src.apart(from, from + j);
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
    for (int r = 0; r < STATE; ++r) {
        src.left[(c + 1) * STATE + r] = left[r];
        src.right[c * STATE + r] = right[r];
    }
}

// Turn totals into what enters each chunk: left[c] is the state up to the last source before chunk c, referred to it;
// right[c + 1] that from the first source after chunk c on, referred to that.
template <class T, int ROWS, int DEGREE>
void carry(const Sources<T, ROWS, DEGREE>& src) {
    constexpr int STATE = src.STATE;
    const int64_t chunks = src.chunks(src.k);
    double carried[STATE];
    for (int r = 0; r < STATE; ++r) src.left[r] = src.right[chunks * STATE + r] = 0;
    for (int64_t c = 1; c < chunks; ++c) {
        const double u = src.apart(src.last(c - 1), src.last(c));
        carry_over<ROWS, DEGREE>(src.left + c * STATE, u, decay<T>(u), carried);
        for (int r = 0; r < STATE; ++r) src.left[(c + 1) * STATE + r] += carried[r];
    }
    for (int64_t c = chunks - 2; c >= 0; --c) {
        const double u = src.apart(src.first(c), src.first(c + 1));
        carry_over<ROWS, DEGREE>(src.right + (c + 1) * STATE, u, decay<T>(u), carried);
        for (int r = 0; r < STATE; ++r) src.right[c * STATE + r] += carried[r];
    }
}

// The states at every source of a chunk of `size`: left (size + 1, STATE), left[i] up to source i - 1 of the chunk, referred
// to it; right (size + 1, STATE), right[i] from source i on. Both directions in one loop: their latencies overlap.
template <class T, int ROWS, int DEGREE>
void chunk_states(const Sources<T, ROWS, DEGREE>& src, int64_t c, double* left, double* right) {
    constexpr int STATE = src.STATE;
    const int64_t from = src.first(c), size = src.last(c) + 1 - from;
    const T* x = src.x + from * ROWS;
    double u[CHUNK + 1], step[CHUNK + 1];  // from source i - 1 to source i; nothing lies beyond the ends
    u[0] = from > 0 ? src.apart(from - 1, from) : BEYOND;
    for (int64_t i = 1; i < size; ++i) u[i] = src.apart(from + i - 1, from + i);
    u[size] = from + size < src.k ? src.apart(from + size - 1, from + size) : BEYOND;
    for (int64_t i = 0; i <= size; ++i) step[i] = decay<T>(u[i]);
    double l[STATE], r[STATE];
    for (int q = 0; q < STATE; ++q) {
        l[q] = left[q] = src.left[c * STATE + q];
        r[q] = right[size * STATE + q] = src.right[(c + 1) * STATE + q];
    }
    for (int64_t i = 0; i < size; ++i) {
        const int64_t j = size - 1 - i;
        carry_over<ROWS, DEGREE>(l, u[i], step[i], l);
        for (int row = 0; row < ROWS; ++row) l[row] += double(x[i * ROWS + row]);
        for (int q = 0; q < STATE; ++q) left[(i + 1) * STATE + q] = l[q];
        carry_over<ROWS, DEGREE>(r, u[j + 1], step[j + 1], r);
        for (int row = 0; row < ROWS; ++row) r[row] += double(x[j * ROWS + row]);
        for (int q = 0; q < STATE; ++q) right[j * STATE + q] = r[q];
    }
}

// The sum from source j on, for a run of ties that leaves its chunk.
template <class T, int ROWS>
void right_state(const Sources<T, ROWS, 0>& src, int64_t j, double* state) {
    if (j >= src.k) {
        for (int row = 0; row < ROWS; ++row) state[row] = 0;
        return;
    }
    const int64_t c = j / CHUNK;
    double left[(CHUNK + 1) * ROWS], right[(CHUNK + 1) * ROWS];
    chunk_states(src, c, left, right);
    for (int row = 0; row < ROWS; ++row) state[row] = right[(j - src.first(c)) * ROWS + row];
}

}  // namespace laplex::LAPLEX_ISA
