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
    double rate;  // 1 / tau
    bool wants_odd() const { return odd || pull; }
};

// ROWS rows of x, in the order of the sources, and the sums that enter each chunk from the left and from the right.
template <class T, int ROWS>
struct Sources {
    const T* s;      // (k,) in order
    int64_t k;
    double rate;
    T* x;            // (k, ROWS)
    double* left;    // (chunks + 1, ROWS): before the carries, the chunks' totals
    double* right;   // (chunks + 1, ROWS): right[c + 1] enters chunk c

    static int64_t chunks(int64_t k) { return (k + CHUNK - 1) / CHUNK; }
    int64_t first(int64_t c) const { return c * CHUNK; }
    int64_t last(int64_t c) const { return smaller(k, (c + 1) * CHUNK) - 1; }
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
template <class T, int ROWS>
void chunk_total(const Sources<T, ROWS>& src, const T* row, const int32_t* order, int64_t c) {
    const int64_t from = src.first(c), size = src.last(c) + 1 - from;
    T* x = src.x + from * ROWS;
    if (ROWS == 1 && row)
        for (int64_t j = 0; j < size; ++j) x[j] = row[order[from + j]];
    const T *s = src.s + from, start = s[0], end = s[size - 1];
    double to_end[CHUNK], to_start[CHUNK];
    for (int64_t j = 0; j < size; ++j) {
        to_end[j] = decay<T>((double(end) - double(s[j])) * src.rate);
        to_start[j] = decay<T>((double(s[j]) - double(start)) * src.rate);
    }
    double left[ROWS] = {}, right[ROWS] = {};
    if (ROWS == 1) {
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
                left[r] += to_end[j] * double(x[j * ROWS + r]);
                right[r] += to_start[j] * double(x[j * ROWS + r]);
            }
    }
    for (int r = 0; r < ROWS; ++r) {
        src.left[(c + 1) * ROWS + r] = left[r];
        src.right[c * ROWS + r] = right[r];
    }
}

template <class T, int ROWS>
void all_totals(const Sources<T, ROWS>& src, const T* row, const int32_t* order, int threads) {
    for_all(threads, src.chunks(src.k), [&](int64_t c, int) {
        chunk_total(src, row, order, c);
        return true;
    });
}

// Turn totals into what enters each chunk: left[c] is the sum up to the last source before chunk c, referred to it;
// right[c + 1] the sum from the first source after chunk c on, referred to that.
template <class T, int ROWS>
void carry(const Sources<T, ROWS>& src) {
    const int64_t chunks = src.chunks(src.k);
    for (int r = 0; r < ROWS; ++r) src.left[r] = src.right[chunks * ROWS + r] = 0;
    for (int64_t c = 1; c < chunks; ++c) {
        const double d = decay<T>((double(src.s[src.last(c)]) - double(src.s[src.last(c - 1)])) * src.rate);
        for (int r = 0; r < ROWS; ++r) src.left[(c + 1) * ROWS + r] += d * src.left[c * ROWS + r];
    }
    for (int64_t c = chunks - 2; c >= 0; --c) {
        const double d = decay<T>((double(src.s[src.first(c + 1)]) - double(src.s[src.first(c)])) * src.rate);
        for (int r = 0; r < ROWS; ++r) src.right[c * ROWS + r] += d * src.right[(c + 1) * ROWS + r];
    }
}

// The sums at every source of a chunk of `size`: left (size + 1, ROWS), left[i] up to source i - 1 of the chunk, referred
// to it; right (size + 1, ROWS), right[i] from source i on. Both directions in one loop: their latencies overlap.
template <class T, int ROWS>
void chunk_states(const Sources<T, ROWS>& src, int64_t c, double* left, double* right) {
    const int64_t from = src.first(c), size = src.last(c) + 1 - from;
    const T *s = src.s + from, *x = src.x + from * ROWS;
    double step[CHUNK + 1];  // the decay from source i - 1 to source i
    step[0] = from > 0 ? decay<T>((double(s[0]) - double(s[-1])) * src.rate) : 0;
    for (int64_t i = 1; i < size; ++i) step[i] = decay<T>((double(s[i]) - double(s[i - 1])) * src.rate);
    step[size] = from + size < src.k ? decay<T>((double(s[size]) - double(s[size - 1])) * src.rate) : 0;
    double l[ROWS], r[ROWS];
    for (int row = 0; row < ROWS; ++row) {
        l[row] = left[row] = src.left[c * ROWS + row];
        r[row] = right[size * ROWS + row] = src.right[(c + 1) * ROWS + row];
    }
    for (int64_t i = 0; i < size; ++i) {
        const int64_t j = size - 1 - i;
        for (int row = 0; row < ROWS; ++row) {
            l[row] = l[row] * step[i] + double(x[i * ROWS + row]);
            left[(i + 1) * ROWS + row] = l[row];
        }
        for (int row = 0; row < ROWS; ++row) {
            r[row] = r[row] * step[j + 1] + double(x[j * ROWS + row]);
            right[j * ROWS + row] = r[row];
        }
    }
}

// The sum from source j on, for a run of ties that leaves its chunk.
template <class T, int ROWS>
void right_state(const Sources<T, ROWS>& src, int64_t j, double* state) {
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
