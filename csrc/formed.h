// What forming W = sum over q of w_q K_q (formed.cpp) and its pullback (formed_pullback.cpp) share.
//
// W is computed in tiles. In a tile, an entry needs no exponential of its own: with x = (anchor - centre) / tau,
//
//     exp(-|t_i - s_j| / tau) = min(exp(x_i) exp(-x_j), exp(-x_i) exp(x_j))
//
// because the two products are inverse to each other, and the smaller one has the negative exponent. A tile of R rows
// and C columns so takes R + C exponentials, in double precision and rounded once. These factors are positive powers,
// so a tile uses them only if its anchors lie close together beside tau; otherwise each entry takes its own
// exponential. The centre and the choice belong to the tile: anchors in order have close neighbours at any span.
#pragma once

#include "decay.h"
#include "parallel.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {

// A tile's entries stay in the second-level cache while all kernels visit them. Sums over the rows of a tile are in T:
// 64 terms lose little, even in single precision.
constexpr int64_t TILE_ROWS = 64, TILE_COLS = 256;

struct Tile {
    int64_t row, rows;  // the first row, and their number, at most TILE_ROWS
    int64_t col, cols;
};

// One kernel K_q of one batch.
template <class T>
struct Kernel {
    const T *target, *source;                                // (n,), (k,)
    const T *target_cos, *target_sin, *source_cos, *source_sin;  // of the phases; null without
    double rate, weight;                                     // 1 / tau, w_q

    Kernel(const Kernels& kernels, int64_t index)  // index = batch * r + q
        : target(static_cast<const T*>(kernels.target) + index * kernels.n),
          source(static_cast<const T*>(kernels.source) + index * kernels.k),
          target_cos(nullptr), target_sin(nullptr), source_cos(nullptr), source_sin(nullptr),
          rate(1.0 / kernels.tau[index]),
          weight(kernels.weight ? kernels.weight[index] : 1.0) {
        if (!kernels.target_direction) return;
        target_cos = static_cast<const T*>(kernels.target_direction) + index * 2 * kernels.n;
        target_sin = target_cos + kernels.n;
        source_cos = static_cast<const T*>(kernels.source_direction) + index * 2 * kernels.k;
        source_sin = source_cos + kernels.k;
    }
};

// --- Which tiles there are, and who computes them -------------------------------------------------------------------

// The matrix of a batch is cut into tasks: a grid of ranges of rows and of columns. The grid depends on the sizes only,
// so sums over a task, and sums of these, do not depend on the number of threads.
struct Grid {
    int64_t n, k, strips, stacks;  // ranges of rows, ranges of columns

    static constexpr int64_t TASKS = 16;  // about so many per batch

    Grid(int64_t n, int64_t k) : n(n), k(k) {
        strips = smaller(TASKS, block_count(n, TILE_ROWS));
        stacks = smaller(larger<int64_t>(1, TASKS / strips), block_count(k, TILE_COLS));
    }
    int64_t tasks() const { return strips * stacks; }
    int64_t first_row(int64_t strip) const { return n * strip / strips; }
    int64_t first_col(int64_t stack) const { return k * stack / stacks; }

    // Call f(tile) for the tiles of a task.
    template <class F>
    void for_each_tile(int64_t strip, int64_t stack, F f) const {
        const int64_t last_row = first_row(strip + 1), last_col = first_col(stack + 1);
        for (int64_t row = first_row(strip); row < last_row; row += TILE_ROWS)
            for (int64_t col = first_col(stack); col < last_col; col += TILE_COLS)
                f(Tile{row, smaller(TILE_ROWS, last_row - row), col, smaller(TILE_COLS, last_col - col)});
    }
};

// --- The entries of a tile ------------------------------------------------------------------------------------------

struct Range {
    double low, high;
};

// The smallest and the largest of `count` anchors. Several at once, because a comparison waits for the one before it.
template <class T>
Range range(const T* anchors, int64_t count) {
    constexpr int64_t LANES = 16;
    T low[LANES], high[LANES];
    for (int64_t lane = 0; lane < LANES; ++lane) low[lane] = high[lane] = anchors[0];
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int64_t lane = 0; lane < LANES; ++lane) {
            low[lane] = smaller(anchors[i + lane], low[lane]);
            high[lane] = larger(anchors[i + lane], high[lane]);
        }
    for (; i < count; ++i) low[0] = smaller(anchors[i], low[0]), high[0] = larger(anchors[i], high[0]);
    for (int64_t lane = 1; lane < LANES; ++lane) {
        low[0] = smaller(low[lane], low[0]);
        high[0] = larger(high[lane], high[0]);
    }
    return {double(low[0]), double(high[0])};
}

