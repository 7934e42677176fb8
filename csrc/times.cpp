// Sorting times.
//
// A time becomes an entry: its place between the smallest and the largest time, as an integer of 2 BITS bits, and its
// index. Two passes of a radix sort order the entries by place. What is then left to sort are the times of one place:
// few if times are spread evenly, else they are sorted in the same way, between their own smallest and largest time. At
// every other level the place is that among all numbers of float64, which are close together near 0. Such a level is
// 2^16 times finer than the one before it, at least, so that eight levels sort any times.
#include "parallel.h"
#include "radix_sort.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {
namespace {

using Entry = uint64_t;  // the place in the upper half, the index in the lower half

inline int64_t index_in(Entry entry) { return int64_t(entry & 0xffffffffu); }
inline uint32_t place_in(Entry entry) { return uint32_t(entry >> 32); }

constexpr int FEW = 48;          // entries that an insertion sort takes
constexpr int64_t REGIONS = 4;  // times as many elements as parallel.h asks for: a sort has many parallel regions

// Stable: entries that are equal stay in the order of their indices.
void sort_few(const double* t, Entry* entries, int64_t size) {
    for (int64_t i = 1; i < size; ++i) {
        const Entry entry = entries[i];
        const double time = t[index_in(entry)];
        int64_t j = i;
        for (; j > 0 && time < t[index_in(entries[j - 1])]; --j) entries[j] = entries[j - 1];
        entries[j] = entry;
    }
}

Extremes extremes_among(const double* t, const Entry* entries, int64_t size) {
    Extremes range{INFINITE, -INFINITE};
    for (int64_t i = 0; i < size; ++i) {
        const double time = t[index_in(entries[i])];
        range.low = smaller(range.low, time), range.high = larger(range.high, time);
    }
    return range;
}

// One pass of a radix sort by the digit at `shift`, from `entries` to `other`. Threads take ranges of the entries; `counts`
// has (threads, 2^BITS) integers.
template <int BITS>
void radix_pass(const Entry* entries, Entry* other, int64_t size, int shift, int32_t* counts, int threads) {
    constexpr int BINS = 1 << BITS;
    const auto digit = [shift](Entry entry) { return (entry >> (32 + shift)) & (BINS - 1); };
    parallel_ranges(threads, size, [&](int64_t begin, int64_t end, int64_t range) {
        int32_t* count = counts + range * BINS;
        std::memset(count, 0, sizeof(int32_t) * BINS);
        for (int64_t i = begin; i < end; ++i) ++count[digit(entries[i])];
        return true;
    });
    int32_t start = 0;
    for (int bin = 0; bin < BINS; ++bin)
        for (int64_t range = 0; range < smaller<int64_t>(threads, size); ++range) {
            const int32_t here = counts[range * BINS + bin];
            counts[range * BINS + bin] = start, start += here;
        }
    parallel_ranges(threads, size, [&](int64_t begin, int64_t end, int64_t range) {
        int32_t* count = counts + range * BINS;
        for (int64_t i = begin; i < end; ++i) other[count[digit(entries[i])]++] = entries[i];
        return true;
    });
}

// The times that are sorted: those of `size` entries, which are between two extremes. `other` has as much room.
struct Job {
    const double* t;
    Entry *entries, *other;
    int64_t size;
    Extremes range;
    int level;
};

template <int BITS>
void sort_level(const Job& job, int32_t* counts, int threads);

void sort_entries(const Job& job, int32_t* counts, int threads) {
    if (job.size <= FEW) sort_few(job.t, job.entries, job.size);
    else if (!(job.range.low < job.range.high)) return;  // all are equal
    else if (job.size < (1 << 12)) sort_level<8>(job, counts, threads);
    else sort_level<11>(job, counts, threads);
}

constexpr int MAX_BINS = 1 << 11;
constexpr int MAX_RANGES = 64;

// The place of a time between two others, in 2 BITS bits.
template <int BITS>
struct Linear {
    double by, low, width;

    // Differences could overflow. Halves do not, and lose digits only of numbers whose differences do not either.
    explicit Linear(const Extremes& range)
        : by(is_finite(range.high - range.low) ? 1.0 : 0.5), low(by * range.low), width(by * range.high - low) {}
    uint32_t operator()(double time) const {
        return uint32_t(int32_t((by * time - low) / width * double((1 << 2 * BITS) - 1)));
    }
};

template <int BITS>
struct ByKey {
    uint64_t low;
    int shift = 0;

    explicit ByKey(const Extremes& range) : low(radix_key(range.low)) {
        while ((radix_key(range.high) - low) >> shift >> (2 * BITS)) ++shift;
    }
    uint32_t operator()(double time) const { return uint32_t((radix_key(time) - low) >> shift); }
};

template <class F>
void set_places(const Job& job, int threads, const F& place) {
    parallel_ranges(threads, job.size, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t index = index_in(job.entries[i]);
            job.entries[i] = Entry(place(job.t[index])) << 32 | Entry(index);
        }
        return true;
    });
}

