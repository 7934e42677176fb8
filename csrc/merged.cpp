// Both sides sorted: each chunk of sources is scanned into a small buffer and serves the targets that lie in it.
#include "neighbours.h"

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

// Whether the anchors are, to the bit, those the plan was built from: one of `shares` equal parts of both sides. To read all
// of both is far cheaper than to gather them in order again, and unlike a version counter it cannot be fooled.
template <class T>
bool unmoved(const Problem<T>& p, int64_t share, int64_t shares) {
    const auto same = [=](const T* anchors, const T* built_from, int64_t size) {
        const int64_t from = size * share / shares, to = size * (share + 1) / shares;
        return std::memcmp(anchors + from, built_from + from, sizeof(T) * (to - from)) == 0;
    };
    return same(p.target, p.target_values, p.n) && same(p.source, p.source_values, p.k);
}

constexpr int64_t MOST_IN_A_SHARE = 8 * CHUNK;

// The first target whose place among the sources is at least j. Places rise with the targets.
inline int64_t first_target(const int32_t* below, int64_t n, int64_t j) {
    int64_t low = 0, high = smaller<int64_t>(n, CHUNK);
    while (high < n && below[high - 1] < j) {  // it is likely near: look in steps that double
        low = high;
        high = smaller(n, 2 * high);
    }
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (below[middle] < j) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Where the sums of a target go. One number a target is put in its place at once; several are kept side by side, in order,
// and fetched from there by `rows_out_of_order`, one random access for all of them.
template <class T, int ROWS, bool ODD>
struct Sink {
    static constexpr int WIDTH = ROWS * (ODD ? 2 : 1);
    T* in_order;  // (n, WIDTH): even, then odd; null if WIDTH is 1
    T* even;
    void put(int64_t i, int64_t caller, const double* from_left, const double* from_right) const {
        if (WIDTH == 1) {
            even[caller] = T(from_left[0] + from_right[0]);
            return;
        }
        T* out = in_order + i * WIDTH;
        for (int q = 0; q < ROWS; ++q) out[q] = T(from_left[q] + from_right[q]);
        if (ODD)
            for (int q = 0; q < ROWS; ++q) out[ROWS + q] = T(from_right[q] - from_left[q]);
    }
};

template <class T, int ROWS, bool ODD>
void rows_out_of_order(const Problem<T>& p, const T* in_order, int64_t row, int64_t rows, int threads) {
    constexpr int WIDTH = Sink<T, ROWS, ODD>::WIDTH;
    if (WIDTH == 1) return;
    for_all(threads, (p.n + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
        const int64_t from = block * BLOCK, size = smaller(BLOCK, p.n - from);
        T tile[BLOCK][WIDTH];
        for (int64_t i = 0; i < size; ++i)
            std::memcpy(tile[i], in_order + int64_t(p.target_rank[from + i]) * WIDTH, sizeof(T) * WIDTH);
        for (int64_t q = 0; q < rows; ++q) {
            T* even = p.even + (row + q) * p.n + from;
            for (int64_t i = 0; i < size; ++i) even[i] = tile[i][q];
            if (ODD && p.odd) {
                T* odd = p.odd + (row + q) * p.n + from;
                for (int64_t i = 0; i < size; ++i) odd[i] = tile[i][ROWS + q];
            }
            if (ODD && p.pull) {
                const T* weight = p.weights + (row + q) * p.n + from;
                for (int64_t i = 0; i < size; ++i) p.pull[from + i] += double(tile[i][ROWS + q]) * double(weight[i]);
            }
        }
        return true;
    });
}

// Mend a block's tied targets for the odd sums: what is strictly right of them starts after the run of ties, and so is no
// part of the even sum's right side. False if a target is tied where the plan says it is not, or the other way round.
template <class T, int ROWS>
bool mend_ties(const Problem<T>& p, const Sources<T, ROWS, 0>& src, const T* t, int64_t begin, int64_t count, int64_t c,
               const double* left, const double* right, const double* to_left, const Sink<T, ROWS, true>& sink) {
    const int32_t *below = p.target_below + begin, *upto = p.target_upto + begin;
    const int64_t from = src.first(c), to = src.last(c) + 1;
    bool holds = true;
    int64_t far_place = -1;  // a run of ties that leaves the chunk is looked up once
    double far[ROWS] = {};
    for (int64_t i = 0; i < count; ++i) {
        const T here = t[begin + i];
        const bool tied = below[i] < src.k && src.s[below[i]] == here;
        holds &= tied == (upto[i] != below[i]);
        if (!tied || upto[i] == below[i]) continue;
        if (upto[i] > to && upto[i] != far_place) right_state(src, far_place = upto[i], far);
        const double *l = left + (below[i] - from) * ROWS, *r = upto[i] > to ? far : right + (upto[i] - from) * ROWS;
        const double gap = upto[i] < src.k ? double(src.s[upto[i]]) - double(here) : INFINITE;
        holds &= gap > 0 && src.s[upto[i] - 1] == here;
        const double to_right = decay<T>(gap * p.rate);
        T* odd = sink.in_order + (begin + i) * sink.WIDTH + ROWS;
        for (int q = 0; q < ROWS; ++q) odd[q] = T(r[q] * to_right - l[q] * to_left[i]);
    }
    return holds;
}

// Some targets of one chunk of sources: a share of the work for a thread.
struct Share {
    int64_t chunk, first, last;
};

// Cut the targets by chunks, and where very many lie in one chunk into several shares, so that all threads have some.
template <class T, int ROWS, int DEGREE>
int64_t cut_into_shares(const Problem<T>& p, const Sources<T, ROWS, DEGREE>& src, Share* shares) {
    int64_t count = 0, first = 0;
    for (int64_t c = 0; c < src.chunks(src.k); ++c) {
        const int64_t to = src.last(c) + 1;
        const int64_t last = to == src.k ? p.n : first + first_target(p.target_below + first, p.n - first, to);
        for (; first < last; first = shares[count++].last) shares[count] = {c, first, smaller(last, first + MOST_IN_A_SHARE)};
    }
    return count;
}

template <class T, int ROWS, bool ODD, int DEGREE>
bool serve(const Problem<T>& p, const Sources<T, ROWS, DEGREE>& src, const T* t, const Sink<T, ROWS, ODD>& sink,
           Share share) {
    constexpr int STATE = src.STATE;
    const int64_t c = share.chunk, from = src.first(c), size = src.last(c) + 1 - from, to = from + size;
    double left[(CHUNK + 1) * STATE], right[(CHUNK + 1) * STATE];
    chunk_states(src, c, left, right);
    T pos[CHUNK + 2];  // the source before the chunk, the chunk, the source after it
    pos[0] = from > 0 ? src.s[from - 1] : T(-INFINITE);
    std::memcpy(pos + 1, src.s + from, sizeof(T) * size);
    pos[size + 1] = to < src.k ? src.s[to] : T(INFINITE);

    bool holds = true;
    for (int64_t begin = share.first; begin < share.last; begin += BLOCK) {
        const int64_t count = smaller(BLOCK, share.last - begin);
        const int32_t *order = p.target_order + begin, *below = p.target_below + begin;
        Beside gaps;
        holds &= look_beside<T, DEGREE>(count, t + begin, below, from, pos, p.rate, gaps);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = (below[i] - from) * STATE;
            double from_left[ROWS], from_right[ROWS];
            read_state<ROWS, DEGREE>(left + at, gaps.u_left[i], gaps.to_left[i], from_left);
            read_state<ROWS, DEGREE>(right + at, gaps.u_right[i], gaps.to_right[i], from_right);
            sink.put(begin + i, order[i], from_left, from_right);
        }
        if constexpr (ODD && DEGREE == 0)  // of degree 1 a tie gives nothing
            holds &= mend_ties(p, src, t, begin, count, c, left, right, gaps.to_left, sink);
    }
    return holds;
}

