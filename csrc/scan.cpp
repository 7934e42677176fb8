// The entry points of products: `scan` chooses the algorithm for each batch, `row_dot` sums products of rows.
#include "recurrence.h"

namespace laplex::LAPLEX_ISA {

template <class T> Status merged(const Problem<T>&, int threads);   // merged.cpp, layout "merged"
template <class T> Status spread(const Problem<T>&, int threads);   // short_axis.cpp, layout "short_cols"
template <class T> Status collect(const Problem<T>&, int threads);  // short_axis.cpp, layout "short_rows"

// The arrays of one batch. laplex.h lists the channels of an index; below and upto are always the last two.
template <class T>
Problem<T> problem(const Scan& scan, int64_t batch) {
    const int32_t* target_index = scan.target_index + batch * scan.target_channels * scan.n;
    const int32_t* source_index = scan.source_index + batch * scan.source_channels * scan.k;
    const int32_t* target_counts = target_index + (scan.target_channels - 2) * scan.n;
    const int32_t* source_counts = source_index + (scan.source_channels - 2) * scan.k;
    const int64_t out = batch * scan.m * (scan.n - scan.pads);
    return {static_cast<const T*>(scan.x) + batch * scan.m * (scan.k - scan.pads),
            static_cast<const T*>(scan.target) + batch * scan.n,
            static_cast<const T*>(scan.source) + batch * scan.k,
            target_index, target_index + scan.n, target_counts, target_counts + scan.n,
            source_index, source_index + scan.k, source_counts, source_counts + scan.k,
            scan.target_values ? static_cast<const T*>(scan.target_values) + batch * 2 * scan.n : nullptr,
            scan.source_values ? static_cast<const T*>(scan.source_values) + batch * 2 * scan.k : nullptr,
            static_cast<T*>(scan.even) + out,
            scan.odd ? static_cast<T*>(scan.odd) + out : nullptr,
            scan.weights ? static_cast<const T*>(scan.weights) + out : nullptr,
            nullptr,
            scan.tail ? static_cast<const T*>(scan.tail) + batch * scan.m * scan.pads : nullptr,
            scan.m, scan.n, scan.k, scan.pads, scan.degree,
            1.0 / scan.tau[batch]};
}

template <class T>
Status scan_batch(const Scan& scan, int64_t batch, int threads) {
    if (!(scan.tau[batch] >= SMALLEST_TAU) || !is_finite(scan.tau[batch])) return BAD_TAU;
    Problem<T> p = problem<T>(scan, batch);
    const int64_t size = scan.n - scan.pads;
    Buffer<double> pull(scan.pull ? size : 0);
    if (!pull) return OUT_OF_MEMORY;
    if (scan.pull) {
        p.pull = pull.get();
        std::memset(p.pull, 0, sizeof(double) * size);
    }
    const Status status = scan.source_channels == 2   ? collect(p, threads)
                          : scan.target_channels == 2 ? spread(p, threads)
                                                      : merged(p, threads);
    if (scan.pull) {
        T* out = static_cast<T*>(scan.pull) + batch * size;
        for (int64_t i = 0; i < size; ++i) out[i] = T(pull[i] * p.rate);
    }
    return status;
}

template <class T>
Status scan(const Scan& scan) {
    const int64_t bytes = sizeof(T) * scan.h * scan.m * (scan.n - scan.pads);
    use_large_pages(scan.even, bytes);
    use_large_pages(scan.odd, bytes);
    Buffer<Status> status(scan.h);
    if (!status) return OUT_OF_MEMORY;
    // Sums over rows, and over a long side of sources, are split between the threads.
    const bool split = scan.pull || scan.source_channels == 2;
    return for_each_batch(scan.h, (scan.n + scan.k) * scan.m, scan.threads, status.get(),
                          [&](int64_t batch, int threads) { return scan_batch<T>(scan, batch, threads); }, !split);
}

// The sum is float64. A block of columns stays in the cache while its rows are read.
template <class T>
Status row_dot(const RowDot& dot) {
    constexpr int64_t BLOCK = 1024;
    const int64_t blocks = block_count(dot.n, BLOCK);
    parallel_for(useful_threads(dot.threads, dot.h * dot.m * dot.n), dot.h * blocks, [&](int64_t task, int) {
        const int64_t batch = task / blocks, begin = task % blocks * BLOCK, size = smaller(BLOCK, dot.n - begin);
        const T* x = static_cast<const T*>(dot.x) + batch * dot.m * dot.n + begin;
        const T* y = static_cast<const T*>(dot.y) + batch * dot.m * dot.n + begin;
        T* out = static_cast<T*>(dot.out) + batch * dot.n + begin;
        double sum[BLOCK] = {};
        for (int64_t row = 0; row < dot.m; ++row)
            for (int64_t i = 0; i < size; ++i) sum[i] += double(x[row * dot.n + i]) * double(y[row * dot.n + i]);
        for (int64_t i = 0; i < size; ++i) out[i] = T(sum[i] * (1.0 / dot.tau[batch]));
        return true;
    });
    return OK;
}

// For memory that Python allocates: torch uses small pages.
void large_pages(void* data, int64_t bytes) { use_large_pages(data, bytes); }

template Status row_dot<float>(const RowDot&);
template Status row_dot<double>(const RowDot&);
template Status scan<float>(const Scan&);
template Status scan<double>(const Scan&);

}  // namespace laplex::LAPLEX_ISA
