// The plan of two sides of anchors: the order of each side that is sorted, and the place of each anchor in the other
// side.
//
//     order (size,)         order[i] is the index, in the caller's order, of the i-th smallest anchor. Equal anchors
//                           keep the caller's order.
//     rank (size,)          the inverse permutation of order
//     below, upto (size,)   the number of anchors of the other side that are < and <= this anchor. A tie has
//                           below < upto.
#include "sort_side.h"

namespace laplex::LAPLEX_ISA {

// --- Counting in the other side -------------------------------------------------------------------------------------

// Merge two sorted sides, equal anchors of `first` before those of `second`: below_first (n,) counts the anchors of
// `second` that are < each of `first`, and upto_second (k,) those of `first` that are <= each of `second`. The loop has
// no branch on the data: it writes both counts, and one of them is final.
template <class T>
void merge_counts(const T* first, int64_t n, const T* second, int64_t k, int32_t* below_first, int32_t* upto_second) {
    int64_t i = 0, j = 0;
    while (i < n && j < k) {
        below_first[i] = int32_t(j);
        upto_second[j] = int32_t(i);
        const bool take = first[i] <= second[j];
        i += take;
        j += !take;
    }
    for (; i < n; ++i) below_first[i] = int32_t(k);
    for (; j < k; ++j) upto_second[j] = int32_t(n);
}

// The number of values < value; `sorted` (size,). The bisection has no branch on the data.
template <class T>
int64_t count_below(const T* sorted, int64_t size, T value) {
    const T* base = sorted;
    for (int64_t length = size; length > 1;) {
        const int64_t half = length / 2;
        base += (base[half - 1] < value) * half;
        length -= half;
    }
    return base - sorted + (size > 0 && *base < value);
}

// The number of values <= value, if `below` values are < value. A run of equal values may be long, so it is bisected.
template <class T>
int64_t count_upto(const T* sorted, int64_t size, T value, int64_t below) {
    if (!(below < size && sorted[below] == value)) return below;
    int64_t low = below, high = size;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (sorted[middle] <= value) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Search the short side, `sorted` (size,), for every anchor of the long side (count,).
template <class T>
void search_counts(const T* sorted, int64_t size, const T* anchors, int64_t count, int32_t* below, int32_t* upto,
                   int threads) {
    parallel_for(threads, count, [=](int64_t i, int) {
        const int64_t place = count_below(sorted, size, anchors[i]);
        below[i] = int32_t(place);
        upto[i] = int32_t(count_upto(sorted, size, anchors[i], place));
        return true;
    });
}

// --- Plans ----------------------------------------------------------------------------------------------------------

// The arrays of one batch.
template <class T>
struct Sides {
    const T *a, *b;              // (n,), (k,)
    int32_t *a_index, *b_index;  // (channels, n), (channels, k)
    T *a_values, *b_values;      // (2, n), (2, k): as given, then in order; null in a short-axis plan
    int64_t n, k;
    bool from_old;
};

// A merged plan of one tensor with itself: sorted once. below and upto are the ends of the run of equal anchors.
template <class T>
Status order_same(const Sides<T>& p) {
    const int64_t n = p.n;
    T* sorted = p.a_values + n;
    const Status status = sort_side(p.a, n, p.a_index, p.a_index + n, sorted, p.from_old, NOT_FINITE_A);
    if (status != OK) return status;
    int32_t *below = p.a_index + 2 * n, *upto = below + n;
    for (int64_t i = 0, end = 0; i < n; i = end) {
        while (end < n && sorted[end] == sorted[i]) ++end;
        for (int64_t j = i; j < end; ++j) below[j] = int32_t(i), upto[j] = int32_t(end);
    }
    std::memcpy(p.b_index, p.a_index, sizeof(int32_t) * 4 * n);
    std::memcpy(p.b_values + n, sorted, sizeof(T) * n);
    return OK;
}

// A merged plan: each side is one task, first for sorting, then for one direction of the counts.
template <class T>
Status order_merged(const Sides<T>& p, int threads) {
    std::memcpy(p.a_values, p.a, sizeof(T) * p.n);
    std::memcpy(p.b_values, p.b, sizeof(T) * p.k);
    if (p.a == p.b && p.n == p.k) return order_same(p);
    T *a_sorted = p.a_values + p.n, *b_sorted = p.b_values + p.k;
    Status of_a = OK, of_b = OK;
    parallel_for(smaller(threads, 2), 2, [&](int64_t side, int) {
        if (side == 0) of_a = sort_side(p.a, p.n, p.a_index, p.a_index + p.n, a_sorted, p.from_old, NOT_FINITE_A);
        else of_b = sort_side(p.b, p.k, p.b_index, p.b_index + p.k, b_sorted, p.from_old, NOT_FINITE_B);
        return true;
    });
    if (of_a != OK || of_b != OK) return of_a != OK ? of_a : of_b;
    int32_t *a_below = p.a_index + 2 * p.n, *b_below = p.b_index + 2 * p.k;
    parallel_for(smaller(threads, 2), 2, [&](int64_t side, int) {
        if (side == 0) merge_counts(a_sorted, p.n, b_sorted, p.k, a_below, b_below + p.k);
        else merge_counts(b_sorted, p.k, a_sorted, p.n, b_below, a_below + p.n);
        return true;
    });
    return OK;
}

// A short-axis plan: `order` of the short side, below and upto of the long side.
template <class T>
Status order_short_axis(const Sides<T>& p, bool rows_are_short, int threads) {
    const T *few = rows_are_short ? p.a : p.b, *many = rows_are_short ? p.b : p.a;
    const int64_t size = rows_are_short ? p.n : p.k, count = rows_are_short ? p.k : p.n;
    int32_t *order = rows_are_short ? p.a_index : p.b_index, *counts = rows_are_short ? p.b_index : p.a_index;
    const Status few_not_finite = rows_are_short ? NOT_FINITE_A : NOT_FINITE_B;
    Buffer<T> sorted(size);
    if (!sorted) return OUT_OF_MEMORY;
    const Status status = sort_side<T>(few, size, order, nullptr, sorted.get(), p.from_old, few_not_finite);
    if (status != OK) return status;
    if (!all_finite(many, count)) return rows_are_short ? NOT_FINITE_B : NOT_FINITE_A;
    search_counts(sorted.get(), size, many, count, counts, counts + count, threads);
    return OK;
}

template <class T>
Status order_batch(const Order& o, int64_t batch, int threads) {
    const Sides<T> sides{static_cast<const T*>(o.a) + batch * o.n,
                         static_cast<const T*>(o.b) + batch * o.k,
                         o.a_index + batch * o.a_channels * o.n,
                         o.b_index + batch * o.b_channels * o.k,
                         o.a_values ? static_cast<T*>(o.a_values) + batch * 2 * o.n : nullptr,
                         o.b_values ? static_cast<T*>(o.b_values) + batch * 2 * o.k : nullptr,
                         o.n, o.k, o.from_old};
    if (o.a_channels == 1 || o.b_channels == 1) return order_short_axis(sides, o.a_channels == 1, threads);
    return order_merged(sides, threads);
}

template <class T>
Status order(const Order& o) {
    use_large_pages(o.a_index, sizeof(int32_t) * o.h * o.a_channels * o.n);
    use_large_pages(o.b_index, sizeof(int32_t) * o.h * o.b_channels * o.k);
    use_large_pages(o.a_values, sizeof(T) * 2 * o.h * o.n);
    use_large_pages(o.b_values, sizeof(T) * 2 * o.h * o.k);
    Buffer<Status> status(o.h);
    if (!status) return OUT_OF_MEMORY;
    return for_each_batch(o.h, o.n + o.k, o.threads, status.get(),
                          [&](int64_t batch, int threads) { return order_batch<T>(o, batch, threads); });
}

template Status order<float>(const Order&);
template Status order<double>(const Order&);

}  // namespace laplex::LAPLEX_ISA
