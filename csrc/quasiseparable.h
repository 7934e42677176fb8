// Symmetric quasiseparable matrices: the step from one point to the next.
//
// Points in order, i < n. A matrix of order r, and its factors A = L diag(d) L^T with L unit lower triangular:
//
//     A_ij = p_i^T T_i ... T_{j+1} q_j   (i > j)        A_ii = p_i^T q_i + diag_i
//     L_ij = p_i^T T_i ... T_{j+1} z_j   (i > j)        L_ii = 1
//
//     p_i, q_i, z_i (r,)         T_i (r, r) = rho_i N_i,   N_i = [[I, W_i], [0, I]],   rho_i = exp(-gap_i / tau)
//
// gap_i is the distance from point i - 1 to point i. W_i is symmetric, of size `block` = 0, 1 or 2: the mass in that
// gap.
//
//     K + diag, no phases      r = 1, block = 0, p = q = 1                           T_i = rho_i
//     K + diag, phases         r = 2, block = 0, p = q = (cos phi, sin phi)          T_i = rho_i I
//     Gram + diag, no phases   r = 2, block = 1, p = (1, V), q = (U, 1)
//     Gram + diag, phases      r = 4, block = 2, p = (e, V e), q = (U e, e),  e = (cos phi, sin phi)
//
// In a Gram matrix K diag(w) K^T, U_i is the mass (the sum of w) left of point i and V_i that right of it, both decayed
// at the rate 2 / tau, and W_i is the mass in the gap before point i, without decay. With phases each is a 2 x 2 matrix
// of moments of w. The row p_i^T and the column z_j meet only through the product of steps between them, which is a
// recurrence over a state of r numbers. So every operation takes O(n).
// src/laplex/_quasisep/__init__.py derives all this and names the literature.
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
            const double upper = matrix[u][v];
            matrix[u][v] = matrix[v][u];
            matrix[v][u] = upper;
        }
}

template <int R>
inline void symmetrise(double (&matrix)[R][R]) {
    for (int u = 0; u < R; ++u)
        for (int v = 0; v < u; ++v) matrix[u][v] = matrix[v][u] = 0.5 * (matrix[u][v] + matrix[v][u]);
}

// One step T = rho N. R is the order r, B the block size.
template <int R, int B>
struct Step {
    double decay;                 // rho; for B = 0, rho - 1, which keeps 1 - rho^2 accurate for close neighbours
    double mass[B == 2 ? 3 : 1];  // W packed by rows: w, or w_00, w_01, w_11

    double rho() const { return B == 0 ? 1.0 + decay : decay; }

    // state (R,) <- N state
    void shear(double* state) const {
        if constexpr (B == 1) state[0] += mass[0] * state[1];
        if constexpr (B == 2) {
            state[0] += mass[0] * state[2] + mass[1] * state[3];
            state[1] += mass[1] * state[2] + mass[2] * state[3];
        }
    }
    // state (R,) <- N^T state
    void shear_transposed(double* state) const {
        if constexpr (B == 1) state[1] += mass[0] * state[0];
        if constexpr (B == 2) {
            state[2] += mass[0] * state[0] + mass[1] * state[1];
            state[3] += mass[1] * state[0] + mass[2] * state[1];
        }
    }
    // row (R,) <- row N, or row N^T
    template <bool TRANSPOSED>
    void shear_row(double* row) const {
        TRANSPOSED ? shear(row) : shear_transposed(row);
    }
    // state (R,) <- rho state
    void scale(double* state) const {
        for (int u = 0; u < R; ++u) state[u] = B == 0 ? state[u] + decay * state[u] : decay * state[u];
    }
    // state (R,) <- T state
    void forward(double* state) const {
        shear(state);
        scale(state);
    }
    // state (R,) <- T^T state
    void backward(double* state) const {
        shear_transposed(state);
        scale(state);
    }
};

// The steps of one batch, from decay (h, n) and mass (h, n, PACKED). The first rho is 0: no point precedes the first.
template <int R, int B>
struct Steps {
    static constexpr int PACKED = B == 2 ? 3 : B;
    const double* decay;  // (n,)
    const double* mass;   // (n, PACKED)

    Steps(const double* decays, const double* masses, int64_t batch, int64_t n)
        : decay(decays + batch * n), mass(masses + batch * n * PACKED) {}
    Step<R, B> operator[](int64_t i) const {
        Step<R, B> step{decay[i], {}};
        for (int c = 0; c < PACKED; ++c) step.mass[c] = mass[i * PACKED + c];
        return step;
    }
};

}  // namespace laplex::LAPLEX_ISA
