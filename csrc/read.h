// Reading the running sums beside a block of targets.
#pragma once

#include "states.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t BLOCK = 256;

// The decays from a block's targets t to the sources beside them. below[i] - from is the place of target i among the
// positions: pos[place] and pos[place + 1] are on its two sides. False if a target is not where the plan says.
template <class T>
bool beside(int64_t size, const T* t, const int32_t* below, int64_t from, const T* pos, double rate, double* to_left,
            double* to_right) {
    int holds = 1;
    for (int64_t i = 0; i < size; ++i) {
        const int64_t place = below[i] - from;
        to_left[i] = double(t[i]) - double(pos[place]);
        to_right[i] = double(pos[place + 1]) - double(t[i]);
    }
    for (int64_t i = 0; i < size; ++i) holds &= int(to_left[i] > 0) & int(to_right[i] >= 0);
    for (int64_t i = 0; i < size; ++i) to_left[i] = decay<T>(to_left[i] * rate);
    for (int64_t i = 0; i < size; ++i) to_right[i] = decay<T>(to_right[i] * rate);
    return holds;
}

}  // namespace laplex::LAPLEX_ISA
