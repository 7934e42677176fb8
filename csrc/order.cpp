// The order of the anchors: a radix argsort of each side that needs one, and where each anchor lies in the other side.
#include "common.h"

namespace laplex::LAPLEX_ISA {

// Unsigned integers that compare as the floats do; -0 and 0 are one value, as they are to every comparison.
inline uint32_t radix_key(float v) {
    v += 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
inline uint64_t radix_key(double v) {
    v += 0.0;
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    return bits ^ (bits >> 63 ? ~uint64_t{0} : uint64_t{1} << 63);
}

template <class Key>
struct Item {
    Key key;
    int32_t index;
};

// Stable least-significant-digit radix sort; the result is in `items` or in `other`, whichever is returned.
template <class Key, int BITS>
Item<Key>* radix_sort(Item<Key>* items, Item<Key>* other, int64_t size, int32_t* counts) {
    constexpr int PASSES = (8 * int(sizeof(Key)) + BITS - 1) / BITS, BINS = 1 << BITS;
    std::memset(counts, 0, sizeof(int32_t) * PASSES * BINS);
    for (int64_t i = 0; i < size; ++i)
        for (int pass = 0; pass < PASSES; ++pass) ++counts[pass * BINS + ((items[i].key >> (pass * BITS)) & (BINS - 1))];
    for (int pass = 0; pass < PASSES; ++pass) {
        int32_t* count = counts + pass * BINS;
        const int shift = pass * BITS;
        if (count[(items[0].key >> shift) & (BINS - 1)] == size) continue;  // all alike in this digit
        int32_t start = 0;
        for (int bin = 0; bin < BINS; ++bin) {
            const int32_t here = count[bin];
            count[bin] = start;
            start += here;
        }
        for (int64_t i = 0; i < size; ++i) other[count[(items[i].key >> shift) & (BINS - 1)]++] = items[i];
        Item<Key>* done = other;
        other = items;
        items = done;
    }
    return items;
}

// Insertion sort for items nearly in order; false, and items merely permuted, once it has moved more than it should.
template <class Key>
bool mend(Item<Key>* items, int64_t size) {
    int64_t moves_left = 4 * size;
    for (int64_t i = 1; i < size; ++i) {
        const Item<Key> item = items[i];
        int64_t j = i;
        while (j > 0 && (item.key < items[j - 1].key || (item.key == items[j - 1].key && item.index < items[j - 1].index))) {
            items[j] = items[j - 1];
            --j;
        }
        items[j] = item;
        moves_left -= i - j;
        if (moves_left < 0) return false;
    }
    return true;
}

template <class T>
Status check_finite(const T* values, int64_t size, Status not_finite) {
    int finite = 1;
    for (int64_t i = 0; i < size; ++i) finite &= int(is_finite(values[i]));
    return finite ? OK : not_finite;
}

template <class T>
bool is_in_order(const T* values, int64_t size) {
    constexpr int64_t PART = 4096;  // most anchors are not: seen at once
    for (int64_t from = 1; from < size; from += PART) {
        int rising = 1;
        for (int64_t i = from, to = smaller(size, from + PART); i < to; ++i) rising &= int(values[i - 1] <= values[i]);
        if (!rising) return false;
    }
    return true;
}

// Argsort one side: `order`, the values in order, and, if wanted, each anchor's rank. Equal anchors keep the caller's order.
template <class T>
Status sort_side(const T* values, int64_t size, int32_t* order, int32_t* rank, T* in_order, bool from_old, Status not_finite) {
    using Key = decltype(radix_key(T(0)));
    constexpr int MAX_COUNTS = 8 * (1 << 11);
    if (check_finite(values, size, not_finite) != OK) return not_finite;
    if (is_in_order(values, size)) {
        for (int64_t i = 0; i < size; ++i) order[i] = int32_t(i);
        if (rank) std::memcpy(rank, order, sizeof(int32_t) * size);
        std::memcpy(in_order, values, sizeof(T) * size);
        return OK;
    }
    __atomic_fetch_add(&tally.sorts, 1, __ATOMIC_RELAXED);
    Buffer<Item<Key>> first(size), second(size);
    Buffer<int32_t> counts(MAX_COUNTS);
    if (!first || !second || !counts) return OUT_OF_MEMORY;
    Item<Key>* items = first.get();
    bool sorted = false;
    if (from_old) {
        for (int64_t i = 0; i < size; ++i) items[i] = {radix_key(values[order[i]]), order[i]};
        sorted = mend(items, size);
    }
    if (!sorted) {
        for (int64_t i = 0; i < size; ++i) items[i] = {radix_key(values[i]), int32_t(i)};
        items = size < (1 << 12) ? radix_sort<Key, 8>(items, second.get(), size, counts.get())
                                 : radix_sort<Key, 11>(items, second.get(), size, counts.get());
    }
    for (int64_t i = 0; i < size; ++i) {
        order[i] = items[i].index;
        in_order[i] = values[items[i].index];
    }
    if (rank)
        for (int64_t i = 0; i < size; ++i) rank[order[i]] = int32_t(i);
    return OK;
}

// Counts of each side in the other, by merging with equal ones of `first` first: how many of `second` lie below each of
// `first`, and how many of `first` are up to each of `second`.
template <class T>
void merge(const T* first, int64_t n, const T* second, int64_t k, int32_t* below_first, int32_t* upto_second) {
    int64_t i = 0, j = 0;
    while (i < n && j < k) {  // no branch on the data: both places are written, one is final
        below_first[i] = int32_t(j);
        upto_second[j] = int32_t(i);
        const bool take = first[i] <= second[j];
        i += take;
        j += !take;
    }
    for (; i < n; ++i) below_first[i] = int32_t(k);
    for (; j < k; ++j) upto_second[j] = int32_t(n);
}

// How many of the few in order are < and <= each of the many.
template <class T>
void search(const T* few, int64_t size, const T* many, int64_t count, int32_t* below, int32_t* upto, int threads) {
    for_all(threads, count, [=](int64_t i, int) {
        const T value = many[i];
        const T* base = few;
        for (int64_t length = size; length > 1;) {  // branch-free halving
            const int64_t half = length / 2;
            base += (base[half - 1] < value) * half;
            length -= half;
        }
        int64_t place = base - few + (size > 0 && *base < value);
        below[i] = int32_t(place);
        if (place < size && few[place] == value) {  // a run of equal ones may be long: halve again, for its end
            int64_t low = place, high = size;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (few[middle] <= value) low = middle + 1;
                else high = middle;
            }
            place = low;
        }
        upto[i] = int32_t(place);
        return true;
    });
}

// Both sides are one: sorted once, and copied. What is below an anchor, and up to it, is where its run of equal ones begins
// and ends.
template <class T>
Status order_once(const Order& o, const T* anchors, int32_t* ai, T* a_sorted, int32_t* bi, T* b_sorted) {
    const int64_t n = o.n;
    const Status status = sort_side(anchors, n, ai, ai + n, a_sorted, o.from_old, NOT_FINITE_A);
    if (status != OK) return status;
    int32_t *below = ai + 2 * n, *upto = ai + 3 * n;
    for (int64_t i = 0, end = 0; i < n; i = end) {
        while (end < n && a_sorted[end] == a_sorted[i]) ++end;
        for (int64_t j = i; j < end; ++j) below[j] = int32_t(i), upto[j] = int32_t(end);
    }
    std::memcpy(bi, ai, sizeof(int32_t) * 4 * n);
    std::memcpy(b_sorted, a_sorted, sizeof(T) * n);
    return OK;
}

template <class T>
Status order_one(const Order& o, int64_t kernel, int threads) {
    const T *a = static_cast<const T*>(o.a) + kernel * o.n, *b = static_cast<const T*>(o.b) + kernel * o.k;
    int32_t* ai = o.a_index + kernel * o.a_channels * o.n;
    int32_t* bi = o.b_index + kernel * o.b_channels * o.k;
    if (o.a_channels == 1 || o.b_channels == 1) {
        const bool rows = o.a_channels == 1;
        const T *few = rows ? a : b, *many = rows ? b : a;
        const int64_t size = rows ? o.n : o.k, count = rows ? o.k : o.n;
        Buffer<T> in_order(size);
        if (!in_order) return OUT_OF_MEMORY;
        Status status = sort_side(few, size, rows ? ai : bi, nullptr, in_order.get(), o.from_old, rows ? NOT_FINITE_A : NOT_FINITE_B);
        if (status == OK) status = check_finite(many, count, rows ? NOT_FINITE_B : NOT_FINITE_A);
        int32_t* counts = rows ? bi : ai;
        if (status == OK) search(in_order.get(), size, many, count, counts, counts + count, threads);
        return status;
    }
    T *a_values = static_cast<T*>(o.a_values) + kernel * 2 * o.n, *a_sorted = a_values + o.n;
    T *b_values = static_cast<T*>(o.b_values) + kernel * 2 * o.k, *b_sorted = b_values + o.k;
    std::memcpy(a_values, a, sizeof(T) * o.n);
    std::memcpy(b_values, b, sizeof(T) * o.k);
    if (a == b && o.n == o.k) return order_once(o, a, ai, a_sorted, bi, b_sorted);
    Status of_a = OK, of_b = OK;
    for_all(smaller(threads, 2), 2, [&](int64_t side, int) {
        if (side == 0) of_a = sort_side(a, o.n, ai, ai + o.n, a_sorted, o.from_old, NOT_FINITE_A);
        else of_b = sort_side(b, o.k, bi, bi + o.k, b_sorted, o.from_old, NOT_FINITE_B);
        return true;
    });
    if (of_a != OK || of_b != OK) return of_a != OK ? of_a : of_b;
    int32_t *a_below = ai + 2 * o.n, *a_upto = a_below + o.n, *b_below = bi + 2 * o.k, *b_upto = b_below + o.k;
    for_all(smaller(threads, 2), 2, [&](int64_t side, int) {
        if (side == 0) merge(a_sorted, o.n, b_sorted, o.k, a_below, b_upto);
        else merge(b_sorted, o.k, a_sorted, o.n, b_below, a_upto);
        return true;
    });
    return OK;
}

template <class T>
Status order(const Order& o) {
    const bool over_kernels = o.h >= o.threads;
    in_large_pages(o.a_index, sizeof(int32_t) * o.h * o.a_channels * o.n);
    in_large_pages(o.b_index, sizeof(int32_t) * o.h * o.b_channels * o.k);
    in_large_pages(o.a_values, sizeof(T) * 2 * o.h * o.n);
    in_large_pages(o.b_values, sizeof(T) * 2 * o.h * o.k);
    const int threads = team(o.threads, (over_kernels ? o.h : 1) * (o.n + o.k));
    Buffer<Status> status(o.h);
    if (!status) return OUT_OF_MEMORY;
    for_all(over_kernels ? threads : 1, o.h, [&](int64_t i, int) {
        status[i] = order_one<T>(o, i, over_kernels ? 1 : threads);
        return true;
    });
    for (int64_t i = 0; i < o.h; ++i)
        if (status[i] != OK) return status[i];
    return OK;
}

template Status order<float>(const Order&);
template Status order<double>(const Order&);

}  // namespace laplex::LAPLEX_ISA
