// Reverse-mode derivatives of the likelihood (states.cpp). `name_bar` is the gradient of `name`.
//
// A point computes, with h the indicator of the first states of the blocks,
//
//     c = g - S h        d = diag + h^T c        w = c / d        z = y - h^T f
//     S' = S + c c^T / d        f' = f + c z / d        quad += z^2 / d        logdet += log d
//
// and a step S = Phi S' Phi^T, f = Phi f'. Let sigma and phi be the gradients of S' and f'. For a point,
//
//     z_bar = 2 quad_bar z / d + phi^T w                              y_bar = z_bar        f_bar = phi - h z_bar
//     d_bar = (logdet_bar - quad_bar z^2 / d - (phi^T w) z) / d - w^T sigma w              diag_bar = d_bar
//     c_bar = 2 sigma w + phi z / d + h d_bar                         g_bar += c_bar
//     S_bar = sigma - (c_bar h^T + h c_bar^T) / 2
//
// For a step, sigma = Phi^T S_bar Phi and phi = Phi^T f_bar, and with Phi_bar = 2 S_bar Phi S' + f_bar f'^T the gradient
// of Phi, a change dPhi = X Phi adds <M, X> with
//
//     M = Phi_bar Phi^T = 2 S_bar S + f_bar f^T
//
// Only the entries of M or of Phi_bar in the blocks are needed. For kinds 1 and 3, dPhi/da = -D Phi and dPhi/dD = (N -
// a) Phi, where N has ones above its diagonal. For kind 2 with b < 0 the X of b grows as D does, so Phi_bar is used:
// with e^(-aD) in C, S and T = dS/db,
//
//     C_bar = Phi_bar_00 + Phi_bar_11        S_bar = Phi_bar_01 - b Phi_bar_10
//     a_bar = -D (C C_bar + S S_bar)         b_bar = -D S C_bar / 2 + T S_bar - S Phi_bar_10
//     D_bar = -(a C + b S) C_bar + (C - a S) S_bar
//
// S and f of all points would take much memory. They are stored at the first point of every chunk, and the other points
// of a chunk are computed again.
#include "parallel.h"
#include "scratch.h"
#include "states.h"