// Threads over groups of ROWS rows if there are enough of them, else over the chunks of one group after another. With `check`
// the anchors are looked at, too: of many rows before all else, which then costs little, of few with the first chunks.
template <class T, int ROWS, bool ODD, int DEGREE>
Status merged_rows(const Problem<T>& p, const T* s, const T* t, bool check, int threads) {
    constexpr int WIDTH = Sink<T, ROWS, ODD>::WIDTH;
    using Src = Sources<T, ROWS, DEGREE>;
    const int64_t groups = (p.m + ROWS - 1) / ROWS, chunks = Src::chunks(p.k), carries = (chunks + 1) * Src::STATE;
    const int abreast = groups >= threads ? threads : 1, team = threads / abreast;
    const int64_t x_size = p.k * ROWS, y_size = WIDTH > 1 ? p.n * WIDTH : 0, pull_size = p.pull ? p.n : 0;
    Buffer<T> scratch(abreast * (x_size + y_size));
    Buffer<double> sums(abreast * 2 * carries + (abreast - 1) * pull_size);
    Buffer<Share> shares(chunks + p.n / MOST_IN_A_SHARE + 1);
    if (!scratch || !sums || !shares) return OUT_OF_MEMORY;
    if (check && team == 1 && !unmoved(p, 0, 1)) return STALE_PLAN;
    bool moved = false;  // seen by the first group, with team > 1, where groups come one after another
    double* pulls = sums.get() + abreast * 2 * carries;  // of the threads but the first, added in this order, always
    std::memset(pulls, 0, sizeof(double) * (abreast - 1) * pull_size);
    const int64_t share_count = cut_into_shares(p, Src{s, p.k}, shares.get());
    const bool holds = for_all(abreast, groups, [&](int64_t group, int thread) {
        if (moved) return false;
        Problem<T> own = p;
        if (p.pull && thread > 0) own.pull = pulls + (thread - 1) * pull_size;
        T* x = scratch.get() + thread * (x_size + y_size);
        double* sum = sums.get() + thread * 2 * carries;
        const int64_t row = group * ROWS, rows = smaller<int64_t>(ROWS, p.m - row);
        const Src src{s, p.k, p.rate, x, sum, sum + carries};
        const Sink<T, ROWS, ODD> sink{x + x_size, p.even + row * p.n};
        const T* rows_of_x = p.x + row * p.k;
        const bool look = check && team > 1 && group == 0;
        if (ROWS > 1) rows_in_order<T, ROWS>(rows_of_x, rows, p.k, p.source_rank, x, team);
        const bool stood = for_all(team, chunks, [&](int64_t c, int) {
            chunk_total(src, ROWS > 1 ? nullptr : rows_of_x, p.source_order, c);
            return !look || unmoved(p, c, chunks);
        });
        if (!stood) return !(moved = true);
        carry(src);
        const bool served = for_all(team, share_count, [&](int64_t i, int) { return serve(own, src, t, sink, shares[i]); });
        rows_out_of_order<T, ROWS, ODD>(own, sink.in_order, row, rows, team);
        return served;
    });
    for (int thread = 1; thread < abreast; ++thread)
        for (int64_t i = 0; i < pull_size; ++i) p.pull[i] += pulls[(thread - 1) * pull_size + i];
    return holds ? OK : STALE_PLAN;
}

