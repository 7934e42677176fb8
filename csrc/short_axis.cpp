// One side much shorter: only that side is sorted, the long side is read as it comes.
#include "neighbours.h"

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

template <class T, int ROWS, int DEGREE>
bool spread_block(const Problem<T>& p, const T* edges, const double* left, const double* right, int64_t row,
                  int64_t rows, int64_t begin) {
    constexpr int STATE = ROWS * (DEGREE + 1);
    const int64_t count = smaller(BLOCK, p.n - begin);
    const int32_t *below = p.target_below + begin, *upto = p.target_upto + begin;
    const T* t = p.target + begin;
    Beside gaps;
    bool holds = look_beside<T, DEGREE>(count, t, below, 0, edges, p.rate, gaps);
    T out[ROWS][BLOCK], odd[ROWS][BLOCK];
    for (int64_t i = 0; i < count; ++i) {
        double from_left[ROWS], from_right[ROWS];
        read_state<ROWS, DEGREE>(left + int64_t(below[i]) * STATE, gaps.u_left[i], gaps.to_left[i], from_left);
        read_state<ROWS, DEGREE>(right + int64_t(below[i]) * STATE, gaps.u_right[i], gaps.to_right[i], from_right);
        for (int q = 0; q < ROWS; ++q) out[q][i] = T(from_left[q] + from_right[q]);
        if (DEGREE)
            for (int q = 0; q < ROWS; ++q) odd[q][i] = T(from_right[q] - from_left[q]);
    }
    for (int64_t q = 0; q < rows; ++q) std::memcpy(p.even + (row + q) * p.n + begin, out[q], sizeof(T) * count);
    if (!p.wants_odd()) return holds;
    for (int64_t i = 0; i < count && DEGREE == 0; ++i) {  // of degree 1 a tie gives nothing
        const double *l = left + int64_t(below[i]) * ROWS, *r = right + int64_t(upto[i]) * ROWS;
        const double gap = double(edges[upto[i] + 1]) - double(t[i]);
        const bool tied = upto[i] != below[i];
        holds &= gap > 0 && tied == (edges[below[i] + 1] == t[i]) && tied == (edges[upto[i]] == t[i]);
        if (upto[i] != below[i]) gaps.to_right[i] = decay<T>(gap * p.rate);
        for (int q = 0; q < ROWS; ++q) odd[q][i] = T(r[q] * gaps.to_right[i] - l[q] * gaps.to_left[i]);
    }
    for (int64_t q = 0; q < rows; ++q) {
        const int64_t at = (row + q) * p.n + begin;
        if (p.odd) std::memcpy(p.odd + at, odd[q], sizeof(T) * count);
        if (p.pull)
            for (int64_t i = 0; i < count; ++i) p.pull[begin + i] += double(odd[q][i]) * double(p.weights[at + i]);
    }
    return holds;
}

template <class T, int ROWS, int DEGREE>
Status spread_rows(const Problem<T>& p, const T* edges, int threads) {
    using Src = Sources<T, ROWS, DEGREE>;
    constexpr int STATE = Src::STATE;
    const int64_t chunks = Src::chunks(p.k), carries = (chunks + 1) * STATE;
    Buffer<T> x(p.k * ROWS);
    Buffer<double> sums(2 * carries), left((p.k + 1) * STATE), right((p.k + 1) * STATE);
    if (!x || !sums || !left || !right) return OUT_OF_MEMORY;
    const Src src{edges + 1, p.k, p.rate, x.get(), sums.get(), sums.get() + carries};
    const int64_t blocks = (p.n + BLOCK - 1) / BLOCK;
    bool holds = true;
    for (int64_t row = 0; row < p.m; row += ROWS) {
        const int64_t rows = smaller<int64_t>(ROWS, p.m - row);
        few_rows_in_order<T, ROWS>(p.x + row * p.k, rows, p.k, p.source_order, x.get());
        for (int64_t c = 0; c < chunks; ++c) chunk_total(src, static_cast<const T*>(nullptr), nullptr, c);
        carry(src);
        for (int64_t c = 0; c < chunks; ++c)  // neighbours share a place, written by both, with the same state
            chunk_states(src, c, left.get() + src.first(c) * STATE, right.get() + src.first(c) * STATE);
        holds &= for_all(threads, blocks, [&](int64_t block, int) {
            return spread_block<T, ROWS, DEGREE>(p, edges, left.get(), right.get(), row, rows, block * BLOCK);
        });
    }
    return holds ? OK : STALE_PLAN;
}