// Sort the entries of every place, which are next to one another. A thread takes all entries of some places.
void sort_places(const Job& job, int32_t* counts, int threads) {
    const auto next_place = [&job](int64_t i) {
        const uint32_t place = place_in(job.entries[i]);
        while (i < job.size && place_in(job.entries[i]) == place) ++i;
        return i;
    };
    int64_t starts[MAX_RANGES + 1] = {};
    for (int range = 1; range <= threads; ++range) {
        const int64_t i = range == threads ? job.size : larger(starts[range - 1], job.size / threads * range);
        starts[range] = i == 0 || i == job.size ? i : next_place(i - 1);
    }
    parallel_for(threads, threads, [&](int64_t range, int) {
        for (int64_t i = starts[range], next = i; i < starts[range + 1]; i = next) {
            next = next_place(i);
            if (next - i == 1) continue;
            Entry* entries = job.entries + i;
            const Extremes inner = extremes_among(job.t, entries, next - i);
            sort_entries({job.t, entries, job.other + i, next - i, inner, job.level + 1}, counts + range * MAX_BINS, 1);
        }
        return true;
    });
}

template <int BITS>
void sort_level(const Job& job, int32_t* counts, int threads) {
    if (job.level % 2 == 0) set_places(job, threads, Linear<BITS>(job.range));
    else set_places(job, threads, ByKey<BITS>(job.range));
    radix_pass<BITS>(job.entries, job.other, job.size, 0, counts, threads);
    radix_pass<BITS>(job.other, job.entries, job.size, BITS, counts, threads);
    sort_places(job, counts, threads);
}

Status sort_series(const double* t, int64_t* order, double* sorted, int64_t size, int threads) {
    threads = smaller(threads, MAX_RANGES);
    const Buffer<Entry> entries(size), other(size);
    const Buffer<int32_t> counts(int64_t(threads) * MAX_BINS);
    if (!entries || !other || !counts) return OUT_OF_MEMORY;
    const Extremes range = extremes({t, size});
    if (!is_finite(range.low) || !is_finite(range.high)) return NOT_FINITE_A;
    for (int64_t i = 0; i < size; ++i) entries[i] = Entry(i);
    sort_entries({t, entries.get(), other.get(), size, range, 0}, counts.get(), threads);
    parallel_ranges(threads, size, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i) order[i] = index_in(entries[i]), sorted[i] = t[order[i]];
        return true;
    });
    return OK;
}

}  // namespace

bool times_in_order(const Times& s) {
    constexpr int64_t PART = 4096;  // most times are not in order, and the first part shows it
    for (int64_t series = 0; series < s.h; ++series) {
        const double* t = s.times + series * s.n;
        const int64_t count = s.counts ? s.counts[series] : s.n;
        for (int64_t from = 1; from < count; from += PART) {
            int rising = 1;
            for (int64_t i = from, to = smaller(count, from + PART); i < to; ++i) rising &= int(t[i - 1] <= t[i]);
            if (!rising) return false;
        }
    }
    return true;
}

Status sort_times(const Times& s) {
    const Buffer<Status> status(s.h);
    if (!status) return OUT_OF_MEMORY;
    const auto sort = [&](int64_t series, int threads) {
        const int64_t count = s.counts ? s.counts[series] : s.n, begin = series * s.n;
        for (int64_t i = count; i < s.n; ++i) s.order[begin + i] = i, s.sorted[begin + i] = INFINITE;
        return sort_series(s.times + begin, s.order + begin, s.sorted + begin, count, threads);
    };
    const int threads = threads_in_quiet(s.threads, s.h * s.n / REGIONS);
    return for_each_batch(s.h, s.n / REGIONS, threads, status.get(), sort, true);
}

Extremes extremes(const Values& s) {
    constexpr int LANES = 16;  // a compiler does not divide a minimum into lanes by itself
    double low[LANES], high[LANES];
    int64_t nans[LANES];
    for (int l = 0; l < LANES; ++l) low[l] = INFINITE, high[l] = -INFINITE, nans[l] = 0;
    const auto add = [&](double value, int l) {
        low[l] = smaller(value, low[l]), high[l] = larger(value, high[l]);
        nans[l] |= int64_t(value != value);
    };
    int64_t i = 0;
    for (; i + LANES <= s.size; i += LANES)
        for (int l = 0; l < LANES; ++l) add(s.values[i + l], l);
    for (; i < s.size; ++i) add(s.values[i], 0);
    for (int l = 1; l < LANES; ++l) {
        low[0] = smaller(low[0], low[l]), high[0] = larger(high[0], high[l]);
        nans[0] |= nans[l];
    }
    return nans[0] ? Extremes{NAN, NAN} : Extremes{low[0], high[0]};
}

}  // namespace laplex::LAPLEX_ISA
