// The recursions of a Gaussian process whose covariance is a chain of states (src/laplex/_states/__init__.py), for any
// transitions T, readouts p and covariances q. states.cpp is faster, but knows a few transitions only.
#include "parallel.h"

namespace laplex::LAPLEX_ISA {
namespace {

// The number of states: S of them, or counted at run time if S is 0.
template <int S> struct Size {
    static constexpr int MAX = S;
    explicit Size(int) {}
    int operator()() const { return S; }
};
template <> struct Size<0> {
    static constexpr int MAX = MAX_CHAIN;
    int count;
    explicit Size(int given) : count(given) {}
    int operator()() const { return count; }
};

template <class F>
void with_size(int size, const F& f) {
    switch (size) {
        case 1: return f(Size<1>(size));
        case 2: return f(Size<2>(size));
        case 3: return f(Size<3>(size));
        case 4: return f(Size<4>(size));
        case 5: return f(Size<5>(size));
        case 6: return f(Size<6>(size));
        default: return f(Size<0>(size));
    }
}

// x <- T x, or T^T x if BACK; T is (s, s), row by row.
template <bool BACK, class N>
inline void apply(const N& s, const double* t, double (&x)[N::MAX]) {
    double y[N::MAX];
    for (int u = 0; u < s(); ++u) {
        y[u] = 0.0;
        for (int v = 0; v < s(); ++v) y[u] += (BACK ? t[v * s() + u] : t[u * s() + v]) * x[v];
    }
    for (int u = 0; u < s(); ++u) x[u] = y[u];
}

// X <- T X T^T, or T^T X T if BACK, of a symmetric X. The entries above the diagonal are copied from below: otherwise
// rounding errors would grow in the antisymmetric part.
template <bool BACK, class N>
inline void enclose(const N& s, const double* t, double (&x)[N::MAX][N::MAX]) {
    for (int u = 0; u < s(); ++u) apply<BACK>(s, t, x[u]);
    for (int v = 0; v < s(); ++v) {
        double column[N::MAX];
        for (int u = 0; u < s(); ++u) column[u] = x[u][v];
        apply<BACK>(s, t, column);
        for (int u = v; u < s(); ++u) x[u][v] = column[u];
    }
    for (int u = 0; u < s(); ++u)
        for (int v = u + 1; v < s(); ++v) x[u][v] = x[v][u];
}

// f_n = T_n f_{n-1} + u_n, or from the last point to the first f_n = T_{n+1}^T f_{n+1} + u_n, for one column.
template <bool BACK, class N>
void scan_column(const ChainScan& c, const N& s, int64_t series, int64_t column) {
    double f[N::MAX] = {};
    for (int64_t i = 0; i < c.n; ++i) {
        const int64_t k = series * c.n + (BACK ? c.n - 1 - i : i);
        if (i > 0) apply<BACK>(s, c.steps + (BACK ? k + 1 : k) * s() * s(), f);
        for (int u = 0; u < s(); ++u) {
            const int64_t at = (k * s() + u) * c.m + column;
            f[u] += c.source[at];
            c.result[at] = f[u];
        }
    }
}

// Z_n = T_n Z_{n-1} T_n^T + X_n, or from the last point to the first Z_n = T_{n+1}^T Z_{n+1} T_{n+1} + X_n.
template <bool BACK, class N>
void scan_matrices(const ChainMatrices& c, const N& s, int64_t series) {
    double z[N::MAX][N::MAX] = {};
    for (int64_t i = 0; i < c.n; ++i) {
        const int64_t k = series * c.n + (BACK ? c.n - 1 - i : i), size = s() * s();
        if (i > 0) enclose<BACK>(s, c.steps + (BACK ? k + 1 : k) * size, z);
        for (int u = 0; u < s(); ++u)
            for (int v = 0; v < s(); ++v) {
                z[u][v] += c.source[k * size + u * s() + v];
                c.result[k * size + u * s() + v] = z[u][v];
            }
    }
}

// The state S before every point. An infinite diag marks a point at which nothing is observed: it adds nothing.
template <class N>
int64_t factor_series(const ChainFactor& c, const N& s, int64_t series) {
    double state[N::MAX][N::MAX] = {};
    for (int64_t n = 0; n < c.n; ++n) {
        const int64_t k = series * c.n + n;
        const double *p = c.p + k * s(), *q = c.q + k * s();
        double *out = c.states + k * s() * s(), gain[N::MAX], d = c.diag[k];
        if (n > 0) enclose<false>(s, c.steps + k * s() * s(), state);
        for (int u = 0; u < s(); ++u) {
            gain[u] = q[u];
            for (int v = 0; v < s(); ++v) out[u * s() + v] = state[u][v], gain[u] -= state[u][v] * p[v];
            d += p[u] * gain[u];
        }
        if (!(d > 0.0)) return n;
        const double over_d = 1.0 / d;
        for (int u = 0; u < s(); ++u)
            for (int v = 0; v < s(); ++v) state[u][v] += gain[u] * gain[v] * over_d;
    }
    return -1;
}

}  // namespace

void chain_scan(const ChainScan& c) {
    parallel_for(useful_threads(c.threads, c.h * c.n * c.m), c.h * c.m, [&](int64_t i, int) {
        with_size(c.size, [&](const auto& s) {
            if (c.reverse) scan_column<true>(c, s, i / c.m, i % c.m);
            else scan_column<false>(c, s, i / c.m, i % c.m);
        });
        return true;
    });
}

void chain_matrices(const ChainMatrices& c) {
    parallel_for(useful_threads(c.threads, c.h * c.n), c.h, [&](int64_t series, int) {
        with_size(c.size, [&](const auto& s) {
            if (c.reverse) scan_matrices<true>(c, s, series);
            else scan_matrices<false>(c, s, series);
        });
        return true;
    });
}

void chain_factor(const ChainFactor& c) {
    parallel_for(useful_threads(c.threads, c.h * c.n), c.h, [&](int64_t series, int) {
        with_size(c.size, [&](const auto& s) { c.failed[series] = factor_series(c, s, series); });
        return true;
    });
}

}  // namespace laplex::LAPLEX_ISA
