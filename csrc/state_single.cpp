// The likelihood of a Gaussian process with one state. state_single.h has the filter of half a series.
//
// Let x be the state at the last point of the left half, and x' that at the next point, where the walk of the right
// half ends. From the observations of each half follow the mean f and the variance Q of its own state; S = g - Q is by
// how much they reduce its variance. With rho = e^(-a D) over the gap between both, the covariances of the left with
// the right observations have rank 1, and
//
//     den = g^2 - rho^2 S S' = S' P + g Q'        P = rho^2 Q + g (1 - rho^2)
//     e = g f' - rho S' f,   e' = g f - rho S f'
//     quad = quad_left + quad_right + (e^2 / den - f'^2) / S'        or        ... - rho (f e + f' e') / den
//     logdet = logdet_left + logdet_right + log(den / g^2)
//
// The first form is that of the filter, with the right half as one observation, and loses no more digits than the
// filter does. The second one does not divide by S', which is 0 if the right half has no information.
#include "parallel.h"
#include "scratch.h"
#include "state_single.h"

namespace laplex::LAPLEX_ISA {
namespace {

// The information from one half.
struct Summary {
    double quad, logdet;
    EndState end;
    int64_t failed;  // the first point of the series without a positive pivot, or -1
};

Summary filter_half(const StateLikelihood& s, int64_t series, bool right) {
    const Half half = half_series(s.problem, series, right);
    const Numbers numbers(s.problem, series);
    const HalfCheckpoints where(s.problem, series, right);
    Chunk chunk;
    SingleFilter filter(numbers.g[0]);
    LogSums logs;
    double lanes[LANES] = {}, quad = 0.0;
    for (int64_t segment = 0; segment < segments(half); ++segment) {
        const bool detailed = s.checkpoints && segment + 1 == segments(half);
        filter.u /= filter.v, filter.v = 1.0;  // as the pullback starts
        if (s.checkpoints) filter.state().write(s.checkpoints + where.starts + EndState::SIZE * segment);
        const auto sum = [&](int64_t to) {
            PerPoint terms;
            for (int j = 0; j < POINTS_PER_CHUNK; ++j) terms[j] = filter.z[j] * filter.z[j] * filter.over_d[j];
            quad = total(terms, lanes), logs.add(filter.over_d);
            if (detailed) filter.write_details(chunk, s.checkpoints + where.details + to);
            else if (s.checkpoints) filter.sum_losses(chunk);
        };
        const int64_t failed = filter_segment(half, segment, numbers.rates[0], chunk, filter, sum);
        if (failed >= 0) return {NAN, NAN, {NAN, NAN, NAN}, half.point(failed)};
    }
    EndState end = filter.state();
    if (s.checkpoints) end.write(s.checkpoints + where.end);
    end.lost = filter.g - end.q;  // the sum of losses is only known with checkpoints
    return {quad, -logs.value(), end, -1};
}

void join(const StateLikelihood& s, int64_t series, const Summary& left, const Summary& right) {
    const Half half = half_series(s.problem, series, true);
    const Numbers numbers(s.problem, series);
    double quad = left.quad, logdet = left.logdet;
    s.failed[series] = left.failed >= 0 ? left.failed : right.failed;
    if (half.count > 0) {
        const double g = numbers.g[0], f_left = left.end.f, f_right = right.end.f;
        const Joint joint(g, numbers.rates[0], middle_gap(half), left.end, right.end);
        const double added = 2.0 * right.end.q < g
                                 ? (joint.e_left * joint.e_left / joint.den - f_right * f_right) / right.end.lost
                                 : -joint.rho * (f_left * joint.e_left + f_right * joint.e_right) / joint.den;
        quad += right.quad + added, logdet += right.logdet + std::log(joint.den / g / g);
        if (s.failed[series] < 0 && !(joint.den > 0.0)) s.failed[series] = half.first - half.count + 1;
    }
    s.value[series] = log_density(quad, logdet, half.points.count), s.loss[series] = 0.0;
}

}  // namespace

int64_t single_checkpoint_size(int64_t n) {
    const int64_t left = left_count(n);
    return half_checkpoint_size(left) + half_checkpoint_size(n - left);
}

Status single_likelihood(const StateLikelihood& s) {
    const int64_t h = s.problem.h;
    const Buffer<Summary> halves(2 * h);
    if (!halves) return OUT_OF_MEMORY;
    parallel_for(single_threads(s.problem), 2 * h, [&](int64_t i, int) {
        if (is_valid(s.problem, i / 2)) halves[i] = filter_half(s, i / 2, i % 2 == 1);
        return true;
    });
    for (int64_t series = 0; series < h; ++series) {
        if (is_valid(s.problem, series)) join(s, series, halves[2 * series], halves[2 * series + 1]);
        else s.value[series] = NAN, s.loss[series] = 0.0, s.failed[series] = -1;
    }
    return OK;
}

}  // namespace laplex::LAPLEX_ISA
