// Products of two matrices in single precision whose sums are as exact as their terms.
//
// A float that sums k positive terms one after the other is off by about sqrt(k) / 4 roundings on average, and by
// several times that at worst, so the usual product of a layer of a thousand features has errors of ten roundings, and
// one of a million features hundreds. Here a float sums 16 terms. Two such sums are added, and what comes of these 32
// terms is added in double precision. The rest is as in any fast product: both matrices are copied into panels that
// stay in the cache, and a small tile of the result stays in registers (Goto and van de Geijn 2008).
#include "parallel.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {

// A tile of the result is TILE_M x TILE_N. It takes two sets of TILE_M * 2 registers, of 32 or of 16 that there are.
#ifdef __AVX512F__
constexpr int64_t VECTOR = 16, TILE_M = 6;
#elif defined(__AVX__)
constexpr int64_t VECTOR = 8, TILE_M = 3;
#else
constexpr int64_t VECTOR = 4, TILE_M = 3;
#endif
constexpr int64_t TILE_N = 2 * VECTOR;
typedef float Lanes __attribute__((vector_size(VECTOR * sizeof(float))));

constexpr int64_t CHUNK = 32;   // terms summed in floats: 16 in each of two sums
constexpr int64_t DEPTH = 256;  // terms for which panels are copied at a time
constexpr int64_t ROWS = 32 * TILE_M, COLS = 8 * TILE_N;  // of the result that one task computes

// A matrix with any strides.
struct View {
    const float* data;
    int64_t row, col;  // strides

    const float* at(int64_t i, int64_t j) const { return data + i * row + j * col; }
};

// --- Panels ---------------------------------------------------------------------------------------------------------

// Copy `length` terms of up to WIDTH lines of a matrix, term by term: panel[term * WIDTH + line]. Missing lines, and an
// odd term at the end, are zeros.
template <int64_t WIDTH>
void copy_panel(const float* from, int64_t line_stride, int64_t term_stride, int64_t lines, int64_t length,
                float* panel) {
    if (lines < WIDTH || length % 2) std::memset(panel, 0, sizeof(float) * (length + length % 2) * WIDTH);
    if (line_stride == 1 && lines == WIDTH) {
        for (int64_t term = 0; term < length; ++term)
            for (int64_t line = 0; line < WIDTH; ++line) panel[term * WIDTH + line] = from[term * term_stride + line];
    } else if (line_stride == 1) {
        for (int64_t term = 0; term < length; ++term)
            for (int64_t line = 0; line < lines; ++line) panel[term * WIDTH + line] = from[term * term_stride + line];
    } else {
        for (int64_t line = 0; line < lines; ++line)
            for (int64_t term = 0; term < length; ++term)
                panel[term * WIDTH + line] = from[line * line_stride + term * term_stride];
    }
}

// --- One tile -------------------------------------------------------------------------------------------------------

// sums (TILE_M, TILE_N) += the products of two panels over `length` terms, which is even.
void add_tile(const float* left, const float* right, int64_t length, double* sums) {
    for (int64_t begin = 0; begin < length; begin += CHUNK) {
        const int64_t end = smaller(begin + CHUNK, length);
        Lanes even[TILE_M][2] = {}, odd[TILE_M][2] = {};
        for (int64_t term = begin; term < end; term += 2) {
            const Lanes* columns = reinterpret_cast<const Lanes*>(right + term * TILE_N);
            const float *rows = left + term * TILE_M, *next = rows + TILE_M;
#pragma GCC unroll 8
            for (int64_t i = 0; i < TILE_M; ++i) {
                even[i][0] += rows[i] * columns[0];
                even[i][1] += rows[i] * columns[1];
            }
#pragma GCC unroll 8
            for (int64_t i = 0; i < TILE_M; ++i) {
                odd[i][0] += next[i] * columns[2];
                odd[i][1] += next[i] * columns[3];
            }
        }
        alignas(64) float chunk[TILE_M * TILE_N];
        Lanes* out = reinterpret_cast<Lanes*>(chunk);
#pragma GCC unroll 8
        for (int64_t i = 0; i < TILE_M; ++i) {
            out[2 * i] = even[i][0] + odd[i][0];
            out[2 * i + 1] = even[i][1] + odd[i][1];
        }
#pragma omp simd
        for (int64_t j = 0; j < TILE_M * TILE_N; ++j) sums[j] += double(chunk[j]);
    }
}

