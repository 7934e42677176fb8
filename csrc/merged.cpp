// The product for a merged plan: both sides are sorted.
//
// The targets are processed in their order, a chunk of sources at a time. The states of the chunk's sources
// (recurrence.h) are written to a small buffer, and the targets that lie in the chunk read their sums from it.
#include "neighbours.h"

namespace laplex::LAPLEX_ISA {

// --- The anchors in order -------------------------------------------------------------------------------------------

// Copy the anchors (size,) into out, in order. Returns false if `order` does not sort them, or if they are not finite.
template <class T>
bool gather_sorted(const T* anchors, const int32_t* order, int64_t size, T* out, int threads) {
    const bool sorted = parallel_for(threads, block_count(size, CHUNK), [&](int64_t c, int) {
        const int64_t from = c * CHUNK, to = smaller(size, from + CHUNK);
        for (int64_t i = from; i < to; ++i) out[i] = anchors[order[i]];
        int rising = from == 0 || anchors[order[from - 1]] <= out[from];
        for (int64_t i = from + 1; i < to; ++i) rising &= int(out[i - 1] <= out[i]);
        return rising;
    });
    return sorted && is_finite(out[0]) && is_finite(out[size - 1]);
}

// Compare part `part` of `parts` of the anchors, bit for bit, with those that the plan was built from. Comparing all
// anchors is much faster than gathering them in order again. Unlike a version counter, it notices every change.
template <class T>
bool anchors_unchanged(const Problem<T>& p, int64_t part, int64_t parts) {
    const auto same = [=](const T* anchors, const T* built_from, int64_t size) {
        if (anchors == built_from) return true;
        const int64_t from = size * part / parts, to = size * (part + 1) / parts;
        return std::memcmp(anchors + from, built_from + from, sizeof(T) * (to - from)) == 0;
    };
    return same(p.target, p.target_values, p.n) && same(p.source, p.source_values, p.k);
}

// --- Tasks: targets of one chunk ------------------------------------------------------------------------------------

// The targets [first, last), in order, whose place among the sources is in `chunk`.
struct Task {
    int64_t chunk, first, last;
};

// If many targets lie in one chunk they become several tasks, so that all threads get work.
constexpr int64_t MAX_TASK = 8 * CHUNK;

// The first target with below >= j. `below` (n,) does not decrease. The result is likely near the start, so the search
// doubles its range before it bisects.
inline int64_t first_target(const int32_t* below, int64_t n, int64_t j) {
    int64_t low = 0, high = smaller<int64_t>(n, CHUNK);
    while (high < n && below[high - 1] < j) {
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

// Fill `tasks` and return their number, which is at most chunks + n / MAX_TASK.
template <class T>
int64_t make_tasks(const Problem<T>& p, Task* tasks) {
    int64_t count = 0, first = 0;
    for (int64_t c = 0; c * CHUNK < p.k; ++c) {
        const int64_t to = (c + 1) * CHUNK;
        const int64_t last = to >= p.k ? p.n : first + first_target(p.target_below + first, p.n - first, to);
        for (; first < last; first = tasks[count++].last) tasks[count] = {c, first, smaller(last, first + MAX_TASK)};
    }
    return count;
}

// --- The output -----------------------------------------------------------------------------------------------------

// The destination of the targets' sums. A single number per target is written to its final place at once. Several
// numbers are first stored next to each other, in the order of the targets; `unsort_rows` then reads each target once.
template <class T, int ROWS, bool ODD>
struct Output {
    static constexpr int WIDTH = ROWS * (ODD ? 2 : 1);
    T* sorted;     // (n, WIDTH): even, then odd; not used if WIDTH is 1
    T* even;       // (size,), used if WIDTH is 1
    int64_t size;  // n - pads

    // Store the sums of target i in order, which has index `caller` in the caller's order.
    void put(int64_t i, int64_t caller, const double* left, const double* right) const {
        if (WIDTH == 1) {
            if (caller < size) even[caller] = T(left[0] + right[0]);
            return;
        }
        T* out = sorted + i * WIDTH;
        for (int q = 0; q < ROWS; ++q) out[q] = T(left[q] + right[q]);
        if (ODD)
            for (int q = 0; q < ROWS; ++q) out[ROWS + q] = T(right[q] - left[q]);
    }
};

// Copy sorted (n, WIDTH) to `rows` rows of even and odd from `row` on, in the caller's order; add weights * odd to
// pull.
template <class T, int ROWS, bool ODD>
void unsort_rows(const Problem<T>& p, const T* sorted, int64_t row, int64_t rows, int threads) {
    constexpr int WIDTH = Output<T, ROWS, ODD>::WIDTH;
    if (WIDTH == 1) return;
    const int64_t length = p.n - p.pads;
    parallel_for(threads, block_count(length, BLOCK), [&](int64_t block, int) {
        const int64_t from = block * BLOCK, size = smaller(BLOCK, length - from);
        T tile[BLOCK][WIDTH];
        for (int64_t i = 0; i < size; ++i)
            std::memcpy(tile[i], sorted + int64_t(p.target_rank[from + i]) * WIDTH, sizeof(T) * WIDTH);
        for (int64_t q = 0; q < rows; ++q) {
            T* even = p.even + (row + q) * length + from;
            for (int64_t i = 0; i < size; ++i) even[i] = tile[i][q];
            if (ODD && p.odd) {
                T* odd = p.odd + (row + q) * length + from;
                for (int64_t i = 0; i < size; ++i) odd[i] = tile[i][ROWS + q];
            }
            if (ODD && p.pull) {
                const T* weight = p.weights + (row + q) * length + from;
                for (int64_t i = 0; i < size; ++i) p.pull[from + i] += double(tile[i][ROWS + q]) * double(weight[i]);
            }
        }
        return true;
    });
}

// --- The targets read their sums ------------------------------------------------------------------------------------

// The right state of source j, state (ROWS,), for a run of tied sources that ends in another chunk.
template <class T, int ROWS>
void right_state(const Sources<T, ROWS, 0>& src, int64_t j, double* state) {
    if (j >= src.k) {
        for (int row = 0; row < ROWS; ++row) state[row] = 0;
        return;
    }
    const int64_t c = j / CHUNK;
    double left[(CHUNK + 1) * ROWS], right[(CHUNK + 1) * ROWS];
    chunk_states(src, c, left, right);
    for (int row = 0; row < ROWS; ++row) state[row] = right[(j - src.first(c)) * ROWS + row];
}

// Correct the odd sums of the tied targets among [begin, begin + count). Their right sum so far is the even sum's,
// which includes the ties; the odd sum's starts after the run of tied sources (see Ties in recurrence.h). Returns false
// if the plan's ties are not those of the anchors. left and right are the states of chunk c, to_left the decays to the
// left neighbours.
template <class T, int ROWS>
bool correct_ties(const Problem<T>& p, const Sources<T, ROWS, 0>& src, const T* t, int64_t begin, int64_t count,
                  int64_t c, const double* left, const double* right, const double* to_left,
                  const Output<T, ROWS, true>& output) {
    const int32_t *below = p.target_below + begin, *upto = p.target_upto + begin;
    const int64_t from = src.first(c), to = src.last(c) + 1;
    bool valid = true;
    int64_t far_place = -1;  // the right state of this source, in another chunk, is in `far`
    double far[ROWS] = {};
    for (int64_t i = 0; i < count; ++i) {
        const T here = t[begin + i];
        const bool tied = below[i] < src.k && src.s[below[i]] == here;
        valid &= tied == (upto[i] != below[i]);
        if (!tied || upto[i] == below[i]) continue;
        if (upto[i] > to && upto[i] != far_place) right_state(src, far_place = upto[i], far);
        const double* l = left + (below[i] - from) * ROWS;                       // sources [0, below)
        const double* r = upto[i] > to ? far : right + (upto[i] - from) * ROWS;  // sources [upto, k): without the ties
        const double gap = upto[i] < src.k ? double(src.s[upto[i]]) - double(here) : INFINITE;
        valid &= gap > 0 && src.s[upto[i] - 1] == here;
        const double to_right = decay<T>(gap * p.rate);
        T* odd = output.sorted + (begin + i) * output.WIDTH + ROWS;
        for (int q = 0; q < ROWS; ++q) odd[q] = T(r[q] * to_right - l[q] * to_left[i]);
    }
    return valid;
}

// Compute the sums of the task's targets. t (n,) are the targets in order. Returns false if the plan is stale.
template <class T, int ROWS, bool ODD, int DEGREE>
bool run_task(const Problem<T>& p, const Sources<T, ROWS, DEGREE>& src, const T* t, const Output<T, ROWS, ODD>& output,
              Task task) {
    constexpr int STATE = src.STATE;
    const int64_t c = task.chunk, from = src.first(c), size = src.last(c) + 1 - from, to = from + size;
    double left[(CHUNK + 1) * STATE], right[(CHUNK + 1) * STATE];
    chunk_states(src, c, left, right);
    T padded[CHUNK + 2];  // the source before the chunk, the chunk, the source after it
    padded[0] = from > 0 ? src.s[from - 1] : T(-INFINITE);
    std::memcpy(padded + 1, src.s + from, sizeof(T) * size);
    padded[size + 1] = to < src.k ? src.s[to] : T(INFINITE);

    bool valid = true;
    for (int64_t begin = task.first; begin < task.last; begin += BLOCK) {
        const int64_t count = smaller(BLOCK, task.last - begin);
        const int32_t *order = p.target_order + begin, *below = p.target_below + begin;
        Neighbours near;
        valid &= find_neighbours<T, DEGREE>(count, t + begin, below, from, padded, p.rate, near);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = (below[i] - from) * STATE;
            double from_left[ROWS], from_right[ROWS];
            read_state<ROWS, DEGREE>(left + at, near.u_left[i], near.to_left[i], from_left);
            read_state<ROWS, DEGREE>(right + at, near.u_right[i], near.to_right[i], from_right);
            output.put(begin + i, order[i], from_left, from_right);
        }
        if constexpr (ODD && DEGREE == 0)  // in degree 1 a tied source contributes 0
            valid &= correct_ties(p, src, t, begin, count, c, left, right, near.to_left, output);
    }
    return valid;
}

// --- The whole product ----------------------------------------------------------------------------------------------

// The rows of x are processed in groups of ROWS. With at least as many groups as threads, every thread takes whole
// groups (`outer` threads); otherwise the groups run one after another, and the threads share the chunks of one group
// (`inner`).
template <class T, int ROWS, bool ODD, int DEGREE>
class MergedProduct {
public:
    // s (k,), t (n,): the anchors in order. With `check` they are those the plan was built from, and the anchors
    // themselves must still be compared with them.
    MergedProduct(const Problem<T>& problem, const T* sources, const T* targets, bool compare, int threads)
        : p(problem), s(sources), t(targets), check(compare), groups(block_count(p.m, ROWS)), chunks(Src::chunks(p.k)),
          outer(groups >= threads ? threads : 1), inner(threads / outer), x_size(p.k * ROWS),
          out_size(Out::WIDTH > 1 ? p.n * Out::WIDTH : 0), carry_size((chunks + 1) * Src::STATE),
          pull_size(p.pull ? p.n - p.pads : 0), rows_memory(outer * (x_size + out_size)),
          sums_memory(outer * 2 * carry_size + (outer - 1) * pull_size), tasks(chunks + p.n / MAX_TASK + 1) {}

    Status run() {
        if (!rows_memory || !sums_memory || !tasks) return OUT_OF_MEMORY;
        // With many rows the comparison is cheap next to the product; with few, the first pass over the chunks does it.
        if (check && inner == 1 && !anchors_unchanged(p, 0, 1)) return STALE_PLAN;
        pulls = sums_memory.get() + outer * 2 * carry_size;
        std::memset(pulls, 0, sizeof(double) * (outer - 1) * pull_size);
        task_count = make_tasks(p, tasks.get());
        const bool valid =
            parallel_for(outer, groups, [&](int64_t group, int thread) { return run_group(group, thread); });
        for (int thread = 1; thread < outer; ++thread)  // always in this order: the same bits every time
            for (int64_t i = 0; i < pull_size; ++i) p.pull[i] += pulls[(thread - 1) * pull_size + i];
        return valid ? OK : STALE_PLAN;
    }

private:
    using Src = Sources<T, ROWS, DEGREE>;
    using Out = Output<T, ROWS, ODD>;

    bool run_group(int64_t group, int thread) {
        if (changed) return false;
        Problem<T> own = p;
        if (p.pull && thread > 0) own.pull = pulls + (thread - 1) * pull_size;
        T* x = rows_memory.get() + thread * (x_size + out_size);
        double* carries = sums_memory.get() + thread * 2 * carry_size;
        const int64_t row = group * ROWS, rows = smaller<int64_t>(ROWS, p.m - row);
        const Src src{s, p.k, p.rate, x, carries, carries + carry_size};
        const Out output{x + x_size, p.even + row * (p.n - p.pads), p.n - p.pads};
        if (!reduce_chunks(src, row, rows, check && inner > 1 && group == 0)) return !(changed = true);
        carry(src);
        const bool valid =
            parallel_for(inner, task_count, [&](int64_t i, int) { return run_task(own, src, t, output, tasks[i]); });
        unsort_rows<T, ROWS, ODD>(own, output.sorted, row, rows, inner);
        return valid;
    }

    // Copy the rows of x into the order of the sources and reduce every chunk. Returns false if `compare` is set and
    // the anchors have changed.
    bool reduce_chunks(const Src& src, int64_t row, int64_t rows, bool compare) {
        const int64_t length = p.k - p.pads;
        const T *x = p.x + row * length, *tail = p.tail + row * p.pads;
        if (ROWS > 1) sort_rows<T, ROWS>(x, rows, length, p.source_rank, src.x, inner);
        if (ROWS > 1 && p.pads) sort_rows<T, ROWS>(tail, rows, p.pads, p.source_rank + length, src.x, 1);
        return parallel_for(inner, chunks, [&](int64_t c, int) {
            if (ROWS == 1)  // gathered here, while the chunk is in the cache
                for (int64_t j = src.first(c); j <= src.last(c); ++j) {
                    const int64_t i = p.source_order[j];
                    src.x[j] = i < length ? x[i] : tail[i - length];
                }
            chunk_total(src, c);
            return !compare || anchors_unchanged(p, c, chunks);
        });
    }

    const Problem<T>& p;
    const T *s, *t;
    const bool check;
    const int64_t groups, chunks;
    const int outer, inner;
    const int64_t x_size, out_size, carry_size, pull_size;
    Buffer<T> rows_memory;       // for each outer thread: x (k, ROWS) and the output (n, WIDTH), in order
    Buffer<double> sums_memory;  // for each outer thread: the states that enter the chunks; then `pulls`
    Buffer<Task> tasks;
    int64_t task_count = 0;
    double* pulls = nullptr;  // (outer - 1, n - pads): the pulls of all threads but the first
    bool changed = false;     // the first group found changed anchors; only with outer = 1, where groups run in turn
};

template <class T, bool ODD>
Status merged_product(const Problem<T>& p, const T* s, const T* t, bool check, int threads) {
    if (p.degree && p.m == 1) return MergedProduct<T, 1, ODD, 1>(p, s, t, check, threads).run();
    if (p.degree) return MergedProduct<T, 4, ODD, 1>(p, s, t, check, threads).run();  // a state has two numbers per row
    if (p.m == 1) return MergedProduct<T, 1, ODD, 0>(p, s, t, check, threads).run();
    if (p.m == 2) return MergedProduct<T, 2, ODD, 0>(p, s, t, check, threads).run();
    if (p.m <= 4) return MergedProduct<T, 4, ODD, 0>(p, s, t, check, threads).run();
    return MergedProduct<T, 8, ODD, 0>(p, s, t, check, threads).run();
}

template <class T>
Status merged_product(const Problem<T>& p, const T* s, const T* t, bool check, int threads) {
    return p.wants_odd() ? merged_product<T, true>(p, s, t, check, threads)
                         : merged_product<T, false>(p, s, t, check, threads);
}

// If the anchors are those the plan was built from, the plan's sorted values are used and nothing is gathered. The
// first anchor of each side decides whether to try: in training all anchors move together. The product compares the
// others.
template <class T>
Status merged(const Problem<T>& p, int threads) {
    if (p.target_values && p.source_values && *p.target == *p.target_values && *p.source == *p.source_values) {
        const Status status = merged_product(p, p.source_values + p.k, p.target_values + p.n, true, threads);
        if (status != STALE_PLAN) return status;
        if (p.pull) std::memset(p.pull, 0, sizeof(double) * (p.n - p.pads));
    }
    Buffer<T> sorted(p.k + p.n);
    if (!sorted) return OUT_OF_MEMORY;
    T *s = sorted.get(), *t = s + p.k;
    if (!(gather_sorted(p.source, p.source_order, p.k, s, threads) &&
          gather_sorted(p.target, p.target_order, p.n, t, threads)))
        return STALE_PLAN;
    return merged_product(p, s, t, false, threads);
}

template Status merged<float>(const Problem<float>&, int);
template Status merged<double>(const Problem<double>&, int);

}  // namespace laplex::LAPLEX_ISA
