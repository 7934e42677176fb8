// The gradients of sum(g * W), W = sum over q of w_q K_q (see formed.h).
//
// With p_ij = g_ij K_ij, u_ij = |t_i - s_j| / tau and the tie rule (at t_i = s_j the derivative of |t_i - s_j| is 0),
// kernel q has
//
//     t_bar_i = (w / tau) sum over j of sign(s_j - t_i) p_ij         weight_bar = sum of p
//     s_bar_j = -(w / tau) sum over i of the same                    tau_bar = (w / tau) sum of u p
//
// and with phases, where K_ij = d_ij cos(phi_i - psi_j) and turn_ij = g_ij d_ij sin(phi_i - psi_j),
//
//     phi_bar_i = -w sum over j of turn_ij         psi_bar_j = w sum over i of turn_ij
//
// The sign is that of the anchors themselves: rounded exponentials do not tell which of two close anchors is the left.
// Sums over one tile are in T, sums over tiles in double precision.
#include "formed.h"

namespace laplex::LAPLEX_ISA {

// The sums of one task and one kernel, without the factors w and 1 / tau. Rows and columns are those of the matrix.
struct Sums {
    double *odd_rows, *odd_cols;    // (n,), (k,): of sign(s - t) p
    double *turn_rows, *turn_cols;  // (n,), (k,): of turn, with phases only
    double *all, *stretch;          // of p, of u p
};

// Where the sums of all tasks are. Tasks of one range of rows share the sums over rows, those of one range of columns
// the sums over columns: each fills its own part of them.
class Workspace {
public:
    Workspace(const Kernels& kernels, const Grid& grid)
        : r_(kernels.r), channels_(kernels.target_direction ? 2 : 1), grid_(grid),
          rows_(kernels.h * grid.stacks * r_ * channels_ * grid.n),
          cols_(kernels.h * grid.strips * r_ * channels_ * grid.k), scalars_(kernels.h * grid.tasks() * r_ * 2) {}

    explicit operator bool() const { return rows_ && cols_ && scalars_; }

    Sums sums(int64_t batch, int64_t strip, int64_t stack, int64_t q) const {
        double* rows = rows_.get() + ((batch * grid_.stacks + stack) * r_ + q) * channels_ * grid_.n;
        double* cols = cols_.get() + ((batch * grid_.strips + strip) * r_ + q) * channels_ * grid_.k;
        double* scalars = scalars_.get() + ((batch * grid_.tasks() + strip * grid_.stacks + stack) * r_ + q) * 2;
        const int64_t second = channels_ - 1;
        return {rows, cols, rows + second * grid_.n, cols + second * grid_.k, scalars, scalars + 1};
    }