template <class T>
Status spread(const Problem<T>& p, int threads) {
    Buffer<T> edges(p.k + 2);
    if (!edges) return OUT_OF_MEMORY;
    if (!gather_with_edges(p.source, p.source_order, p.k, edges.get())) return STALE_PLAN;
    if (p.degree && p.m == 1) return spread_rows<T, 1, 1>(p, edges.get(), threads);
    if (p.degree) return spread_rows<T, 4, 1>(p, edges.get(), threads);  // two numbers a row
    if (p.m == 1) return spread_rows<T, 1, 0>(p, edges.get(), threads);
    if (p.m == 2) return spread_rows<T, 2, 0>(p, edges.get(), threads);
    if (p.m <= 4) return spread_rows<T, 4, 0>(p, edges.get(), threads);
    return spread_rows<T, 8, 0>(p, edges.get(), threads);
}

// --- long -> short: sum the sources into the intervals between the few targets, then scan the targets ---------------

// What the sources of one thread give, by target, as states, all (n + 1, STATE): to_right[q] the sources between targets
// q - 1 and q, referred to target q, which they lie left of; to_left[q] the same referred to target q - 1; tied[q] the sums of
// those at target q, (n + 1, ROWS).
template <int ROWS, int DEGREE>
struct Intervals {
    static constexpr int STATE = ROWS * (DEGREE + 1);
    double *to_right, *to_left, *tied;
    static int64_t size(int64_t n) { return (2 * STATE + ROWS) * (n + 1); }
    Intervals(double* memory, int64_t n)
        : to_right(memory), to_left(memory + (n + 1) * STATE), tied(memory + 2 * (n + 1) * STATE) {}
};

// Add a source's ROWS numbers to a state, carried over u = gap / tau with the decay d.
template <int ROWS, int DEGREE, class T>
inline void add_source(const T* x, double u, double d, double* state) {
    for (int q = 0; q < ROWS; ++q) state[q] += d * double(x[q]);
    if (DEGREE)
        for (int q = 0; q < ROWS; ++q) state[ROWS * DEGREE + q] += u * (d * double(x[q]));
}

template <class T, int ROWS, int DEGREE>
bool collect_block(const Problem<T>& p, const T* edges, const Intervals<ROWS, DEGREE>& sums, int64_t row, int64_t rows,
                   int64_t begin) {
    constexpr int STATE = sums.STATE;
    const int64_t count = smaller(BLOCK, p.k - begin);
    const int32_t *below = p.source_below + begin, *upto = p.source_upto + begin;
    const T* s = p.source + begin;
    Beside gaps;
    int holds = 1;
    for (int64_t j = 0; j < count; ++j) {
        gaps.u_right[j] = double(edges[below[j] + 1]) - double(s[j]);
        gaps.u_left[j] = double(s[j]) - double(edges[upto[j]]);
    }
    for (int64_t j = 0; j < count; ++j) {
        const int tie = below[j] != upto[j];
        holds &= int(gaps.u_right[j] >= 0) & int((gaps.u_right[j] == 0) == tie) & int(edges[below[j]] < s[j]);
        holds &= int(gaps.u_left[j] >= 0) & int((gaps.u_left[j] == 0) == tie) & int(s[j] < edges[upto[j] + 1]);
    }
    decay_gaps<T, DEGREE>(count, p.rate, gaps);
    T x[BLOCK][ROWS];
    for (int64_t q = 0; q < ROWS; ++q)
        for (int64_t j = 0; j < count; ++j) x[j][q] = q < rows ? p.x[(row + q) * p.k + begin + j] : T(0);
    for (int64_t j = 0; j < count; ++j) {
        if (below[j] != upto[j]) {
            add_source<ROWS, 0>(x[j], 0.0, 1.0, sums.tied + int64_t(below[j]) * ROWS);
            continue;
        }
        double *right = sums.to_right + int64_t(below[j]) * STATE, *left = sums.to_left + int64_t(upto[j]) * STATE;
        add_source<ROWS, DEGREE>(x[j], gaps.u_right[j], gaps.to_right[j], right);
        add_source<ROWS, DEGREE>(x[j], gaps.u_left[j], gaps.to_left[j], left);
    }
    return holds;
}

// A state with the ties of its own place added.
template <int ROWS, int DEGREE>
inline void with_ties(const double* state, const double* tied, double* out) {
    for (int q = 0; q < ROWS * (DEGREE + 1); ++q) out[q] = state[q] + (tied && q < ROWS ? tied[q] : 0);
}

