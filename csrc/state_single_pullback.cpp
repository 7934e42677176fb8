// Reverse-mode derivatives of the likelihood with one state (state_single.cpp). `name_bar` is the gradient of `name`.
//
// A half starts from 1 / d, P / d, f and S = g - P of all points. With phi the gradient of f+, and with Q_bar that of
// Q, a point has
//
//     z_bar = 2 quad_bar z / d + phi P / d           f_bar = phi - z_bar = phi diag / d - 2 quad_bar z / d
//     e = (logdet_bar - quad_bar z^2 / d) / d        P_bar = e + (phi z + Q_bar diag) diag / d^2
//     diag_bar = e - phi z P / d^2 + Q_bar (P / d)^2
//
// and the point before it phi = rho f_bar and Q_bar = rho^2 P_bar, which are linear, too. With u = a D,
// g_bar is the sum of P_bar kappa, and u_bar = 2 P_bar S - f_bar f.
//
// In the middle, with w = e / den, w' = e' / den and the names of state_single.cpp, the sum of what is added has the
// derivatives
//
//     f: -2 rho w      S: rho^2 (w^2 - S' / den)
//     rho: -2 (g w w' + rho S S' / den)      g: -rho / g times that of rho
//
// if quad_bar = logdet_bar = 1; those of f' and S' are alike. S = g - Q leads to Q and to g. What all three give to g
// nearly cancels, so they are added by hand:
//
//     g: rho^2 (w + w')^2 + 2 rho (1 - rho) w w' - rho^2 (Q S' + Q' S) / (g den)
//     w + w' = (f' (g (1 - rho) + rho Q) + f (g (1 - rho) + rho Q')) / den
#include "parallel.h"
#include "scratch.h"
#include "state_single.h"

namespace laplex::LAPLEX_ISA {
namespace {

// The gradients that the middle gives to both halves.
struct Middle {
    double f_bar[2] = {}, q_bar[2] = {}, gap_bar = 0.0, rate_bar = 0.0, g_bar = 0.0;

    Middle(const StatePullback& s, int64_t series) {
        const Half half = half_series(s.problem, series, true);
        if (half.count == 0) return;
        const Numbers numbers(s.problem, series);
        const EndState left = EndState::read(s.checkpoints + HalfCheckpoints(s.problem, series, false).end);
        const EndState right = EndState::read(s.checkpoints + HalfCheckpoints(s.problem, series, true).end);
        const double g = numbers.g[0], a = numbers.rates[0], gap = middle_gap(half);
        const double quad_bar = -0.5 * s.value_bar[series];  // and logdet_bar
        const Joint joint(g, a, gap, left, right);
        const double rho = joint.rho, over = 1.0 / joint.den;
        const double w_left = joint.e_left * over, w_right = joint.e_right * over;
        const double rho_bar = -2.0 * quad_bar * (g * w_left * w_right + rho * left.lost * right.lost * over);
        const double left_bar = quad_bar * rho * rho * (w_left * w_left - right.lost * over),
                     right_bar = quad_bar * rho * rho * (w_right * w_right - left.lost * over);  // of S
        f_bar[0] = -2.0 * quad_bar * rho * w_left, f_bar[1] = -2.0 * quad_bar * rho * w_right;
        q_bar[0] = -left_bar, q_bar[1] = -right_bar;
        gap_bar = -a * rho * rho_bar, rate_bar = -gap * rho * rho_bar;
        const double one_less_rho = joint.kappa / (1.0 + rho);
        const double both = right.f * (g * one_less_rho + rho * left.q) + left.f * (g * one_less_rho + rho * right.q);
        const double squares = rho * rho * (both * over) * (both * over) + 2.0 * rho * one_less_rho * w_left * w_right;
        g_bar = quad_bar * (squares - rho * rho * over * (left.q * right.lost + right.q * left.lost) / g);
    }
};

struct SinglePull {
    const double a, quad_bar, logdet_bar;
    double phi, after_bar;  // of f+ and Q after the chunk
    double later_bar;       // of the gap after the chunk
    double rate_lanes[LANES] = {}, g_lanes[LANES] = {}, rate_bar = 0.0, g_bar = 0.0;
    PerPoint gap_bar, diag_bar, y_bar;

