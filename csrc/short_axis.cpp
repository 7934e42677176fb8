// The product for a short-axis plan: one side is much shorter than the other, and only the short side is sorted. The
// long side is read in the caller's order; `below` and `upto` give the place of each of its points in the short side.
//
//     spread   few sources, many targets    scan the sources, then every target reads the states of its two neighbours
//     collect  many sources, few targets    sum the sources into the intervals between targets, then scan the targets
//
// The rows of x are processed in groups of ROWS, and the groups in passes. A pass opens one parallel region, in which
// every thread runs through the groups for its own range of the long side. The results have the same bits for any size
// of pass.
#include "neighbours.h"

namespace laplex::LAPLEX_ISA {

// Copy the short side (size,) into padded (size + 2,), in order, between -infinity and infinity. Returns false if
// `order` does not sort the anchors, or if they are not finite.
template <class T>
bool gather_padded(const T* anchors, const int32_t* order, int64_t size, T* padded) {
    padded[0] = T(-INFINITE);
    padded[size + 1] = T(INFINITE);
    bool sorted = true;
    for (int64_t i = 0; i < size; ++i) padded[i + 1] = anchors[order[i]];
    for (int64_t i = 2; i <= size; ++i) sorted &= padded[i - 1] <= padded[i];
    return sorted && is_finite(padded[1]) && is_finite(padded[size]);
}

// The number of groups in a pass: their scratch arrays, `bytes` for each group, take at most MAX_PASS bytes. One thread
// opens no parallel region; it takes one group per pass, whose arrays then stay in the cache.
inline int64_t groups_per_pass(int64_t groups, int64_t bytes, int threads) {
    constexpr int64_t MAX_PASS = 16 << 20;
    return threads == 1 ? 1 : larger<int64_t>(1, smaller(groups, MAX_PASS / bytes));
}

// Copy `rows` rows of x (rows, k) into out (k, ROWS), in the order of the sources; missing rows become 0.
template <class T, int ROWS>
void sort_short_rows(const T* x, int64_t rows, int64_t k, const int32_t* order, T* out) {
    for (int64_t r = 0; r < ROWS; ++r)
        for (int64_t j = 0; j < k; ++j) out[j * ROWS + r] = r < rows ? x[r * k + order[j]] : T(0);
}

// --- spread: few sources, many targets ------------------------------------------------------------------------------

// The states at all sources of one group of rows.
struct States {
    double* left;   // (k + 1, STATE): left[i] is the sum of the sources up to source i - 1, referred to it
    double* right;  // (k + 1, STATE): right[i] is the sum of the sources from source i on, referred to it
};

// Scan the sources.
template <class T, int ROWS, int DEGREE>
void all_states(const Sources<T, ROWS, DEGREE>& src, States states) {
    constexpr int STATE = src.STATE;
    const int64_t chunks = src.chunks(src.k);
    for (int64_t c = 0; c < chunks; ++c) chunk_total(src, c);
    carry(src);
    // The states at the border of two chunks are written by both, with the same values.
    for (int64_t c = 0; c < chunks; ++c)
        chunk_states(src, c, states.left + src.first(c) * STATE, states.right + src.first(c) * STATE);
}

// The odd sums (ROWS, BLOCK) of `count` targets from `begin` on, degree 0: the right sum starts after the tied sources.
// Returns false if the plan's ties are not those of the anchors.
template <class T, int ROWS>
bool odd_sums(const Problem<T>& p, const T* padded, States states, int64_t begin, int64_t count, Neighbours& near,
              T (*odd)[BLOCK]) {
    const int32_t *below = p.target_below + begin, *upto = p.target_upto + begin;
    const T* t = p.target + begin;
    bool valid = true;
    for (int64_t i = 0; i < count; ++i) {
        const double *l = states.left + int64_t(below[i]) * ROWS, *r = states.right + int64_t(upto[i]) * ROWS;
        const double gap = double(padded[upto[i] + 1]) - double(t[i]);
        const bool tied = upto[i] != below[i];
        valid &= gap > 0 && tied == (padded[below[i] + 1] == t[i]) && tied == (padded[upto[i]] == t[i]);
        if (tied) near.to_right[i] = decay<T>(gap * p.rate);
        for (int q = 0; q < ROWS; ++q) odd[q][i] = T(r[q] * near.to_right[i] - l[q] * near.to_left[i]);
    }
    return valid;
}

// The sums of the targets [begin, begin + BLOCK), for the group of rows from `row` on. Returns false if the plan is
// stale.
template <class T, int ROWS, int DEGREE>
bool spread_block(const Problem<T>& p, const T* padded, States states, int64_t row, int64_t begin) {
    constexpr int STATE = ROWS * (DEGREE + 1);
    const int64_t count = smaller(BLOCK, p.n - begin), rows = smaller<int64_t>(ROWS, p.m - row);
    const int32_t* below = p.target_below + begin;
    Neighbours near;
    bool valid = find_neighbours<T, DEGREE>(count, p.target + begin, below, 0, padded, p.rate, near);
    T even[ROWS][BLOCK], odd[ROWS][BLOCK];
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = int64_t(below[i]) * STATE;
        double left[ROWS], right[ROWS];
        read_state<ROWS, DEGREE>(states.left + at, near.u_left[i], near.to_left[i], left);
        read_state<ROWS, DEGREE>(states.right + at, near.u_right[i], near.to_right[i], right);
        for (int q = 0; q < ROWS; ++q) even[q][i] = T(left[q] + right[q]);
        if (DEGREE)  // a tied source contributes 0: the right sums of even and odd are the same
            for (int q = 0; q < ROWS; ++q) odd[q][i] = T(right[q] - left[q]);
    }
    for (int64_t q = 0; q < rows; ++q) std::memcpy(p.even + (row + q) * p.n + begin, even[q], sizeof(T) * count);
    if (!p.wants_odd()) return valid;
    if constexpr (DEGREE == 0) valid &= odd_sums<T, ROWS>(p, padded, states, begin, count, near, odd);
    for (int64_t q = 0; q < rows; ++q) {
        const int64_t at = (row + q) * p.n + begin;
        if (p.odd) std::memcpy(p.odd + at, odd[q], sizeof(T) * count);
        if (p.pull)
            for (int64_t i = 0; i < count; ++i) p.pull[begin + i] += double(odd[q][i]) * double(p.weights[at + i]);
    }
    return valid;
}

