// Stable sorts of (key, index) pairs, and of keys.
#pragma once

#include "parallel.h"

namespace laplex::LAPLEX_ISA {

// Unsigned integers that compare like the floating-point numbers. -0 and 0 have the same key.
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

// The number with this key.
inline float radix_value(uint32_t key) {
    key ^= key >> 31 ? 0x80000000u : 0xffffffffu;
    float v;
    std::memcpy(&v, &key, 4);
    return v;
}
inline double radix_value(uint64_t key) {
    key ^= key >> 63 ? uint64_t{1} << 63 : ~uint64_t{0};
    double v;
    std::memcpy(&v, &key, 8);
    return v;
}

template <class Key>
struct Item {
    Key key;
    int32_t index;
};

// What is sorted is a pair of key and index, or a key alone.
template <class Key> inline Key key_of(const Item<Key>& item) { return item.key; }
inline uint32_t key_of(uint32_t key) { return key; }
inline uint64_t key_of(uint64_t key) { return key; }

// The size of `counts` below for one thread: enough for every key type and every BITS in use.
constexpr int64_t MAX_RADIX_COUNTS = 8 * (1 << 11);

// Stable radix sort from the least significant digit of BITS bits. Returns the sorted array, which is `items` or
// `other`.
template <int BITS, class E>
E* radix_sort(E* items, E* other, int64_t size, int32_t* counts) {
    constexpr int PASSES = (8 * int(sizeof(key_of(E{}))) + BITS - 1) / BITS, BINS = 1 << BITS;
    const auto digit = [](const E& item, int pass) { return (key_of(item) >> (pass * BITS)) & (BINS - 1); };
    std::memset(counts, 0, sizeof(int32_t) * PASSES * BINS);
    for (int64_t i = 0; i < size; ++i)
        for (int pass = 0; pass < PASSES; ++pass) ++counts[pass * BINS + digit(items[i], pass)];
    for (int pass = 0; pass < PASSES; ++pass) {
        int32_t* count = counts + pass * BINS;
        if (count[digit(items[0], pass)] == size) continue;  // all keys have the same digit
        int32_t start = 0;
        for (int bin = 0; bin < BINS; ++bin) {
            const int32_t here = count[bin];
            count[bin] = start;
            start += here;
        }
        for (int64_t i = 0; i < size; ++i) other[count[digit(items[i], pass)]++] = items[i];
        E* sorted = other;
        other = items;
        items = sorted;
    }
    return items;
}

// The same by several threads. Every thread counts and moves a range of its own, and the ranges' items are put one
// after another in every bin: the result is that of one thread. `counts` is (threads, 2^BITS).
template <int BITS, class E>
E* radix_sort_together(E* items, E* other, int64_t size, int32_t* counts, int threads) {
    constexpr int PASSES = (8 * int(sizeof(key_of(E{}))) + BITS - 1) / BITS, BINS = 1 << BITS;
    for (int pass = 0; pass < PASSES; ++pass) {
        const auto digit = [=](const E& item) { return (key_of(item) >> (pass * BITS)) & (BINS - 1); };
        std::memset(counts, 0, sizeof(int32_t) * threads * BINS);
        parallel_ranges(threads, size, [=](int64_t begin, int64_t end, int64_t range) {
            int32_t* count = counts + range * BINS;
            for (int64_t i = begin; i < end; ++i) ++count[digit(items[i])];
            return true;
        });
        int32_t start = 0, most = 0;
        for (int bin = 0; bin < BINS; ++bin) {
            const int32_t before = start;
            for (int range = 0; range < threads; ++range) {
                const int32_t here = counts[range * BINS + bin];
                counts[range * BINS + bin] = start;
                start += here;
            }
            most = larger(most, start - before);
        }
        if (most == size) continue;  // all keys have the same digit
        parallel_ranges(threads, size, [=](int64_t begin, int64_t end, int64_t range) {
            int32_t* place = counts + range * BINS;
            for (int64_t i = begin; i < end; ++i) other[place[digit(items[i])]++] = items[i];
            return true;
        });
        E* sorted = other;
        other = items;
        items = sorted;
    }
    return items;
}

// Sort by one thread or, if there is enough to do, by several. `counts` has MAX_RADIX_COUNTS for each of them.
template <class E>
E* radix_sort_by(int threads, E* items, E* other, int64_t size, int32_t* counts) {
    constexpr int64_t SMALL = 1 << 12, SHARED = 1 << 17;  // keys: few have small digits, many are sorted together
    if (size < SMALL) return radix_sort<8>(items, other, size, counts);
    if (threads == 1 || size < SHARED) return radix_sort<11>(items, other, size, counts);
    return radix_sort_together<11>(items, other, size, counts, threads);
}

// Insertion sort for items that are nearly in order. Equal keys are sorted by index. Returns false, with the items
// permuted, if more than 4 moves per item are needed.
template <class Key>
bool insertion_sort(Item<Key>* items, int64_t size) {
    const auto before = [](const Item<Key>& one, const Item<Key>& other) {
        return one.key < other.key || (one.key == other.key && one.index < other.index);
    };
    int64_t moves_left = 4 * size;
    for (int64_t i = 1; i < size; ++i) {
        const Item<Key> item = items[i];
        int64_t j = i;
        for (; j > 0 && before(item, items[j - 1]); --j) items[j] = items[j - 1];
        items[j] = item;
        moves_left -= i - j;
        if (moves_left < 0) return false;
    }
    return true;
}

}  // namespace laplex::LAPLEX_ISA