    // Set the sums of a task to 0.
    void clear(int64_t batch, int64_t strip, int64_t stack) const {
        const int64_t row = grid_.first_row(strip), col = grid_.first_col(stack);
        const int64_t rows = sizeof(double) * (grid_.first_row(strip + 1) - row);
        const int64_t cols = sizeof(double) * (grid_.first_col(stack + 1) - col);
        for (int64_t q = 0; q < r_; ++q) {
            const Sums of = sums(batch, strip, stack, q);
            std::memset(of.odd_rows + row, 0, rows);
            std::memset(of.odd_cols + col, 0, cols);
            std::memset(of.turn_rows + row, 0, rows);
            std::memset(of.turn_cols + col, 0, cols);
            *of.all = *of.stretch = 0;
        }
    }

private:
    int64_t r_, channels_;
    Grid grid_;
    Buffer<double> rows_, cols_, scalars_;  // (h, stacks, r, channels, n), (h, strips, r, channels, k), (h, tasks, r, 2)
};

// Sums over the rows of a tile, for each of its columns.
template <class T>
struct ColumnSums {
    T odd[TILE_COLS] = {}, turn[TILE_COLS] = {};
};

// Add the terms of one row of a tile. `g` is the tile's row of the cotangent.
template <class T, bool PHASED, class Value, class Distance>
void pull_row(const Kernel<T>& kernel, const Tile& tile, int64_t row, const T* g, Value value, Distance distance,
              double unit, ColumnSums<T>& cols, const Sums& sums) {
    const int64_t i = tile.row + row;
    const T target = kernel.target[i], *source = kernel.source + tile.col;
    const T cos = PHASED ? kernel.target_cos[i] : 1, sin = PHASED ? kernel.target_sin[i] : 0;
    const T* source_cos = PHASED ? kernel.source_cos + tile.col : nullptr;
    const T* source_sin = PHASED ? kernel.source_sin + tile.col : nullptr;
    T odd_sum = 0, all = 0, stretch = 0, turn_sum = 0;
#pragma omp simd reduction(+ : odd_sum, all, stretch, turn_sum)
    for (int64_t j = 0; j < tile.cols; ++j) {
        const T decayed = g[j] * value(j);
        const T p = PHASED ? decayed * (cos * source_cos[j] + sin * source_sin[j]) : decayed;
        const T odd = source[j] > target ? p : source[j] < target ? -p : T(0);
        odd_sum += odd;
        all += p;
        stretch += p * distance(j);
        cols.odd[j] += odd;
        if (PHASED) {
            const T turn = decayed * (sin * source_cos[j] - cos * source_sin[j]);
            turn_sum += turn;
            cols.turn[j] += turn;
        }
    }
    sums.odd_rows[i] += double(odd_sum);
    *sums.all += double(all);
    *sums.stretch += double(stretch) * unit;
    if (PHASED) sums.turn_rows[i] += double(turn_sum);
}

// Add the terms of one tile and one kernel. `g` is the tile's first entry; its rows are k apart.
template <class T, bool PHASED>
void pull_tile(const Kernel<T>& kernel, const Tile& tile, const T* g, int64_t k, const Sums& sums) {
    const Factors<T> factors(kernel, tile);
    ColumnSums<T> cols;
    for (int64_t row = 0; row < tile.rows; ++row, g += k)
        with_row(kernel, tile, factors, row, [&](auto value, auto distance) {
            pull_row<T, PHASED>(kernel, tile, row, g, value, distance, factors.unit, cols, sums);
        });
    for (int64_t j = 0; j < tile.cols; ++j) sums.odd_cols[tile.col + j] += double(cols.odd[j]);
    if (PHASED)
        for (int64_t j = 0; j < tile.cols; ++j) sums.turn_cols[tile.col + j] += double(cols.turn[j]);
}

template <class T, bool PHASED>
void pull_task(const FormPullback& pull, const Grid& grid, const Workspace& workspace, int64_t batch, int64_t strip,
               int64_t stack) {
    const int64_t n = grid.n, k = grid.k, r = pull.kernels.r;
    const T* g = static_cast<const T*>(pull.g) + batch * n * k;
    workspace.clear(batch, strip, stack);
    grid.for_each_tile(strip, stack, [&](const Tile& tile) {
        for (int64_t q = 0; q < r; ++q)
            pull_tile<T, PHASED>(Kernel<T>(pull.kernels, batch * r + q), tile, g + tile.row * k + tile.col, k,
                                 workspace.sums(batch, strip, stack, q));
    });
}

// out_i = scale * the sum over `count` arrays, which are `stride` apart. Writes nothing if out is null.
template <class T>
void sum_arrays(const double* first, int64_t count, int64_t stride, int64_t size, double scale, T* out) {
    for (int64_t i = 0; out && i < size; ++i) {
        double sum = 0;
        for (int64_t array = 0; array < count; ++array) sum += first[array * stride + i];
        out[i] = T(sum * scale);
    }
}

// The gradients of one kernel from the sums of all tasks, always added in the same order.
template <class T>
void finish(const FormPullback& pull, const Grid& grid, const Workspace& workspace, int64_t batch, int64_t q) {
    const int64_t r = pull.kernels.r, channels = pull.kernels.target_direction ? 2 : 1, index = batch * r + q;
    const Kernel<T> kernel(pull.kernels, index);
    const Sums first = workspace.sums(batch, 0, 0, q);
    const auto at = [&](void* bar, int64_t size) { return bar ? static_cast<T*>(bar) + index * size : nullptr; };
    const auto of_rows = [&](const double* sums, double scale, void* bar) {
        sum_arrays(sums, grid.stacks, r * channels * grid.n, grid.n, scale, at(bar, grid.n));
    };
    const auto of_cols = [&](const double* sums, double scale, void* bar) {
        sum_arrays(sums, grid.strips, r * channels * grid.k, grid.k, scale, at(bar, grid.k));
    };
    of_rows(first.odd_rows, kernel.weight * kernel.rate, pull.target_bar);
    of_cols(first.odd_cols, -kernel.weight * kernel.rate, pull.source_bar);
    of_rows(first.turn_rows, -kernel.weight, pull.phi_bar);
    of_cols(first.turn_cols, kernel.weight, pull.psi_bar);
    sum_arrays(first.all, grid.tasks(), r * 2, 1, 1.0, pull.weight_bar + index);
    sum_arrays(first.stretch, grid.tasks(), r * 2, 1, kernel.weight * kernel.rate, pull.tau_bar + index);
}

template <class T>
Status form_pullback(const FormPullback& pull) {
    const Kernels& kernels = pull.kernels;
    const Status status = check<T>(kernels);
    if (status != OK) return status;
    const Grid grid(kernels.n, kernels.k);
    const Workspace workspace(kernels, grid);
    if (!workspace) return OUT_OF_MEMORY;
    const int64_t tasks = grid.tasks();
    const int threads = useful_threads(pull.threads, kernels.h * kernels.r * kernels.n * kernels.k);
    parallel_for(threads, kernels.h * tasks, [&](int64_t task, int) {
        const int64_t batch = task / tasks, strip = task % tasks / grid.stacks, stack = task % grid.stacks;
        if (kernels.target_direction)
            pull_task<T, true>(pull, grid, workspace, batch, strip, stack);
        else
            pull_task<T, false>(pull, grid, workspace, batch, strip, stack);
        return true;
    });
    parallel_for(threads, kernels.h * kernels.r, [&](int64_t index, int) {
        finish<T>(pull, grid, workspace, index / kernels.r, index % kernels.r);
        return true;
    });
    return OK;
}

template Status form_pullback<float>(const FormPullback&);
template Status form_pullback<double>(const FormPullback&);

}  // namespace laplex::LAPLEX_ISA
