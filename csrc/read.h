// Reading the running sums beside a block of targets.
#pragma once

#include "states.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t BLOCK = 256;

// The decays from a block's targets to the sources beside them. `place(i)` is the place of target i among the sources,
// pos[place] and pos[place + 1] the positions on its two sides. False if a target is not where the plan says.
template <class T, class Target, class Place>
bool beside(int64_t size, Target target, Place place, const T* pos, double rate, double* to_left, double* to_right) {
    int holds = 1;
    for (int64_t i = 0; i < size; ++i) {
        const double t = target(i);
        to_left[i] = t - double(pos[place(i)]);
        to_right[i] = double(pos[place(i) + 1]) - t;
    }
    for (int64_t i = 0; i < size; ++i) holds &= int(to_left[i] > 0) & int(to_right[i] >= 0);
    for (int64_t i = 0; i < size; ++i) to_left[i] = decay<T>(to_left[i] * rate);
    for (int64_t i = 0; i < size; ++i) to_right[i] = decay<T>(to_right[i] * rate);
    return holds;
}

}  // namespace laplex::LAPLEX_ISA
