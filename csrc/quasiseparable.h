// The step from one point to the next of a quasiseparable matrix (solve.cpp, solve_pullback.cpp).
#pragma once

#include "common.h"

namespace laplex::LAPLEX_ISA {

template <int R>
inline double dot(const double* a, const double* b) {
    double sum = a[0] * b[0];
    for (int u = 1; u < R; ++u) sum += a[u] * b[u];
    return sum;
}

template <int R>
inline void transpose(double (&matrix)[R][R]) {
    for (int u = 0; u < R; ++u)
        for (int v = 0; v < u; ++v) {
            const double kept = matrix[u][v];
            matrix[u][v] = matrix[v][u];
            matrix[v][u] = kept;
        }
}

template <int R>
inline void symmetrise(double (&matrix)[R][R]) {
    for (int u = 0; u < R; ++u)
        for (int v = 0; v < u; ++v) matrix[u][v] = matrix[v][u] = 0.5 * (matrix[u][v] + matrix[v][u]);
}

// T = rho [[I, W], [0, I]] with W symmetric, packed by rows: w or w_00, w_01, w_11.
template <int R, int M>
struct Step {
    double decay;  // rho with mass, rho - 1 without
    double mass[M == 2 ? 3 : 1];

    // state <- [[I, W], [0, I]] state
    void shear(double* state) const {
        if constexpr (M == 1) state[0] += mass[0] * state[1];
        if constexpr (M == 2) {
            state[0] += mass[0] * state[2] + mass[1] * state[3];
            state[1] += mass[1] * state[2] + mass[2] * state[3];
        }
    }
    // state <- [[I, W], [0, I]]^T state
    void shear_back(double* state) const {
        if constexpr (M == 1) state[1] += mass[0] * state[0];
        if constexpr (M == 2) {
            state[2] += mass[0] * state[0] + mass[1] * state[1];
            state[3] += mass[1] * state[0] + mass[2] * state[1];
        }
    }
    // row <- row [[I, W], [0, I]], or that matrix transposed
    template <bool TRANSPOSED>
    void row(double* row) const {
        TRANSPOSED ? shear(row) : shear_back(row);
    }
    double rho() const { return M == 0 ? 1.0 + decay : decay; }
    void shrink(double* state) const {
        for (int u = 0; u < R; ++u) state[u] = M == 0 ? state[u] + decay * state[u] : decay * state[u];
    }
    void forward(double* state) const {
        shear(state);
        shrink(state);
    }
    void backward(double* state) const {
        shear_back(state);
        shrink(state);
    }
};

// The steps of one kernel: decay (h, n), mass (h, n, 0, 1 or 3). The first rho is 0: nothing comes before.
template <int R, int M>
struct Points {
    static constexpr int PACKED = M == 2 ? 3 : M;
    const double* decay;
    const double* mass;

    Points(const double* decays, const double* masses, int64_t kernel, int64_t n)
        : decay(decays + kernel * n), mass(masses + kernel * n * PACKED) {}
    Step<R, M> step(int64_t i) const {
        Step<R, M> made{decay[i], {}};
        for (int c = 0; c < PACKED; ++c) made.mass[c] = mass[i * PACKED + c];
        return made;
    }
};

inline void prefetch(const double* place) {
#ifdef __GNUC__
    __builtin_prefetch(place, 0);
#else
    (void)place;
#endif
}
inline void prefetch_to_write(const double* place) {
#ifdef __GNUC__
    __builtin_prefetch(place, 1);
#else
    (void)place;
#endif
}

}  // namespace laplex::LAPLEX_ISA
