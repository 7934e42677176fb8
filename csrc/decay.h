// The decay exp(-u) over a gap, u = gap / tau >= 0.
#pragma once

#include "common.h"

namespace laplex::LAPLEX_ISA {

// decay(u) is 0 for u >= MAX_U. A factor u that multiplies its own decay is limited to MAX_U: 0 * infinity would be
// NaN.
constexpr double MAX_U = 709.09;

// The polynomial c(r) in exp(r) = 1 + r + r^2 c(r) for |r| <= ln 2 / 2, by Chebyshev interpolation. The relative error
// of exp(r) is 2.3e-10 for T = float, and 1.6e-17 before rounding for T = double.
template <class T>
inline double exp_polynomial(double r) {
    double c;
    if (sizeof(T) == 4) {
        c = 0.00019890990824673654;
        c = c * r + 0.0013933649996309251;
        c = c * r + 0.0083333109254809;
        c = c * r + 0.041666464925285904;
        c = c * r + 0.16666666681623232;
        c = c * r + 0.500000001346581;
    } else {
        c = 2.510038549551032e-08;
        c = c * r + 2.7620088445409746e-07;
        c = c * r + 2.7557268459997064e-06;
        c = c * r + 2.4801521295954376e-05;
        c = c * r + 0.00019841269863053618;
        c = c * r + 0.0013888888917213717;
        c = c * r + 0.008333333333330062;
        c = c * r + 0.04166666666662413;
        c = c * r + 0.16666666666666669;
        c = c * r + 0.5000000000000001;
    }
    return c;
}

// exp(-u) for u >= 0, infinity included, with the accuracy that data of type T needs. There is no branch, so the
// compiler vectorises loops over it. The result is 0 from u = 708.75 on, and decay(0) is exactly 1, so ties are exact.
//     exp(-u) = 2^-q exp(r),   q = round(u / ln 2),   r = q ln 2 - u,   |r| <= ln 2 / 2
//
// decay_parts returns exp(r) - 1 and 2^-q, for those who need 1 - exp(-u) with all its digits.
template <class T>
inline void decay_parts(double u, double& less_one, double& scale) {
    constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, stored in the low bits
    const double limited = smaller(u, MAX_U);     // for MAX_U, q = 1023 and the 2^-q below is 0
    const double shifted = limited * 1.4426950408889634 + SHIFT;
    const double q = shifted - SHIFT;
    double r = q * 0.6931471803691238 - limited;  // the high part of ln 2; this product is exact
    r += q * 1.9082149292705877e-10;              // the low part of ln 2
    less_one = (exp_polynomial<T>(r) * r + 1.0) * r;
    uint64_t bits;
    std::memcpy(&bits, &shifted, 8);
    bits = (uint64_t{1023} << 52) - (bits << 52);  // the bits of 2^-q
    std::memcpy(&scale, &bits, 8);
}

template <class T>
inline double decay(double u) {
    double less_one, scale;
    decay_parts<T>(u, less_one, scale);
    return (less_one + 1.0) * scale;
}

// --- Logarithms of products ------------------------------------------------------------------------------------------

constexpr double LN_2 = 0.69314718055994530942;

// x = mantissa * 2^exponent of a normal positive x, with the mantissa in [1, 2).
inline void split_number(double x, double& mantissa, int64_t& exponent) {
    int64_t bits;
    std::memcpy(&bits, &x, 8);
    exponent = (bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffff) | (int64_t{1023} << 52);
    std::memcpy(&mantissa, &bits, 8);
}

}  // namespace laplex::LAPLEX_ISA
