// The sum of many sources in order, referred to a point at or beyond one of their ends: a chunk that is a whole rank.
#include "decay.h"
#include "parallel.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t REDUCED = 512;  // sources that are processed together

// Add the sources [begin, begin + size) to sums (degree + 1, m). The partial sums of a row are float64.
template <class T>
void reduce_block(const Reduce& r, int64_t begin, int64_t size, double* sums) {
    const T* s = static_cast<const T*>(r.source) + begin;
    double u[REDUCED], d[REDUCED];
    for (int64_t j = 0; j < size; ++j) {
        const double gap = r.end - double(s[j]);
        u[j] = smaller((gap < 0 ? -gap : gap) * (1.0 / r.tau), MAX_U);
        d[j] = decay<T>(u[j]);
    }
    for (int64_t row = 0; row < r.m; ++row) {
        const T* x = static_cast<const T*>(r.x) + row * r.stride + begin;
        double v = 0, p = 0;
#pragma omp simd reduction(+ : v)
        for (int64_t j = 0; j < size; ++j) v += d[j] * double(x[j]);
        sums[row] += v;
        if (!r.degree) continue;
#pragma omp simd reduction(+ : p)
        for (int64_t j = 0; j < size; ++j) p += u[j] * (d[j] * double(x[j]));
        sums[r.m + row] += p;
    }
}

// The sources [first, last) whose decay is not 0; the others are too far from the end.
template <class T>
void find_near(const Reduce& r, int64_t& first, int64_t& last) {
    const T* s = static_cast<const T*>(r.source);
    const auto count_below = [&](double limit) {
        int64_t low = 0, high = r.k;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (double(s[middle]) < limit) low = middle + 1;
            else high = middle;
        }
        return low;
    };
    first = count_below(r.end - MAX_U * r.tau);
    last = larger(first, count_below(r.end + MAX_U * r.tau));
}

template <class T>
Status reduce(const Reduce& r) {
    int64_t first, last;
    find_near<T>(r, first, last);
    const int64_t blocks = block_count(last - first, REDUCED), size = (r.degree + 1) * r.m;
    const int threads = useful_threads(r.threads, (last - first) * (r.m + 1));
    Buffer<double> partial(threads * size);
    if (!partial) return OUT_OF_MEMORY;
    std::memset(partial.get(), 0, sizeof(double) * threads * size);
    parallel_ranges(threads, blocks, [&](int64_t begin, int64_t end, int64_t thread) {
        for (int64_t block = begin; block < end; ++block) {
            const int64_t from = first + block * REDUCED;
            reduce_block<T>(r, from, smaller(REDUCED, last - from), partial.get() + thread * size);
        }
        return true;
    });
    std::memset(r.out, 0, sizeof(double) * size);
    for (int thread = 0; thread < threads; ++thread)  // always in this order: the same bits every time
        for (int64_t i = 0; i < size; ++i) r.out[i] += partial[thread * size + i];
    return OK;
}

template Status reduce<float>(const Reduce&);
template Status reduce<double>(const Reduce&);

}  // namespace laplex::LAPLEX_ISA
