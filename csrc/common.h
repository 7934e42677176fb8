// Small things the kernels share; private to one instruction set (see laplex.h).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "laplex.h"

namespace laplex::LAPLEX_ISA {

template <class T> inline T smaller(T a, T b) { return a < b ? a : b; }
template <class T> inline T larger(T a, T b) { return a > b ? a : b; }

constexpr double INFINITE = __builtin_inf();
inline bool is_finite(double v) { return v - v == 0; }

inline int thread_number() {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Uninitialised scratch memory. A failed allocation is a null pointer, so that no exception crosses a parallel region.
template <class T>
class Buffer {
public:
    explicit Buffer(int64_t size) : data_(static_cast<T*>(std::malloc(sizeof(T) * larger<int64_t>(size, 1)))) {}
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    T* get() const { return data_; }
    T& operator[](int64_t i) const { return data_[i]; }
    explicit operator bool() const { return data_ != nullptr; }

private:
    T* data_;
};

// exp(-z) for z >= 0, without a branch, so that loops over it become vector code. 0 from z = 708 on; infinity is fine.
//     exp(-z) = 2^-q exp(r),  q = round(z / ln 2),  r = q ln 2 - z,  |r| <= ln 2 / 2
// Relative error below 2e-10 for float data (the state is double) and about 2e-16 for double.
template <class T>
inline double decay(double z) {
    constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, held in the low bits
    const double small = z < 708.0 ? z : 708.0;
    const double shifted = small * 1.4426950408889634 + shift;
    const double q = shifted - shift;
    double r = q * 0.6931471803691238 - small;  // ln 2 in two parts; the first product is exact
    r += q * 1.9082149292705877e-10;
    double p;
    if (sizeof(T) == 4) {
        p = 1.0 / 40320;
    } else {
        p = 1.0 / 6227020800.0;
        p = p * r + 1.0 / 479001600;
        p = p * r + 1.0 / 39916800;
        p = p * r + 1.0 / 3628800;
        p = p * r + 1.0 / 362880;
        p = p * r + 1.0 / 40320;
    }
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    int64_t bits;
    std::memcpy(&bits, &shifted, 8);
    bits = (int64_t{1023} << 52) - (bits << 52);  // 2^-q
    double scale;
    std::memcpy(&scale, &bits, 8);
    return z < 708.0 ? p * scale : 0.0;
}

}  // namespace laplex::LAPLEX_ISA
