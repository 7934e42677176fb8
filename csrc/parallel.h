// Loops over threads (OpenMP).
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include "common.h"

namespace laplex::LAPLEX_ISA {

// The number of elements that justifies one more thread; torch uses the same grain size. On a busy machine a parallel
// region can wait about 10 ms for the scheduler. Small problems therefore open no region, and large ones open few.
constexpr int64_t ELEMENTS_PER_THREAD = 1 << 15;

// The number of threads, at most `threads`, that `elements` elements justify.
inline int useful_threads(int threads, int64_t elements, int64_t grain = ELEMENTS_PER_THREAD) {
    return int(larger<int64_t>(1, smaller<int64_t>(threads, elements / grain)));
}

// On a quiet machine half as many elements justify a thread. Whether it is quiet, the last regions tell: if a thread
// began late, small problems open none for a while. That costs a busy machine one such delay in so much time.
constexpr int64_t ELEMENTS_IN_QUIET = ELEMENTS_PER_THREAD / 2;
constexpr double LATE = 2e-4, A_WHILE = 0.1;  // seconds

inline bool is_quiet() {
#ifdef _OPENMP
    double late;
    __atomic_load(&late_at, &late, __ATOMIC_RELAXED);
    return late == 0 || omp_get_wtime() - late > A_WHILE;
#else
    return false;
#endif
}

// The same, for work whose results do not depend on the number of threads.
inline int useful_threads_now(int threads, int64_t elements) {
    const int always = useful_threads(threads, elements);
    const int in_quiet = useful_threads(threads, elements, ELEMENTS_IN_QUIET);
    return in_quiet > always && is_quiet() ? in_quiet : always;
}

// The same, for work that one thread finishes before a busy machine may have found a second one: there only the largest
// problems, of many times 10 ms, are shared.
constexpr int64_t ELEMENTS_IN_BUSY = 1 << 24;

inline int threads_in_quiet(int threads, int64_t elements) {
    return useful_threads(threads, elements, is_quiet() ? ELEMENTS_IN_QUIET : ELEMENTS_IN_BUSY);
}

// Call f(i, thread) for all i < count. Every thread takes one contiguous range of i, and the ranges depend only on
// `count` and `threads`. Returns true if every call returned true. One thread runs a plain loop: opening a parallel
// region would take as long as a small product.
template <class F>
bool parallel_for(int threads, int64_t count, F f) {
    int all = 1;
#ifdef _OPENMP
    threads = int(smaller<int64_t>(threads, count));
    if (threads > 1) {
        __atomic_fetch_add(&tally.regions, 1, __ATOMIC_RELAXED);
        const double opened = omp_get_wtime();
#pragma omp parallel num_threads(threads) reduction(& : all)
        {
            double now = omp_get_wtime();
            if (now - opened > LATE) __atomic_store(&late_at, &now, __ATOMIC_RELAXED);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < count; ++i) all &= int(f(i, omp_get_thread_num()));
        }
        return all;
    }
#endif
    for (int64_t i = 0; i < count; ++i) all &= int(f(i, 0));
    return all;
}

// Call f(begin, end, i) for `threads` ranges of [0, count), or fewer if count is smaller. Range i is the one that the
// thread i of `parallel_for` takes. Returns true if every call returned true.
template <class F>
bool parallel_ranges(int threads, int64_t count, F f) {
    const int64_t ranges = smaller<int64_t>(threads, count);
    return parallel_for(int(ranges), ranges, [&](int64_t i, int) {
        const int64_t size = count / ranges, longer = count % ranges;  // the first `longer` ranges have one more
        const int64_t begin = i * size + smaller(i, longer);
        return f(begin, begin + size + (i < longer), i);
    });
}

// Run status = f(batch, threads) for h independent batches and return the first error. `work` is the number of elements
// in one batch. With at least as many batches as threads, each thread takes whole batches; otherwise the batches run
// one after another, and each of them may use all threads. `exact`: results do not depend on the number of threads.
template <class F>
Status for_each_batch(int64_t h, int64_t work, int threads, Status* status, F f, bool exact = false) {
    const bool over_batches = h >= threads;
    const int64_t elements = over_batches ? h * work : work;
    const int useful = exact ? useful_threads_now(threads, elements) : useful_threads(threads, elements);
    parallel_for(over_batches ? useful : 1, h, [&](int64_t batch, int) {
        status[batch] = f(batch, over_batches ? 1 : useful);
        return true;
    });
    for (int64_t batch = 0; batch < h; ++batch)
        if (status[batch] != OK) return status[batch];
    return OK;
}

}  // namespace laplex::LAPLEX_ISA
