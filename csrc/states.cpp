// The likelihood of a Gaussian process with a state-space kernel. states.h has the step of the filter.
#include "states.h"

#include "parallel.h"

namespace laplex::LAPLEX_ISA {
namespace {

// What the pullback starts from: S and f before the first point of every chunk.
template <class L>
void write_checkpoint(const Filter<L>& filter, const L& layout, double* to) {
    layout.states([&](int u) {
        *to++ = filter.f[u];
        layout.states([&](int v) { *to++ = filter.s[u][v]; });
    });
}

template <class L>
void likelihood_series(const StateLikelihood& s, const Model<L>& model, int64_t series) {
    const Points points(s.problem, series);
    double* checkpoint = s.checkpoints ? s.checkpoints + series * state_checkpoint_size(s.problem) : nullptr;
    Transitions<L> transitions;
    Filter<L> filter;
    LogSum logs;
    double quad = 0.0, loss = 0.0;
    s.failed[series] = -1;
    for (int64_t base = 0; base < points.count; base += POINTS_PER_CHUNK) {
        const int count = int(smaller<int64_t>(POINTS_PER_CHUNK, points.count - base));
        transitions.fill(model, points, base, count);
        for (int j = 0; j < count; ++j) {
            const int64_t k = points.place(base + j);
            filter.advance({model, transitions, j});  // of nothing, at the first point
            if (j == 0 && checkpoint) {
                write_checkpoint(filter, model.layout, checkpoint);
                checkpoint += s.problem.size * (s.problem.size + 1);
            }
            const double d = filter.measure(model, points.diag[k * points.diag_column], points.y[k]);
            if (!is_pivot(d)) {
                s.failed[series] = base + j, s.value[series] = NAN, s.loss[series] = 0.0;
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
    s.value[series] = log_density(quad, logs.value(), points.count), s.loss[series] = loss * variance;
}

}  // namespace

int64_t state_checkpoint_size(const StateProblem& problem) {
    if (problem.size == 1) return single_checkpoint_size(problem.n);
    return block_count(problem.n, POINTS_PER_CHUNK) * problem.size * (problem.size + 1);
}

Status state_likelihood(const StateLikelihood& s) {
    if (s.problem.size == 1) return single_likelihood(s);
    const Arrangement arranged(s.problem);
    parallel_for(useful_threads(s.problem.threads, s.problem.h * s.problem.n), s.problem.h, [&](int64_t series, int) {
        if (!is_valid(s.problem, series)) {
            s.value[series] = NAN, s.loss[series] = 0.0, s.failed[series] = -1;
            return true;
        }
        return with_layout(arranged, [&](auto layout) {
            likelihood_series(s, Model<decltype(layout)>(layout, s.problem, arranged, series), series);
            return true;
        });
    });
    return OK;
}

}  // namespace laplex::LAPLEX_ISA
