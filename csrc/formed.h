// What forming W = sum over q of w_q K_q (formed.cpp) and its pullback (formed_pullback.cpp) share.
//
// W is computed in tiles. In a tile, an entry needs no exponential of its own: with x = (anchor - centre) / tau,
//
//     exp(-|t_i - s_j| / tau) = min(exp(x_i) exp(-x_j), exp(-x_i) exp(x_j))
//
// because the two products are inverse to each other, and the smaller one has the negative exponent. So a tile of R
// rows and C columns takes R + C exponentials. They are computed in double precision and rounded once. Half of these
// factors have a positive exponent, so a tile uses them only if its anchors span few enough tau; in single precision,
// factors in double precision serve wider spans. Otherwise each entry takes its own exponential. The centre and the
// choice belong to the tile: of anchors in order, a tile spans only a part.
#pragma once

#include "decay.h"
#include "parallel.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {

// A tile's entries stay in the second-level cache while all kernels visit them. Sums over the rows of a tile are in T:
// 64 terms lose little, even in single precision.
constexpr int64_t TILE_ROWS = 64, TILE_COLS = 384;
constexpr int64_t LANES = 16;  // of the widest vector

// Rows are visited four at a time: what belongs to a column is then loaded once for four entries, and four rows share
// one sum. A tile has whole groups; rows beyond its last repeat the last anchor, and their g is 0.
constexpr int64_t GROUP = 4;

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

// A column of a tile per element, padded with zeros to whole vectors and aligned: rows then have no remainder, which
// would take as long as the rest. Padded columns have g = 0 and a value that is finite, so they add nothing.
template <class T>
struct alignas(64) Columns {
    T of[TILE_COLS];

    void copy(const T* from, int64_t count) {
#pragma omp simd  // compilers turn a plain loop into memcpy, which starts slowly
        for (int64_t j = 0; j < count; ++j) of[j] = from[j];
        clear(count);
    }
    void clear(int64_t first) { std::memset(of + first, 0, sizeof(T) * (TILE_COLS - first)); }
};

// `count` columns in whole vectors.
inline int64_t padded(int64_t count) { return block_count(count, LANES) * LANES; }

// The factors exp(x) and exp(-x) of one kernel's rows and columns in a tile, of type F.
template <class F>
struct Factors {
    F row_up[TILE_ROWS], row_down[TILE_ROWS];
    Columns<F> col_up, col_down;

    template <class T>
    void fill(const Kernel<T>& kernel, const Tile& tile, double centre) {
        fill(kernel.target + tile.row, tile.rows, centre, kernel.rate, row_up, row_down);
        fill(kernel.source + tile.col, tile.cols, centre, kernel.rate, col_up.of, col_down.of);
        col_up.clear(tile.cols);
        col_down.clear(tile.cols);
    }

private:
    template <class T>
    static void fill(const T* anchors, int64_t count, double centre, double rate, F* up, F* down) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
            const double x = (double(anchors[i]) - centre) * rate;
            const double below = decay<T>(std::fabs(x)), above = 1.0 / below;
            up[i] = F(x < 0 ? below : above);
            down[i] = F(x < 0 ? above : below);
        }
    }
};

// What the entries of one kernel in a tile are made of: factors, if the tile can use them, and the source side of the
// kernel, padded.
template <class T, bool PHASED>
struct Entries {
    // The largest |x| of factors. In single precision, no product of two of them overflows or is denormal. In double
    // precision, the rounding of x, which is that of numbers up to |x|, does not show. Single precision with factors
    // in double precision has the larger range, and needs no more accuracy than its own.
    static constexpr double MAX_X = sizeof(T) == 4 ? 43 : 32;
    static constexpr double MAX_WIDE_X = sizeof(T) == 4 ? 350 : 0;
    // Distances outside 1 / FAR ... FAR may underflow or overflow in T when they are multiplied by other numbers.
    static constexpr double FAR = sizeof(T) == 4 ? 1e25 : 1e250;

    enum Way { FACTORS, WIDE_FACTORS, EXPONENTIALS };

    const Kernel<T>& kernel;
    const Tile& tile;
    Way way;
    double unit;  // distances are given in `unit` times tau
    Factors<T> factors;
    Factors<double> wide_factors;
    Columns<T> source, source_cos, source_sin;

