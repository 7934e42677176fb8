// Soft ranks and soft sorts, and their gradients, row by row. src/laplex/_sorted/__init__.py derives the formulas.
#include "sort_side.h"
#include "sorted_sums.h"

namespace laplex::LAPLEX_ISA {

// rank_i = 1 + i + (R_i - L_i) / 2, for the i-th smallest number.
template <class T>
Status rank_row(const SoftRank& p, int64_t row, int threads) {
    const int64_t n = p.n;
    if (!is_length(p.tau[row])) return BAD_TAU;
    T* sorted = row_of<T>(p.sorted, row, n);
    T* ranks = row_of<T>(p.ranks, row, n);
    int32_t* order = p.order + row * n;
    const Status status =
        sort_side<T>(row_of<T>(p.x, row, n), n, order, nullptr, sorted, false, NOT_FINITE_A, threads);
    if (status != OK) return status;
    Buffer<T> ones(n);
    if (!ones) return OUT_OF_MEMORY;
    for (int64_t i = 0; i < n; ++i) ones[i] = 1;
    const bool done = sums_in_order<T, 1, 0>(
        sorted, n, 1 / p.tau[row], ones.get(), threads,
        [&](int64_t from, int64_t size, const double* left, const double* right) {
            for (int64_t i = 0; i < size; ++i) {
                const double rank = double(from + i + 1) + (right[i] - left[i]) / 2;
                ranks[order[from + i]] = T(p.descending ? double(n + 1) - rank : rank);
            }
        });
    return done ? OK : OUT_OF_MEMORY;
}

// x_bar_i = sum over j of K_ij (g_i - g_j) / (2 tau).
template <class T>
Status pull_rank_row(const SoftPullback& p, int64_t row, int threads) {
    const int64_t n = p.n;
    const T* g = row_of<T>(p.g, row, n);
    T* x_bar = row_of<T>(p.x_bar, row, n);
    const int32_t* order = p.order + row * n;
    Buffer<T> x(2 * n);  // 1 and g, in order
    if (!x) return OUT_OF_MEMORY;
    parallel_for(threads, block_count(n, CHUNK), [&](int64_t c, int) {
        for (int64_t i = c * CHUNK, to = smaller(n, i + CHUNK); i < to; ++i) x[2 * i] = 1, x[2 * i + 1] = g[order[i]];
        return true;
    });
    const double rate = 1 / p.tau[row], scale = (p.descending ? -rate : rate) / 2;
    const bool done = sums_in_order<T, 2, 0>(
        row_of<T>(p.sorted, row, n), n, rate, x.get(), threads,
        [&](int64_t from, int64_t size, const double* left, const double* right) {
            for (int64_t i = 0; i < size; ++i) {
                const double here = double(x[2 * (from + i) + 1]);  // both sums have it twice, and it cancels
                const double sum = here * (left[2 * i] + right[2 * i]) - (left[2 * i + 1] + right[2 * i + 1]);
                x_bar[order[from + i]] = T(sum * scale);
            }
        });
    return done ? OK : OUT_OF_MEMORY;
}

// values_i = s_i + tau D_i / E_i.
template <class T>
Status sort_row(const SoftSort& p, int64_t row, int threads) {
    const int64_t n = p.n;
    if (!is_length(p.tau[row])) return BAD_TAU;
    const double tau = p.tau[row];
    T* sorted = row_of<T>(p.sorted, row, n);
    T* values = row_of<T>(p.values, row, n);
    T* factors = row_of<T>(p.factors, row, 3 * n);
    int32_t* order = p.order + row * n;
    const Status status =
        sort_side<T>(row_of<T>(p.x, row, n), n, order, nullptr, sorted, false, NOT_FINITE_A, threads);
    if (status != OK) return status;
    Buffer<T> ones(n);
    if (!ones) return OUT_OF_MEMORY;
    for (int64_t i = 0; i < n; ++i) ones[i] = 1;
    TiesOfChunks<T> ties(sorted, n, ones.get(), 1);
    if (!ties) return OUT_OF_MEMORY;
    ties.carry();
    const bool done = sums_in_order<T, 1, 1>(
        sorted, n, 1 / tau, ones.get(), threads,
        [&](int64_t from, int64_t size, const double* left, const double* right) {
            double before[CHUNK], after[CHUNK];
            ties.read(from, size, before, after);
            for (int64_t i = 0; i < size; ++i) {
                const double *l = left + 2 * i, *r = right + 2 * i;
                const double weight = 1 / (l[0] + r[0] - 1), shift = (r[1] - l[1]) * weight;
                const double odd = (r[0] - after[i]) - (l[0] - before[i]);
                const int64_t at = from + i;
                values[p.descending ? n - 1 - at : at] = T(double(sorted[at]) + tau * shift);
                factors[at] = T(weight);
                factors[n + at] = T(shift);
                factors[2 * n + at] = T((l[1] + r[1] - shift * odd) * weight);
            }
        });
    return done ? OK : OUT_OF_MEMORY;
}

// With w = g / E and z = w D / E: x_bar = E w - A_1 w + (left - right of z, without ties) + g C.
template <class T>
Status pull_sort_row(const SoftPullback& p, int64_t row, int threads) {
    const int64_t n = p.n;
    const T *g = row_of<T>(p.g, row, n), *factors = row_of<T>(p.factors, row, 3 * n), *sorted = row_of<T>(p.sorted, row, n);
    T* x_bar = row_of<T>(p.x_bar, row, n);
    const int32_t* order = p.order + row * n;
    Buffer<T> x(2 * n);  // w and z
    TiesOfChunks<T> ties(sorted, n, x.get() + 1, 2);
    if (!x || !ties) return OUT_OF_MEMORY;
    for (int64_t i = 0; i < n; ++i) {
        x[2 * i] = g[p.descending ? n - 1 - i : i] * factors[i];
        x[2 * i + 1] = x[2 * i] * factors[n + i];
    }
    ties.carry();
    const bool done = sums_in_order<T, 2, 1>(
        sorted, n, 1 / p.tau[row], x.get(), threads,
        [&](int64_t from, int64_t size, const double* left, const double* right) {
            double before[CHUNK], after[CHUNK];
            ties.read(from, size, before, after);
            for (int64_t i = 0; i < size; ++i) {
                const double *l = left + 4 * i, *r = right + 4 * i;  // w and z, then both weighted by distance
                const int64_t at = from + i;
                const double even = l[0] + r[0] - double(x[2 * at]), odd = (l[1] - before[i]) - (r[1] - after[i]);
                const double own = double(g[p.descending ? n - 1 - at : at]) * double(factors[2 * n + at]);
                x_bar[order[at]] = T(even - (l[2] + r[2]) + odd + own);
            }
        });
    return done ? OK : OUT_OF_MEMORY;
}

template <class T>
Status soft_rank(const SoftRank& p) {
    return for_each_row(p, [&](int64_t row, int threads) { return rank_row<T>(p, row, threads); });
}
template <class T>
Status pull_rank(const SoftPullback& p) {
    return for_each_row(p, [&](int64_t row, int threads) { return pull_rank_row<T>(p, row, threads); });
}
template <class T>
Status soft_sort(const SoftSort& p) {
    return for_each_row(p, [&](int64_t row, int threads) { return sort_row<T>(p, row, threads); });
}
template <class T>
Status pull_sort(const SoftPullback& p) {
    return for_each_row(p, [&](int64_t row, int threads) { return pull_sort_row<T>(p, row, threads); });
}

template Status soft_rank<float>(const SoftRank&);
template Status soft_rank<double>(const SoftRank&);
template Status pull_rank<float>(const SoftPullback&);
template Status pull_rank<double>(const SoftPullback&);
template Status soft_sort<float>(const SoftSort&);
template Status soft_sort<double>(const SoftSort&);
template Status pull_sort<float>(const SoftPullback&);
template Status pull_sort<double>(const SoftPullback&);

}  // namespace laplex::LAPLEX_ISA