// All rows. One thread scans the sources of the pass's groups; then the threads share the targets.
template <class T, int ROWS, int DEGREE>
Status spread_rows(const Problem<T>& p, const T* padded, int threads) {
    using Src = Sources<T, ROWS, DEGREE>;
    const int64_t groups = block_count(p.m, ROWS), carry_size = (Src::chunks(p.k) + 1) * Src::STATE;
    const int64_t size = (p.k + 1) * Src::STATE, pass = groups_per_pass(groups, sizeof(double) * 2 * size, threads);
    Buffer<T> x(p.k * ROWS);
    Buffer<double> carries(2 * carry_size), memory(pass * 2 * size);
    if (!x || !carries || !memory) return OUT_OF_MEMORY;
    const Src src{padded + 1, p.k, p.rate, x.get(), carries.get(), carries.get() + carry_size};
    bool valid = true;
    for (int64_t first = 0; first < groups; first += pass) {
        const int64_t last = smaller(groups, first + pass);
        const auto states = [&](int64_t group) {
            double* left = memory.get() + (group - first) * 2 * size;
            return States{left, left + size};
        };
        for (int64_t group = first; group < last; ++group) {
            const int64_t row = group * ROWS, rows = smaller<int64_t>(ROWS, p.m - row);
            sort_short_rows<T, ROWS>(p.x + row * p.k, rows, p.k, p.source_order, x.get());
            all_states(src, states(group));
        }
        valid &= parallel_ranges(threads, block_count(p.n, BLOCK), [&](int64_t begin, int64_t end, int64_t) {
            bool in_place = true;
            for (int64_t group = first; group < last; ++group)
                for (int64_t block = begin; block < end; ++block)
                    in_place &= spread_block<T, ROWS, DEGREE>(p, padded, states(group), group * ROWS, block * BLOCK);
            return in_place;
        });
    }
    return valid ? OK : STALE_PLAN;
}

