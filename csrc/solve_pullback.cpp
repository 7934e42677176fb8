// Reverse-mode derivatives of the factor and of products with L (solve.cpp): sweeps from the last point to the first.
// `name_bar` is the gradient of `name`. gap_bar is the gradient of log rho = -gap / tau.
#include "parallel.h"
#include "quasiseparable.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {
namespace {

// Add the gradient of W (B, B) to that of its packed entries; w_01 stands for two entries of W.
template <int B>
void add_packed(const double (&full)[B][B], double* packed) {
    packed[0] += full[0][0];
    if constexpr (B == 2) {
        packed[1] += full[0][1] + full[1][0];
        packed[2] += full[1][1];
    }
}

// --- The factor -----------------------------------------------------------------------------------------------------

// mass_bar at a point, from the gradient S_bar of S = T S' T^T. T_bar = 2 S_bar T S', and W_bar is rho times its upper
// right block. S' = S + d z z^T belongs to the point before; k is the point's index over all batches.
template <int R, int B>
void add_mass_bar(const FactorPullback& b, const Step<R, B>& step, int64_t k, const double (&state_bar)[R][R]) {
    const double* before = b.states + (k - 1) * R * R;
    const double* z = b.z + (k - 1) * R;
    double full[B][B];
    for (int v = 0; v < B; ++v) {
        double column[R];  // column B + v of T S'
        for (int u = 0; u < R; ++u) column[u] = before[u * R + B + v] + b.d[k - 1] * z[u] * z[B + v];
        step.forward(column);
        for (int u = 0; u < B; ++u) full[u][v] = 2.0 * step.rho() * dot<R>(state_bar[u], column);
    }
    add_packed<B>(full, b.mass_bar + k * Steps<R, B>::PACKED);
}

// gap_bar at a point, from the gradient S_bar of S = rho^2 N S' N^T. It is 2 <S_bar, S>. For B = 0 the stored state is
// I - S, in which a small S is lost by rounding, so S is computed again from the point before.
template <int R, int B>
double gap_bar(const FactorPullback& b, const Step<R, B>& step, int64_t k, const double (&state_bar)[R][R]) {
    const double *own = b.states + k * R * R, *before = own - R * R, *z = b.z + (k - 1) * R;
    double sum = 0;
    for (int u = 0; u < R; ++u)
        for (int v = 0; v < R; ++v) {
            const double after = (u == v) - before[u * R + v] + b.d[k - 1] * z[u] * z[v];
            sum += state_bar[u][v] * (B == 0 ? step.rho() * step.rho() * after : own[u * R + v]);
        }
    return 2.0 * sum;
}

// The reverse of  c = q - S p,  d = diag + p^T c,  z = c / d,  S' = S + d z z^T  at every point. With sigma (r, r) the
// gradient of S',
//     c_bar = z_bar / d + 2 sigma z + d_bar p        S_bar = sigma - (c_bar p^T + p c_bar^T) / 2
// and T^T S_bar T is sigma of the point before.
template <int R, int B>
void factor_pullback_batch(const FactorPullback& b, int64_t batch) {
    const Steps<R, B> steps(b.decay, b.mass, batch, b.n);
    double sigma[R][R] = {};
    for (int64_t i = b.n - 1; i >= 0; --i) {
        const int64_t k = batch * b.n + i;
        const double* p = b.p + k * R;
        const double* z = b.z + k * R;
        const double* z_bar = b.z_bar + k * R;
        const double* state = b.states + k * R * R;  // S, or I - S for B = 0
        double sigma_z[R], c_bar[R];
        for (int u = 0; u < R; ++u) sigma_z[u] = dot<R>(sigma[u], z);
        const double d_bar = b.d_bar[k] - dot<R>(z, z_bar) / b.d[k] - dot<R>(z, sigma_z);
        for (int u = 0; u < R; ++u) c_bar[u] = z_bar[u] / b.d[k] + 2.0 * sigma_z[u] + d_bar * p[u];
        b.diag_bar[k] = d_bar;
        for (int u = 0; u < R; ++u) {
            const double state_c = dot<R>(state + u * R, c_bar);
            b.p_bar[k * R + u] = d_bar * b.d[k] * z[u] - (B == 0 ? c_bar[u] - state_c : state_c);
            b.q_bar[k * R + u] = c_bar[u];
            for (int v = 0; v < R; ++v) sigma[u][v] -= 0.5 * (c_bar[u] * p[v] + p[u] * c_bar[v]);  // becomes S_bar
        }
        const Step<R, B> step = steps[i];
        if constexpr (B > 0)
            if (i > 0) add_mass_bar<R, B>(b, step, k, sigma);
        b.gap_bar[k] = i > 0 ? gap_bar<R, B>(b, step, k, sigma) : 0.0;
        for (int u = 0; u < R; ++u) step.backward(sigma[u]);
        transpose<R>(sigma);
        for (int u = 0; u < R; ++u) step.backward(sigma[u]);
    }
}

// --- Products with L ------------------------------------------------------------------------------------------------

// The gradients of the sum over i > j of left_i L_ij right_j for one column of left and right. It is bilinear in two
// states:
//     f_i = T_i f_{i-1} + z_i right_i        from the first point on; p_bar_i = left_i T_i f_{i-1}
//     g_i = T_{i+1}^T g_{i+1} + p_i left_i   from the last point back; z_bar_i = right_i T_{i+1}^T g_{i+1}
// and T_bar_i = g_i f_{i-1}^T. This is the first sweep; it stores f in states (n, R).
template <int R, int B>
void left_states(const SweepPullback& b, int64_t batch, int64_t column, double* states) {
    const Steps<R, B> steps(b.decay, b.mass, batch, b.n);
    double state[R] = {};
    for (int64_t i = 0; i < b.n; ++i) {
        const int64_t k = batch * b.n + i;
        const double left = b.left[k * b.m + column], right = b.right[k * b.m + column];
        steps[i].forward(state);
        for (int u = 0; u < R; ++u) {
            b.p_bar[k * R + u] += left * state[u];
            states[i * R + u] = state[u] += b.z[k * R + u] * right;
        }
    }
}

// The gradients of the gap and of the mass before point k, from g_i (`state`) and f_{i-1} (`before`).
template <int R, int B>
inline void add_step_bar(const SweepPullback& b, const Step<R, B>& step, int64_t k, const double* state,
                         const double* before) {
    double arriving[R];  // T_i f_{i-1}
    std::memcpy(arriving, before, sizeof(arriving));
    step.forward(arriving);
    b.gap_bar[k] += dot<R>(state, arriving);
    if constexpr (B > 0) {
        double full[B][B];
        for (int u = 0; u < B; ++u)
            for (int v = 0; v < B; ++v) full[u][v] = step.rho() * state[u] * before[B + v];
        add_packed<B>(full, b.mass_bar + k * Steps<R, B>::PACKED);
    }
}

// The second sweep, from the last point back.
template <int R, int B>
void right_states(const SweepPullback& b, int64_t batch, int64_t column, const double* states) {
    const Steps<R, B> steps(b.decay, b.mass, batch, b.n);
    double state[R] = {};
    for (int64_t i = b.n - 1; i >= 0; --i) {
        const int64_t k = batch * b.n + i;
        const double left = b.left[k * b.m + column], right = b.right[k * b.m + column];
        for (int u = 0; u < R; ++u) {
            b.z_bar[k * R + u] += right * state[u];
            state[u] += b.p[k * R + u] * left;
        }
        const Step<R, B> step = steps[i];
        if (i > 0) add_step_bar<R, B>(b, step, k, state, states + (i - 1) * R);
        step.backward(state);
    }
}

template <int R, int B>
bool sweep_pullback_batch(const SweepPullback& b, int64_t batch) {
    Buffer<double> states(b.n * R);
    if (!states) return false;
    for (int64_t column = 0; column < b.m; ++column) {
        left_states<R, B>(b, batch, column, states.get());
        right_states<R, B>(b, batch, column, states.get());
    }
    return true;
}

}  // namespace

void factor_pullback(const FactorPullback& b) {
    parallel_for(useful_threads(b.threads, b.h * b.n), b.h, [&](int64_t batch, int) {
        if (b.r == 1) factor_pullback_batch<1, 0>(b, batch);
        if (b.r == 2 && b.block == 0) factor_pullback_batch<2, 0>(b, batch);
        if (b.r == 2 && b.block == 1) factor_pullback_batch<2, 1>(b, batch);
        if (b.r == 4) factor_pullback_batch<4, 2>(b, batch);
        return true;
    });
}

Status sweep_pullback(const SweepPullback& b) {
    const bool done = parallel_for(useful_threads(b.threads, b.h * b.n * b.m), b.h, [&](int64_t batch, int) {
        if (b.r == 1) return sweep_pullback_batch<1, 0>(b, batch);
        if (b.r == 4) return sweep_pullback_batch<4, 2>(b, batch);
        return b.block == 0 ? sweep_pullback_batch<2, 0>(b, batch) : sweep_pullback_batch<2, 1>(b, batch);
    });
    return done ? OK : OUT_OF_MEMORY;
}

}  // namespace laplex::LAPLEX_ISA
