// A Gaussian process with one state, the exponential kernel g e^(-a D): the filter of half a series.
//
// In place of S, P = g - S is carried, the variance of the state before the point. With Q the variance after it, no
// step subtracts:
//
//     P = rho^2 Q + g kappa        d = P + diag        Q = P diag / d        rho = e^(-a D), kappa = 1 - rho^2
//     f = rho f+                   z = y - f           f+ = f + z P / d      f+ is f after the point
//
// A processor waits for each division before it begins the next point. So Q is carried as a fraction u / v:
//
//     u' = diag (rho^2 u + g kappa v)        v' = rho^2 u + (g kappa + diag) v
//
// with both divided by g + the largest diag of a chunk, so that v' / v is at most 1. This is linear, as f+ is, so that
// the maps of four points in a row are composed before they are applied, for all such RUNS of a chunk at once; only the
// composed maps are applied one after the other.
//
// The process is reversible. So the left half of a series is walked from the first point on, and the right half from
// the last point back, by two threads if there are two; `join` in state_single.cpp puts both together.
#pragma once

#include "parallel.h"
#include "states.h"

namespace laplex::LAPLEX_ISA {

constexpr int RUN = 4, RUNS = POINTS_PER_CHUNK / RUN;
constexpr int LANES = 8;         // sums and products have as many parts, which may be lanes of a vector register
constexpr double LEAST = 1e-18;  // v is made 1 again after four runs: v' / v must not be smaller

using PerPoint = double[POINTS_PER_CHUNK];

inline bool is_normal(double x) { return x >= 2.2250738585072014e-308 && x < INFINITE; }

// The points of a chunk are stored with the first points of all runs first, then the second ones, and so on.
inline int slot(int point) { return point % RUN * RUNS + point / RUN; }

// From the order of time to slots, and back, for a chunk that is full.
inline void deal(const double* from, PerPoint& to) {
    for (int i = 0; i < RUNS; ++i) {
        to[i] = from[RUN * i], to[RUNS + i] = from[RUN * i + 1];
        to[2 * RUNS + i] = from[RUN * i + 2], to[3 * RUNS + i] = from[RUN * i + 3];
    }
}
inline void collect(const PerPoint& from, double* to) {
    for (int i = 0; i < RUNS; ++i) {
        to[RUN * i] = from[i], to[RUN * i + 1] = from[RUNS + i];
        to[RUN * i + 2] = from[2 * RUNS + i], to[RUN * i + 3] = from[3 * RUNS + i];
    }
}

inline double total(const PerPoint& terms, double (&lanes)[LANES]) {
    for (int j = 0; j < POINTS_PER_CHUNK; j += LANES)
        for (int l = 0; l < LANES; ++l) lanes[l] += terms[j + l];
    double sum = 0.0;
    for (const double part : lanes) sum += part;
    return sum;
}

// x_n = a_n x_{n-1} + b_n for all points of a chunk, or from the last to the first x_n = a_n x_{n+1} + b_n. `before` is
// the x that point n starts from; x itself is what the chunk starts from, and then ends with.
template <bool BACK>
void run_affine(const PerPoint& a, const PerPoint& b, double& x, PerPoint& before) {
    double slope[RUNS], offset[RUNS], start[RUNS];
    constexpr int K[RUN] = {BACK ? 3 * RUNS : 0, BACK ? 2 * RUNS : RUNS, BACK ? RUNS : 2 * RUNS, BACK ? 0 : 3 * RUNS};
    for (int i = 0; i < RUNS; ++i) {
        const double a1 = a[K[1] + i] * a[K[0] + i], b1 = a[K[1] + i] * b[K[0] + i] + b[K[1] + i];
        const double a2 = a[K[2] + i] * a1, b2 = a[K[2] + i] * b1 + b[K[2] + i];
        slope[i] = a[K[3] + i] * a2, offset[i] = a[K[3] + i] * b2 + b[K[3] + i];
    }
    for (int n = 0; n < RUNS; ++n) {
        const int i = BACK ? RUNS - 1 - n : n;
        start[i] = x, x = slope[i] * x + offset[i];
    }
    for (int i = 0; i < RUNS; ++i) {
        const double x1 = a[K[0] + i] * start[i] + b[K[0] + i], x2 = a[K[1] + i] * x1 + b[K[1] + i];
        before[K[0] + i] = start[i], before[K[1] + i] = x1, before[K[2] + i] = x2;
        before[K[3] + i] = a[K[2] + i] * x2 + b[K[2] + i];
    }
}

// Maps (u, v) -> (uu u + uv v, vu u + vv v).
template <int N> struct Maps {
    double uu[N], uv[N], vu[N], vv[N];
};

// The map that applies one, then two, for all runs; `first` and `second` are where the maps of the runs begin.
template <int N>
void compose(const Maps<N>& one, int first, const Maps<N>& two, int second, Maps<RUNS>& product) {
    for (int i = 0; i < RUNS; ++i) {
        const int j = first + i, k = second + i;
        product.uu[i] = two.uu[k] * one.uu[j] + two.uv[k] * one.vu[j];
        product.uv[i] = two.uu[k] * one.uv[j] + two.uv[k] * one.vv[j];
        product.vu[i] = two.vu[k] * one.uu[j] + two.vv[k] * one.vu[j];
        product.vv[i] = two.vu[k] * one.uv[j] + two.vv[k] * one.vv[j];
    }
}

// The sum of logarithms, as products of mantissas and sums of exponents.
struct LogSums {
    double product[LANES];  // in [1, 2)
    int64_t exponent = 0;