namespace laplex::LAPLEX_ISA {
namespace {

template <class L> struct Pull {
    const StatePullback& s;
    const Model<L>& model;
    const int64_t series;
    const Points order;
    double later_bar = 0.0;      // of the gap after the next point
    Transitions<L> transitions;  // of a chunk, and of the step into the point after it
    Buffer<Filter<L>> points;    // the same
    double state_bar[L::SIZE][L::SIZE] = {}, f_bar[L::SIZE] = {};  // of S and f, or sigma and phi
    double rate_bar[L::BLOCKS] = {}, square_bar[L::BLOCKS] = {}, g_bar[L::SIZE] = {};

    Pull(const StatePullback& given, const Model<L>& of_series, int64_t index)
        : s(given), model(of_series), series(index), order(given.problem, index), points(POINTS_PER_CHUNK + 1) {}

    // What belongs to the first point of the chunk after this one, which was the last to be filled.
    void move_first(int to) {
        points[to] = points[0];
        transitions.gap[to] = transitions.gap[0];
        model.layout.blocks([&](auto, int, int block) {
            for (double(&part)[POINTS_PER_CHUNK + 1] : transitions.part[block]) part[to] = part[0];
        });
    }
    void start(const double* checkpoint) {
        Filter<L>& filter = points[0];
        model.layout.states([&](int u) {
            filter.f[u] = *checkpoint++;
            model.layout.states([&](int v) { filter.s[u][v] = *checkpoint++; });
        });
    }
    void filter_again(int64_t base, int count) {
        const int size = s.problem.size;
        move_first(count);
        transitions.fill(model, order, base, count);
        start(s.checkpoints + series * state_checkpoint_size(s.problem) + base / POINTS_PER_CHUNK * size * (size + 1));
        Filter<L> filter = points[0];
        for (int j = 0; j < count; ++j) {
            if (j > 0) filter.advance({model, transitions, j});
            const int64_t k = order.place(base + j);
            filter.measure(model, order.diag[k * order.diag_column], order.y[k]);
            points[j] = filter;
        }
    }
    // M of a row and a column; `after` is the point after the step.
    LAPLEX_INLINE double moment(const Filter<L>& after, int row, int column) const {
        double sum = 0.0;
        model.layout.states(LAPLEX_EACH { sum += state_bar[row][u] * after.s[column][u]; });
        return 2.0 * sum + f_bar[row] * after.f[column];
    }
    // Phi_bar of a block of two states; `before` is the point before the step.
    LAPLEX_INLINE void phi_bar(const Filter<L>& before, const Step<L>& step, int first, double (&bar)[2][2]) const {
        for (int v = 0; v < 2; ++v) {
            double column[L::SIZE];  // of Phi S'
            const double scaled = before.c[first + v] * before.over_d;
            model.layout.states(LAPLEX_EACH { column[u] = before.s[first + v][u] + before.c[u] * scaled; });
            step.template vector<false>(column);
            const double f = before.f[first + v] + scaled * before.z;
            for (int row = 0; row < 2; ++row) {
                double sum = 0.0;
                model.layout.states(LAPLEX_EACH { sum += state_bar[first + row][u] * column[u]; });
                bar[row][v] = 2.0 * sum + f_bar[first + row] * f;
            }
        }
    }
    // The gradients of the rates and squares. Returns the gradient of the gap.
    LAPLEX_INLINE double step_bars(const Filter<L>& before, const Filter<L>& after, const Step<L>& step) {
        double gap_bar = 0.0;
        const double gap = transitions.gap[step.j];
        model.layout.blocks(LAPLEX_BLOCK {
            constexpr int K = decltype(kind)::value;
            const double a = model.rate[block], b = model.square[block];
            if constexpr (K == 2) {
                double bar[2][2];
                phi_bar(before, step, first, bar);
                const auto& part = transitions.part[block];
                const double c = part[0][step.j], s = part[1][step.j], slope = part[2][step.j];
                const double c_bar = bar[0][0] + bar[1][1], s_bar = bar[0][1] - b * bar[1][0];
                rate_bar[block] -= gap * (c * c_bar + s * s_bar);
                square_bar[block] += slope * s_bar - s * (0.5 * gap * c_bar + bar[1][0]);
                gap_bar += (c - a * s) * s_bar - (a * c + b * s) * c_bar;
            } else {
                double trace = 0.0;
                for (int i = 0; i < K; ++i) trace += moment(after, first + i, first + i);
                for (int i = 0; i + 1 < K; ++i) gap_bar += moment(after, first + i, first + i + 1);
                rate_bar[block] -= gap * trace;
                gap_bar -= a * trace;
            }
        });
        return gap_bar;
    }
    // `half` is quad_bar and logdet_bar.
    LAPLEX_INLINE void point_bars(const Filter<L>& point, double half, int64_t k) {
        const L& layout = model.layout;
        const double over_d = point.over_d, z = point.z;
        double w[L::SIZE], c_bar[L::SIZE], phi_w = 0.0, w_sigma_w = 0.0;
        layout.states(LAPLEX_EACH { w[u] = point.c[u] * over_d, c_bar[u] = 0.0, phi_w += f_bar[u] * w[u]; });
        layout.states([&](int v) LAPLEX_INLINE {
            layout.states(LAPLEX_EACH { c_bar[u] += state_bar[v][u] * w[v]; });
        });
        layout.states(LAPLEX_EACH { w_sigma_w += c_bar[u] * w[u]; });
        const double z_bar = 2.0 * half * z * over_d + phi_w;
        const double d_bar = (half - half * z * z * over_d - phi_w * z) * over_d - w_sigma_w;
        layout.states(LAPLEX_EACH { c_bar[u] = 2.0 * c_bar[u] + f_bar[u] * (z * over_d); });
        layout.blocks(LAPLEX_BLOCK { (void)kind, (void)block, c_bar[first] += d_bar, f_bar[first] -= z_bar; });
        layout.states(LAPLEX_EACH { g_bar[u] += c_bar[u]; });
        layout.blocks(LAPLEX_BLOCK {
            (void)kind, (void)block;
            const int column = first;
            layout.states(LAPLEX_EACH {
                state_bar[column][u] -= 0.5 * c_bar[u];
                state_bar[u][column] -= 0.5 * c_bar[u];
            });
        });
        if (s.diag_bar) s.diag_bar[order.begin + k] = d_bar;
        if (s.y_bar) s.y_bar[order.begin + k] = z_bar;
    }
    // A point's time ends the gap before it, and begins the one after it.
    void time_bar(int64_t point, double gap_bar) {
        if (s.times_bar) s.times_bar[order.begin + order.place(point)] = gap_bar - later_bar;
        later_bar = gap_bar;
    }
    void chunk(int64_t base, int count) {
        const double half = -0.5 * s.value_bar[series];
        filter_again(base, count);
        for (int j = count - 1; j >= 0; --j) {
            const int64_t n = base + j;
            if (n + 1 < order.count) {
                const Step<L> step{model, transitions, j + 1};
                time_bar(n + 1, step_bars(points[j], points[j + 1], step));
                step.template vector<true>(f_bar);
                step.template symmetric<true>(state_bar);
            }
            point_bars(points[j], half, order.place(n));
        }
    }
    void run(const Arrangement& arranged) {
        for (int64_t i = block_count(order.count, POINTS_PER_CHUNK) - 1; i >= 0; --i)
            chunk(i * POINTS_PER_CHUNK, int(smaller<int64_t>(POINTS_PER_CHUNK, order.count - i * POINTS_PER_CHUNK)));
        time_bar(0, 0.0);
        const int blocks = s.problem.blocks;
        double* bars = s.numbers_bar + series * (2 * blocks + s.problem.size);
        model.layout.blocks([&](auto, int, int block) {
            bars[arranged.block[block]] = rate_bar[block];
            bars[blocks + arranged.block[block]] = square_bar[block];
        });
        model.layout.states([&](int u) { bars[2 * blocks + arranged.state[u]] = g_bar[u]; });
    }
};

}  // namespace

void fill_with_nan(const StatePullback& s, int64_t series) {
    const int64_t n = s.problem.n, numbers = 2 * s.problem.blocks + s.problem.size;
    double* const bars[] = {s.times_bar, s.diag_bar, s.y_bar};
    for (double* bar : bars)
        for (int64_t k = series * n; bar && k < (series + 1) * n; ++k) bar[k] = NAN;
    for (int64_t i = 0; i < numbers; ++i) s.numbers_bar[series * numbers + i] = NAN;
}

Status state_pullback(const StatePullback& s) {
    if (s.problem.size == 1) return single_pullback(s);
    const Arrangement arranged(s.problem);
    const int threads = useful_threads(s.problem.threads, s.problem.h * s.problem.n);
    const bool done = parallel_for(threads, s.problem.h, [&](int64_t series, int) {
        if (!is_valid(s.problem, series)) return fill_with_nan(s, series), true;
        return with_layout(arranged, [&](auto layout) {
            const Model<decltype(layout)> model(layout, s.problem, arranged, series);
            Pull<decltype(layout)> pull(s, model, series);
            if (!pull.points) return false;
            pull.run(arranged);
            return true;
        });
    });
    return done ? OK : OUT_OF_MEMORY;
}

}  // namespace laplex::LAPLEX_ISA