// Scan the targets: everything strictly left and right of each, and its ties. Equal targets have equal sums.
template <class T, int ROWS, int DEGREE>
void collect_targets(const Problem<T>& p, const T* edges, const Intervals<ROWS, DEGREE>& sums, int64_t row,
                     int64_t rows) {
    constexpr int STATE = sums.STATE, READ = STATE - ROWS;  // where a state has what is asked for
    const T* t = edges + 1;
    double* left = sums.to_right;  // becomes the state strictly left of each target
    double state[STATE], right[STATE] = {};
    for (int64_t i = 1; i < p.n; ++i) {
        const double* tied = sums.tied + (i - 1) * ROWS;
        const bool same = t[i] == t[i - 1];
        const double u = smaller((double(t[i]) - double(t[i - 1])) * p.rate, BEYOND);
        with_ties<ROWS, DEGREE>(left + (i - 1) * STATE, same ? nullptr : tied, state);
        carry_over<ROWS, DEGREE>(state, u, decay<T>(u), state);
        for (int q = 0; q < STATE; ++q) left[i * STATE + q] += state[q];
        if (same) std::memcpy(sums.tied + i * ROWS, tied, sizeof(double) * ROWS);
    }
    for (int64_t i = p.n - 1; i >= 0; --i) {
        const bool last = i == p.n - 1, same = !last && t[i] == t[i + 1];
        const double u = last ? BEYOND : smaller((double(t[i + 1]) - double(t[i])) * p.rate, BEYOND);
        with_ties<ROWS, DEGREE>(right, last || same ? nullptr : sums.tied + (i + 1) * ROWS, state);
        carry_over<ROWS, DEGREE>(state, u, decay<T>(u), right);
        for (int q = 0; q < STATE; ++q) right[q] += sums.to_left[(i + 1) * STATE + q];
        const int64_t at = p.target_order[i];
        for (int q = 0; q < rows; ++q) {
            const double from_left = left[i * STATE + READ + q], from_right = right[READ + q];
            const int64_t out = (row + q) * p.n + at;
            p.even[out] = T(from_left + (DEGREE ? 0 : sums.tied[i * ROWS + q]) + from_right);
            if (p.odd) p.odd[out] = T(from_right - from_left);
            if (p.pull) p.pull[at] += (from_right - from_left) * double(p.weights[out]);
        }
    }
}

template <class T, int ROWS, int DEGREE>
Status collect_rows(const Problem<T>& p, const T* edges, int threads) {
    using Sums = Intervals<ROWS, DEGREE>;
    const int64_t size = Sums::size(p.n);
    threads = int(smaller<int64_t>(threads, 1 + p.k / (8 * (p.n + 1))));  // their sums are not to outgrow the sources
    Buffer<double> sums(threads * size);
    if (!sums) return OUT_OF_MEMORY;
    const int64_t blocks = (p.k + BLOCK - 1) / BLOCK;
    bool holds = true;
    for (int64_t row = 0; row < p.m; row += ROWS) {
        const int64_t rows = smaller<int64_t>(ROWS, p.m - row);
        std::memset(sums.get(), 0, sizeof(double) * threads * size);
        holds &= for_all(threads, blocks, [&](int64_t block, int thread) {
            const Sums mine(sums.get() + thread * size, p.n);
            return collect_block<T, ROWS, DEGREE>(p, edges, mine, row, rows, block * BLOCK);
        });
        for (int64_t thread = 1; thread < threads; ++thread)  // in this order, always
            for (int64_t i = 0; i < size; ++i) sums[i] += sums[thread * size + i];
        collect_targets<T, ROWS, DEGREE>(p, edges, Sums(sums.get(), p.n), row, rows);
    }
    return holds ? OK : STALE_PLAN;
}

template <class T>
Status collect(const Problem<T>& p, int threads) {
    Buffer<T> edges(p.n + 2);
    if (!edges) return OUT_OF_MEMORY;
    if (!gather_with_edges(p.target, p.target_order, p.n, edges.get())) return STALE_PLAN;
    if (p.degree && p.m == 1) return collect_rows<T, 1, 1>(p, edges.get(), threads);
    if (p.degree) return collect_rows<T, 4, 1>(p, edges.get(), threads);  // two numbers a row
    if (p.m == 1) return collect_rows<T, 1, 0>(p, edges.get(), threads);
    if (p.m == 2) return collect_rows<T, 2, 0>(p, edges.get(), threads);
    if (p.m <= 4) return collect_rows<T, 4, 0>(p, edges.get(), threads);
    return collect_rows<T, 8, 0>(p, edges.get(), threads);
}

template Status spread<float>(const Problem<float>&, int);
template Status spread<double>(const Problem<double>&, int);
template Status collect<float>(const Problem<float>&, int);
template Status collect<double>(const Problem<double>&, int);

}  // namespace laplex::LAPLEX_ISA
