// The likelihood of a Gaussian process with one state. state_single.h has the filter of half a series.
//
// Let x be the state at the last point of the left half, and x' that at the next point, where the walk of the right half
// ends. Each half tells the mean f and the variance Q of its own state; S = g - Q is what it has learned of it. With
// rho = e^(-a D) over the gap between both, the covariances of the left with the right observations have rank 1, and
//
//     den = g^2 - rho^2 S S' = S' P + g Q'        P = rho^2 Q + g (1 - rho^2)
//     e = g f' - rho S' f,   e' = g f - rho S f'
//     quad = quad_left + quad_right + (e^2 / den - f'^2) / S'        or        ... - rho (f e + f' e') / den
//     logdet = logdet_left + logdet_right + log(den / g^2)
//
// The first form is that of the filter, with the right half as one observation, and loses no more digits than the filter
// does. The second one does not divide by S', which is 0 if the right half has learned nothing.
#include "parallel.h"
#include "scratch.h"
#include "state_single.h"

namespace laplex::LAPLEX_ISA {
namespace {

// What a half tells.
struct Summary {
    double quad, logdet, q, f;
    int64_t failed;  // the first point of the series without a positive pivot, or -1
};

Summary walk_half(const StateLikelihood& s, int64_t series, bool right) {
    const Half half = half_series(s.problem, series, right);
    const Numbers numbers(s.problem, series);
    const KeptHalf where(s.problem, series, right);
    Chunk chunk;
    SingleFilter filter(numbers.g[0]);
    LogSums logs;
    double lanes[LANES] = {}, quad = 0.0;
    for (int64_t segment = 0; segment < segments(half); ++segment) {
        const bool detailed = s.kept && segment + 1 == segments(half);
        filter.u /= filter.v, filter.v = 1.0;  // as the pullback starts
        if (s.kept) filter.write_state(s.kept + where.starts + STATE * segment);
        const auto sum = [&](int64_t to) {
            double terms[CHUNK];
            for (int j = 0; j < CHUNK; ++j) terms[j] = filter.z[j] * filter.z[j] * filter.over_d[j];
            quad = total(terms, lanes), logs.add(filter.over_d);
            if (detailed) filter.write_details(chunk, s.kept + where.details + to);
            else if (s.kept) filter.sum_losses(chunk);
        };
        const int64_t failed = filter_segment(half, segment, numbers.rates[0], chunk, filter, sum);
        if (failed >= 0) return {NAN, NAN, NAN, NAN, half.point(failed)};
    }
    if (s.kept) filter.write_state(s.kept + where.end);
    return {quad, -logs.value(), filter.u / filter.v, filter.f, -1};
}

void join(const StateLikelihood& s, int64_t series, const Summary& left, const Summary& right) {
    const Half half = half_series(s.problem, series, true);
    const Numbers numbers(s.problem, series);
    double quad = left.quad, logdet = left.logdet;
    s.failed[series] = left.failed >= 0 ? left.failed : right.failed;
    if (half.count > 0) {
        const double g = numbers.g[0], s_left = g - left.q, s_right = g - right.q;
        double rho, kappa;
        Chunk::decay_and_rest(numbers.rates[0] * middle_gap(half), rho, kappa);
        const double den = s_right * (rho * rho * left.q + g * kappa) + g * right.q;
        const double e = g * right.f - rho * s_right * left.f, other = g * left.f - rho * s_left * right.f;
        const double added = 2.0 * right.q < g ? (e * e / den - right.f * right.f) / s_right
                                               : -rho * (left.f * e + right.f * other) / den;
        quad += right.quad + added, logdet += right.logdet + std::log(den / g / g);
        if (s.failed[series] < 0 && !(den > 0.0)) s.failed[series] = half.first - half.count + 1;
    }
    s.value[series] = log_density(quad, logdet, half.points.count), s.loss[series] = 0.0;
}

}  // namespace

int64_t single_kept_size(int64_t n) {
    const int64_t left = n < DIVIDED ? n : (n + 1) / 2;
    return half_kept_size(left) + half_kept_size(n - left);
}

Status single_likelihood(const StateLikelihood& s) {
    const int64_t h = s.problem.h;
    const Buffer<Summary> halves(2 * h);
    if (!halves) return OUT_OF_MEMORY;
    parallel_for(single_threads(s.problem), 2 * h, [&](int64_t i, int) {
        if (is_valid(s.problem, i / 2)) halves[i] = walk_half(s, i / 2, i % 2 == 1);
        return true;
    });
    for (int64_t series = 0; series < h; ++series) {
        if (is_valid(s.problem, series)) join(s, series, halves[2 * series], halves[2 * series + 1]);
        else s.value[series] = NAN, s.loss[series] = 0.0, s.failed[series] = -1;
    }
    return OK;
}

}  // namespace laplex::LAPLEX_ISA
