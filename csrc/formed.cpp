// W = sum over q of w_q K_q, formed (see formed.h).
#include "formed.h"

namespace laplex::LAPLEX_ISA {

// Add w_q K_q to one tile of W, whose first entry is `out` and whose rows are k apart.
template <class T, bool PHASED>
void add_kernel(const Kernel<T>& kernel, const Tile& tile, T* out, int64_t k) {
    const Factors<T> factors(kernel, tile);
    const T weight = T(kernel.weight);
    for (int64_t row = 0; row < tile.rows; ++row, out += k) {
        const T cos = PHASED ? weight * kernel.target_cos[tile.row + row] : weight;
        const T sin = PHASED ? weight * kernel.target_sin[tile.row + row] : 0;
        const T* source_cos = PHASED ? kernel.source_cos + tile.col : nullptr;
        const T* source_sin = PHASED ? kernel.source_sin + tile.col : nullptr;
        with_row(kernel, tile, factors, row, [&](auto value, auto) {
#pragma omp simd
            for (int64_t j = 0; j < tile.cols; ++j)
                out[j] += (PHASED ? cos * source_cos[j] + sin * source_sin[j] : cos) * value(j);
        });
    }
}

template <class T, bool PHASED>
void form_tile(const Kernels& kernels, int64_t batch, const Tile& tile, T* matrix) {
    T* out = matrix + (batch * kernels.n + tile.row) * kernels.k + tile.col;
    for (int64_t row = 0; row < tile.rows; ++row) std::memset(out + row * kernels.k, 0, sizeof(T) * tile.cols);
    for (int64_t q = 0; q < kernels.r; ++q)
        add_kernel<T, PHASED>(Kernel<T>(kernels, batch * kernels.r + q), tile, out, kernels.k);
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
    parallel_for(useful_threads(form.threads, entries * kernels.r), kernels.h * tasks, [&](int64_t task, int) {
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