    void pull(const Chunk& c, const double* r, const double* gain, const double* f, const double* loss) {  // r = 1 / d
        PerPoint z, rest, own, factor, added, phis, bars;
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            z[j] = c.y[j] - f[j], rest[j] = c.diag[j] * r[j], own[j] = 2.0 * quad_bar * z[j] * r[j];
            factor[j] = c.rho[j] * rest[j], added[j] = -c.rho[j] * own[j];
        }
        run_affine<true>(factor, added, phi, phis);
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            diag_bar[j] = (logdet_bar - quad_bar * z[j] * z[j] * r[j]) * r[j];  // e, so far
            added[j] = c.rho[j] * c.rho[j] * (diag_bar[j] + phis[j] * z[j] * r[j] * rest[j]);
            factor[j] *= factor[j];
        }
        neutral(c, added);
        run_affine<true>(factor, added, after_bar, bars);
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            const double pushed = phis[j] * z[j] * r[j];
            const double p_bar = diag_bar[j] + pushed * rest[j] + rest[j] * rest[j] * bars[j];
            const double u_bar = 2.0 * p_bar * loss[j] - (phis[j] * rest[j] - own[j]) * f[j];
            gap_bar[j] = a * u_bar;
            y_bar[j] = phis[j] * gain[j] + own[j];
            diag_bar[j] += bars[j] * gain[j] * gain[j] - pushed * gain[j];
            added[j] = c.gap[j] * u_bar, factor[j] = p_bar * c.kappa[j];
        }
        neutral(c, added), neutral(c, factor);
        rate_bar = total(added, rate_lanes), g_bar = total(factor, g_lanes);
    }
    // A point's time ends the gap before it, and begins the one after it; in a walk back it is the other way round.
    void write(const Chunk& c, const Half& half, int64_t base, const StatePullback& s) {
        double row[POINTS_PER_CHUNK], bars[POINTS_PER_CHUNK + 1];
        collect(gap_bar, bars);
        bars[c.count] = later_bar;
        later_bar = base > 0 ? bars[0] : 0.0;
        if (base == 0) bars[0] = 0.0;
        for (int j = 0; j < c.count; ++j) row[j] = double(half.step) * (bars[j] - bars[j + 1]);
        if (s.times_bar) half.write(row, base, c.count, s.times_bar);
        if (s.diag_bar) collect(diag_bar, row), half.write(row, base, c.count, s.diag_bar);
        if (s.y_bar) collect(y_bar, row), half.write(row, base, c.count, s.y_bar);
    }
    static void neutral(const Chunk& c, PerPoint& x) {
        for (int j = c.count; j < POINTS_PER_CHUNK; ++j) x[slot(j)] = 0.0;
    }
};

struct Sums {
    double rate_bar, g_bar;
};

// `details` has room for those of a segment.
Sums pull_half(const StatePullback& s, int64_t series, bool right, const Middle& middle, double* details) {
    const Half half = half_series(s.problem, series, right);
    const Numbers numbers(s.problem, series);
    const HalfCheckpoints where(s.problem, series, right);
    const double a = numbers.rates[0], bar = -0.5 * s.value_bar[series];
    SinglePull pull{a, bar, bar, middle.f_bar[right], middle.q_bar[right], middle.gap_bar};
    Chunk chunk;
    for (int64_t segment = segments(half) - 1; segment >= 0; --segment) {
        const double* from = s.checkpoints + where.details;
        if (segment + 1 < segments(half)) {
            SingleFilter filter(numbers.g[0]);
            filter.start(EndState::read(s.checkpoints + where.starts + EndState::SIZE * segment));
            const auto write = [&](int64_t to) { filter.write_details(chunk, details + to); };
            filter_segment(half, segment, a, chunk, filter, write);
            from = details;
        }
        const int64_t begin = segment * SEGMENT, count = smaller(SEGMENT, half.count - begin);
        for (int64_t i = block_count(count, POINTS_PER_CHUNK) - 1; i >= 0; --i) {
            const double* r = from + 4 * POINTS_PER_CHUNK * i;
            chunk.load(half, begin + POINTS_PER_CHUNK * i, a);
            pull.pull(chunk, r, r + POINTS_PER_CHUNK, r + 2 * POINTS_PER_CHUNK, r + 3 * POINTS_PER_CHUNK);
            pull.write(chunk, half, begin + POINTS_PER_CHUNK * i, s);
        }
    }
    return {pull.rate_bar, pull.g_bar};
}

}  // namespace

Status single_pullback(const StatePullback& s) {
    const int64_t h = s.problem.h;
    const Buffer<Sums> halves(2 * h);
    if (!halves) return OUT_OF_MEMORY;
    const bool done = parallel_for(single_threads(s.problem), 2 * h, [&](int64_t i, int) {
        if (!is_valid(s.problem, i / 2)) return true;
        const Buffer<double> details(left_count(s.problem.n) > SEGMENT ? detail_size(SEGMENT) : 0);
        if (!details) return false;
        halves[i] = pull_half(s, i / 2, i % 2 == 1, Middle(s, i / 2), details.get());
        return true;
    });
    if (!done) return OUT_OF_MEMORY;
    for (int64_t series = 0; series < h; ++series) {
        if (!is_valid(s.problem, series)) {
            fill_with_nan(s, series);
            continue;
        }
        const Middle middle(s, series);
        double* bars = s.numbers_bar + 3 * series;
        bars[0] = halves[2 * series].rate_bar + halves[2 * series + 1].rate_bar + middle.rate_bar;
        bars[1] = 0.0;
        bars[2] = halves[2 * series].g_bar + halves[2 * series + 1].g_bar + middle.g_bar;
    }
    return OK;
}

}  // namespace laplex::LAPLEX_ISA
