// The n x n part of a Gram matrix, and its pullback. laplex/_kernels/gram.py has the formulas.
//
// M is symmetric, so it is taken in pairs of square tiles: a tile on or below the diagonal is computed once, and stands in
// both its places. A pair of anchors is a row's and a column's, in the caller's order; which of them lies left is seen
// from their gap, so that nothing is sorted here.
#include "common.h"

namespace laplex::LAPLEX_ISA {

constexpr int64_t TILE = 64;

// One matrix of a Gram, its tensors taken apart.
template <int CHANNELS>
struct Matrix {
    const double *left[CHANNELS], *right[CHANNELS], *high[CHANNELS], *low[CHANNELS];
    const double *anchors, *cos, *sin;
    int64_t n;
    double rate;

    Matrix(const Gram& gram, int64_t index)
        : n(gram.n), rate(1.0 / gram.tau[index / gram.m]) {
        const int64_t kernel = index / gram.m;
        for (int c = 0; c < CHANNELS; ++c) {
            left[c] = gram.sums + (index * CHANNELS + c) * 4 * n;
            right[c] = left[c] + n;
            high[c] = right[c] + n;
            low[c] = high[c] + n;
        }
        anchors = gram.target + kernel * n;
        cos = gram.direction + (CHANNELS == 3 ? kernel * 2 * n : 0);
        sin = cos + n;
    }
};

// A row's anchor with those of up to TILE columns.
template <int CHANNELS>
struct Pairs {
    double gap[TILE], u[TILE], decay[TILE];  // the row's anchor less the column's, |gap| / tau, exp(-u)
    double mass[CHANNELS][TILE];    // U of the left one + what lies between + V of the right one
    double slope[CHANNELS][TILE];   // V of the right one - U of the left one
    double across[CHANNELS][TILE];  // W of the row - W of the column
    double turn[CHANNELS][TILE];    // cosines and sines of the phases, with phases
};

template <class R, int CHANNELS>
void look_at(const Matrix<CHANNELS>& p, int64_t i, int64_t begin, int64_t count, Pairs<CHANNELS>& pairs) {
    const double* a = p.anchors + begin;
    double* gap = pairs.gap;
    for (int64_t j = 0; j < count; ++j) gap[j] = p.anchors[i] - a[j];
    for (int64_t j = 0; j < count; ++j) pairs.u[j] = smaller(std::fabs(gap[j]) * p.rate, BEYOND);
    for (int64_t j = 0; j < count; ++j) pairs.decay[j] = decay<R>(pairs.u[j]);
    for (int c = 0; c < CHANNELS; ++c) {
        const double *left = p.left[c] + begin, *right = p.right[c] + begin;
        const double *high = p.high[c] + begin, *low = p.low[c] + begin;
        const double row_left = p.left[c][i], row_right = p.right[c][i], row_high = p.high[c][i], row_low = p.low[c][i];
        for (int64_t j = 0; j < count; ++j) {
            const bool row_is_right = gap[j] >= 0;
            const double across = (row_high - high[j]) + (row_low - low[j]);
            const double of_left = row_is_right ? left[j] : row_left, of_right = row_is_right ? row_right : right[j];
            pairs.mass[c][j] = of_left + (row_is_right ? across : -across) + of_right;
            pairs.slope[c][j] = of_right - of_left;
            pairs.across[c][j] = across;
        }
    }
    if (CHANNELS == 1) return;
    const double *cos = p.cos + begin, *sin = p.sin + begin, row_cos = p.cos[i] / 2, row_sin = p.sin[i] / 2;
    for (int64_t j = 0; j < count; ++j) {
        pairs.turn[0][j] = row_cos * cos[j] + row_sin * sin[j];
        pairs.turn[CHANNELS / 2][j] = row_cos * cos[j] - row_sin * sin[j];
        pairs.turn[CHANNELS - 1][j] = row_sin * cos[j] + row_cos * sin[j];
    }
}

struct TilePair {
    int64_t row, col;  // where the tile begins; col <= row