    LogSums() {
        for (double& part : product) part = 1.0;
    }
    void add(const PerPoint& x) {
        PerPoint mantissa;
        int64_t more[POINTS_PER_CHUNK];
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) split_number(x[j], mantissa[j], more[j]);
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) exponent += more[j];
        for (int j = 0; j < POINTS_PER_CHUNK; j += LANES)
            for (int l = 0; l < LANES; ++l) product[l] *= mantissa[j + l];
        for (int l = 0; l < LANES; ++l) split_number(product[l], product[l], more[l]);
        for (int l = 0; l < LANES; ++l) exponent += more[l];
    }
    double value() const {
        double logs = double(exponent) * LN_2;
        for (const double part : product) logs += std::log(part);
        return logs;
    }
};

// Half a series, in the order in which it is walked.
struct Half {
    Points points;
    int64_t first, count;  // the point where the walk begins, and the number of points
    int64_t step;          // 1 or -1

    int64_t point(int64_t j) const { return first + step * j; }

    // The steps into the points of a chunk; none leads to the first.
    void gaps(int64_t base, int size, double* to) const {
        const double* t = points.times + point(base);
        to[0] = base > 0 ? step * (t[0] - t[-step]) : 0.0;
        if (step > 0)
            for (int j = 1; j < size; ++j) to[j] = t[j] - t[j - 1];
        else
            for (int j = 1; j < size; ++j) to[j] = t[1 - j] - t[-j];
    }
    // The caller's values at the points of a chunk.
    void read(const double* values, int64_t column, int64_t base, int size, double* to) const {
        const int64_t begin = point(base);
        if (column == 0)
            for (int j = 0; j < size; ++j) to[j] = values[0];
        else if (points.order)
            for (int j = 0; j < size; ++j) to[j] = values[column * points.order[begin + step * j]];
        else if (column == 1 && step > 0)
            for (int j = 0; j < size; ++j) to[j] = values[begin + j];
        else if (column == 1)
            for (int j = 0; j < size; ++j) to[j] = values[begin - j];
        else
            for (int j = 0; j < size; ++j) to[j] = values[column * (begin + step * j)];
    }
    void write(const double* from, int64_t base, int size, double* values) const {
        const int64_t begin = point(base);
        double* to = values + points.begin;
        if (points.order)
            for (int j = 0; j < size; ++j) to[points.order[begin + step * j]] = from[j];
        else if (step > 0)
            for (int j = 0; j < size; ++j) to[begin + j] = from[j];
        else
            for (int j = 0; j < size; ++j) to[begin - j] = from[j];
    }
};

