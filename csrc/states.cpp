// The likelihood of a Gaussian process with a state-space kernel. states.h has the step of the filter.
#include "states.h"

#include "parallel.h"

namespace laplex::LAPLEX_ISA {
namespace {

// --- Any number of states --------------------------------------------------------------------------------------------

// What the pullback starts from: S and f before every CHUNK-th point.
template <class L>
void keep(const Filter<L>& filter, const L& layout, double* kept) {
    layout.states([&](int u) {
        *kept++ = filter.f[u];
        layout.states([&](int v) { *kept++ = filter.s[u][v]; });
    });
}

template <class L>
void likelihood_series(const StateLikelihood& s, const Model<L>& model, int64_t series) {
    const Points points(s.kernel, series);
    double* kept = s.kept ? s.kept + series * state_kept_size(s.kernel) : nullptr;
    Transitions<L> transitions;
    Filter<L> filter;
    LogSum logs;
    double quad = 0.0, loss = 0.0;
    s.failed[series] = -1;
    for (int64_t base = 0; base < points.count; base += CHUNK) {
        const int count = int(smaller<int64_t>(CHUNK, points.count - base));
        transitions.fill(model, s.kernel.gaps + points.begin + base, count);
        for (int j = 0; j < count; ++j) {
            const int64_t k = points.place(base + j);
            filter.advance({model, transitions, j});  // of nothing, at the first point
            if (j == 0 && kept) keep(filter, model.layout, kept), kept += s.kernel.size * (s.kernel.size + 1);
            const double d = filter.measure(model, s.diag[k], s.y[k]);
            if (!is_pivot(d)) {
                s.failed[series] = base + j;
                return;
            }
            quad += filter.z * filter.z * filter.over_d;
            loss += filter.over_d;
            logs.add(d);
        }
        logs.normalise();
    }
    double variance = 0.0;  // k(0)
    model.layout.blocks([&](auto, int first, int) { variance += model.g[first]; });
    s.quad[series] = quad, s.logdet[series] = logs.value(), s.loss[series] = loss * variance;
}

// --- One state -------------------------------------------------------------------------------------------------------

// In place of S, P = g - S is carried, the variance of the state before the point. With Q the variance after it, no
// step subtracts:
//     P = rho^2 Q + g kappa        d = P + diag        w = P / d        Q = P diag / d
// Only the division and one multiplication are a chain over the points. The pullback needs P and z of all points.
void single_likelihood(const StateLikelihood& s, int64_t series) {
    const Points points(s.kernel, series);
    const double g = s.kernel.g[series];
    double* kept = s.kept ? s.kept + 2 * points.begin : nullptr;
    double rho[CHUNK], kappa[CHUNK], variance[CHUNK], residual[CHUNK];
    double after = 0.0, f = 0.0, quad = 0.0;  // Q, and f after the point before
    LogSum logs;
    s.failed[series] = -1;
    for (int64_t base = 0; base < points.count; base += CHUNK) {
        const int count = int(smaller<int64_t>(CHUNK, points.count - base));
        single_steps(s.kernel.rates[series], s.kernel.gaps + points.begin + base, count, base == 0, rho, kappa);
        for (int j = 0; j < count; ++j) {
            const int64_t k = points.place(base + j);
            const double p = rho[j] * rho[j] * after + g * kappa[j], d = p + s.diag[k];
            if (!is_pivot(d)) {
                s.failed[series] = base + j;
                return;
            }
            const double over_d = 1.0 / d, before = rho[j] * f, z = s.y[k] - before;
            after = p * s.diag[k] * over_d;
            f = before + p * over_d * z;
            quad += z * z * over_d;
            logs.add(d);
            variance[j] = p, residual[j] = z;
        }
        logs.normalise();
        if (!kept) continue;
        std::memcpy(kept + base, variance, count * sizeof(double));
        std::memcpy(kept + s.kernel.n + base, residual, count * sizeof(double));
    }
    s.quad[series] = quad, s.logdet[series] = logs.value(), s.loss[series] = 0.0;
}

}  // namespace

int64_t state_kept_size(const StateKernel& kernel) {
    return kernel.size == 1 ? 2 * kernel.n : block_count(kernel.n, CHUNK) * kernel.size * (kernel.size + 1);
}

void state_likelihood(const StateLikelihood& s) {
    const Arrangement arranged(s.kernel);
    parallel_for(useful_threads(s.kernel.threads, s.kernel.h * s.kernel.n), s.kernel.h, [&](int64_t series, int) {
        if (s.kernel.size == 1) return single_likelihood(s, series), true;
        return with_layout(arranged, [&](auto layout) {
            likelihood_series(s, Model<decltype(layout)>(layout, s.kernel, arranged, series), series);
            return true;
        });
    });
}

}  // namespace laplex::LAPLEX_ISA
