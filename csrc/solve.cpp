// The triangular factor L D L^T of a quasiseparable matrix in order, and products and solves with L.
//
//     A_ij = p_i^T T_i ... T_{j+1} q_j  (i > j),     A_ii = p_i^T q_i + diag_i,     T_i = rho_i [[I, W_i], [0, I]]
//     L_ij = p_i^T T_i ... T_{j+1} z_j  (i > j),     L_ii = 1                       (laplex/_solve_ops.py)
//
// R is the order (the length of p), M the size of the block W, 0 where T_i = rho_i I. All arrays are doubles.
#include "quasiseparable.h"

namespace laplex::LAPLEX_ISA {
namespace {

// M > 0. With S = T (S + d z z^T) T^T from the point before: c = q - S p, d = diag + p^T c, z = c / d. The two
// subtractions lose what every Cholesky factorisation loses: eps times the diagonal of A.
template <int R, int M>
void factor_general(const Factor& f, int64_t kernel) {
    const Points<R, M> at(f.decay, f.mass, kernel, f.n);
    double after[R][R] = {};  // S + d z z^T of the point before
    for (int64_t i = 0; i < f.n; ++i) {
        const int64_t k = kernel * f.n + i;
        const double* p = f.p + k * R;
        const double* q = f.q + k * R;
        const Step<R, M> step = at.step(i);
        for (int u = 0; u < R; ++u) step.forward(after[u]);  // rows, then columns: T (T S)^T
        transpose<R>(after);
        for (int u = 0; u < R; ++u) step.forward(after[u]);
        symmetrise<R>(after);  // or rounding errors grow in what should be 0
        if (f.states) std::memcpy(f.states + k * R * R, after, sizeof after);
        double c[R], d = f.diag[k];
        for (int u = 0; u < R; ++u) c[u] = q[u] - dot<R>(after[u], p);
        d += dot<R>(p, c);
        for (int u = 0; u < R; ++u) f.z[k * R + u] = c[u] / d;
        for (int u = 0; u < R; ++u)
            for (int v = 0; v < R; ++v) after[u][v] += c[u] * c[v] / d;
        f.d[k] = d;
    }
}

// M = 0 and q = p of length 1: the state is P = I - S, and nothing is ever subtracted. kappa = 1 - rho^2.
//     P = rho^2 P+ + kappa I,   c = P p,   d = diag + p^T c,   P+ = P - c c^T / d
void factor_real(const Factor& f, int64_t kernel) {
    const int64_t begin = kernel * f.n;
    double after = 0.0;
    for (int64_t k = begin; k < begin + f.n; ++k) {
        const double drop = f.decay[k], kappa = -drop * (2.0 + drop), p = f.p[k];
        const double variance = (1.0 - kappa) * after + kappa;
        const double d = variance + f.diag[k];
        after = variance * f.diag[k] / d;
        if (f.states) f.states[k] = variance;
        f.d[k] = d;
        f.z[k] = p * variance / d;
    }
}

// The same for p = (cos, sin), in the basis of p and its normal: P = [[along, across], [across, beside]]. Where diag is
// small P+ is nearly singular, so its determinant is carried along: det P+ = det P diag / d, beside+ = det P+ / along+.
void factor_phased(const Factor& f, int64_t kernel) {
    double xx = 0.0, xy = 0.0, yy = 0.0, det = 0.0;  // of P+
    for (int64_t i = 0; i < f.n; ++i) {
        const int64_t k = kernel * f.n + i;
        const double drop = f.decay[k], kappa = -drop * (2.0 + drop), decay = 1.0 - kappa;  // rho^2
        const double cosine = f.p[2 * k], sine = f.p[2 * k + 1], diag = f.diag[k];
        const double cc = cosine * cosine, ss = sine * sine, cs = cosine * sine;
        const double along = decay * larger(cc * xx + 2.0 * cs * xy + ss * yy, 0.0) + kappa;
        const double beside = decay * larger(ss * xx - 2.0 * cs * xy + cc * yy, 0.0) + kappa;
        const double across = decay * ((cc - ss) * xy + cs * (yy - xx));
        det = decay * decay * det + kappa * decay * (xx + yy) + kappa * kappa;
        if (f.states) {
            double* state = f.states + 4 * k;
            state[0] = decay * xx + kappa, state[3] = decay * yy + kappa;
            state[1] = state[2] = decay * xy;
        }
        const double d = along + diag, kept = diag / d;
        f.d[k] = d;
        f.z[2 * k] = (cosine * along - sine * across) / d;
        f.z[2 * k + 1] = (sine * along + cosine * across) / d;
        const double along_after = along * kept, across_after = across * kept, beside_after = (det + beside * diag) / d;
        det *= kept;
        xx = cc * along_after - 2.0 * cs * across_after + ss * beside_after;
        yy = ss * along_after + 2.0 * cs * across_after + cc * beside_after;
        xy = cs * (along_after - beside_after) + (cc - ss) * across_after;
    }
}

constexpr int64_t AHEAD = 24;  // points between a prefetch and its use

// Columns [first, first + count), count <= C, of x (n, m), from the first point to the last, or back with p and z swapped.
// With f the state and T = rho N the step into a point that reads with r and writes with w:
//     y = x + r^T T f,    f <- T f + w x                 L x
//     y = x - r^T T f,    f <- T f + w y                 L^-1 x
// Where M = 0 the last is (I - w r^T) T f + w x, whose matrix does not wait for the state: the chain of dependent steps is
// as short as it can be, and I - w r^T is as good as exact.
template <int R, int M, int C, bool BACK>
void sweep_columns(const Sweep& s, int64_t kernel, int64_t first, int count) {
    const Points<R, M> at(s.decay, s.mass, kernel, s.n);
    const double sign = s.inverse ? -1.0 : 1.0, feedback = s.inverse && M == 0 ? 1.0 : 0.0;
    const bool writes_result = s.inverse && M > 0;
    const Step<R, M> NONE{M == 0 ? -1.0 : 0.0, {}};
    double state[C][R] = {};
    for (int64_t index = 0; index < s.n; ++index) {
        const int64_t i = BACK ? s.n - 1 - index : index, k = kernel * s.n + i;
        const double* r = (BACK ? s.z : s.p) + k * R;
        const double* w = (BACK ? s.p : s.z) + k * R;
        // Backwards the step is that into the point after, which is none for the last.
        const Step<R, M> step = !BACK ? at.step(i) : i + 1 < s.n ? at.step(i + 1) : NONE;
        double reads[R], moves[R][R];  // r^T N, and the matrix before f
        for (int u = 0; u < R; ++u) {
            reads[u] = r[u];
            for (int v = 0; v < R; ++v) moves[u][v] = (u == v) - feedback * w[u] * r[v];
            step.template row<BACK>(moves[u]);
            for (int v = 0; v < R; ++v) moves[u][v] *= step.rho();
        }
        step.template row<BACK>(reads);
        const int64_t named = kernel * s.n + (s.order ? s.order[k] : i);
        if (s.order && index + AHEAD < s.n) {  // rows in any order are not foreseen by the processor
            const int64_t later = kernel * s.n + s.order[BACK ? k - AHEAD : k + AHEAD];
            BACK ? prefetch_to_write(s.y + later * s.m + first) : prefetch(s.x + later * s.m + first);
        }
        const double* x = s.x + (BACK ? k : named) * s.m + first;
        double* y = s.y + (BACK ? named : k) * s.m + first;
        const double scale = s.divisor ? 1.0 / s.divisor[k] : 1.0;
        for (int c = 0; c < count; ++c) {
            const double given = x[c] * scale, read = dot<R>(reads, state[c]);
            y[c] = M == 0 && step.decay > -0.5
                       ? (given + sign * read) + sign * step.decay * read  // near neighbours cancel first, exactly
                       : given + sign * step.rho() * read;
            const double written = writes_result ? y[c] : given;
            double moved[R];
            for (int u = 0; u < R; ++u) moved[u] = dot<R>(moves[u], state[c]) + w[u] * written;
            for (int u = 0; u < R; ++u) state[c][u] = moved[u];
        }
    }
}

constexpr int COLUMNS = 8;  // at once, so that their chains of dependent steps overlap

template <int R, int M>
void sweep_block(const Sweep& s, int64_t kernel, int64_t block) {
    const int64_t first = block * COLUMNS, count = smaller<int64_t>(COLUMNS, s.m - first);
    if (count == 1 && s.transposed) sweep_columns<R, M, 1, true>(s, kernel, first, 1);
    if (count == 1 && !s.transposed) sweep_columns<R, M, 1, false>(s, kernel, first, 1);
    if (count > 1 && s.transposed) sweep_columns<R, M, COLUMNS, true>(s, kernel, first, int(count));
    if (count > 1 && !s.transposed) sweep_columns<R, M, COLUMNS, false>(s, kernel, first, int(count));
}

}  // namespace

void factor(const Factor& f) {
    for_all(team(f.threads, f.h * f.n), f.h, [&](int64_t kernel, int) {
        if (f.r == 1) factor_real(f, kernel);
        if (f.r == 2 && f.block == 0) factor_phased(f, kernel);
        if (f.r == 2 && f.block == 1) factor_general<2, 1>(f, kernel);
        if (f.r == 4) factor_general<4, 2>(f, kernel);
        return true;
    });
}

void sweep(const Sweep& s) {
    const int64_t blocks = (s.m + COLUMNS - 1) / COLUMNS;
    for_all(team(s.threads, s.h * s.n * s.m), s.h * blocks, [&](int64_t i, int) {
        const int64_t kernel = i / blocks, block = i % blocks;
        if (s.r == 1) sweep_block<1, 0>(s, kernel, block);
        if (s.r == 2 && s.block == 0) sweep_block<2, 0>(s, kernel, block);
        if (s.r == 2 && s.block == 1) sweep_block<2, 1>(s, kernel, block);
        if (s.r == 4) sweep_block<4, 2>(s, kernel, block);
        return true;
    });
}

}  // namespace laplex::LAPLEX_ISA
