// From a block of points to their neighbours on the other side: gaps, decays, and the states read there.
#pragma once

#include "recurrence.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t BLOCK = 256;  // points that are processed together

// The gaps from the points of a block to their left and right neighbours.
struct Neighbours {
    double u_left[BLOCK], u_right[BLOCK];    // first the gap; after `fill_decays` in degree 1, u = gap / tau
    double to_left[BLOCK], to_right[BLOCK];  // the decay exp(-u)
};

// Compute the decays of the gaps. In degree 1 also turn the gaps into u, which is limited because its decay is
// multiplied by it.
template <class T, int DEGREE>
void fill_decays(int64_t size, double rate, Neighbours& near) {
    for (int64_t i = 0; i < size; ++i) near.to_left[i] = decay<T>(near.u_left[i] * rate);
    for (int64_t i = 0; i < size; ++i) near.to_right[i] = decay<T>(near.u_right[i] * rate);
    if (DEGREE == 0) return;
    for (int64_t i = 0; i < size; ++i) near.u_left[i] = smaller(near.u_left[i] * rate, MAX_U);
    for (int64_t i = 0; i < size; ++i) near.u_right[i] = smaller(near.u_right[i] * rate, MAX_U);
}

// Find the neighbours of `size` targets t among the sources in order, of which `padded` holds a part. With place =
// below[i] - from, padded[place] is the last source < t[i] and padded[place + 1] the first source >= t[i], which may be
// tied with it: right for even sums; `correct_ties` and `odd_sums` take the source after the ties for odd sums. Returns
// false if a target does not lie between the two: the plan is stale.
template <class T, int DEGREE>
bool find_neighbours(int64_t size, const T* t, const int32_t* below, int64_t from, const T* padded, double rate,
                     Neighbours& near) {
    int valid = 1;
    for (int64_t i = 0; i < size; ++i) {
        const int64_t place = below[i] - from;
        near.u_left[i] = double(t[i]) - double(padded[place]);
        near.u_right[i] = double(padded[place + 1]) - double(t[i]);
    }
    for (int64_t i = 0; i < size; ++i) valid &= int(near.u_left[i] > 0) & int(near.u_right[i] >= 0);
    fill_decays<T, DEGREE>(size, rate, near);
    return valid;
}

// The sums that a target reads from the state of one neighbour, out (ROWS,): v, or in degree 1 p, moved to the target.
template <int ROWS, int DEGREE>
inline void read_state(const double* state, double u, double d, double* out) {
    for (int r = 0; r < ROWS; ++r) out[r] = DEGREE ? d * (state[ROWS * DEGREE + r] + u * state[r]) : d * state[r];
}

}  // namespace laplex::LAPLEX_ISA
