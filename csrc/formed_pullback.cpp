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
    Buffer<double> rows_;     // (h, stacks, r, channels, n)
    Buffer<double> cols_;     // (h, strips, r, channels, k)
    Buffer<double> scalars_;  // (h, tasks, r, 2)
};

// Sums over the rows of a tile, for each of its columns.
template <class T>
struct ColumnSums {
    Columns<T> odd, turn;
};

// What one entry adds to the sums.
template <class T>
struct Term {
    T p, odd, stretch, turn;
};

// The function that gives the term of column j in row i of a group. `g` is the tile's cotangent from the group on.
template <class T, bool PHASED, class Value, class Distance>
auto terms(const Entries<T, PHASED>& entries, const RowGroup<T, PHASED>& rows, const T* g, Value value,
           Distance distance) {
    const T *source = entries.source.of, *source_cos = entries.source_cos.of, *source_sin = entries.source_sin.of;
    return [=](int i, int64_t j) {
        const T decayed = g[i * TILE_COLS + j] * value(i, j);
        const T p = PHASED ? decayed * (rows.cos[i] * source_cos[j] + rows.sin[i] * source_sin[j]) : decayed;
        const T odd = source[j] > rows.target[i] ? p : source[j] < rows.target[i] ? -p : T(0);
        const T turn = PHASED ? decayed * (rows.sin[i] * source_cos[j] - rows.cos[i] * source_sin[j]) : T(0);
        return Term<T>{p, odd, p * distance(i, j), turn};
    };
}

// Add the terms of the rows [row, row + GROUP) of a tile.
template <class T, bool PHASED, class F>
void pull_rows(const Entries<T, PHASED>& entries, int64_t row, F term, ColumnSums<T>& col_sums, const Sums& sums) {
    T *odd_cols = col_sums.odd.of, *turn_cols = col_sums.turn.of;
    const int64_t cols = padded(entries.tile.cols);
    T odd0 = 0, odd1 = 0, odd2 = 0, odd3 = 0, turn0 = 0, turn1 = 0, turn2 = 0, turn3 = 0, all = 0, stretch = 0;
#pragma omp simd reduction(+ : odd0, odd1, odd2, odd3, turn0, turn1, turn2, turn3, all, stretch)
    for (int64_t j = 0; j < cols; ++j) {
        const Term<T> a = term(0, j), b = term(1, j), c = term(2, j), d = term(3, j);
        odd0 += a.odd, odd1 += b.odd, odd2 += c.odd, odd3 += d.odd;
        all += (a.p + b.p) + (c.p + d.p);
        stretch += (a.stretch + b.stretch) + (c.stretch + d.stretch);
        odd_cols[j] += (a.odd + b.odd) + (c.odd + d.odd);
        if (PHASED) {
            turn0 += a.turn, turn1 += b.turn, turn2 += c.turn, turn3 += d.turn;
            turn_cols[j] += (a.turn + b.turn) + (c.turn + d.turn);
        }
    }
    const T odd[GROUP] = {odd0, odd1, odd2, odd3}, turn[GROUP] = {turn0, turn1, turn2, turn3};
    for (int64_t i = 0; i < GROUP; ++i) {
        sums.odd_rows[entries.row_of(row + i)] += double(odd[i]);
        if (PHASED) sums.turn_rows[entries.row_of(row + i)] += double(turn[i]);
    }
    *sums.all += double(all);
    *sums.stretch += double(stretch) * entries.unit;
}

// Add the terms of one tile and one kernel. `g` is the tile of the cotangent, with zeros in padded rows and columns.
template <class T, bool PHASED>
void pull_tile(const Kernel<T>& kernel, const Tile& tile, const Columns<T>* g, const Sums& sums) {
    const Entries<T, PHASED> entries(kernel, tile);
    ColumnSums<T> col_sums;
    col_sums.odd.clear(0);
    col_sums.turn.clear(0);
    for (int64_t row = 0; row < tile.rows; row += GROUP)
        entries.with_rows(row, [&](auto value, auto distance) {
            const RowGroup<T, PHASED> rows(entries, row);
            pull_rows(entries, row, terms(entries, rows, g[row].of, value, distance), col_sums, sums);
        });
    for (int64_t j = 0; j < tile.cols; ++j) sums.odd_cols[tile.col + j] += double(col_sums.odd.of[j]);
    if (PHASED)
        for (int64_t j = 0; j < tile.cols; ++j) sums.turn_cols[tile.col + j] += double(col_sums.turn.of[j]);
}

template <class T, bool PHASED>
void pull_task(const FormPullback& pull, const Grid& grid, const Workspace& workspace, int64_t batch, int64_t strip,
               int64_t stack) {
    const int64_t k = grid.k, r = pull.kernels.r;
    const T* g = static_cast<const T*>(pull.g) + batch * grid.n * k;
    workspace.clear(batch, strip, stack);
    Columns<T> g_tile[TILE_ROWS];
    grid.for_each_tile(strip, stack, [&](const Tile& tile) {
        for (int64_t row = 0; row < tile.rows; ++row) g_tile[row].copy(g + (tile.row + row) * k + tile.col, tile.cols);
        for (int64_t row = tile.rows; row < TILE_ROWS; ++row) g_tile[row].clear(0);
        for (int64_t q = 0; q < r; ++q)
            pull_tile<T, PHASED>(Kernel<T>(pull.kernels, batch * r + q), tile, g_tile,
                                 workspace.sums(batch, strip, stack, q));
    });
}

// out_i = scale * the sum over `count` arrays, which are `stride` apart; the first becomes the sum. Does nothing if out
// is null.
template <class T>
void sum_arrays(double* first, int64_t count, int64_t stride, int64_t size, double scale, T* out) {
    if (!out) return;
    for (int64_t array = 1; array < count; ++array)
        for (int64_t i = 0; i < size; ++i) first[i] += first[array * stride + i];
    for (int64_t i = 0; i < size; ++i) out[i] = T(first[i] * scale);
}

// The gradients of one kernel from the sums of all tasks, always added in the same order.
template <class T>
void finish(const FormPullback& pull, const Grid& grid, const Workspace& workspace, int64_t batch, int64_t q) {
    const int64_t r = pull.kernels.r, channels = pull.kernels.target_direction ? 2 : 1, index = batch * r + q;
    const Kernel<T> kernel(pull.kernels, index);
    const Sums first = workspace.sums(batch, 0, 0, q);
    const auto at = [&](void* bar, int64_t size) { return bar ? static_cast<T*>(bar) + index * size : nullptr; };
    const auto of_rows = [&](double* sums, double scale, void* bar) {
        sum_arrays(sums, grid.stacks, r * channels * grid.n, grid.n, scale, at(bar, grid.n));
    };
    const auto of_cols = [&](double* sums, double scale, void* bar) {
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
