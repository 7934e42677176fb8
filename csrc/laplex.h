// The compiled core: what every instruction set provides. No torch headers, no Python.
//
// All arrays are contiguous. h independent kernels, each with n targets, k sources and m rows of x:
//     x (h, m, k) -> even, odd (h, m, n)        target (h, n), source (h, k), tau (h,)
// An index is (h, channels, size) int32; see laplex/_ops.py for what the channels hold.
#pragma once

#include <cstdint>

namespace laplex {

enum Status : int { OK = 0, STALE_PLAN = 1, BAD_TAU = 2, NOT_FINITE_A = 3, NOT_FINITE_B = 4, OUT_OF_MEMORY = 5 };

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

struct Gram {
    const double* sums;       // (h, m, channels, 4, n): U, V, and the high and the low part of W; laplex/_kernels/gram.py
    const double* direction;  // (h, 2, n): cos phi, sin phi; null if there is one channel, without phases
    const double* target;     // (h, n)
    const double* tau;        // (h,)
    void* matrix;             // (h, m, n, n): M, to be filled; with pulls its cotangent, to be read
    double* pulls;            // (h, m, 3 or 9, n) or null
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
    template <class R> Status gram(const Gram&);      \
    }
LAPLEX_DECLARE(baseline)
LAPLEX_DECLARE(avx2)
LAPLEX_DECLARE(avx512)

}  // namespace laplex
