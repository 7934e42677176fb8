// The derivative of the factor, and of products with it: sweeps from the last point back (solve.cpp).
#include "quasiseparable.h"

namespace laplex::LAPLEX_ISA {
namespace {

// What the gradient of W, M x M, is as that of its packed entries.
template <int M>
void add_packed(const double (&full)[M][M], double* packed) {
    packed[0] += full[0][0];
    if constexpr (M == 2) {
        packed[1] += full[0][1] + full[1][0];
        packed[2] += full[1][1];
    }
}

// The gradient of the mass before point i in S = T S+ T^T, for that of S:  T_bar = 2 S_bar T S+,  S+ of the point before.
template <int R, int M>
void add_mass_bar(const FactorPullback& b, const Step<R, M>& step, int64_t k, const double (&state_bar)[R][R]) {
    const double* before = b.states + (k - 1) * R * R;
    const double* z = b.z + (k - 1) * R;
    double full[M][M];
    for (int v = 0; v < M; ++v) {
        double column[R];  // M + v, of T S+
        for (int u = 0; u < R; ++u) column[u] = before[u * R + M + v] + b.d[k - 1] * z[u] * z[M + v];
        step.forward(column);
        for (int u = 0; u < M; ++u) full[u][v] = 2.0 * step.rho() * dot<R>(state_bar[u], column);
    }
    add_packed<M>(full, b.mass_bar + k * Points<R, M>::PACKED);
}

// The gradient of log rho before point i in S = rho^2 shear S+ shear^T, for that of S: 2 <S_bar, S>. Without mass S is made of
// the point before, for I - S, which is what is kept, has lost it where rho is small.
template <int R, int M>
double gap_bar(const FactorPullback& b, const Step<R, M>& step, int64_t k, const double (&state_bar)[R][R]) {
    const double *own = b.states + k * R * R, *before = own - R * R, *z = b.z + (k - 1) * R;
    double sum = 0;
    for (int u = 0; u < R; ++u)
        for (int v = 0; v < R; ++v) {
            const double after = (u == v) - before[u * R + v] + b.d[k - 1] * z[u] * z[v];
            sum += state_bar[u][v] * (M == 0 ? step.rho() * step.rho() * after : own[u * R + v]);
        }
    return 2.0 * sum;
}

// Reverse of c = q - S p, d = diag + p^T c, z = c / d, S+ = S + d z z^T, and S = T S+ T^T of the point before.
// With sigma the gradient of S+:  c_bar = z_bar / d + 2 sigma z + d_bar p,  S_bar = sigma - (c_bar p^T + p c_bar^T) / 2.
template <int R, int M>
void factor_pullback_one(const FactorPullback& b, int64_t kernel) {
    const Points<R, M> at(b.decay, b.mass, kernel, b.n);
    double sigma[R][R] = {};
    for (int64_t i = b.n - 1; i >= 0; --i) {
        const int64_t k = kernel * b.n + i;
        const double* p = b.p + k * R;
        const double* z = b.z + k * R;
        const double* z_bar = b.z_bar + k * R;
        const double* state = b.states + k * R * R;  // S, or I - S where M = 0
        double pulled[R], c_bar[R];
        for (int u = 0; u < R; ++u) pulled[u] = dot<R>(sigma[u], z);
        const double d_bar = b.d_bar[k] - dot<R>(z, z_bar) / b.d[k] - dot<R>(z, pulled);
        for (int u = 0; u < R; ++u) c_bar[u] = z_bar[u] / b.d[k] + 2.0 * pulled[u] + d_bar * p[u];
        b.diag_bar[k] = d_bar;
        for (int u = 0; u < R; ++u) {
            const double of_state = dot<R>(state + u * R, c_bar);
            b.p_bar[k * R + u] = d_bar * b.d[k] * z[u] - (M == 0 ? c_bar[u] - of_state : of_state);
            b.q_bar[k * R + u] = c_bar[u];
            for (int v = 0; v < R; ++v) sigma[u][v] -= 0.5 * (c_bar[u] * p[v] + p[u] * c_bar[v]);
        }
        const Step<R, M> step = at.step(i);
        if constexpr (M > 0)
            if (i > 0) add_mass_bar<R, M>(b, step, k, sigma);
        b.gap_bar[k] = i > 0 ? gap_bar<R, M>(b, step, k, sigma) : 0.0;
        for (int u = 0; u < R; ++u) step.backward(sigma[u]);
        transpose<R>(sigma);
        for (int u = 0; u < R; ++u) step.backward(sigma[u]);
    }
}

// The gradient of  sum over i > j of left_i L_ij right_j  for one column, added to the bars. `states` is scratch, (n, R).
template <int R, int M>
void sweep_pullback_column(const SweepPullback& b, int64_t kernel, int64_t column, double* states) {
    const Points<R, M> at(b.decay, b.mass, kernel, b.n);
    double state[R] = {};
    for (int64_t i = 0; i < b.n; ++i) {  // state + z right, left of every point
        const int64_t k = kernel * b.n + i;
        const double left = b.left[k * b.m + column], right = b.right[k * b.m + column];
        at.step(i).forward(state);
        for (int u = 0; u < R; ++u) {
            b.p_bar[k * R + u] += left * state[u];
            states[i * R + u] = state[u] += b.z[k * R + u] * right;
        }
    }
    for (int u = 0; u < R; ++u) state[u] = 0.0;
    for (int64_t i = b.n - 1; i >= 0; --i) {  // and p left, right of it
        const int64_t k = kernel * b.n + i;
        const double left = b.left[k * b.m + column], right = b.right[k * b.m + column];
        for (int u = 0; u < R; ++u) {
            b.z_bar[k * R + u] += right * state[u];
            state[u] += b.p[k * R + u] * left;
        }
        const Step<R, M> step = at.step(i);
        if (i > 0) {
            double arriving[R];
            std::memcpy(arriving, states + (i - 1) * R, sizeof(arriving));
            step.forward(arriving);
            b.gap_bar[k] += dot<R>(state, arriving);
        }
        if constexpr (M > 0)
            if (i > 0) {
                double full[M][M];
                for (int u = 0; u < M; ++u)
                    for (int v = 0; v < M; ++v) full[u][v] = step.rho() * state[u] * states[(i - 1) * R + M + v];
                add_packed<M>(full, b.mass_bar + k * at.PACKED);
            }
        step.backward(state);
    }
}

template <int R, int M>
bool sweep_pullback_one(const SweepPullback& b, int64_t kernel) {
    Buffer<double> states(b.n * R);
    if (!states) return false;
    for (int64_t column = 0; column < b.m; ++column) sweep_pullback_column<R, M>(b, kernel, column, states.get());
    return true;
}

}  // namespace

void factor_pullback(const FactorPullback& b) {
    for_all(team(b.threads, b.h * b.n), b.h, [&](int64_t kernel, int) {
        if (b.r == 1) factor_pullback_one<1, 0>(b, kernel);
        if (b.r == 2 && b.block == 0) factor_pullback_one<2, 0>(b, kernel);
        if (b.r == 2 && b.block == 1) factor_pullback_one<2, 1>(b, kernel);
        if (b.r == 4) factor_pullback_one<4, 2>(b, kernel);
        return true;
    });
}

Status sweep_pullback(const SweepPullback& b) {
    const bool done = for_all(team(b.threads, b.h * b.n * b.m), b.h, [&](int64_t kernel, int) {
        if (b.r == 1) return sweep_pullback_one<1, 0>(b, kernel);
        if (b.r == 4) return sweep_pullback_one<4, 2>(b, kernel);
        return b.block == 0 ? sweep_pullback_one<2, 0>(b, kernel) : sweep_pullback_one<2, 1>(b, kernel);
    });
    return done ? OK : OUT_OF_MEMORY;
}

}  // namespace laplex::LAPLEX_ISA
