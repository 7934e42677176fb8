// Both sides sorted: each chunk of sources is scanned into a small buffer and serves the targets that lie in it.
#include "read.h"

namespace laplex::LAPLEX_ISA {

// Anchors in order, into out; false if that order is not theirs, or they are not finite.
template <class T>
bool gather_in_order(const T* anchors, const int32_t* order, int64_t size, T* out, int threads) {
    const bool holds = for_all(threads, (size + CHUNK - 1) / CHUNK, [&](int64_t c, int) {
        const int64_t from = c * CHUNK, to = smaller(size, from + CHUNK);
        for (int64_t i = from; i < to; ++i) out[i] = anchors[order[i]];
        int in_order = from == 0 || anchors[order[from - 1]] <= out[from];
        for (int64_t i = from + 1; i < to; ++i) in_order &= int(out[i - 1] <= out[i]);
        return in_order;
    });
    return holds && is_finite(out[0]) && is_finite(out[size - 1]);
}

// Whether the anchors are, to the bit, those the plan was built from. To read all of both is far cheaper than to gather
// them in order again, and unlike a version counter it cannot be fooled.
template <class T>
bool unmoved(const T* anchors, const T* built_from, int64_t size, int threads) {
    constexpr int64_t PART = 1 << 14;
    return for_all(size > 4 * PART ? threads : 1, (size + PART - 1) / PART, [&](int64_t part, int) {
        const int64_t from = part * PART, count = smaller(PART, size - from);
        return std::memcmp(anchors + from, built_from + from, sizeof(T) * count) == 0;
    });
}

// The first target whose place among the sources is at least j. Places rise with the targets.
inline int64_t first_target(const int32_t* below, int64_t n, int64_t j) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (below[middle] < j) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Serve the targets of chunk c for rows [row, row + rows).
template <class T, int ROWS>
bool serve_chunk(const Problem<T>& p, const Sources<T, ROWS>& src, const T* t, int64_t row, int64_t rows, int64_t c) {
    const int64_t from = src.first(c), size = src.last(c) + 1 - from, to = from + size;
    const int64_t begin = c == 0 ? 0 : first_target(p.target_below, p.n, from);
    const int64_t end = to == src.k ? p.n : first_target(p.target_below, p.n, to);
    if (begin == end) return true;

    double left[(CHUNK + 1) * ROWS], right[(CHUNK + 1) * ROWS];
    chunk_states(src, c, left, right);
    T pos[CHUNK + 2];  // the source before the chunk, the chunk, the source after it
    pos[0] = from > 0 ? src.s[from - 1] : T(-INFINITE);
    std::memcpy(pos + 1, src.s + from, sizeof(T) * size);
    pos[size + 1] = to < src.k ? src.s[to] : T(INFINITE);

    bool holds = true;
    int64_t far_place = -1;  // a run of ties that leaves the chunk is looked up once
    double far[ROWS] = {};
    for (int64_t block = begin; block < end; block += BLOCK) {
        const int64_t count = smaller(BLOCK, end - block);
        const int32_t *order = p.target_order + block, *below = p.target_below + block, *upto = p.target_upto + block;
        double to_left[BLOCK], to_right[BLOCK];
        holds &= beside(
            count, [&](int64_t i) { return double(t[block + i]); }, [&](int64_t i) { return below[i] - from; }, pos,
            p.rate, to_left, to_right);
        for (int64_t i = 0; i < count; ++i) {
            const double *l = left + (below[i] - from) * ROWS, *r = right + (below[i] - from) * ROWS;
            for (int q = 0; q < ROWS; ++q)
                if (q < rows) p.even[(row + q) * p.n + order[i]] = T(l[q] * to_left[i] + r[q] * to_right[i]);
        }
        if (p.odd == nullptr) continue;
        for (int64_t i = 0; i < count; ++i) {
            const double *l = left + (below[i] - from) * ROWS, *r = right + (below[i] - from) * ROWS;
            double r_decay = to_right[i];
            if (upto[i] != below[i]) {  // tied: what is strictly right starts after the run of ties
                if (upto[i] > to && upto[i] != far_place) right_state(src, far_place = upto[i], far);
                r = upto[i] > to ? far : right + (upto[i] - from) * ROWS;
                const double here = double(t[block + i]);
                const double gap = upto[i] < src.k ? double(src.s[upto[i]]) - here : INFINITE;
                holds &= gap > 0 && double(src.s[below[i]]) == here;
                r_decay = decay<T>(gap * p.rate);
            } else {
                holds &= below[i] == src.k || double(src.s[below[i]]) != double(t[block + i]);
            }
            for (int q = 0; q < ROWS; ++q)
                if (q < rows) p.odd[(row + q) * p.n + order[i]] = T(r[q] * r_decay - l[q] * to_left[i]);
        }
    }
    return holds;
}

// Threads over groups of rows if there are enough of them, else over the chunks of one group after another.
template <class T, int ROWS>
Status merged_rows(const Problem<T>& p, const T* s, const T* t, int threads) {
    const int64_t groups = (p.m + ROWS - 1) / ROWS, chunks = Sources<T, ROWS>::chunks(p.k), carries = (chunks + 1) * ROWS;
    const int abreast = groups >= threads ? threads : 1, team = threads / abreast;
    Buffer<T> x(abreast * p.k * ROWS);
    Buffer<double> sums(abreast * 2 * carries);
    if (!x || !sums) return OUT_OF_MEMORY;
    const bool holds = for_all(abreast, groups, [&](int64_t group, int thread) {
        double* sum = sums.get() + thread * 2 * carries;
        const Sources<T, ROWS> src{s, p.k, p.rate, x.get() + thread * p.k * ROWS, sum, sum + carries};
        const int64_t row = group * ROWS, rows = smaller<int64_t>(ROWS, p.m - row);
        all_totals(src, p.x + row * p.k, rows, p.source_order, team);
        carry(src);
        return for_all(team, chunks, [&](int64_t c, int) { return serve_chunk(p, src, t, row, rows, c); });
    });
    return holds ? OK : STALE_PLAN;
}

template <class T>
Status merged(const Problem<T>& p, int threads) {
    const bool kept = p.target_values && p.source_values && unmoved(p.target, p.target_values, p.n, threads) &&
                      unmoved(p.source, p.source_values, p.k, threads);
    Buffer<T> gathered(kept ? 0 : p.k + p.n);
    if (!gathered) return OUT_OF_MEMORY;
    const T* s = kept ? p.source_values + p.k : gathered.get();
    const T* t = kept ? p.target_values + p.n : gathered.get() + p.k;
    if (!kept && !(gather_in_order(p.source, p.source_order, p.k, gathered.get(), threads) &&
                   gather_in_order(p.target, p.target_order, p.n, gathered.get() + p.k, threads)))
        return STALE_PLAN;
    if (p.m == 1) return merged_rows<T, 1>(p, s, t, threads);
    if (p.m == 2) return merged_rows<T, 2>(p, s, t, threads);
    if (p.m <= 4) return merged_rows<T, 4>(p, s, t, threads);
    return merged_rows<T, 8>(p, s, t, threads);
}

template Status merged<float>(const Problem<float>&, int);
template Status merged<double>(const Problem<double>&, int);

}  // namespace laplex::LAPLEX_ISA