template <class T, bool ODD>
Status merged_grouped(const Problem<T>& p, const T* s, const T* t, bool check, int threads) {
    if (p.degree && p.m == 1) return merged_rows<T, 1, ODD, 1>(p, s, t, check, threads);
    if (p.degree) return merged_rows<T, 4, ODD, 1>(p, s, t, check, threads);  // two numbers a row
    if (p.m == 1) return merged_rows<T, 1, ODD, 0>(p, s, t, check, threads);
    if (p.m == 2) return merged_rows<T, 2, ODD, 0>(p, s, t, check, threads);
    if (p.m <= 4) return merged_rows<T, 4, ODD, 0>(p, s, t, check, threads);
    return merged_rows<T, 8, ODD, 0>(p, s, t, check, threads);
}

template <class T>
Status merged_from(const Problem<T>& p, const T* s, const T* t, bool check, int threads) {
    return p.wants_odd() ? merged_grouped<T, true>(p, s, t, check, threads) : merged_grouped<T, false>(p, s, t, check, threads);
}

// The plan's own values save the gathering, if the anchors are those. Where the first are not, as in training, none is likely
// to be; that all are is seen on the way.
template <class T>
Status merged(const Problem<T>& p, int threads) {
    if (p.target_values && p.source_values && *p.target == *p.target_values && *p.source == *p.source_values) {
        const Status status = merged_from(p, p.source_values + p.k, p.target_values + p.n, true, threads);
        if (status != STALE_PLAN) return status;
        if (p.pull) std::memset(p.pull, 0, sizeof(double) * p.n);
    }
    Buffer<T> gathered(p.k + p.n);
    if (!gathered) return OUT_OF_MEMORY;
    T *s = gathered.get(), *t = s + p.k;
    if (!(gather_in_order(p.source, p.source_order, p.k, s, threads) &&
          gather_in_order(p.target, p.target_order, p.n, t, threads)))
        return STALE_PLAN;
    return merged_from(p, s, t, false, threads);
}

template Status merged<float>(const Problem<float>&, int);
template Status merged<double>(const Problem<double>&, int);

}  // namespace laplex::LAPLEX_ISA