// Shorter series are not divided.
constexpr int64_t DIVIDED = 4 * POINTS_PER_CHUNK;

// The number of points of the left half.
inline int64_t left_count(int64_t n) { return n < DIVIDED ? n : (n + 1) / 2; }

// The left half of a series, or the right one, which has no points if the series is not divided.
inline Half half_series(const StateProblem& problem, int64_t series, bool right) {
    const Points points(problem, series);
    const int64_t left = left_count(points.count);
    if (right) return {points, points.count - 1, points.count - left, -1};
    return {points, 0, left, 1};
}

// The gap between both halves, of the right one.
inline double middle_gap(const Half& right) {
    const double* t = right.points.times + right.first - right.count;
    return smaller(t[1] - t[0], MAX_GAP);
}

// A point takes several times as long as an element of what parallel.h counts.
constexpr int64_t WORK = 4;

inline int single_threads(const StateProblem& problem) {
    return threads_in_quiet(problem.threads, WORK * problem.h * problem.n);
}

// The points of a chunk, each in its slot. A chunk that is not full ends with points that change nothing.
struct Chunk {
    PerPoint gap, rho, kappa, diag, y;
    int count;

    void load(const Half& half, int64_t base, double a) {
        count = int(smaller<int64_t>(POINTS_PER_CHUNK, half.count - base));
        PerPoint row;
        for (int j = count; j < POINTS_PER_CHUNK; ++j) row[j] = 0.0;
        half.gaps(base, count, row), deal(row, gap);
        half.read(half.points.y, 1, base, count, row), deal(row, y);
        for (int j = count; j < POINTS_PER_CHUNK; ++j) row[j] = 1.0;
        half.read(half.points.diag, half.points.diag_column, base, count, row), deal(row, diag);
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            gap[j] = smaller(gap[j], MAX_GAP);
            decay_and_rest(a * gap[j], rho[j], kappa[j]);
        }
        if (base == 0) rho[0] = 0.0, kappa[0] = 1.0;  // no step leads to the first point
    }
    // rho = e^(-u) and kappa = 1 - rho^2, with all digits.
    static void decay_and_rest(double u, double& rho, double& kappa) {
        double less_one, scale;
        decay_parts<double>(u, less_one, scale);
        rho = (less_one + 1.0) * scale;
        kappa = scale == 1.0 ? -less_one * (less_one + 2.0) : 1.0 - rho * rho;
    }
};

// The state after a point.
struct EndState {
    double q, f, lost;  // Q, f+ and g - Q

    static constexpr int SIZE = 3;  // in numbers
    void write(double* to) const { to[0] = q, to[1] = f, to[2] = lost; }
    static EndState read(const double* from) { return {from[0], from[1], from[2]}; }
};

// Where both halves meet. In state_single.cpp e is that of the left half, and e' that of the right one.
struct Joint {
    double rho, kappa, den, e_left, e_right;

    Joint(double g, double rate, double gap, const EndState& left, const EndState& right) {
        Chunk::decay_and_rest(rate * gap, rho, kappa);
        den = right.lost * (rho * rho * left.q + g * kappa) + g * right.q;
        e_left = g * right.f - rho * right.lost * left.f;
        e_right = g * left.f - rho * left.lost * right.f;
    }
};

struct SingleFilter {
    const double g;
    double u = 0.0, v = 1.0, f = 0.0;  // Q = u / v and f+ of the point before
    PerPoint over_d, gain, mean, z;  // gain = P / d; mean = f
    double lost = 0.0, loss[POINTS_PER_CHUNK];  // g - Q of the point before, and S = g - P of every point

