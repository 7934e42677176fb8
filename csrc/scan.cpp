// The entry: one Scan is h independent problems.
#include "recurrence.h"

namespace laplex::LAPLEX_ISA {

template <class T> Status merged(const Problem<T>&, int threads);   // merged.cpp
template <class T> Status spread(const Problem<T>&, int threads);   // short_axis.cpp
template <class T> Status collect(const Problem<T>&, int threads);  // short_axis.cpp

template <class T>
Problem<T> problem(const Scan& scan, int64_t kernel) {
    const int32_t* ti = scan.target_index + kernel * scan.target_channels * scan.n;
    const int32_t* si = scan.source_index + kernel * scan.source_channels * scan.k;
    // Merged: order, rank, below, upto. Short side: order. Long side: below, upto.
    const int32_t* t_counts = ti + (scan.target_channels - 2) * scan.n;
    const int32_t* s_counts = si + (scan.source_channels - 2) * scan.k;
    const int64_t out = kernel * scan.m * scan.n;
    return {static_cast<const T*>(scan.x) + kernel * scan.m * scan.k,
            static_cast<const T*>(scan.target) + kernel * scan.n,
            static_cast<const T*>(scan.source) + kernel * scan.k,
            ti, ti + scan.n, t_counts, t_counts + scan.n,
            si, si + scan.k, s_counts, s_counts + scan.k,
            scan.target_values ? static_cast<const T*>(scan.target_values) + kernel * 2 * scan.n : nullptr,
            scan.source_values ? static_cast<const T*>(scan.source_values) + kernel * 2 * scan.k : nullptr,
            static_cast<T*>(scan.even) + out,
            scan.odd ? static_cast<T*>(scan.odd) + out : nullptr,
            scan.weights ? static_cast<const T*>(scan.weights) + out : nullptr,
            nullptr,
            scan.m, scan.n, scan.k, scan.degree,
            1.0 / scan.tau[kernel]};
}

template <class T>
Status scan_one(const Scan& scan, int64_t kernel, int threads) {
    if (!(scan.tau[kernel] >= SMALLEST_TAU) || !is_finite(scan.tau[kernel])) return BAD_TAU;
    Problem<T> p = problem<T>(scan, kernel);
    Buffer<double> pull(scan.pull ? scan.n : 0);
    if (!pull) return OUT_OF_MEMORY;
    if (scan.pull) {
        p.pull = pull.get();
        std::memset(p.pull, 0, sizeof(double) * scan.n);
    }
    const Status status = scan.source_channels == 2   ? collect(p, threads)
                          : scan.target_channels == 2 ? spread(p, threads)
                                                      : merged(p, threads);
    if (scan.pull) {
        T* out = static_cast<T*>(scan.pull) + kernel * scan.n;
        for (int64_t i = 0; i < scan.n; ++i) out[i] = T(pull[i] * p.rate);
    }
    return status;
}

// Threads over kernels if there are enough of them, else within one kernel after another. The first fault is told.
template <class T>
Status scan(const Scan& scan) {
    const int64_t work = (scan.n + scan.k) * scan.m;
    const bool over_kernels = scan.h >= scan.threads;
    const int threads = team(scan.threads, over_kernels ? work * scan.h : work);
    const int64_t bytes = sizeof(T) * scan.h * scan.m * scan.n;
    in_large_pages(scan.even, bytes);
    in_large_pages(scan.odd, bytes);
    Buffer<Status> status(scan.h);
    if (!status) return OUT_OF_MEMORY;
    for_all(over_kernels ? threads : 1, scan.h, [&](int64_t i, int) {
        status[i] = scan_one<T>(scan, i, over_kernels ? 1 : threads);
        return true;
    });
    for (int64_t i = 0; i < scan.h; ++i)
        if (status[i] != OK) return status[i];
    return OK;
}

template <class T>
Status row_dot(const RowDot& dot) {
    constexpr int64_t BLOCK = 1024;
    const int64_t blocks = (dot.n + BLOCK - 1) / BLOCK;
    for_all(team(dot.threads, dot.h * dot.m * dot.n), dot.h * blocks, [&](int64_t task, int) {
        const int64_t kernel = task / blocks, begin = task % blocks * BLOCK, size = smaller(BLOCK, dot.n - begin);
        const T* x = static_cast<const T*>(dot.x) + kernel * dot.m * dot.n + begin;
        const T* y = static_cast<const T*>(dot.y) + kernel * dot.m * dot.n + begin;
        T* out = static_cast<T*>(dot.out) + kernel * dot.n + begin;
        double sum[BLOCK] = {};
        for (int64_t row = 0; row < dot.m; ++row)
            for (int64_t i = 0; i < size; ++i) sum[i] += double(x[row * dot.n + i]) * double(y[row * dot.n + i]);
        for (int64_t i = 0; i < size; ++i) out[i] = T(sum[i] * (1.0 / dot.tau[kernel]));
        return true;
    });
    return OK;
}

template Status row_dot<float>(const RowDot&);
template Status row_dot<double>(const RowDot&);
template Status scan<float>(const Scan&);
template Status scan<double>(const Scan&);

}  // namespace laplex::LAPLEX_ISA
