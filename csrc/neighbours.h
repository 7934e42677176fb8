// Reading the running sums beside a block of targets.
#pragma once

#include "recurrence.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t BLOCK = 256;

// From a block's targets t to the sources beside them.
struct Beside {
    double u_left[BLOCK], u_right[BLOCK];    // gap / tau
    double to_left[BLOCK], to_right[BLOCK];  // exp(-u)
};

// Gaps as they are into u, and its decays; of degree 1 u is cut, since it is multiplied with them.
template <class T, int DEGREE>
void decay_gaps(int64_t size, double rate, Beside& gaps) {
    for (int64_t i = 0; i < size; ++i) gaps.to_left[i] = decay<T>(gaps.u_left[i] * rate);
    for (int64_t i = 0; i < size; ++i) gaps.to_right[i] = decay<T>(gaps.u_right[i] * rate);
    if (DEGREE == 0) return;
    for (int64_t i = 0; i < size; ++i) gaps.u_left[i] = smaller(gaps.u_left[i] * rate, BEYOND);
    for (int64_t i = 0; i < size; ++i) gaps.u_right[i] = smaller(gaps.u_right[i] * rate, BEYOND);
}

// below[i] - from is the place of target i among the positions: pos[place] and pos[place + 1] are on its two sides. False if
// a target is not where the plan says.
template <class T, int DEGREE>
bool look_beside(int64_t size, const T* t, const int32_t* below, int64_t from, const T* pos, double rate, Beside& gaps) {
    int holds = 1;
    for (int64_t i = 0; i < size; ++i) {
        const int64_t place = below[i] - from;
        gaps.u_left[i] = double(t[i]) - double(pos[place]);
        gaps.u_right[i] = double(pos[place + 1]) - double(t[i]);
    }
    for (int64_t i = 0; i < size; ++i) holds &= int(gaps.u_left[i] > 0) & int(gaps.u_right[i] >= 0);
    decay_gaps<T, DEGREE>(size, rate, gaps);
    return holds;
}

// What the state on one side of a target gives it, ROWS numbers: the sums, or of DEGREE 1 those of u exp(-u) x.
template <int ROWS, int DEGREE>
inline void read_state(const double* state, double u, double d, double* out) {
    for (int r = 0; r < ROWS; ++r) out[r] = DEGREE ? d * (state[ROWS * DEGREE + r] + u * state[r]) : d * state[r];
}

}  // namespace laplex::LAPLEX_ISA
