// Small helpers that every file of the core uses. Each instruction set has its own copy of them (see laplex.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "laplex.h"

namespace laplex::LAPLEX_ISA {

template <class T> inline T smaller(T a, T b) { return a < b ? a : b; }
template <class T> inline T larger(T a, T b) { return a > b ? a : b; }

// The number of blocks of size `block` that cover `size` elements.
inline int64_t block_count(int64_t size, int64_t block) { return (size + block - 1) / block; }

constexpr double INFINITE = HUGE_VAL;
inline bool is_finite(double v) { return v - v == 0; }

// The smallest valid tau. Its reciprocal is finite, so 0 / tau is 0. laplex/_checks/tau.py has the same limit.
constexpr double SMALLEST_TAU = 2.2250738585072014e-308;

}  // namespace laplex::LAPLEX_ISA
