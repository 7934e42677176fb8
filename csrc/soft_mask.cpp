// Soft masks of the k largest numbers of a row, and their gradients.
//
// The smoothed number above b, the sum over j of F((x_j - b) / tau), falls with b. At the i-th smallest number it is
// S_i = n - i - 1/2 + (L_i - R_i) / 2, with i from 0 on. Between two neighbours it is a quadratic equation in
// exp(-b / tau); src/laplex/soft/_threshold.py solves the same equation and derives it.
#include "sort_side.h"
#include "sorted_sums.h"

namespace laplex::LAPLEX_ISA {

// The threshold b = anchor + offset, and the distance to the nearest number over tau.
struct Threshold {
    double anchor, offset, nearest;
};

// A gap over tau; its logarithms stay finite.
constexpr double WIDEST = 1e300;

// log(exp(a) + exp(b)).
inline double log_sum_exp(double a, double b) {
    const double high = larger(a, b), low = smaller(a, b);
    return low == -INFINITE ? high : high + std::log1p(std::exp(low - high));
}

// What the quadratic equation needs: the last number m above which there is at least k (-1 if there is none), the sums
// up to it from the left and from the next one on to the right.
struct Bracket {
    int64_t m;
    double below, above;
};

template <class T>
Bracket find_bracket(const Sources<T, 1, 0>& src, double k) {
    const auto smoothed = [&](int64_t i, double left, double right) {  // S_i; both sums have the number itself
        return double(src.k - i) - 0.5 + (left - right) / 2;
    };
    const int64_t chunks = src.chunks(src.k);
    const auto at_first = [&](int64_t c) {
        const int64_t i = src.first(c);
        const double entering = i > 0 ? src.left[c] * decay<T>(src.scaled_gap(i - 1, i)) : 0;
        return smoothed(i, entering + 1, src.right[c]);
    };
    int64_t c = 0;
    for (int64_t low = 1, high = chunks; low < high;) {  // chunks up to c begin with a number that has at least k above
        const int64_t middle = (low + high) / 2;
        if (at_first(middle) >= k) low = middle + 1, c = middle;
        else high = middle;
    }
    double left[CHUNK + 1], right[CHUNK + 1];
    chunk_states(src, c, left, right);
    const int64_t from = src.first(c), size = src.last(c) + 1 - from;
    int64_t i = 0;
    while (i < size && smoothed(from + i, left[i + 1], right[i]) >= k) ++i;
    return {from + i - 1, left[i], right[i]};
}

// src holds the states that enter the chunks.
template <class T>
Threshold solve(const Sources<T, 1, 0>& src, double k, double tau) {
    const int64_t n = src.k;
    const Bracket bracket = find_bracket(src, k);
    const int64_t m = bracket.m;
    if (m < 0) {
        const double u = std::log(2 * (double(n) - k)) - std::log(bracket.above);
        return {double(src.s[0]), tau * u, larger(-u, 0.0)};
    }
    if (m >= n - 1) {
        const double u = std::log(bracket.below) - std::log(2 * k);
        return {double(src.s[n - 1]), tau * u, larger(u, 0.0)};
    }
    const double gap = smaller(src.scaled_gap(m, m + 1), WIDEST), c = k - double(n - 1 - m), log_c = std::log(c < 0 ? -c : c);
    const double log_below = std::log(bracket.below), log_above = std::log(bracket.above);
    const double log_sum = log_sum_exp(log_c, log_sum_exp(2 * log_c, log_above + log_below - gap) / 2);
    const double u = c >= 0 ? log_below - log_sum : log_sum - log_above;
    const double near = larger(c >= 0 ? u : -u, 0.0), far = larger(gap - near, 0.0);
    return {double(src.s[c >= 0 ? m : m + 1]), tau * u, smaller(near, far)};
}

// One step of Newton's method, which removes the rounding errors of the sums: for float64 numbers. Both terms have the
// factor exp(nearest). Where that makes rounding errors of k large, the sum is flat, and b stays where it is.
template <class T>
void polish(const T* x, int64_t n, double k, double tau, Threshold& b) {
    double above = 0, density = 0, signed_density = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double u = (double(x[i]) - b.anchor - b.offset) / tau;
        const double d = decay<T>(larger((u < 0 ? -u : u) - b.nearest, 0.0));
        above += u < 0 ? 0 : 1;
        density += d;
        signed_density += u < 0 ? d : -d;
    }
    const double excess = (above - k) * std::exp(smaller(b.nearest, 700.0)) + signed_density / 2;
    if (excess < 0.05 * density && excess > -0.05 * density) b.offset += 2 * tau * excess / density;
}

