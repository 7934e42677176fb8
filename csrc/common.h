// Small things the kernels share; private to one instruction set (see laplex.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "laplex.h"

namespace laplex::LAPLEX_ISA {

template <class T> inline T smaller(T a, T b) { return a < b ? a : b; }
template <class T> inline T larger(T a, T b) { return a > b ? a : b; }

constexpr double INFINITE = HUGE_VAL;
constexpr double SMALLEST_TAU = 2.2250738585072014e-308;  // as in laplex/_checks.py: 1 / tau is finite, so 0 / tau is 0
inline bool is_finite(double v) { return v - v == 0; }

// Numbers that are worth a thread: torch's own grain. On a busy machine a parallel region waits for the scheduler, some
// 10 ms, so below the size at which threads clearly gain there are none, and a call opens as few regions as it can.
constexpr int64_t WORTH_A_THREAD = 1 << 15;

// How many threads so many numbers are worth.
inline int team(int threads, int64_t numbers) {
    return int(larger<int64_t>(1, smaller<int64_t>(threads, numbers / WORTH_A_THREAD)));
}

// f(i, thread) for all i < count, in equal shares of neighbouring i; true if all were. One thread is a plain loop: even a
// parallel region of one costs as much as a small product.
template <class F>
bool for_all(int threads, int64_t count, F f) {
    int all = 1;
#ifdef _OPENMP
    threads = int(smaller<int64_t>(threads, count));
    if (threads > 1) {
        __atomic_fetch_add(&tally.regions, 1, __ATOMIC_RELAXED);
#pragma omp parallel for num_threads(threads) reduction(& : all) schedule(static)
        for (int64_t i = 0; i < count; ++i) all &= int(f(i, omp_get_thread_num()));
        return all;
    }
#endif
    for (int64_t i = 0; i < count; ++i) all &= int(f(i, 0));
    return all;
}

// Ask for large pages under memory about to be written: first touches cost a fault a page, and random ones a look-up.
inline void in_large_pages(void* data, int64_t bytes) {
#ifdef __linux__
    constexpr int64_t PAGE = 1 << 21;
    const int64_t begin = (reinterpret_cast<int64_t>(data) + PAGE - 1) / PAGE * PAGE;
    const int64_t end = (reinterpret_cast<int64_t>(data) + bytes) / PAGE * PAGE;
    if (data != nullptr && end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

// Memory kept from one call to the next, for each thread its own: to touch fresh pages costs more than to scan them.
class Kept {
public:
    ~Kept() {
        for (const Block& block : blocks_) std::free(block.data);
    }
    // A block of at least `bytes`, or null.
    void* take(int64_t bytes, int64_t& got) {
        Block* best = nullptr;
        for (Block& block : blocks_)
            if (block.data && block.bytes >= bytes && (!best || block.bytes < best->bytes)) best = &block;
        if (best) {
            void* data = best->data;
            got = best->bytes;
            kept_ -= got;
            *best = Block{};
            return data;
        }
        void* data = std::malloc(got = bytes);
        in_large_pages(data, bytes);
        return data;
    }
    void give_back(void* data, int64_t bytes) {
        if (!data) return;
        for (Block& block : blocks_)
            if (!block.data && kept_ + bytes <= MOST) {
                block = Block{data, bytes};
                kept_ += bytes;
                return;
            }
        std::free(data);
    }

private:
    struct Block {
        void* data = nullptr;
        int64_t bytes = 0;
    };
    static constexpr int64_t MOST = 64 << 20;
    Block blocks_[8];
    int64_t kept_ = 0;
};

inline Kept& kept() {
    static thread_local Kept mine;
    return mine;
}

// Uninitialised scratch memory. A failed allocation is a null pointer, so that no exception crosses a parallel region.
template <class T>
class Buffer {
public:
    explicit Buffer(int64_t size) {
        data_ = static_cast<T*>(kept().take(sizeof(T) * larger<int64_t>(size, 1), bytes_));
    }
    ~Buffer() { kept().give_back(data_, bytes_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    T* get() const { return data_; }
    T& operator[](int64_t i) const { return data_[i]; }
    explicit operator bool() const { return data_ != nullptr; }

private:
    T* data_;
    int64_t bytes_;
};

// From here on decay(z) is 0. Numbers that a decay is multiplied with are cut there, since 0 * infinity is no number.
constexpr double BEYOND = 709.09;

// exp(-z) for z >= 0, without a branch, so that loops over it become vector code. 0 from z = 708.75 on, infinity too.
//     exp(-z) = 2^-q exp(r),  q = round(z / ln 2),  r = q ln 2 - z,  |r| <= ln 2 / 2
//     exp(r) = 1 + r + r^2 c(r), c by Chebyshev interpolation: relative error 2.3e-10 for float data (its state is double),
//     1.6e-17 before rounding for double; exp(0) is 1 to the bit, so ties are exact.
template <class T>
inline double decay(double z) {
    constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, held in the low bits
    const double small = smaller(z, BEYOND);  // there q = 1023 and the 2^-q below is 0
    const double shifted = small * 1.4426950408889634 + shift;
    const double q = shifted - shift;
    double r = q * 0.6931471803691238 - small;  // ln 2 in two parts; the first product is exact
    r += q * 1.9082149292705877e-10;
    double c;
    if (sizeof(T) == 4) {
        c = 0.00019890990824673654;
        c = c * r + 0.0013933649996309251;
        c = c * r + 0.0083333109254809;
        c = c * r + 0.041666464925285904;
        c = c * r + 0.16666666681623232;
        c = c * r + 0.500000001346581;
    } else {
        c = 2.510038549551032e-08;
        c = c * r + 2.7620088445409746e-07;
        c = c * r + 2.7557268459997064e-06;
        c = c * r + 2.4801521295954376e-05;
        c = c * r + 0.00019841269863053618;
        c = c * r + 0.0013888888917213717;
        c = c * r + 0.008333333333330062;
        c = c * r + 0.04166666666662413;
        c = c * r + 0.16666666666666669;
        c = c * r + 0.5000000000000001;
    }
    const double p = (c * r + 1.0) * r + 1.0;
    uint64_t bits;
    std::memcpy(&bits, &shifted, 8);
    bits = (uint64_t{1023} << 52) - (bits << 52);  // 2^-q
    double scale;
    std::memcpy(&scale, &bits, 8);
    return p * scale;
}

}  // namespace laplex::LAPLEX_ISA