template <class T>
Status spread(const Problem<T>& p, int threads) {
    Buffer<T> padded(p.k + 2);
    if (!padded) return OUT_OF_MEMORY;
    if (!gather_padded(p.source, p.source_order, p.k, padded.get())) return STALE_PLAN;
    if (p.degree && p.m == 1) return spread_rows<T, 1, 1>(p, padded.get(), threads);
    if (p.degree) return spread_rows<T, 4, 1>(p, padded.get(), threads);  // a state has two numbers per row
    if (p.m == 1) return spread_rows<T, 1, 0>(p, padded.get(), threads);
    if (p.m == 2) return spread_rows<T, 2, 0>(p, padded.get(), threads);
    if (p.m <= 4) return spread_rows<T, 4, 0>(p, padded.get(), threads);
    return spread_rows<T, 8, 0>(p, padded.get(), threads);
}

// --- collect: many sources, few targets -----------------------------------------------------------------------------

// Sums of sources by interval between targets. A source between the targets q - 1 and q contributes to two states, each
// referred to a target, so that no exponent is positive. A tied source contributes to its target only.
//
//     to_right (n + 1, STATE)    to_right[q]: the sources between targets q - 1 and q, referred to target q
//     to_left  (n + 1, STATE)    to_left[q]: the same sources, referred to target q - 1
//     tied     (n + 1, ROWS)     tied[q]: the sources at target q
template <int ROWS, int DEGREE>
struct Intervals {
    static constexpr int STATE = ROWS * (DEGREE + 1);
    double *to_right, *to_left, *tied;
    static int64_t size(int64_t n) { return (2 * STATE + ROWS) * (n + 1); }
    Intervals(double* memory, int64_t n)
        : to_right(memory), to_left(memory + (n + 1) * STATE), tied(memory + 2 * (n + 1) * STATE) {}
};

// Add a source x (ROWS,) to a state, over u = gap / tau with the decay d.
template <int ROWS, int DEGREE, class T>
inline void add_source(const T* x, double u, double d, double* state) {
    for (int q = 0; q < ROWS; ++q) state[q] += d * double(x[q]);
    if (DEGREE)
        for (int q = 0; q < ROWS; ++q) state[ROWS * DEGREE + q] += u * (d * double(x[q]));
}

// The gaps and decays from `count` sources s to the targets on their two sides. A tied source has two gaps of 0.
// Returns false if a source does not lie where the plan says. The function is inlined so that the compiler sees that
// `near` overlaps no other array.
template <class T, int DEGREE>
[[gnu::always_inline]] inline bool find_targets(int64_t count, const T* s, const int32_t* below, const int32_t* upto,
                                                const T* padded, double rate, Neighbours& near) {
    int valid = 1;
    for (int64_t j = 0; j < count; ++j) {
        near.u_right[j] = double(padded[below[j] + 1]) - double(s[j]);
        near.u_left[j] = double(s[j]) - double(padded[upto[j]]);
    }
    for (int64_t j = 0; j < count; ++j) {
        const int tied = below[j] != upto[j];
        valid &= int(near.u_right[j] >= 0) & int((near.u_right[j] == 0) == tied) & int(padded[below[j]] < s[j]);
        valid &= int(near.u_left[j] >= 0) & int((near.u_left[j] == 0) == tied) & int(s[j] < padded[upto[j] + 1]);
    }
    fill_decays<T, DEGREE>(count, rate, near);
    return valid;
}

