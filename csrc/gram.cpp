// The n x n part of a weighted Gram matrix M = K diag(w) K^T, and its pullback.
//
// For a pair of anchors, `left` <= `right`, and one channel of weights,
//
//     M = exp(-(right - left) / tau) (U_left + (W_right - W_left) + V_right)
//
// U is the weight left of an anchor and V the weight right of it, both decayed at the rate 2 / tau. W is the cumulative
// weight without decay, in two parts, high and low, whose differences are exact. With phases there are three channels,
// multiplied by P = cos(phi_i - phi_j) / 2, cos(phi_i + phi_j) / 2 and sin(phi_i + phi_j) / 2, and summed.
//
// M is symmetric. It is computed in square tiles on and below the diagonal, and each tile is also written to its
// mirrored place. Rows and columns are in the caller's order: the sign of the gap tells which anchor of a pair is the
// left one.
#include "decay.h"
#include "parallel.h"
#include "scratch.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t TILE = 64;

// The arrays of one matrix.
template <int CHANNELS>
struct Matrix {
    const double *left[CHANNELS], *right[CHANNELS];  // (n,): U, V
    const double *high[CHANNELS], *low[CHANNELS];    // (n,): W = high + low
    const double *anchors, *cos, *sin;               // (n,); cos and sin of phi are read with phases only
    int64_t n;
    double rate;  // 1 / tau

    Matrix(const Gram& gram, int64_t index)
        : n(gram.n), rate(1.0 / gram.tau[index / gram.m]) {
        const int64_t batch = index / gram.m;
        for (int c = 0; c < CHANNELS; ++c) {
            left[c] = gram.sums + (index * CHANNELS + c) * 4 * n;
            right[c] = left[c] + n;
            high[c] = right[c] + n;
            low[c] = high[c] + n;
        }
        anchors = gram.target + batch * n;
        cos = gram.direction + (CHANNELS == 3 ? batch * 2 * n : 0);
        sin = cos + n;
    }
};

// The pairs of one row i with up to TILE columns j.
template <int CHANNELS>
struct Pairs {
    double gap[TILE], u[TILE], decay[TILE];  // a_i - a_j, |gap| / tau, exp(-u)
    double mass[CHANNELS][TILE];             // U_left + (W_right - W_left) + V_right
    double slope[CHANNELS][TILE];            // V_right - U_left
    double between[CHANNELS][TILE];          // W_i - W_j: the signed mass between the two anchors
    double phase[CHANNELS][TILE];            // P, with phases only
};

// Fill the pairs of row i with the columns [begin, begin + count). R is the type of the matrix's entries.
template <class R, int CHANNELS>
void fill_pairs(const Matrix<CHANNELS>& p, int64_t i, int64_t begin, int64_t count, Pairs<CHANNELS>& pairs) {
    const double* a = p.anchors + begin;
    double* gap = pairs.gap;
    for (int64_t j = 0; j < count; ++j) gap[j] = p.anchors[i] - a[j];
    for (int64_t j = 0; j < count; ++j) pairs.u[j] = smaller(std::fabs(gap[j]) * p.rate, MAX_U);
    for (int64_t j = 0; j < count; ++j) pairs.decay[j] = decay<R>(pairs.u[j]);
    for (int c = 0; c < CHANNELS; ++c) {
        const double *left = p.left[c] + begin, *right = p.right[c] + begin;
        const double *high = p.high[c] + begin, *low = p.low[c] + begin;
        const double row_left = p.left[c][i], row_right = p.right[c][i], row_high = p.high[c][i], row_low = p.low[c][i];
        for (int64_t j = 0; j < count; ++j) {
            const bool row_is_right = gap[j] >= 0;
            const double between = (row_high - high[j]) + (row_low - low[j]);
            const double of_left = row_is_right ? left[j] : row_left, of_right = row_is_right ? row_right : right[j];
            pairs.mass[c][j] = of_left + (row_is_right ? between : -between) + of_right;
            pairs.slope[c][j] = of_right - of_left;
            pairs.between[c][j] = between;
        }
    }
    if (CHANNELS == 1) return;
    const double *cos = p.cos + begin, *sin = p.sin + begin, row_cos = p.cos[i] / 2, row_sin = p.sin[i] / 2;
    for (int64_t j = 0; j < count; ++j) {
        pairs.phase[0][j] = row_cos * cos[j] + row_sin * sin[j];
        pairs.phase[CHANNELS / 2][j] = row_cos * cos[j] - row_sin * sin[j];
        pairs.phase[CHANNELS - 1][j] = row_sin * cos[j] + row_cos * sin[j];
    }
}

// The place of a tile on or below the diagonal. The tiles are numbered by rows: 0; 1, 2; 3, 4, 5; ...
struct TilePlace {
    int64_t row, col;  // its first row and its first column; col <= row