    explicit SingleFilter(double variance) : g(variance) {}

    EndState state() const { return {u / v, f, lost}; }
    void start(const EndState& from) { u = from.q, v = 1.0, f = from.f, lost = from.lost; }
    // What the pullback takes of every point of the chunk.
    void write_details(const Chunk& chunk, double* to) {
        sum_losses(chunk);
        std::memcpy(to, over_d, sizeof over_d);
        std::memcpy(to + POINTS_PER_CHUNK, gain, sizeof gain);
        std::memcpy(to + 2 * POINTS_PER_CHUNK, mean, sizeof mean);
        std::memcpy(to + 3 * POINTS_PER_CHUNK, loss, sizeof loss);
    }

    void make_maps(const Chunk& c, double scale, Maps<POINTS_PER_CHUNK>& m) const {
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            const double square = c.rho[j] * c.rho[j] * scale, added = g * c.kappa[j] * scale;
            m.uu[j] = c.diag[j] * square, m.uv[j] = c.diag[j] * added;
            m.vu[j] = square, m.vv[j] = added + c.diag[j] * scale;
        }
        for (int j = c.count; j < POINTS_PER_CHUNK; ++j) {
            m.uu[slot(j)] = m.vv[slot(j)] = 1.0;
            m.uv[slot(j)] = m.vu[slot(j)] = 0.0;
        }
    }
    // u and v before every point.
    void run(const Maps<POINTS_PER_CHUNK>& m, PerPoint& before_u, PerPoint& before_v) {
        Maps<RUNS> early, late, run;  // of the first two, the last two, and all points of every run
        compose(m, 0, m, RUNS, early);
        compose(m, 2 * RUNS, m, 3 * RUNS, late);
        compose(early, 0, late, 0, run);
        double start_u[RUNS], start_v[RUNS];
        for (int i = 0; i < RUNS; ++i) {
            start_u[i] = u, start_v[i] = v;
            const double next = run.uu[i] * u + run.uv[i] * v;
            v = run.vu[i] * u + run.vv[i] * v, u = next;
            if (i % 4 == 3) u /= v, v = 1.0;
        }
        const auto advance = [&](int map, double from_u, double from_v, double& to_u, double& to_v) LAPLEX_INLINE {
            to_u = m.uu[map] * from_u + m.uv[map] * from_v, to_v = m.vu[map] * from_u + m.vv[map] * from_v;
        };
        for (int i = 0; i < RUNS; ++i) {
            double to_u[RUN], to_v[RUN];
            to_u[0] = start_u[i], to_v[0] = start_v[i];
            advance(i, to_u[0], to_v[0], to_u[1], to_v[1]);
            advance(RUNS + i, to_u[1], to_v[1], to_u[2], to_v[2]);
            advance(2 * RUNS + i, to_u[2], to_v[2], to_u[3], to_v[3]);
            for (int k = 0; k < RUN; ++k) before_u[k * RUNS + i] = to_u[k], before_v[k * RUNS + i] = to_v[k];
        }
    }
    // The same, point by point, for variances of all sizes.
    void walk(const Maps<POINTS_PER_CHUNK>& m, PerPoint& before_u, PerPoint& before_v) {
        for (int n = 0; n < POINTS_PER_CHUNK; ++n) {
            const int j = slot(n);
            before_u[j] = u / v, before_v[j] = 1.0;
            u = m.uu[j] * before_u[j] + m.uv[j], v = m.vu[j] * before_u[j] + m.vv[j];
        }
    }
    // Returns the first point whose pivot is not positive and finite, or -1.
    int filter(const Chunk& c) {
        Maps<POINTS_PER_CHUNK> maps;
        PerPoint before_u, before_v;
        double least = INFINITE, most = 0.0;
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) least = smaller(least, c.diag[j]), most = larger(most, c.diag[j]);
        const double scale = 1.0 / (g + most);
        make_maps(c, scale, maps);
        if (least * scale > LEAST) run(maps, before_u, before_v);
        else walk(maps, before_u, before_v);
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            const double part = c.rho[j] * c.rho[j] * before_u[j] + g * c.kappa[j] * before_v[j];  // P v
            const double inverse = 1.0 / (part + c.diag[j] * before_v[j]);                         // 1 / (d v)
            over_d[j] = before_v[j] * inverse, gain[j] = part * inverse;
        }
        for (int j = c.count; j < POINTS_PER_CHUNK; ++j) over_d[slot(j)] = 1.0, gain[slot(j)] = 0.0;
        int wrong = 0;
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) wrong |= !is_normal(over_d[j]);
        for (int j = 0; wrong && j < c.count; ++j)
            if (!is_normal(over_d[slot(j)])) return j;
        observe(c);
        return -1;
    }
    // S = rho^2 (g - Q) before a point, and g - Q = S diag / d + g P / d after it: as sums, because where there is much
    // noise g - P would lose its digits.
    void sum_losses(const Chunk& c) {
        PerPoint square, factor, added, before;
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            square[j] = c.rho[j] * c.rho[j];
            factor[j] = square[j] * c.diag[j] * over_d[j], added[j] = g * gain[j];
        }
        run_affine<false>(factor, added, lost, before);
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) loss[j] = square[j] * before[j];
    }
    void observe(const Chunk& c) {
        PerPoint factor, added, before;
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) {
            factor[j] = c.rho[j] * c.diag[j] * over_d[j];  // 1 - P / d = diag / d
            added[j] = gain[j] * c.y[j];
        }
        run_affine<false>(factor, added, f, before);
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) mean[j] = c.rho[j] * before[j];
        for (int j = c.count; j < POINTS_PER_CHUNK; ++j) mean[slot(j)] = 0.0;
        for (int j = 0; j < POINTS_PER_CHUNK; ++j) z[j] = c.y[j] - mean[j];
    }
};

