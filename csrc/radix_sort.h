// Stable sorts of (key, index) pairs.
#pragma once

#include "common.h"

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

template <class Key>
struct Item {
    Key key;
    int32_t index;
};

// The size of `counts` below: enough for every key type and every BITS in use.
constexpr int64_t MAX_RADIX_COUNTS = 8 * (1 << 11);

// Stable radix sort from the least significant digit of BITS bits. Returns the sorted array, which is `items` or
// `other`.
template <class Key, int BITS>
Item<Key>* radix_sort(Item<Key>* items, Item<Key>* other, int64_t size, int32_t* counts) {
    constexpr int PASSES = (8 * int(sizeof(Key)) + BITS - 1) / BITS, BINS = 1 << BITS;
    const auto digit = [](Key key, int pass) { return (key >> (pass * BITS)) & (BINS - 1); };
    std::memset(counts, 0, sizeof(int32_t) * PASSES * BINS);
    for (int64_t i = 0; i < size; ++i)
        for (int pass = 0; pass < PASSES; ++pass) ++counts[pass * BINS + digit(items[i].key, pass)];
    for (int pass = 0; pass < PASSES; ++pass) {
        int32_t* count = counts + pass * BINS;
        if (count[digit(items[0].key, pass)] == size) continue;  // all keys have the same digit
        int32_t start = 0;
        for (int bin = 0; bin < BINS; ++bin) {
            const int32_t here = count[bin];
            count[bin] = start;
            start += here;
        }
        for (int64_t i = 0; i < size; ++i) other[count[digit(items[i].key, pass)]++] = items[i];
        Item<Key>* sorted = other;
        other = items;
        items = sorted;
    }
    return items;
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