// --- One task -------------------------------------------------------------------------------------------------------

// What a task needs: panels of both matrices, and the sums of its part of the result.
struct Workspace {
    Buffer<float> left{DEPTH * ROWS + VECTOR}, right{DEPTH * TILE_N + VECTOR};
    Buffer<double> sums{ROWS * COLS};

    explicit operator bool() const { return left && right && sums; }

    // The first element at the address of a whole vector.
    static float* aligned(float* data) {
        const uintptr_t bytes = VECTOR * sizeof(float), address = reinterpret_cast<uintptr_t>(data);
        return reinterpret_cast<float*>((address + bytes - 1) / bytes * bytes);
    }
};

// The rows [row, row + rows) and columns [col, col + cols) of out (m, n) = a (m, k) b (k, n).
void multiply_block(const View& a, const View& b, int64_t k, int64_t row, int64_t rows, int64_t col, int64_t cols,
                    const Workspace& work, float* out, int64_t n) {
    float *left = Workspace::aligned(work.left.get()), *right = Workspace::aligned(work.right.get());
    double* sums = work.sums.get();
    const int64_t down = block_count(rows, TILE_M), across = block_count(cols, TILE_N), tile = TILE_M * TILE_N;
    std::memset(sums, 0, sizeof(double) * down * across * tile);
    for (int64_t first = 0; first < k; first += DEPTH) {
        const int64_t length = smaller(DEPTH, k - first), even_length = length + length % 2;
        for (int64_t i = 0; i < down; ++i)
            copy_panel<TILE_M>(a.at(row + i * TILE_M, first), a.row, a.col, smaller(TILE_M, rows - i * TILE_M), length,
                               left + i * TILE_M * DEPTH);
        for (int64_t j = 0; j < across; ++j) {
            copy_panel<TILE_N>(b.at(first, col + j * TILE_N), b.col, b.row, smaller(TILE_N, cols - j * TILE_N), length,
                               right);
            for (int64_t i = 0; i < down; ++i)
                add_tile(left + i * TILE_M * DEPTH, right, even_length, sums + (j * down + i) * tile);
        }
    }
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; j += TILE_N) {
            const double* from = sums + ((j / TILE_N * down + i / TILE_M) * TILE_M + i % TILE_M) * TILE_N;
            float* to = out + (row + i) * n + col + j;
            for (int64_t lane = 0; lane < smaller(TILE_N, cols - j); ++lane) to[lane] = float(from[lane]);
        }
}

Status multiply(const Multiply& args) {
    const int64_t strips = block_count(args.m, ROWS), stacks = block_count(args.n, COLS), blocks = strips * stacks;
    const int64_t work = args.h * args.m * args.n * args.k / TILE_N;
    const bool done = parallel_for(useful_threads_now(args.threads, work), args.h * blocks, [&](int64_t task, int) {
        const Workspace memory;
        if (!memory) return false;
        const int64_t batch = task / blocks, row = task % blocks / stacks * ROWS, col = task % stacks * COLS;
        const View a{args.a + batch * args.a_batch, args.a_row, args.a_col};
        const View b{args.b + batch * args.b_batch, args.b_row, args.b_col};
        multiply_block(a, b, args.k, row, smaller(ROWS, args.m - row), col, smaller(COLS, args.n - col), memory,
                       args.out + batch * args.m * args.n, args.n);
        return true;
    });
    return done ? OK : OUT_OF_MEMORY;
}

}  // namespace laplex::LAPLEX_ISA