    Entries(const Kernel<T>& kernel, const Tile& tile) : kernel(kernel), tile(tile) {
        const Range rows = range(kernel.target + tile.row, tile.rows);
        const Range cols = range(kernel.source + tile.col, tile.cols);
        const double low = smaller(rows.low, cols.low), high = larger(rows.high, cols.high), span = high - low;
        const double max_x = span * kernel.rate / 2;
        way = !(span > 1 / FAR && span < FAR) ? EXPONENTIALS
              : max_x <= MAX_X                ? FACTORS
              : max_x <= MAX_WIDE_X           ? WIDE_FACTORS
                                              : EXPONENTIALS;
        unit = way == EXPONENTIALS ? smaller(span * kernel.rate, MAX_U) : kernel.rate;
        if (way == FACTORS) factors.fill(kernel, tile, low + span / 2);
        if (way == WIDE_FACTORS) wide_factors.fill(kernel, tile, low + span / 2);
        source.copy(kernel.source + tile.col, tile.cols);
        if (PHASED) source_cos.copy(kernel.source_cos + tile.col, tile.cols);
        if (PHASED) source_sin.copy(kernel.source_sin + tile.col, tile.cols);
    }

    // The row of the matrix that a row of the tile stands for.
    int64_t row_of(int64_t row) const { return tile.row + smaller(row, tile.rows - 1); }

    // Call f(value, distance) for the rows [row, row + GROUP) of the tile: value(i, j) is exp(-|t - s_j| / tau) for the
    // target t of row + i, and distance(i, j) is |t - s_j| in `unit` times tau. With exponentials the distance is
    // limited to MAX_U tau, where the value is 0.
    template <class F>
    void with_rows(int64_t row, F f) const {
        if (way == FACTORS)
            with_factors(factors, row, f);
        else if (way == WIDE_FACTORS)
            with_factors(wide_factors, row, f);
        else
            with_exponentials(row, f);
    }

private:
    template <class X, class F>
    void with_factors(const Factors<X>& factors, int64_t row, F f) const {
        struct Rows {
            X up[GROUP], down[GROUP];
            T target[GROUP];
        } rows;
        for (int64_t i = 0; i < GROUP; ++i) {
            const int64_t at = row_of(row + i);
            rows.up[i] = factors.row_up[at - tile.row];
            rows.down[i] = factors.row_down[at - tile.row];
            rows.target[i] = kernel.target[at];
        }
        const X *ups = factors.col_up.of, *downs = factors.col_down.of;
        const T* sources = source.of;
        f([=](int i, int64_t j) { return T(smaller(rows.up[i] * downs[j], rows.down[i] * ups[j])); },
          [=](int i, int64_t j) { return std::fabs(rows.target[i] - sources[j]); });
    }

    template <class F>
    void with_exponentials(int64_t row, F f) const {
        struct Rows {
            double target[GROUP];
        } rows;
        for (int64_t i = 0; i < GROUP; ++i) rows.target[i] = double(kernel.target[row_of(row + i)]);
        const double rate = kernel.rate, per_unit = unit >= SMALLEST_TAU ? 1.0 / unit : 0.0;  // 0: anchors are tied
        const T* sources = source.of;
        const auto u = [=](int i, int64_t j) {
            return smaller(std::fabs(rows.target[i] - double(sources[j])) * rate, MAX_U);
        };
        Columns<T> values[GROUP];
        const int64_t cols = padded(tile.cols);
        for (int i = 0; i < GROUP; ++i) {
            T* value = values[i].of;
#pragma omp simd
            for (int64_t j = 0; j < cols; ++j) value[j] = T(decay<T>(u(i, j)));
        }
        const T* value = values[0].of;
        f([=](int i, int64_t j) { return value[i * TILE_COLS + j]; },
          [=](int i, int64_t j) { return T(u(i, j) * per_unit); });
    }
};

// The targets and their phases in the rows [row, row + GROUP) of a tile. Without phases, cos is 1 and sin is 0.
template <class T, bool PHASED>
struct RowGroup {
    T target[GROUP], cos[GROUP], sin[GROUP];

    RowGroup(const Entries<T, PHASED>& entries, int64_t row) {
        for (int64_t i = 0; i < GROUP; ++i) {
            const int64_t at = entries.row_of(row + i);
            target[i] = entries.kernel.target[at];
            cos[i] = PHASED ? entries.kernel.target_cos[at] : 1;
            sin[i] = PHASED ? entries.kernel.target_sin[at] : 0;
        }
    }
};

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