// --- What the pullback starts from -----------------------------------------------------------------------------------

// 1 / d, P / d, f and S of every point would take four times the memory of the data. They are stored for the last
// SEGMENT of each half; the others are walked again, from the state before them.
constexpr int64_t SEGMENT = 1 << 16;  // points: four arrays of them fit into a processor's last cache

inline int64_t segments(const Half& half) { return block_count(half.count, SEGMENT); }
inline int64_t detail_size(int64_t points) { return 4 * POINTS_PER_CHUNK * block_count(points, POINTS_PER_CHUNK); }
inline int64_t half_checkpoint_size(int64_t count) {
    return EndState::SIZE * (1 + block_count(count, SEGMENT)) + detail_size(smaller(count, SEGMENT));
}

// Where the checkpoints of one half are: the state after its last point, the states before all segments, and the
// details of the last segment.
struct HalfCheckpoints {
    int64_t end, starts, details;

    HalfCheckpoints(const StateProblem& problem, int64_t series, bool right) {
        const Half left = half_series(problem, series, false), half = half_series(problem, series, right);
        end = series * single_checkpoint_size(problem.n) + (right ? half_checkpoint_size(left.count) : 0);
        starts = end + EndState::SIZE, details = starts + EndState::SIZE * segments(half);
    }
};

// Filter a segment, and call each(details) after every chunk, where `details` is where those of the chunk belong.
// Returns the first point whose pivot is not positive and finite, or -1.
template <class F>
int64_t filter_segment(const Half& half, int64_t segment, double a, Chunk& chunk, SingleFilter& filter, const F& each) {
    const int64_t begin = segment * SEGMENT, end = smaller(half.count, begin + SEGMENT);
    for (int64_t base = begin; base < end; base += POINTS_PER_CHUNK) {
        chunk.load(half, base, a);
        const int failed = filter.filter(chunk);
        if (failed >= 0) return base + failed;
        each(4 * (base - begin));
    }
    return -1;
}

}  // namespace laplex::LAPLEX_ISA
