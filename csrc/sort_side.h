// Sorting one side of anchors, or one row of numbers.
#pragma once

#include "radix_sort.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {

template <class T>
bool all_finite(const T* values, int64_t size) {
    int finite = 1;
    for (int64_t i = 0; i < size; ++i) finite &= int(is_finite(values[i]));
    return finite;
}

// Most anchors are not in order; the first part then shows it.
template <class T>
bool is_sorted(const T* values, int64_t size) {
    constexpr int64_t PART = 4096;
    for (int64_t from = 1; from < size; from += PART) {
        int rising = 1;
        for (int64_t i = from, to = smaller(size, from + PART); i < to; ++i) rising &= int(values[i - 1] <= values[i]);
        if (!rising) return false;
    }
    return true;
}

// Sort the pairs of key and index. With `from_old`, `order` holds an earlier order, from which an insertion sort is
// tried. Returns the sorted array, which is `items` or `other`.
template <class T, class Key>
Item<Key>* sort_items(const T* values, int64_t size, const int32_t* order, bool from_old, Item<Key>* items,
                      Item<Key>* other, int32_t* counts, int threads) {
    if (from_old) {
        for (int64_t i = 0; i < size; ++i) items[i] = {radix_key(values[order[i]]), order[i]};
        if (insertion_sort(items, size)) return items;
    }
    for (int64_t i = 0; i < size; ++i) items[i] = {radix_key(values[i]), int32_t(i)};
    return radix_sort_by(threads, items, other, size, counts);
}

// One side: order, rank (null if not wanted) and the values in order. `not_finite` is the error for this side.
template <class T>
Status sort_side(const T* values, int64_t size, int32_t* order, int32_t* rank, T* sorted, bool from_old,
                 Status not_finite, int threads = 1) {
    using Key = decltype(radix_key(T(0)));
    if (!all_finite(values, size)) return not_finite;
    if (is_sorted(values, size)) {
        for (int64_t i = 0; i < size; ++i) order[i] = int32_t(i);
        if (rank) std::memcpy(rank, order, sizeof(int32_t) * size);
        std::memcpy(sorted, values, sizeof(T) * size);
        return OK;
    }
    __atomic_fetch_add(&tally.sorts, 1, __ATOMIC_RELAXED);
    Buffer<Item<Key>> first(size), second(size);
    Buffer<int32_t> counts(MAX_RADIX_COUNTS * threads);
    if (!first || !second || !counts) return OUT_OF_MEMORY;
    const Item<Key>* items =
        sort_items(values, size, order, from_old, first.get(), second.get(), counts.get(), threads);
    for (int64_t i = 0; i < size; ++i) {
        order[i] = items[i].index;
        sorted[i] = radix_value(items[i].key);
    }
    if (rank)
        for (int64_t i = 0; i < size; ++i) rank[order[i]] = int32_t(i);
    return OK;
}

// The values in order, without their indices.
template <class T>
Status sort_values(const T* values, int64_t size, T* sorted, int threads) {
    using Key = decltype(radix_key(T(0)));
    if (!all_finite(values, size)) return NOT_FINITE_A;
    if (is_sorted(values, size)) {
        std::memcpy(sorted, values, sizeof(T) * size);
        return OK;
    }
    __atomic_fetch_add(&tally.sorts, 1, __ATOMIC_RELAXED);
    Buffer<Key> first(size), second(size);
    Buffer<int32_t> counts(MAX_RADIX_COUNTS * threads);
    if (!first || !second || !counts) return OUT_OF_MEMORY;
    for (int64_t i = 0; i < size; ++i) first[i] = radix_key(values[i]);
    const Key* keys = radix_sort_by(threads, first.get(), second.get(), size, counts.get());
    for (int64_t i = 0; i < size; ++i) sorted[i] = radix_value(keys[i]);
    return OK;
}

}  // namespace laplex::LAPLEX_ISA
