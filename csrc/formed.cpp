// W = sum over q of w_q K_q, formed (see formed.h).
#include "formed.h"

namespace laplex::LAPLEX_ISA {

// Add w_q K_q to one tile of W.
template <class T, bool PHASED>
void add_kernel(const Kernel<T>& kernel, const Tile& tile, Columns<T>* sum) {
    const Entries<T, PHASED> entries(kernel, tile);
    const T weight = T(kernel.weight), *source_cos = entries.source_cos.of, *source_sin = entries.source_sin.of;
    const int64_t cols = padded(tile.cols);
    for (int64_t row = 0; row < tile.rows; row += GROUP) {
        RowGroup<T, PHASED> rows(entries, row);
        for (int64_t i = 0; i < GROUP; ++i) rows.cos[i] *= weight, rows.sin[i] *= weight;
        T* out = sum[row].of;
        entries.with_rows(row, [=](auto value, auto) {
            const auto entry = [=](int i, int64_t j) {
                return (PHASED ? rows.cos[i] * source_cos[j] + rows.sin[i] * source_sin[j] : rows.cos[i]) * value(i, j);
            };
#pragma omp simd
            for (int64_t j = 0; j < cols; ++j) {
                out[j] += entry(0, j);
                out[TILE_COLS + j] += entry(1, j);
                out[2 * TILE_COLS + j] += entry(2, j);
                out[3 * TILE_COLS + j] += entry(3, j);
            }
        });
    }
}

template <class T, bool PHASED>
void form_tile(const Kernels& kernels, int64_t batch, const Tile& tile, T* matrix) {
    Columns<T> sum[TILE_ROWS];
    for (Columns<T>& row : sum) row.clear(0);
    for (int64_t q = 0; q < kernels.r; ++q)
        add_kernel<T, PHASED>(Kernel<T>(kernels, batch * kernels.r + q), tile, sum);
    T* out = matrix + (batch * kernels.n + tile.row) * kernels.k + tile.col;
    for (int64_t row = 0; row < tile.rows; ++row)
        std::memcpy(out + row * kernels.k, sum[row].of, sizeof(T) * tile.cols);
}

template <class T>
Status form(const Form& form) {
    const Kernels& kernels = form.kernels;
    const Status status = check<T>(kernels);
    if (status != OK) return status;
    const Grid grid(kernels.n, kernels.k);
    const int64_t tasks = grid.tasks(), entries = kernels.h * kernels.n * kernels.k;
    T* matrix = static_cast<T*>(form.matrix);
    use_large_pages(matrix, sizeof(T) * entries);
    parallel_for(useful_threads_now(form.threads, entries * kernels.r), kernels.h * tasks, [&](int64_t task, int) {
        const int64_t batch = task / tasks, strip = task % tasks / grid.stacks, stack = task % grid.stacks;
        grid.for_each_tile(strip, stack, [&](const Tile& tile) {
            if (kernels.target_direction)
                form_tile<T, true>(kernels, batch, tile, matrix);
            else
                form_tile<T, false>(kernels, batch, tile, matrix);
        });
        return true;
    });
    return OK;
}

template Status form<float>(const Form&);
template Status form<double>(const Form&);

}  // namespace laplex::LAPLEX_ISA