// The factors exp(x) and exp(-x) of one kernel's rows and columns in a tile, if the tile can use them.
template <class T>
struct Factors {
    // The largest |x|. In single precision, no product of two factors overflows or is denormal. In double precision,
    // the rounding of x, which is that of numbers up to |x|, does not show.
    static constexpr double MAX_X = sizeof(T) == 4 ? 43 : 32;
    // Distances outside 1 / FAR ... FAR may underflow or overflow in T when they are multiplied by other numbers.
    static constexpr double FAR = sizeof(T) == 4 ? 1e25 : 1e250;

    bool usable;
    double unit;  // distances are given in `unit` times tau
    T row_up[TILE_ROWS], row_down[TILE_ROWS], col_up[TILE_COLS], col_down[TILE_COLS];  // exp(x), exp(-x)

    Factors(const Kernel<T>& kernel, const Tile& tile) {
        const Range rows = range(kernel.target + tile.row, tile.rows), cols = range(kernel.source + tile.col, tile.cols);
        const double low = smaller(rows.low, cols.low), high = larger(rows.high, cols.high), span = high - low;
        usable = span * kernel.rate <= 2 * MAX_X && span > 1 / FAR && span < FAR;
        unit = usable ? kernel.rate : smaller(span * kernel.rate, MAX_U);
        if (!usable) return;
        const double centre = low + span / 2;
        fill(kernel.target + tile.row, tile.rows, centre, kernel.rate, row_up, row_down);
        fill(kernel.source + tile.col, tile.cols, centre, kernel.rate, col_up, col_down);
    }

private:
    static void fill(const T* anchors, int64_t count, double centre, double rate, T* up, T* down) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
            const double x = (double(anchors[i]) - centre) * rate;
            const double below = decay<T>(std::fabs(x)), above = 1.0 / below;
            up[i] = T(x < 0 ? below : above);
            down[i] = T(x < 0 ? above : below);
        }
    }
};

// Call f(value, distance) for one row of a tile: value(j) is exp(-|t_i - s_j| / tau), and distance(j) is |t_i - s_j| in
// factors.unit times tau. Where there are no factors, the distance is limited to MAX_U tau, where the value is 0.
template <class T, class F>
void with_row(const Kernel<T>& kernel, const Tile& tile, const Factors<T>& factors, int64_t row, F f) {
    const T target = kernel.target[tile.row + row];
    const T* source = kernel.source + tile.col;
    if (factors.usable) {
        const T up = factors.row_up[row], down = factors.row_down[row];
        const T *col_up = factors.col_up, *col_down = factors.col_down;
        f([=](int64_t j) { return smaller(up * col_down[j], down * col_up[j]); },
          [=](int64_t j) { return std::fabs(target - source[j]); });
        return;
    }
    T value[TILE_COLS], distance[TILE_COLS];
    const double per_unit = factors.unit >= SMALLEST_TAU ? 1.0 / factors.unit : 0.0;  // 0: all anchors are tied
#pragma omp simd
    for (int64_t j = 0; j < tile.cols; ++j) {
        const double u = smaller(std::fabs(double(target) - double(source[j])) * kernel.rate, MAX_U);
        value[j] = T(decay<T>(u));
        distance[j] = T(u * per_unit);
    }
    const T *values = value, *distances = distance;
    f([=](int64_t j) { return values[j]; }, [=](int64_t j) { return distances[j]; });
}

// --- Faults ---------------------------------------------------------------------------------------------------------

// Whether all of `count` anchors are finite: v - v is 0 for these, and NaN for others.
template <class T>
bool all_finite(const void* anchors, int64_t count) {
    const T* values = static_cast<const T*>(anchors);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += values[i] - values[i];
    return sum == 0;
}

template <class T>
Status check(const Kernels& kernels) {
    const int64_t count = kernels.h * kernels.r;
    for (int64_t i = 0; i < count; ++i)
        if (!(kernels.tau[i] >= SMALLEST_TAU) || !is_finite(kernels.tau[i])) return BAD_TAU;
    if (!all_finite<T>(kernels.target, count * kernels.n)) return NOT_FINITE_A;
    return all_finite<T>(kernels.source, count * kernels.k) ? OK : NOT_FINITE_B;
}

}  // namespace laplex::LAPLEX_ISA
