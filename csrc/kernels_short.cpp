// One side much shorter: only that side is sorted, the long side is read as it comes.
#include "read.h"

namespace laplex::LAPLEX_ISA {

// The short side in order, with an infinite anchor at each end; false if the order is not theirs.
template <class T>
bool gather_with_edges(const T* anchors, const int32_t* order, int64_t size, T* edges) {
    edges[0] = T(-INFINITE);
    edges[size + 1] = T(INFINITE);
    bool holds = true;
    for (int64_t i = 0; i < size; ++i) edges[i + 1] = anchors[order[i]];
    for (int64_t i = 2; i <= size; ++i) holds &= edges[i - 1] <= edges[i];
    return holds && is_finite(edges[1]) && is_finite(edges[size]);
}

template <class T, int ROWS>
void few_rows_in_order(const T* x, int64_t rows, int64_t k, const int32_t* order, T* out) {
    for (int64_t r = 0; r < ROWS; ++r)
        for (int64_t j = 0; j < k; ++j) out[j * ROWS + r] = r < rows ? x[r * k + order[j]] : T(0);
}

// --- short -> long: scan the few sources, then each target reads the sums on its two sides --------------------------

template <class T, int ROWS>
bool spread_block(const Problem<T>& p, const T* edges, const double* left, const double* right, int64_t row,
                  int64_t rows, int64_t begin) {
    const int64_t count = smaller(BLOCK, p.n - begin);
    const int32_t *below = p.target_below + begin, *upto = p.target_upto + begin;
    const T* t = p.target + begin;
    double to_left[BLOCK], to_right[BLOCK];
    bool holds = beside(count, t, below, 0, edges, p.rate, to_left, to_right);
    T out[ROWS][BLOCK];
    for (int64_t i = 0; i < count; ++i) {
        const double *l = left + int64_t(below[i]) * ROWS, *r = right + int64_t(below[i]) * ROWS;
        for (int q = 0; q < ROWS; ++q) out[q][i] = T(l[q] * to_left[i] + r[q] * to_right[i]);
    }
    for (int64_t q = 0; q < rows; ++q) std::memcpy(p.even + (row + q) * p.n + begin, out[q], sizeof(T) * count);
    if (!p.wants_odd()) return holds;
    for (int64_t i = 0; i < count; ++i) {
        const double *l = left + int64_t(below[i]) * ROWS, *r = right + int64_t(upto[i]) * ROWS;
        const double gap = double(edges[upto[i] + 1]) - double(t[i]);
        const bool tied = upto[i] != below[i];
        holds &= gap > 0 && tied == (edges[below[i] + 1] == t[i]) && tied == (edges[upto[i]] == t[i]);
        if (upto[i] != below[i]) to_right[i] = decay<T>(gap * p.rate);
        for (int q = 0; q < ROWS; ++q) out[q][i] = T(r[q] * to_right[i] - l[q] * to_left[i]);
    }
    for (int64_t q = 0; q < rows; ++q) {
        const int64_t at = (row + q) * p.n + begin;
        if (p.odd) std::memcpy(p.odd + at, out[q], sizeof(T) * count);
        if (p.pull)
            for (int64_t i = 0; i < count; ++i) p.pull[begin + i] += double(out[q][i]) * double(p.weights[at + i]);
    }
    return holds;
}

template <class T, int ROWS>
Status spread_rows(const Problem<T>& p, const T* edges, int threads) {
    const int64_t chunks = Sources<T, ROWS>::chunks(p.k), carries = (chunks + 1) * ROWS;
    Buffer<T> x(p.k * ROWS);
    Buffer<double> sums(2 * carries), left((p.k + 1) * ROWS), right((p.k + 1) * ROWS);
    if (!x || !sums || !left || !right) return OUT_OF_MEMORY;
    const Sources<T, ROWS> src{edges + 1, p.k, p.rate, x.get(), sums.get(), sums.get() + carries};
    const int64_t blocks = (p.n + BLOCK - 1) / BLOCK;
    bool holds = true;
    for (int64_t row = 0; row < p.m; row += ROWS) {
        const int64_t rows = smaller<int64_t>(ROWS, p.m - row);
        few_rows_in_order<T, ROWS>(p.x + row * p.k, rows, p.k, p.source_order, x.get());
        all_totals<T, ROWS>(src, nullptr, nullptr, threads);
        carry(src);
        for (int64_t c = 0; c < chunks; ++c)  // neighbours share a place, written by both, with the same sum
            chunk_states(src, c, left.get() + src.first(c) * ROWS, right.get() + src.first(c) * ROWS);
        holds &= for_all(threads, blocks, [&](int64_t block, int) {
            return spread_block<T, ROWS>(p, edges, left.get(), right.get(), row, rows, block * BLOCK);
        });
    }
    return holds ? OK : STALE_PLAN;
}

template <class T>
Status spread(const Problem<T>& p, int threads) {
    Buffer<T> edges(p.k + 2);
    if (!edges) return OUT_OF_MEMORY;
    if (!gather_with_edges(p.source, p.source_order, p.k, edges.get())) return STALE_PLAN;
    if (p.m == 1) return spread_rows<T, 1>(p, edges.get(), threads);
    if (p.m == 2) return spread_rows<T, 2>(p, edges.get(), threads);
    if (p.m <= 4) return spread_rows<T, 4>(p, edges.get(), threads);
    return spread_rows<T, 8>(p, edges.get(), threads);
}

// --- long -> short: sum the sources into the intervals between the few targets, then scan the targets ---------------

// What the sources of one thread give, by target, all (n + 1, ROWS): to_right[q] the sources between targets q - 1 and q,
// referred to target q, which they lie left of; to_left[q] the same referred to target q - 1; tied[q] those at target q.
template <int ROWS>
struct Intervals {
    double *to_right, *to_left, *tied;
    static int64_t size(int64_t n) { return 3 * (n + 1) * ROWS; }
    Intervals(double* memory, int64_t n)
        : to_right(memory), to_left(memory + (n + 1) * ROWS), tied(memory + 2 * (n + 1) * ROWS) {}
};

template <class T, int ROWS>
bool collect_block(const Problem<T>& p, const T* edges, const Intervals<ROWS>& sums, int64_t row, int64_t rows,
                   int64_t begin) {
    const int64_t count = smaller(BLOCK, p.k - begin);
    const int32_t *below = p.source_below + begin, *upto = p.source_upto + begin;
    const T* s = p.source + begin;
    double to_right[BLOCK], to_left[BLOCK];
    int holds = 1;
    for (int64_t j = 0; j < count; ++j) {
        to_right[j] = double(edges[below[j] + 1]) - double(s[j]);
        to_left[j] = double(s[j]) - double(edges[upto[j]]);
    }
    for (int64_t j = 0; j < count; ++j) {
        const int tie = below[j] != upto[j];
        holds &= int(to_right[j] >= 0) & int(to_left[j] >= 0) & int((to_right[j] == 0) == tie) & int((to_left[j] == 0) == tie);
        holds &= int(edges[below[j]] < s[j]) & int(s[j] < edges[upto[j] + 1]);
    }
    for (int64_t j = 0; j < count; ++j) to_right[j] = decay<T>(to_right[j] * p.rate);
    for (int64_t j = 0; j < count; ++j) to_left[j] = decay<T>(to_left[j] * p.rate);
    T x[BLOCK][ROWS];
    for (int64_t q = 0; q < ROWS; ++q)
        for (int64_t j = 0; j < count; ++j) x[j][q] = q < rows ? p.x[(row + q) * p.k + begin + j] : T(0);
    for (int64_t j = 0; j < count; ++j) {
        if (below[j] != upto[j]) {
            double* at = sums.tied + int64_t(below[j]) * ROWS;
            for (int q = 0; q < ROWS; ++q) at[q] += double(x[j][q]);
            continue;
        }
        double *right = sums.to_right + int64_t(below[j]) * ROWS, *left = sums.to_left + int64_t(upto[j]) * ROWS;
        for (int q = 0; q < ROWS; ++q) right[q] += to_right[j] * double(x[j][q]);
        for (int q = 0; q < ROWS; ++q) left[q] += to_left[j] * double(x[j][q]);
    }
    return holds;
}

// Scan the targets: everything strictly left and right of each, and its ties. Equal targets have equal sums.
template <class T, int ROWS>
void collect_targets(const Problem<T>& p, const T* edges, const Intervals<ROWS>& sums, int64_t row, int64_t rows) {
    const T* t = edges + 1;
    double* left = sums.to_right;  // becomes the sum strictly left of each target
    for (int64_t i = 1; i < p.n; ++i) {
        const bool same = t[i] == t[i - 1];
        const double d = decay<T>((double(t[i]) - double(t[i - 1])) * p.rate);
        for (int q = 0; q < ROWS; ++q) {
            const int64_t now = i * ROWS + q, before = now - ROWS;
            left[now] += d * (left[before] + (same ? 0 : sums.tied[before]));
            if (same) sums.tied[now] = sums.tied[before];
        }
    }
    double right[ROWS] = {};
    for (int64_t i = p.n - 1; i >= 0; --i) {
        const bool last = i == p.n - 1, same = !last && t[i] == t[i + 1];
        const double d = last ? 0 : decay<T>((double(t[i + 1]) - double(t[i])) * p.rate);
        const int64_t at = p.target_order[i];
        for (int q = 0; q < ROWS; ++q) {
            const int64_t now = i * ROWS + q;
            const double tied_after = last || same ? 0 : sums.tied[now + ROWS];
            right[q] = d * (right[q] + tied_after) + sums.to_left[now + ROWS];
            if (q >= rows) continue;
            const int64_t out = (row + q) * p.n + at;
            p.even[out] = T(left[now] + sums.tied[now] + right[q]);
            if (p.odd) p.odd[out] = T(right[q] - left[now]);
            if (p.pull) p.pull[at] += (right[q] - left[now]) * double(p.weights[out]);
        }
    }
}

template <class T, int ROWS>
Status collect_rows(const Problem<T>& p, const T* edges, int threads) {
    const int64_t size = Intervals<ROWS>::size(p.n);
    threads = int(smaller<int64_t>(threads, 1 + p.k / (8 * (p.n + 1))));  // their sums are not to outgrow the sources
    Buffer<double> sums(threads * size);
    if (!sums) return OUT_OF_MEMORY;
    const int64_t blocks = (p.k + BLOCK - 1) / BLOCK;
    bool holds = true;
    for (int64_t row = 0; row < p.m; row += ROWS) {
        const int64_t rows = smaller<int64_t>(ROWS, p.m - row);
        std::memset(sums.get(), 0, sizeof(double) * threads * size);
        holds &= for_all(threads, blocks, [&](int64_t block, int thread) {
            const Intervals<ROWS> mine(sums.get() + thread * size, p.n);
            return collect_block<T, ROWS>(p, edges, mine, row, rows, block * BLOCK);
        });
        for (int64_t thread = 1; thread < threads; ++thread)  // in this order, always
            for (int64_t i = 0; i < size; ++i) sums[i] += sums[thread * size + i];
        collect_targets<T, ROWS>(p, edges, Intervals<ROWS>(sums.get(), p.n), row, rows);
    }
    return holds ? OK : STALE_PLAN;
}

template <class T>
Status collect(const Problem<T>& p, int threads) {
    Buffer<T> edges(p.n + 2);
    if (!edges) return OUT_OF_MEMORY;
    if (!gather_with_edges(p.target, p.target_order, p.n, edges.get())) return STALE_PLAN;
    if (p.m == 1) return collect_rows<T, 1>(p, edges.get(), threads);
    if (p.m == 2) return collect_rows<T, 2>(p, edges.get(), threads);
    if (p.m <= 4) return collect_rows<T, 4>(p, edges.get(), threads);
    return collect_rows<T, 8>(p, edges.get(), threads);
}

template Status spread<float>(const Problem<float>&, int);
template Status spread<double>(const Problem<double>&, int);
template Status collect<float>(const Problem<float>&, int);
template Status collect<double>(const Problem<double>&, int);

}  // namespace laplex::LAPLEX_ISA
