// The entry: one Scan is h independent problems.
#include "states.h"

namespace laplex::LAPLEX_ISA {

template <class T> Status merged(const Problem<T>&, int threads);   // kernels_merged.cpp
template <class T> Status spread(const Problem<T>&, int threads);   // kernels_short.cpp
template <class T> Status collect(const Problem<T>&, int threads);  // kernels_short.cpp

constexpr int64_t WORTH_A_THREAD = 1 << 13;  // points times rows; below, waking a thread costs more than it saves

template <class T>
Problem<T> problem(const Scan& scan, int64_t kernel) {
    const int32_t* ti = scan.target_index + kernel * scan.target_channels * scan.n;
    const int32_t* si = scan.source_index + kernel * scan.source_channels * scan.k;
    const bool t_sorted = scan.target_channels != 2, s_sorted = scan.source_channels != 2;
    const int32_t* t_counts = t_sorted ? ti + scan.n : ti;
    const int32_t* s_counts = s_sorted ? si + scan.k : si;
    const int64_t out = kernel * scan.m * scan.n;
    return {static_cast<const T*>(scan.x) + kernel * scan.m * scan.k,
            static_cast<const T*>(scan.target) + kernel * scan.n,
            static_cast<const T*>(scan.source) + kernel * scan.k,
            ti, t_counts, t_counts + scan.n,
            si, s_counts, s_counts + scan.k,
            scan.target_values ? static_cast<const T*>(scan.target_values) + kernel * 2 * scan.n : nullptr,
            scan.source_values ? static_cast<const T*>(scan.source_values) + kernel * 2 * scan.k : nullptr,
            static_cast<T*>(scan.even) + out,
            scan.odd ? static_cast<T*>(scan.odd) + out : nullptr,
            scan.m, scan.n, scan.k,
            1.0 / scan.tau[kernel]};
}

template <class T>
Status scan_one(const Scan& scan, int64_t kernel, int threads) {
    if (!(scan.tau[kernel] > 0) || !is_finite(scan.tau[kernel])) return BAD_TAU;
    const Problem<T> p = problem<T>(scan, kernel);
    if (scan.source_channels == 2) return collect(p, threads);
    if (scan.target_channels == 2) return spread(p, threads);
    return merged(p, threads);
}

// Threads over kernels if there are enough of them, else within one kernel after another. The first fault is told.
template <class T>
Status scan(const Scan& scan) {
    const int64_t work = (scan.n + scan.k) * scan.m;
    const bool over_kernels = scan.h >= scan.threads;
    const int64_t worth = (over_kernels ? work * scan.h : work) / WORTH_A_THREAD;
    const int threads = int(smaller<int64_t>(scan.threads, larger<int64_t>(1, worth)));
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

template Status scan<float>(const Scan&);
template Status scan<double>(const Scan&);

}  // namespace laplex::LAPLEX_ISA
