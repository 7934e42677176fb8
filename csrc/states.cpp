// The likelihood of a Gaussian process with a state-space kernel. states.h has the step of the filter.
#include "states.h"

#include "parallel.h"

namespace laplex::LAPLEX_ISA {
namespace {

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

}  // namespace

int64_t state_kept_size(const StateKernel& kernel) {
    const int64_t chunks = block_count(kernel.n, CHUNK);
    return chunks * (kernel.size == 1 ? 4 * CHUNK : kernel.size * (kernel.size + 1));
}

void state_likelihood(const StateLikelihood& s) {
    const Arrangement arranged(s.kernel);
    parallel_for(useful_threads(s.kernel.threads, s.kernel.h * s.kernel.n), s.kernel.h, [&](int64_t series, int) {
        if (!is_valid(s.kernel, series)) {
            s.quad[series] = s.logdet[series] = NAN, s.loss[series] = 0.0, s.failed[series] = -1;
            return true;
        }
        if (s.kernel.size == 1) return single_likelihood(s, series), true;
        return with_layout(arranged, [&](auto layout) {
            likelihood_series(s, Model<decltype(layout)>(layout, s.kernel, arranged, series), series);
            return true;
        });
    });
}

}  // namespace laplex::LAPLEX_ISA
