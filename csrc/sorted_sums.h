// The sums of the kernel of n sorted numbers with themselves: the recurrence of recurrence.h, read at its own sources.
//
// Sources and targets are the same numbers in the same order, so nothing is merged, and every number reads the states
// of its own place. The sums of place i from the left have the sources [0, i], those from the right [i, n): both have
// the number itself, and of the numbers tied with it each has those on its side.
#pragma once

#include "recurrence.h"

namespace laplex::LAPLEX_ISA {

// Call emit(from, size, left, right) for every chunk: left and right (size, STATE) are the states at the places from
// `from` on. `x` (n, ROWS) is in order. The states do not depend on the number of threads. Returns false without memory.
template <class T, int ROWS, int DEGREE, class F>
bool sums_in_order(const T* sorted, int64_t n, double rate, T* x, int threads, F emit) {
    using Src = Sources<T, ROWS, DEGREE>;
    const int64_t chunks = Src::chunks(n), size = (chunks + 1) * Src::STATE;
    Buffer<double> carries(2 * size);
    if (!carries) return false;
    const Src src{sorted, n, rate, x, carries.get(), carries.get() + size};
    if (chunks > 1)
        parallel_for(threads, chunks, [&](int64_t c, int) {
            chunk_total(src, c);
            return true;
        });
    carry(src);
    parallel_for(threads, chunks, [&](int64_t c, int) {
        double left[(CHUNK + 1) * Src::STATE], right[(CHUNK + 1) * Src::STATE];
        chunk_states(src, c, left, right);
        emit(src.first(c), src.last(c) + 1 - src.first(c), left + Src::STATE, right);
        return true;
    });
    return true;
}

// The sums over tied numbers on either side of every place of a chunk, without the place itself. Runs of ties may
// reach over chunks: `TiesOfChunks` has the sums that enter a chunk from before and from after it.
template <class T>
class TiesOfChunks {
public:
    // z (n,) with a stride of `stride`.
    TiesOfChunks(const T* sorted, int64_t size, const T* values, int64_t step)
        : s(sorted), n(size), z(values), stride(step), chunks(block_count(n, CHUNK)), sums(2 * chunks) {}

    explicit operator bool() const { return bool(sums); }

    void carry() {
        double* before = sums.get();
        double* after = before + chunks;
        before[0] = after[chunks - 1] = 0;
        for (int64_t c = 1; c < chunks; ++c) {
            const int64_t from = (c - 1) * CHUNK, to = c * CHUNK;
            before[c] = 0;
            if (s[to - 1] != s[to]) continue;
            int64_t j = to;
            for (; j > from && s[j - 1] == s[to]; --j) before[c] += double(z[(j - 1) * stride]);
            if (j == from) before[c] += before[c - 1];
        }
        for (int64_t c = chunks - 2; c >= 0; --c) {
            const int64_t from = (c + 1) * CHUNK, to = smaller(n, from + CHUNK);
            after[c] = 0;
            if (s[from - 1] != s[from]) continue;
            int64_t j = from;
            for (; j < to && s[j] == s[from]; ++j) after[c] += double(z[j * stride]);
            if (j == to) after[c] += after[c + 1];
        }
    }

    // before and after (size,) of the chunk that begins at `from`: the ties on the left and on the right of each place.
    void read(int64_t from, int64_t size, double* before, double* after) const {
        double sum = sums[from / CHUNK];
        for (int64_t i = 0; i < size; ++i) {
            if (i > 0 && s[from + i] != s[from + i - 1]) sum = 0;
            before[i] = sum;
            sum += double(z[(from + i) * stride]);
        }
        sum = sums[chunks + from / CHUNK];
        for (int64_t i = size - 1; i >= 0; --i) {
            if (i < size - 1 && s[from + i] != s[from + i + 1]) sum = 0;
            after[i] = sum;
            sum += double(z[(from + i) * stride]);
        }
    }

private:
    const T* s;
    const int64_t n;
    const T* z;
    const int64_t stride, chunks;
    Buffer<double> sums;  // (2, chunks)
};

// --- Rows -----------------------------------------------------------------------------------------------------------

template <class T>
const T* row_of(const void* rows, int64_t row, int64_t size) {
    return static_cast<const T*>(rows) + row * size;
}
template <class T>
T* row_of(void* rows, int64_t row, int64_t size) {
    return static_cast<T*>(rows) + row * size;
}

inline bool is_length(double tau) { return tau >= SMALLEST_TAU && is_finite(tau); }

// Run status = f(row, threads) for all rows of p. Sorting a number takes several times as long as adding it to a sum,
// so that few of them justify a thread.
template <class P, class F>
Status for_each_row(const P& p, F f) {
    constexpr int64_t WORK = 4;
    Buffer<Status> status(p.h);
    if (!status) return OUT_OF_MEMORY;
    return for_each_batch(p.h, WORK * p.n, p.threads, status.get(), f, true);
}

}  // namespace laplex::LAPLEX_ISA