    explicit TilePlace(int64_t index) {
        int64_t i = int64_t((std::sqrt(8.0 * double(index) + 1.0) - 1.0) / 2.0);
        while ((i + 1) * (i + 2) / 2 <= index) ++i;  // correct the rounding of the square root
        while (i * (i + 1) / 2 > index) --i;
        row = i * TILE;
        col = (index - i * (i + 1) / 2) * TILE;
    }
    static int64_t count(int64_t n) {
        const int64_t tiles = block_count(n, TILE);
        return tiles * (tiles + 1) / 2;
    }
};

// --- From the sums to M ---------------------------------------------------------------------------------------------

// Write one tile and its mirror image to out (n, n).
template <class R, int CHANNELS>
void assemble_tile(const Matrix<CHANNELS>& p, TilePlace at, R* out) {
    R tile[TILE][TILE];
    Pairs<CHANNELS> pairs;
    const int64_t rows = smaller(TILE, p.n - at.row);
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = at.row + r, count = smaller(TILE, i + 1 - at.col);
        fill_pairs<R, CHANNELS>(p, i, at.col, count, pairs);
        for (int64_t j = 0; j < count; ++j) {
            double mass = CHANNELS == 1 ? pairs.mass[0][j] : 0;
            if (CHANNELS > 1)
                for (int c = 0; c < CHANNELS; ++c) mass += pairs.phase[c][j] * pairs.mass[c][j];
            tile[r][j] = R(pairs.decay[j] * mass);
        }
        std::memcpy(out + i * p.n + at.col, tile[r], sizeof(R) * count);
    }
    for (int64_t j = 0; j < TILE && at.col + j < p.n; ++j) {
        R* mirrored = out + (at.col + j) * p.n + at.row;
        for (int64_t r = larger<int64_t>(0, at.col + j - at.row); r < rows; ++r) mirrored[r] = tile[r][j];
    }
}

template <class R, int CHANNELS>
Status assemble(const Gram& gram) {
    const int64_t entries = gram.n * gram.n, tiles = TilePlace::count(gram.n), matrices = gram.h * gram.m;
    use_large_pages(gram.matrix, sizeof(R) * matrices * entries);
    parallel_for(useful_threads(gram.threads, matrices * entries), matrices * tiles, [&](int64_t task, int) {
        const int64_t index = task / tiles;
        const Matrix<CHANNELS> matrix(gram, index);
        assemble_tile<R, CHANNELS>(matrix, TilePlace(task % tiles), static_cast<R*>(gram.matrix) + index * entries);
        return true;
    });
    return OK;
}

// --- From the cotangent g of M to the gradients of the sums ---------------------------------------------------------

// A pair with the cotangent G = g_ij + g_ji (g_ii on the diagonal) contributes, with q = G exp(-u) P in each channel,
//
//     q            to the gradients of U_left and V_right
//     q V_right - q U_left -+ q (W_right - W_left)      to tau times the gradients of the right and of the left anchor
//     q u (U_left + W_right - W_left + V_right)         to tau times the gradient of tau, through exp(-u)
//
// The gradient of W is that of V minus that of U, and the caller completes those of tau, the weights and the columns.

// The number of rows of `pulls`, each (n,): the gradients of U and of V for every channel; of a, times tau; the terms
// of tau's gradient that come from exp(-u), of which only the sum over all anchors has a meaning; with phases, of cos
// and sin.
template <int CHANNELS>
constexpr int64_t PULLS = 2 * CHANNELS + (CHANNELS == 1 ? 2 : 4);

// sum (TILE, TILE) = g[i, j] + g[j, i] over a tile, because M_ij and M_ji are one number; on the diagonal g[i, i].
template <class R>
void add_mirrored(const R* g, int64_t n, TilePlace at, double (*sum)[TILE]) {
    const int64_t rows = smaller(TILE, n - at.row), cols = smaller(TILE, n - at.col);
    for (int64_t j = 0; j < cols; ++j)
        for (int64_t r = 0; r < rows; ++r) sum[r][j] = double(g[(at.col + j) * n + at.row + r]);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < cols; ++j)
            if (at.row + r != at.col + j) sum[r][j] += double(g[(at.row + r) * n + at.col + j]);
}

// Add one channel's gradients, from the pairs of row i with the columns [begin, begin + count), to pulls (PULLS, n).
// g_decay (count,) is the cotangent of M times the pair's decay. Tied anchors share the gradients of U and V equally.
template <int CHANNELS>
void pull_channel(const Pairs<CHANNELS>& pairs, int c, const double* g_decay, int64_t i, int64_t begin, int64_t count,
                  double* pulls, int64_t n) {
    double* at_left = pulls + c * n;
    double* at_right = pulls + (CHANNELS + c) * n;
    double* at_anchor = pulls + 2 * CHANNELS * n;
    double of_left = 0, of_right = 0, of_anchor = 0, of_decay = 0;  // the gradients at row i
#pragma omp simd reduction(+ : of_left, of_right, of_anchor, of_decay)
    for (int64_t j = 0; j < count; ++j) {
        const double q = CHANNELS == 1 ? g_decay[j] : g_decay[j] * pairs.phase[c][j];
        const double row_is_right = pairs.gap[j] > 0 ? 1.0 : pairs.gap[j] < 0 ? 0.0 : 0.5;
        of_left += q * (1 - row_is_right);
        of_right += q * row_is_right;
        of_anchor += q * (pairs.slope[c][j] - pairs.between[c][j]);
        of_decay += q * pairs.u[j] * pairs.mass[c][j];
        at_left[begin + j] += q * row_is_right;
        at_right[begin + j] += q * (1 - row_is_right);
        at_anchor[begin + j] += q * (pairs.slope[c][j] + pairs.between[c][j]);
    }
    at_left[i] += of_left;
    at_right[i] += of_right;
    at_anchor[i] += of_anchor;
    at_anchor[n + i] += of_decay;
}

