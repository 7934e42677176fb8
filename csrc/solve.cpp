// The factor A = L diag(d) L^T of a quasiseparable matrix, and products and solves with L. quasiseparable.h defines A
// and L and names the references. All arrays are float64.
//
// The recursion of the factor. Let S_i (r, r) be the sum over j < i of d_j (T_i ... T_{j+1} z_j)(T_i ... T_{j+1}
// z_j)^T. Comparing the entries A_ii and A_ki, k > i, of A = L diag(d) L^T gives
//
//     S_i = T_i (S_{i-1} + d_{i-1} z_{i-1} z_{i-1}^T) T_i^T        S_0 = 0
//     c_i = q_i - S_i p_i        d_i = diag_i + p_i^T c_i          z_i = c_i / d_i
#include "parallel.h"
#include "quasiseparable.h"

namespace laplex::LAPLEX_ISA {
namespace {

// --- The factor -----------------------------------------------------------------------------------------------------

// B > 0: the recursion as it stands. Its two subtractions lose what every Cholesky factorisation loses: machine epsilon
// times the diagonal of A.
template <int R, int B>
void factor_gram(const Factor& f, int64_t batch) {
    const Steps<R, B> steps(f.decay, f.mass, batch, f.n);
    double state[R][R] = {};  // S, and after a point S + d z z^T
    for (int64_t i = 0; i < f.n; ++i) {
        const int64_t k = batch * f.n + i;
        const double* p = f.p + k * R;
        const double* q = f.q + k * R;
        const Step<R, B> step = steps[i];
        for (int u = 0; u < R; ++u) step.forward(state[u]);  // T applied to the rows, then to the columns
        transpose<R>(state);
        for (int u = 0; u < R; ++u) step.forward(state[u]);
        symmetrise<R>(state);  // otherwise rounding errors grow in the antisymmetric part, which should be 0
        if (f.states) std::memcpy(f.states + k * R * R, state, sizeof state);
        double c[R], d = f.diag[k];
        for (int u = 0; u < R; ++u) c[u] = q[u] - dot<R>(state[u], p);
        d += dot<R>(p, c);
        for (int u = 0; u < R; ++u) f.z[k * R + u] = c[u] / d;
        for (int u = 0; u < R; ++u)
            for (int v = 0; v < R; ++v) state[u][v] += c[u] * c[v] / d;
        f.d[k] = d;
    }
}

// B = 0, where q = p has length 1. The state is P = I - S, and no step subtracts. With kappa = 1 - rho^2, and P' for P
// after the point before,
//     P = rho^2 P' + kappa I        c = P p        d = diag + p^T c        P' <- P - c c^T / d
// For r = 1 the last is P diag / d.
void factor_real(const Factor& f, int64_t batch) {
    const int64_t begin = batch * f.n;
    double after = 0.0;  // P'
    for (int64_t k = begin; k < begin + f.n; ++k) {
        const double drop = f.decay[k], kappa = -drop * (2.0 + drop), p = f.p[k];  // drop = rho - 1
        const double before = (1.0 - kappa) * after + kappa;                       // P
        const double d = before + f.diag[k];
        after = before * f.diag[k] / d;
        if (f.states) f.states[k] = before;
        f.d[k] = d;
        f.z[k] = p * before / d;
    }
}

// The same for r = 2, p = (cos phi, sin phi). In the basis of p and its normal, P = [[along, across], [across,
// normal]]. For a small diag, P' is nearly singular, so its determinant is carried along and nothing cancels:
//     along' = along diag / d    across' = across diag / d    normal' = (det P + normal diag) / d
//     det P' = det P diag / d
void factor_phased(const Factor& f, int64_t batch) {
    double xx = 0.0, xy = 0.0, yy = 0.0, det = 0.0;  // the entries of P' and its determinant
    for (int64_t i = 0; i < f.n; ++i) {
        const int64_t k = batch * f.n + i;
        const double drop = f.decay[k], kappa = -drop * (2.0 + drop), rho2 = 1.0 - kappa;  // drop = rho - 1
        const double cosine = f.p[2 * k], sine = f.p[2 * k + 1], diag = f.diag[k];
        const double cc = cosine * cosine, ss = sine * sine, cs = cosine * sine;
        const double along = rho2 * larger(cc * xx + 2.0 * cs * xy + ss * yy, 0.0) + kappa;
        const double normal = rho2 * larger(ss * xx - 2.0 * cs * xy + cc * yy, 0.0) + kappa;
        const double across = rho2 * ((cc - ss) * xy + cs * (yy - xx));
        det = rho2 * rho2 * det + kappa * rho2 * (xx + yy) + kappa * kappa;
        if (f.states) {
            double* state = f.states + 4 * k;
            state[0] = rho2 * xx + kappa, state[3] = rho2 * yy + kappa;
            state[1] = state[2] = rho2 * xy;
        }
        const double d = along + diag, ratio = diag / d;
        f.d[k] = d;
        f.z[2 * k] = (cosine * along - sine * across) / d;
        f.z[2 * k + 1] = (sine * along + cosine * across) / d;
        const double along_after = along * ratio, across_after = across * ratio;
        const double normal_after = (det + normal * diag) / d;
        det *= ratio;
        xx = cc * along_after - 2.0 * cs * across_after + ss * normal_after;
        yy = ss * along_after + 2.0 * cs * across_after + cc * normal_after;
        xy = cs * (along_after - normal_after) + (cc - ss) * across_after;
    }
}

// --- Products and solves with L -------------------------------------------------------------------------------------

// A sweep carries a state f (r,) per column of x. At a point that reads with the row r^T and writes the column w,
//     y = x + r^T T f,    f <- T f + w x        for L x
//     y = x - r^T T f,    f <- T f + w y        for L^-1 x
// L has r = p and w = z. L^T has r = z and w = p, runs from the last point to the first, and takes T^T of the step into
// the point after.
//
// For B = 0 the last assignment is rewritten as f <- (I - w r^T) T f + w x. Its matrix does not depend on the state, so
// the chain of dependent operations is shorter. Every entry of I - w r^T is rounded once, so no accuracy is lost.
template <int R>
struct PointMap {
    double read[R];     // r^T N
    double move[R][R];  // T, or (I - w r^T) T
};

template <int R, int B, bool BACK>
inline PointMap<R> point_map(const Step<R, B>& step, const double* r, const double* w, double feedback) {
    PointMap<R> map;
    for (int u = 0; u < R; ++u) {
        map.read[u] = r[u];
        for (int v = 0; v < R; ++v) map.move[u][v] = (u == v) - feedback * w[u] * r[v];
        step.template shear_row<BACK>(map.move[u]);
        for (int v = 0; v < R; ++v) map.move[u][v] *= step.rho();
    }
    step.template shear_row<BACK>(map.read);
    return map;
}

// The processor cannot predict rows in the caller's order. Prefetch the row of x, or of y if BACK, that is needed
// PREFETCH_DISTANCE points later.
template <bool BACK>
inline void prefetch_row(const Sweep& s, int64_t batch, int64_t index, int64_t k, int64_t first) {
    constexpr int64_t PREFETCH_DISTANCE = 24;
    if (!s.order || index + PREFETCH_DISTANCE >= s.n) return;
#ifdef __GNUC__
    const int64_t later = batch * s.n + s.order[BACK ? k - PREFETCH_DISTANCE : k + PREFETCH_DISTANCE];
    __builtin_prefetch((BACK ? s.y : s.x) + later * s.m + first, BACK);
#else
    (void)batch, (void)k, (void)first;
#endif
}

// The columns [first, first + count), count <= C, of x (n, m).
template <int R, int B, int C, bool BACK>
void sweep_columns(const Sweep& s, int64_t batch, int64_t first, int count) {
    const Steps<R, B> steps(s.decay, s.mass, batch, s.n);
    const double sign = s.inverse ? -1.0 : 1.0, feedback = s.inverse && B == 0 ? 1.0 : 0.0;
    const bool writes_result = s.inverse && B > 0;
    const Step<R, B> no_step{B == 0 ? -1.0 : 0.0, {}};  // rho = 0
    double state[C][R] = {};
    for (int64_t index = 0; index < s.n; ++index) {
        const int64_t i = BACK ? s.n - 1 - index : index, k = batch * s.n + i;
        const double* w = (BACK ? s.p : s.z) + k * R;
        const Step<R, B> step = !BACK ? steps[i] : i + 1 < s.n ? steps[i + 1] : no_step;
        const PointMap<R> map = point_map<R, B, BACK>(step, (BACK ? s.z : s.p) + k * R, w, feedback);
        const int64_t caller = batch * s.n + (s.order ? s.order[k] : i);
        prefetch_row<BACK>(s, batch, index, k, first);
        const double* x = s.x + (BACK ? k : caller) * s.m + first;
        double* y = s.y + (BACK ? caller : k) * s.m + first;
        const double scale = s.divisor ? 1.0 / s.divisor[k] : 1.0;
        for (int c = 0; c < count; ++c) {
            const double given = x[c] * scale, read = dot<R>(map.read, state[c]);
            y[c] = B == 0 && step.decay > -0.5
                       ? (given + sign * read) + sign * step.decay * read  // close neighbours cancel exactly, first
                       : given + sign * step.rho() * read;
            const double written = writes_result ? y[c] : given;
            double moved[R];
            for (int u = 0; u < R; ++u) moved[u] = dot<R>(map.move[u], state[c]) + w[u] * written;
            for (int u = 0; u < R; ++u) state[c][u] = moved[u];
        }
    }
}

constexpr int COLUMNS = 8;  // columns that are swept together, so that their chains of dependent operations overlap

template <int R, int B>
void sweep_block(const Sweep& s, int64_t batch, int64_t block) {
    const int64_t first = block * COLUMNS, count = smaller<int64_t>(COLUMNS, s.m - first);
    if (count == 1 && s.transposed) sweep_columns<R, B, 1, true>(s, batch, first, 1);
    if (count == 1 && !s.transposed) sweep_columns<R, B, 1, false>(s, batch, first, 1);
    if (count > 1 && s.transposed) sweep_columns<R, B, COLUMNS, true>(s, batch, first, int(count));
    if (count > 1 && !s.transposed) sweep_columns<R, B, COLUMNS, false>(s, batch, first, int(count));
}

}  // namespace

void factor(const Factor& f) {
    parallel_for(useful_threads(f.threads, f.h * f.n), f.h, [&](int64_t batch, int) {
        if (f.r == 1) factor_real(f, batch);
        if (f.r == 2 && f.block == 0) factor_phased(f, batch);
        if (f.r == 2 && f.block == 1) factor_gram<2, 1>(f, batch);
        if (f.r == 4) factor_gram<4, 2>(f, batch);
        return true;
    });
}

void sweep(const Sweep& s) {
    const int64_t blocks = block_count(s.m, COLUMNS);
    parallel_for(useful_threads(s.threads, s.h * s.n * s.m), s.h * blocks, [&](int64_t i, int) {
        const int64_t batch = i / blocks, block = i % blocks;
        if (s.r == 1) sweep_block<1, 0>(s, batch, block);
        if (s.r == 2 && s.block == 0) sweep_block<2, 0>(s, batch, block);
        if (s.r == 2 && s.block == 1) sweep_block<2, 1>(s, batch, block);
        if (s.r == 4) sweep_block<4, 2>(s, batch, block);
        return true;
    });
}

}  // namespace laplex::LAPLEX_ISA