// Add the sources [begin, begin + BLOCK) to the sums, for the group of rows from `row` on. Returns false if the plan is
// stale.
template <class T, int ROWS, int DEGREE>
bool collect_block(const Problem<T>& p, const T* padded, const Intervals<ROWS, DEGREE>& sums, int64_t row,
                   int64_t begin) {
    constexpr int STATE = sums.STATE;
    const int64_t count = smaller(BLOCK, p.k - begin), rows = smaller<int64_t>(ROWS, p.m - row);
    const int32_t *below = p.source_below + begin, *upto = p.source_upto + begin;
    Neighbours near;
    const bool valid = find_targets<T, DEGREE>(count, p.source + begin, below, upto, padded, p.rate, near);
    T x[BLOCK][ROWS];
    for (int64_t q = 0; q < ROWS; ++q)
        for (int64_t j = 0; j < count; ++j) x[j][q] = q < rows ? p.x[(row + q) * p.k + begin + j] : T(0);
    for (int64_t j = 0; j < count; ++j) {
        if (below[j] != upto[j]) {
            add_source<ROWS, 0>(x[j], 0.0, 1.0, sums.tied + int64_t(below[j]) * ROWS);
            continue;
        }
        double *right = sums.to_right + int64_t(below[j]) * STATE, *left = sums.to_left + int64_t(upto[j]) * STATE;
        add_source<ROWS, DEGREE>(x[j], near.u_right[j], near.to_right[j], right);
        add_source<ROWS, DEGREE>(x[j], near.u_left[j], near.to_left[j], left);
    }
    return valid;
}

// out = the state plus the ties at its position (null if they are not to be added), moved over `gap`.
template <class T, int ROWS, int DEGREE>
inline void move_with_ties(const double* state, const double* tied, double gap, double rate, double* out) {
    double sum[ROWS * (DEGREE + 1)];
    const double u = smaller(gap * rate, MAX_U);
    for (int q = 0; q < ROWS * (DEGREE + 1); ++q) sum[q] = state[q] + (tied && q < ROWS ? tied[q] : 0);
    move_state<ROWS, DEGREE>(sum, u, decay<T>(u), out);
}

// Scan the targets from the left. to_right[i] becomes the left state of target i: all sources strictly left of it,
// referred to it. Equal targets get equal sums: the ties of the first are copied to the others.
template <class T, int ROWS, int DEGREE>
void scan_left(const T* t, int64_t n, double rate, const Intervals<ROWS, DEGREE>& sums) {
    constexpr int STATE = sums.STATE;
    double moved[STATE];
    for (int64_t i = 1; i < n; ++i) {
        const double* tied = sums.tied + (i - 1) * ROWS;
        const bool same = t[i] == t[i - 1];
        move_with_ties<T, ROWS, DEGREE>(sums.to_right + (i - 1) * STATE, same ? nullptr : tied,
                                        double(t[i]) - double(t[i - 1]), rate, moved);
        for (int q = 0; q < STATE; ++q) sums.to_right[i * STATE + q] += moved[q];
        if (same) std::memcpy(sums.tied + i * ROWS, tied, sizeof(double) * ROWS);
    }
}