template <class T>
Status mask_row(const SoftMask& p, int64_t row, int threads) {
    const int64_t n = p.n;
    const double tau = p.tau[row], rate = 1 / tau, k = p.k[row];
    if (!is_length(tau)) return BAD_TAU;
    const T* x = row_of<T>(p.x, row, n);
    T* mask = row_of<T>(p.mask, row, n);
    double* threshold = p.threshold + 3 * row;
    const int64_t size = Sources<T, 1, 0>::chunks(n) + 1;
    Buffer<T> sorted(n), ones(n);
    Buffer<double> carries(2 * size);
    if (!sorted || !ones || !carries) return OUT_OF_MEMORY;
    if (!(k > 0 && k < double(n))) {
        for (int64_t i = 0; i < n; ++i) mask[i] = T(k > 0);
        threshold[0] = threshold[1] = threshold[2] = 0;
        return all_finite(x, n) ? OK : NOT_FINITE_A;
    }
    const Status status = sort_values(x, n, sorted.get(), threads);
    if (status != OK) return status;
    for (int64_t i = 0; i < n; ++i) ones[i] = 1;
    const Sources<T, 1, 0> src{sorted.get(), n, rate, ones.get(), carries.get(), carries.get() + size};
    parallel_for(threads, size - 1, [&](int64_t c, int) {
        chunk_total(src, c);
        return true;
    });
    carry(src);
    Threshold b = solve(src, k, tau);
    if (sizeof(T) == 8) polish(x, n, k, tau, b);
    threshold[0] = b.anchor, threshold[1] = b.offset, threshold[2] = b.nearest;
    parallel_for(threads, size - 1, [&](int64_t c, int) {
        for (int64_t i = c * CHUNK, to = smaller(n, i + CHUNK); i < to; ++i) {
            const double u = (double(x[i]) - b.anchor - b.offset) * rate;
            const double tail = decay<T>(u < 0 ? -u : u) / 2;
            mask[i] = T(u < 0 ? tail : 1 - tail);
        }
        return true;
    });
    return OK;
}

// f = exp(nearest - |u|) of a chunk, and the sums (4,) of f, f g, f u and f g u. Not inlined: two copies may add in
// different orders, and the number of threads would decide which of them runs.
template <class T>
__attribute__((noinline)) void chunk_densities(const T* x, const T* g, int64_t size, const Threshold& b, double rate,
                                               double* densities, double* sums) {
    double one = 0, of_g = 0, of_u = 0, of_both = 0;
#pragma omp simd reduction(+ : one, of_g, of_u, of_both)
    for (int64_t i = 0; i < size; ++i) {
        const double u = (double(x[i]) - b.anchor - b.offset) * rate;
        const double f = decay<T>(larger((u < 0 ? -u : u) - b.nearest, 0.0)), fg = f * double(g[i]);
        const double limited = larger(smaller(u, 2 * MAX_U), -2 * MAX_U);  // beyond, f is 0
        densities[i] = f;
        one += f, of_g += fg, of_u += f * limited, of_both += fg * limited;
    }
    sums[0] = one, sums[1] = of_g, sums[2] = of_u, sums[3] = of_both;
}

// With f_i = exp(-|u_i|) / (2 tau), q = f over its sum, and u_i = (x_i - b) / tau:
//     k_bar = sum of q g,    x_bar_i = f_i (g_i - k_bar),    tau_bar = sum over i of f_i g_i (sum of q u - u_i)
// The sums have the factor exp(nearest), so that they do not underflow.
template <class T>
Status pull_mask_row(const SoftMaskPullback& p, int64_t row, int threads) {
    const int64_t n = p.n, chunks = block_count(n, CHUNK);
    const double rate = 1 / p.tau[row], k = p.k[row];
    const double *b = p.threshold + 3 * row, nearest = b[2];
    const T *g = row_of<T>(p.g, row, n), *x = row_of<T>(p.x, row, n);
    T* x_bar = row_of<T>(p.x_bar, row, n);
    if (!(k > 0 && k < double(n))) {
        std::memset(x_bar, 0, sizeof(T) * n);
        p.k_bar[row] = p.tau_bar[row] = 0;
        return OK;
    }
    Buffer<double> sums(4 * chunks), densities(n);
    if (!sums || !densities) return OUT_OF_MEMORY;
    parallel_for(threads, chunks, [&](int64_t c, int) {
        const int64_t from = c * CHUNK, size = smaller(CHUNK, n - from);
        chunk_densities(x + from, g + from, size, {b[0], b[1], nearest}, rate, densities.get() + from, sums.get() + 4 * c);
        return true;
    });
    double total[4] = {};
    for (int64_t c = 0; c < chunks; ++c)
        for (int j = 0; j < 4; ++j) total[j] += sums[4 * c + j];
    const double k_bar = total[1] / total[0], scale = decay<T>(nearest) * rate / 2;
    parallel_for(threads, chunks, [&](int64_t c, int) {
        for (int64_t i = c * CHUNK, to = smaller(n, i + CHUNK); i < to; ++i)
            x_bar[i] = T(scale * densities[i] * (double(g[i]) - k_bar));
        return true;
    });
    p.k_bar[row] = k_bar;
    p.tau_bar[row] = scale * (k_bar * total[2] - total[3]);
    return OK;
}

template <class T>
Status soft_mask(const SoftMask& p) {
    return for_each_row(p, [&](int64_t row, int threads) { return mask_row<T>(p, row, threads); });
}
template <class T>
Status pull_mask(const SoftMaskPullback& p) {
    return for_each_row(p, [&](int64_t row, int threads) { return pull_mask_row<T>(p, row, threads); });
}

template Status soft_mask<float>(const SoftMask&);
template Status soft_mask<double>(const SoftMask&);
template Status pull_mask<float>(const SoftMaskPullback&);
template Status pull_mask<double>(const SoftMaskPullback&);

}  // namespace laplex::LAPLEX_ISA