    explicit TilePair(int64_t index) {
        int64_t i = int64_t((std::sqrt(8.0 * double(index) + 1.0) - 1.0) / 2.0);
        while ((i + 1) * (i + 2) / 2 <= index) ++i;  // the root is rounded
        while (i * (i + 1) / 2 > index) --i;
        row = i * TILE;
        col = (index - i * (i + 1) / 2) * TILE;
    }
    static int64_t count(int64_t n) {
        const int64_t tiles = (n + TILE - 1) / TILE;
        return tiles * (tiles + 1) / 2;
    }
};

// --- sums -> M ------------------------------------------------------------------------------------------------------

template <class R, int CHANNELS>
void assemble_tile(const Matrix<CHANNELS>& p, TilePair at, R* out) {
    R tile[TILE][TILE];
    Pairs<CHANNELS> pairs;
    const int64_t rows = smaller(TILE, p.n - at.row);
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = at.row + r, count = smaller(TILE, i + 1 - at.col);
        look_at<R, CHANNELS>(p, i, at.col, count, pairs);
        for (int64_t j = 0; j < count; ++j) {
            double mass = CHANNELS == 1 ? pairs.mass[0][j] : 0;
            if (CHANNELS > 1)
                for (int c = 0; c < CHANNELS; ++c) mass += pairs.turn[c][j] * pairs.mass[c][j];
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
    const int64_t entries = gram.n * gram.n, tiles = TilePair::count(gram.n);
    in_large_pages(gram.matrix, sizeof(R) * gram.h * gram.m * entries);
    for_all(team(gram.threads, gram.h * gram.m * entries), gram.h * gram.m * tiles, [&](int64_t task, int) {
        const Matrix<CHANNELS> matrix(gram, task / tiles);
        assemble_tile<R, CHANNELS>(matrix, TilePair(task % tiles), static_cast<R*>(gram.matrix) + task / tiles * entries);
        return true;
    });
    return OK;
}

// --- the cotangent of M -> what it pulls with -----------------------------------------------------------------------

// Rows of pulls, each (n,): at U and V of every channel, at a, at the decay between anchors, of which only the sum over a
// has a meaning, and with phases at cos and sin.
template <int CHANNELS>
constexpr int64_t PULLS = 2 * CHANNELS + (CHANNELS == 1 ? 2 : 4);

// g[i, j] + g[j, i] over a tile; on the diagonal, which is one place, g alone.
template <class R>
void both_places(const R* g, int64_t n, TilePair at, double (*both)[TILE]) {
    const int64_t rows = smaller(TILE, n - at.row), cols = smaller(TILE, n - at.col);
    for (int64_t j = 0; j < cols; ++j)
        for (int64_t r = 0; r < rows; ++r) both[r][j] = double(g[(at.col + j) * n + at.row + r]);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < cols; ++j)
            if (at.row + r != at.col + j) both[r][j] += double(g[(at.row + r) * n + at.col + j]);
}

// One channel's pull of a row's pairs, at the sums and at the anchors of both.
template <int CHANNELS>
void pull_channel(const Pairs<CHANNELS>& pairs, int c, const double* pulled, int64_t i, int64_t begin, int64_t count,
                  double* pulls, int64_t n) {
    double* at_left = pulls + c * n;
    double* at_right = pulls + (CHANNELS + c) * n;
    double* at_anchor = pulls + 2 * CHANNELS * n;
    double of_left = 0, of_right = 0, of_anchor = 0, of_decay = 0;
#pragma omp simd reduction(+ : of_left, of_right, of_anchor, of_decay)
    for (int64_t j = 0; j < count; ++j) {
        const double q = CHANNELS == 1 ? pulled[j] : pulled[j] * pairs.turn[c][j];
        const double row_is_right = pairs.gap[j] > 0 ? 1.0 : pairs.gap[j] < 0 ? 0.0 : 0.5;
        of_left += q * (1 - row_is_right);
        of_right += q * row_is_right;
        of_anchor += q * (pairs.slope[c][j] - pairs.across[c][j]);
        of_decay += q * pairs.u[j] * pairs.mass[c][j];
        at_left[begin + j] += q * row_is_right;
        at_right[begin + j] += q * (1 - row_is_right);
        at_anchor[begin + j] += q * (pairs.slope[c][j] + pairs.across[c][j]);
    }
    at_left[i] += of_left;
    at_right[i] += of_right;
    at_anchor[i] += of_anchor;
    at_anchor[n + i] += of_decay;
}

// The pull of a row's pairs at the cosines and sines of both phases.
template <int CHANNELS>
void pull_phases(const Matrix<CHANNELS>& p, const Pairs<CHANNELS>& pairs, const double* pulled, int64_t i, int64_t begin,
                 int64_t count, double* pulls) {
    double *at_cos = pulls + (PULLS<CHANNELS> - 2) * p.n, *at_sin = at_cos + p.n;
    const double *cos = p.cos + begin, *sin = p.sin + begin;
    const double row_cos = p.cos[i], row_sin = p.sin[i];
    double of_cos = 0, of_sin = 0;
#pragma omp simd reduction(+ : of_cos, of_sin)
    for (int64_t j = 0; j < count; ++j) {
        const double sum = (pairs.mass[0][j] + pairs.mass[CHANNELS / 2][j]) * pulled[j] / 2;
        const double difference = (pairs.mass[0][j] - pairs.mass[CHANNELS / 2][j]) * pulled[j] / 2;
        const double crossed = pairs.mass[CHANNELS - 1][j] * pulled[j] / 2;
        of_cos += cos[j] * sum + sin[j] * crossed;
        of_sin += sin[j] * difference + cos[j] * crossed;
        at_cos[begin + j] += row_cos * sum + row_sin * crossed;
        at_sin[begin + j] += row_sin * difference + row_cos * crossed;
    }
    at_cos[i] += of_cos;
    at_sin[i] += of_sin;
}

template <class R, int CHANNELS>
void pull_tile(const Matrix<CHANNELS>& p, TilePair at, const R* g, double* pulls) {
    double both[TILE][TILE];
    both_places(g, p.n, at, both);
    Pairs<CHANNELS> pairs;
    for (int64_t r = 0; r < TILE && at.row + r < p.n; ++r) {
        const int64_t i = at.row + r, count = smaller(TILE, i + 1 - at.col);
        look_at<R, CHANNELS>(p, i, at.col, count, pairs);
        double* pulled = both[r];
        for (int64_t j = 0; j < count; ++j) pulled[j] *= pairs.decay[j];
        for (int c = 0; c < CHANNELS; ++c) pull_channel(pairs, c, pulled, i, at.col, count, pulls, p.n);
        if (CHANNELS > 1) pull_phases(p, pairs, pulled, i, at.col, count, pulls);
    }
}

// One matrix's, in several threads each with its own sums, which are added in this order, always.
template <class R, int CHANNELS>
bool pull_one(const Gram& gram, int64_t index, int threads) {
    const int64_t size = PULLS<CHANNELS> * gram.n;
    const Matrix<CHANNELS> matrix(gram, index);
    const R* g = static_cast<const R*>(gram.matrix) + index * gram.n * gram.n;
    double* out = gram.pulls + index * size;
    Buffer<double> others((threads - 1) * size);
    if (!others) return false;
    std::memset(out, 0, sizeof(double) * size);
    std::memset(others.get(), 0, sizeof(double) * (threads - 1) * size);
    for_all(threads, TilePair::count(gram.n), [&](int64_t tile, int thread) {
        pull_tile<R, CHANNELS>(matrix, TilePair(tile), g, thread ? others.get() + (thread - 1) * size : out);
        return true;
    });
    for (int64_t thread = 1; thread < threads; ++thread)
        for (int64_t i = 0; i < size; ++i) out[i] += others[(thread - 1) * size + i];
    return true;
}

template <class R, int CHANNELS>
Status pull(const Gram& gram) {
    const int64_t matrices = gram.h * gram.m, entries = gram.n * gram.n;
    const bool over_matrices = matrices >= gram.threads;
    const int threads = team(gram.threads, over_matrices ? matrices * entries : entries);
    const bool done = for_all(over_matrices ? threads : 1, matrices, [&](int64_t index, int) {
        return pull_one<R, CHANNELS>(gram, index, over_matrices ? 1 : threads);
    });
    return done ? OK : OUT_OF_MEMORY;
}

template <class R>
Status gram(const Gram& gram) {
    if (gram.pulls) return gram.channels == 3 ? pull<R, 3>(gram) : pull<R, 1>(gram);
    return gram.channels == 3 ? assemble<R, 3>(gram) : assemble<R, 1>(gram);
}

template Status gram<float>(const Gram&);
template Status gram<double>(const Gram&);

}  // namespace laplex::LAPLEX_ISA