// Scan the targets in both directions and write the group of rows of the product from `row` on.
template <class T, int ROWS, int DEGREE>
void collect_targets(const Problem<T>& p, const T* padded, const Intervals<ROWS, DEGREE>& sums, int64_t row) {
    constexpr int STATE = sums.STATE, READ = STATE - ROWS;  // the offset of the sums that are read: v, or p in degree 1
    const T* t = padded + 1;
    const int64_t rows = smaller<int64_t>(ROWS, p.m - row);
    scan_left<T>(t, p.n, p.rate, sums);
    double right[STATE] = {};
    for (int64_t i = p.n - 1; i >= 0; --i) {
        const bool last = i == p.n - 1, same = !last && t[i] == t[i + 1];
        const double gap = last ? INFINITE : double(t[i + 1]) - double(t[i]);
        move_with_ties<T, ROWS, DEGREE>(right, last || same ? nullptr : sums.tied + (i + 1) * ROWS, gap, p.rate, right);
        for (int q = 0; q < STATE; ++q) right[q] += sums.to_left[(i + 1) * STATE + q];
        const int64_t at = p.target_order[i];
        for (int q = 0; q < rows; ++q) {
            const double from_left = sums.to_right[i * STATE + READ + q], from_right = right[READ + q];
            const int64_t out = (row + q) * p.n + at;
            p.even[out] = T(from_left + (DEGREE ? 0 : sums.tied[i * ROWS + q]) + from_right);
            if (p.odd) p.odd[out] = T(from_right - from_left);
            if (p.pull) p.pull[at] += (from_right - from_left) * double(p.weights[out]);
        }
    }
}

// All rows. The threads share the sources, and every thread has its own sums for each group. The number of threads is
// limited, so that one group's sums take less memory than the sources.
template <class T, int ROWS, int DEGREE>
Status collect_rows(const Problem<T>& p, const T* padded, int threads) {
    using Sums = Intervals<ROWS, DEGREE>;
    const int64_t groups = block_count(p.m, ROWS), blocks = block_count(p.k, BLOCK), size = Sums::size(p.n);
    threads = int(smaller<int64_t>(smaller<int64_t>(threads, blocks), 1 + p.k / (8 * (p.n + 1))));
    const int64_t pass = groups_per_pass(groups, sizeof(double) * threads * size, threads);
    Buffer<double> memory(pass * threads * size);
    if (!memory) return OUT_OF_MEMORY;
    bool valid = true;
    for (int64_t first = 0; first < groups; first += pass) {
        const int64_t last = smaller(groups, first + pass);
        const auto sums = [&](int64_t group, int64_t thread) {
            return memory.get() + ((group - first) * threads + thread) * size;
        };
        valid &= parallel_ranges(threads, blocks, [&](int64_t begin, int64_t end, int64_t thread) {
            bool in_place = true;
            for (int64_t group = first; group < last; ++group) {
                double* own = sums(group, thread);
                std::memset(own, 0, sizeof(double) * size);
                for (int64_t block = begin; block < end; ++block)
                    in_place &= collect_block<T>(p, padded, Sums(own, p.n), group * ROWS, block * BLOCK);
            }
            return in_place;
        });
        for (int64_t group = first; group < last; ++group) {
            double* total = sums(group, 0);
            for (int64_t thread = 1; thread < threads; ++thread)  // always in this order: the same bits every time
                for (int64_t i = 0; i < size; ++i) total[i] += sums(group, thread)[i];
            collect_targets<T>(p, padded, Sums(total, p.n), group * ROWS);
        }
    }
    return valid ? OK : STALE_PLAN;
}

template <class T>
Status collect(const Problem<T>& p, int threads) {
    Buffer<T> padded(p.n + 2);
    if (!padded) return OUT_OF_MEMORY;
    if (!gather_padded(p.target, p.target_order, p.n, padded.get())) return STALE_PLAN;
    if (p.degree && p.m == 1) return collect_rows<T, 1, 1>(p, padded.get(), threads);
    if (p.degree) return collect_rows<T, 4, 1>(p, padded.get(), threads);  // a state has two numbers per row
    if (p.m == 1) return collect_rows<T, 1, 0>(p, padded.get(), threads);
    if (p.m == 2) return collect_rows<T, 2, 0>(p, padded.get(), threads);
    if (p.m <= 4) return collect_rows<T, 4, 0>(p, padded.get(), threads);
    return collect_rows<T, 8, 0>(p, padded.get(), threads);
}

template Status spread<float>(const Problem<float>&, int);
template Status spread<double>(const Problem<double>&, int);
template Status collect<float>(const Problem<float>&, int);
template Status collect<double>(const Problem<double>&, int);

}  // namespace laplex::LAPLEX_ISA