// The same for the gradients of cos phi and sin phi.
template <int CHANNELS>
void pull_phases(const Matrix<CHANNELS>& p, const Pairs<CHANNELS>& pairs, const double* g_decay, int64_t i,
                 int64_t begin, int64_t count, double* pulls) {
    double *at_cos = pulls + (PULLS<CHANNELS> - 2) * p.n, *at_sin = at_cos + p.n;
    const double *cos = p.cos + begin, *sin = p.sin + begin;
    const double row_cos = p.cos[i], row_sin = p.sin[i];
    double of_cos = 0, of_sin = 0;  // the gradients at row i
#pragma omp simd reduction(+ : of_cos, of_sin)
    for (int64_t j = 0; j < count; ++j) {
        const double sum = (pairs.mass[0][j] + pairs.mass[CHANNELS / 2][j]) * g_decay[j] / 2;
        const double difference = (pairs.mass[0][j] - pairs.mass[CHANNELS / 2][j]) * g_decay[j] / 2;
        const double crossed = pairs.mass[CHANNELS - 1][j] * g_decay[j] / 2;
        of_cos += cos[j] * sum + sin[j] * crossed;
        of_sin += sin[j] * difference + cos[j] * crossed;
        at_cos[begin + j] += row_cos * sum + row_sin * crossed;
        at_sin[begin + j] += row_sin * difference + row_cos * crossed;
    }
    at_cos[i] += of_cos;
    at_sin[i] += of_sin;
}

template <class R, int CHANNELS>
void pull_tile(const Matrix<CHANNELS>& p, TilePlace at, const R* g, double* pulls) {
    double sum[TILE][TILE];
    add_mirrored(g, p.n, at, sum);
    Pairs<CHANNELS> pairs;
    for (int64_t r = 0; r < TILE && at.row + r < p.n; ++r) {
        const int64_t i = at.row + r, count = smaller(TILE, i + 1 - at.col);
        fill_pairs<R, CHANNELS>(p, i, at.col, count, pairs);
        double* g_decay = sum[r];
        for (int64_t j = 0; j < count; ++j) g_decay[j] *= pairs.decay[j];
        for (int c = 0; c < CHANNELS; ++c) pull_channel(pairs, c, g_decay, i, at.col, count, pulls, p.n);
        if (CHANNELS > 1) pull_phases(p, pairs, g_decay, i, at.col, count, pulls);
    }
}

// The gradients from one matrix. Every thread has its own sums. Returns false if there is no memory for them.
template <class R, int CHANNELS>
bool pull_matrix(const Gram& gram, int64_t index, int threads) {
    const int64_t size = PULLS<CHANNELS> * gram.n;
    const Matrix<CHANNELS> matrix(gram, index);
    const R* g = static_cast<const R*>(gram.matrix) + index * gram.n * gram.n;
    double* out = gram.pulls + index * size;
    Buffer<double> others((threads - 1) * size);
    if (!others) return false;
    std::memset(out, 0, sizeof(double) * size);
    std::memset(others.get(), 0, sizeof(double) * (threads - 1) * size);
    parallel_for(threads, TilePlace::count(gram.n), [&](int64_t tile, int thread) {
        pull_tile<R, CHANNELS>(matrix, TilePlace(tile), g, thread ? others.get() + (thread - 1) * size : out);
        return true;
    });
    for (int64_t thread = 1; thread < threads; ++thread)  // always in this order: the same bits every time
        for (int64_t i = 0; i < size; ++i) out[i] += others[(thread - 1) * size + i];
    return true;
}

template <class R, int CHANNELS>
Status pull(const Gram& gram) {
    const int64_t matrices = gram.h * gram.m;
    Buffer<Status> status(matrices);
    if (!status) return OUT_OF_MEMORY;
    return for_each_batch(matrices, gram.n * gram.n, gram.threads, status.get(), [&](int64_t index, int threads) {
        return pull_matrix<R, CHANNELS>(gram, index, threads) ? OK : OUT_OF_MEMORY;
    });
}

template <class R>
Status gram(const Gram& gram) {
    if (gram.pulls) return gram.channels == 3 ? pull<R, 3>(gram) : pull<R, 1>(gram);
    return gram.channels == 3 ? assemble<R, 3>(gram) : assemble<R, 1>(gram);
}

template Status gram<float>(const Gram&);
template Status gram<double>(const Gram&);

}  // namespace laplex::LAPLEX_ISA
