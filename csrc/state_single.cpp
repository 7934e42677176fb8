// The likelihood of a Gaussian process with one state, the exponential kernel g e^(-a D), and its pullback.
//
// In place of S, P = g - S is carried, the variance of the state before the point. With Q the variance after it, no step
// subtracts:
//
//     P = rho^2 Q + g kappa        d = P + diag        Q = P diag / d        rho = e^(-a D), kappa = 1 - rho^2
//     f = rho f+                   z = y - f           f+ = f + z P / d      f+ is f after the point
//
// A processor waits for each division before it begins the next point. So Q is carried as a fraction u / v:
//
//     u' = diag (rho^2 u + g kappa v)        v' = rho^2 u + (g kappa + diag) v
//
// with both divided by g + the largest diag of a chunk, so that v' / v is at most 1. This is linear, as f+ is, so that the maps
// of four points in a row are composed before they are applied, for all such RUNS of a chunk at once; only the composed
// maps are applied one after the other.
#include "parallel.h"
#include "states.h"

namespace laplex::LAPLEX_ISA {
namespace {

constexpr int RUN = 4, RUNS = CHUNK / RUN;
constexpr int LANES = 8;         // sums and products have as many parts, which may be lanes of a vector register
constexpr double LEAST = 1e-18;  // v is made 1 again after four runs: v' / v must not be smaller

inline bool is_normal(double x) { return x >= 2.2250738585072014e-308 && x < INFINITE; }

// The points of a chunk are stored with the first points of all runs first, then the second ones, and so on.
inline int slot(int point) { return point % RUN * RUNS + point / RUN; }

// From the order of time to slots, and back, for a chunk that is full.
inline void deal(const double* from, double (&to)[CHUNK]) {
    for (int i = 0; i < RUNS; ++i) {
        to[i] = from[RUN * i], to[RUNS + i] = from[RUN * i + 1];
        to[2 * RUNS + i] = from[RUN * i + 2], to[3 * RUNS + i] = from[RUN * i + 3];
    }
}
inline void collect(const double (&from)[CHUNK], double* to) {
    for (int i = 0; i < RUNS; ++i) {
        to[RUN * i] = from[i], to[RUN * i + 1] = from[RUNS + i];
        to[RUN * i + 2] = from[2 * RUNS + i], to[RUN * i + 3] = from[3 * RUNS + i];
    }
}

inline double total(const double (&terms)[CHUNK], double (&lanes)[LANES]) {
    for (int j = 0; j < CHUNK; j += LANES)
        for (int l = 0; l < LANES; ++l) lanes[l] += terms[j + l];
    double sum = 0.0;
    for (const double part : lanes) sum += part;
    return sum;
}

// x_n = a_n x_{n-1} + b_n for all points of a chunk, or from the last to the first x_n = a_n x_{n+1} + b_n. `before` is
// the x that point n starts from; x itself is what the chunk starts from, and then ends with.
template <bool BACK>
void run_affine(const double (&a)[CHUNK], const double (&b)[CHUNK], double& x, double (&before)[CHUNK]) {
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
    // x = mantissa * 2^exponent of a normal positive x, with the mantissa in [1, 2).
    static void split(double x, double& mantissa, int64_t& exponent) {
        int64_t bits;
        std::memcpy(&bits, &x, 8);
        exponent = (bits >> 52) - 1023;
        bits = (bits & 0xfffffffffffff) | (int64_t{1023} << 52);
        std::memcpy(&mantissa, &bits, 8);
    }
    void add(const double (&x)[CHUNK]) {
        double mantissa[CHUNK];
        int64_t more[CHUNK];
        for (int j = 0; j < CHUNK; ++j) split(x[j], mantissa[j], more[j]);
        for (int j = 0; j < CHUNK; ++j) exponent += more[j];
        for (int j = 0; j < CHUNK; j += LANES)
            for (int l = 0; l < LANES; ++l) product[l] *= mantissa[j + l];
        for (int l = 0; l < LANES; ++l) split(product[l], product[l], more[l]);
        for (int l = 0; l < LANES; ++l) exponent += more[l];
    }
    double value() const {
        double logs = double(exponent) * 0.69314718055994530942;
        for (const double part : product) logs += std::log(part);
        return logs;
    }
};

// The points of a chunk, each in its slot. A chunk that is not full ends with points that change nothing.
struct Chunk {
    double gap[CHUNK], rho[CHUNK], kappa[CHUNK], diag[CHUNK], y[CHUNK];
    int count;

    void load(const Points& points, int64_t base, const StateKernel& kernel, const double* diags, const double* ys,
              double a) {
        count = int(smaller<int64_t>(CHUNK, points.count - base));
        const double* gaps = kernel.gaps + points.begin + base;
        if (count == CHUNK) deal(gaps, gap);
        if (count == CHUNK && !points.order) {
            deal(diags + points.begin + base, diag), deal(ys + points.begin + base, y);
        } else {
            for (int j = 0; j < count; ++j) {
                const int64_t k = points.place(base + j);
                gap[slot(j)] = gaps[j], diag[slot(j)] = diags[k], y[slot(j)] = ys[k];
            }
            for (int j = count; j < CHUNK; ++j) gap[slot(j)] = y[slot(j)] = 0.0, diag[slot(j)] = 1.0;
        }
        for (int j = 0; j < CHUNK; ++j) {
            gap[j] = smaller(gap[j], MAX_GAP);
            double less_one, scale;
            decay_parts<double>(a * gap[j], less_one, scale);
            rho[j] = (less_one + 1.0) * scale;
            kappa[j] = scale == 1.0 ? -less_one * (less_one + 2.0) : 1.0 - rho[j] * rho[j];  // 1 - rho^2, all digits
        }
        if (base == 0) rho[0] = 0.0, kappa[0] = 1.0;  // no step leads to the first point
    }
};

struct SingleFilter {
    const double g;
    double u = 0.0, v = 1.0, f = 0.0;  // Q = u / v and f+ of the point before
    double over_d[CHUNK], gain[CHUNK], mean[CHUNK], z[CHUNK];  // gain = P / d; mean = f
    double lost = 0.0, loss[CHUNK];               // S = g - P of every point, and g - Q of the point before

    explicit SingleFilter(double variance) : g(variance) {}

    void make_maps(const Chunk& c, double scale, Maps<CHUNK>& m) const {
        for (int j = 0; j < CHUNK; ++j) {
            const double square = c.rho[j] * c.rho[j] * scale, added = g * c.kappa[j] * scale;
            m.uu[j] = c.diag[j] * square, m.uv[j] = c.diag[j] * added;
            m.vu[j] = square, m.vv[j] = added + c.diag[j] * scale;
        }
        for (int j = c.count; j < CHUNK; ++j) m.uu[slot(j)] = m.vv[slot(j)] = 1.0, m.uv[slot(j)] = m.vu[slot(j)] = 0.0;
    }
    // u and v before every point.
    void run(const Maps<CHUNK>& m, double (&before_u)[CHUNK], double (&before_v)[CHUNK]) {
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
    void walk(const Maps<CHUNK>& m, double (&before_u)[CHUNK], double (&before_v)[CHUNK]) {
        for (int n = 0; n < CHUNK; ++n) {
            const int j = slot(n);
            before_u[j] = u / v, before_v[j] = 1.0;
            u = m.uu[j] * before_u[j] + m.uv[j], v = m.vu[j] * before_u[j] + m.vv[j];
        }
    }
    // Returns the first point whose pivot is not positive and finite, or -1.
    int filter(const Chunk& c) {
        Maps<CHUNK> maps;
        double least = INFINITE, most = 0.0, before_u[CHUNK], before_v[CHUNK];
        for (int j = 0; j < CHUNK; ++j) least = smaller(least, c.diag[j]), most = larger(most, c.diag[j]);
        const double scale = 1.0 / (g + most);
        make_maps(c, scale, maps);
        if (least * scale > LEAST) run(maps, before_u, before_v);
        else walk(maps, before_u, before_v);
        for (int j = 0; j < CHUNK; ++j) {
            const double part = c.rho[j] * c.rho[j] * before_u[j] + g * c.kappa[j] * before_v[j];  // P v
            const double inverse = 1.0 / (part + c.diag[j] * before_v[j]);                         // 1 / (d v)
            over_d[j] = before_v[j] * inverse, gain[j] = part * inverse;
        }
        for (int j = c.count; j < CHUNK; ++j) over_d[slot(j)] = 1.0, gain[slot(j)] = 0.0;
        int wrong = 0;
        for (int j = 0; j < CHUNK; ++j) wrong |= !is_normal(over_d[j]);
        for (int j = 0; wrong && j < c.count; ++j)
            if (!is_normal(over_d[slot(j)])) return j;
        observe(c);
        return -1;
    }
    // g - Q = S + P gain and S = rho^2 (g - Q): as sums, because where there is much noise g - P would lose its digits.
    void sum_losses(const Chunk& c) {
        double square[CHUNK], added[CHUNK], before[CHUNK];
        for (int j = 0; j < CHUNK; ++j) square[j] = c.rho[j] * c.rho[j], added[j] = gain[j] * gain[j] / over_d[j];
        run_affine<false>(square, added, lost, before);
        for (int j = 0; j < CHUNK; ++j) loss[j] = square[j] * before[j];
    }
    void observe(const Chunk& c) {
        double factor[CHUNK], added[CHUNK], before[CHUNK];
        for (int j = 0; j < CHUNK; ++j) {
            factor[j] = c.rho[j] * c.diag[j] * over_d[j];  // 1 - P / d = diag / d
            added[j] = gain[j] * c.y[j];
        }
        run_affine<false>(factor, added, f, before);
        for (int j = 0; j < CHUNK; ++j) mean[j] = c.rho[j] * before[j];
        for (int j = c.count; j < CHUNK; ++j) mean[slot(j)] = 0.0;
        for (int j = 0; j < CHUNK; ++j) z[j] = c.y[j] - mean[j];
    }
};

}  // namespace

void single_likelihood(const StateLikelihood& s, int64_t series) {
    const Points points(s.kernel, series);
    double* kept = s.kept ? s.kept + series * state_kept_size(s.kernel) : nullptr;
    Chunk chunk;
    SingleFilter filter(s.kernel.g[series]);
    LogSums logs;
    double quad[LANES] = {};
    s.failed[series] = -1;
    for (int64_t base = 0; base < points.count; base += CHUNK) {
        chunk.load(points, base, s.kernel, s.diag, s.y, s.kernel.rates[series]);
        const int failed = filter.filter(chunk);
        if (failed >= 0) {
            s.failed[series] = base + failed;
            return;
        }
        double terms[CHUNK];
        for (int j = 0; j < CHUNK; ++j) terms[j] = filter.z[j] * filter.z[j] * filter.over_d[j];
        s.quad[series] = total(terms, quad);
        logs.add(filter.over_d);
        if (!kept) continue;
        filter.sum_losses(chunk);
        double* to = kept + 4 * base;
        std::memcpy(to, filter.over_d, sizeof filter.over_d);
        std::memcpy(to + CHUNK, filter.gain, sizeof filter.gain);
        std::memcpy(to + 2 * CHUNK, filter.mean, sizeof filter.mean);
        std::memcpy(to + 3 * CHUNK, filter.loss, sizeof filter.loss);
    }
    s.logdet[series] = -logs.value(), s.loss[series] = 0.0;
}

// From 1 / d, P / d, f and S = g - P of all points. With phi the gradient of f+, and with Q_bar that of Q, a point has
//
//     z_bar = 2 quad_bar z / d + phi P / d           f_bar = phi - z_bar = phi diag / d - 2 quad_bar z / d
//     e = (logdet_bar - quad_bar z^2 / d) / d        P_bar = e + (phi z + Q_bar diag) diag / d^2
//     diag_bar = e - phi z P / d^2 + Q_bar (P / d)^2
//
// and the point before it phi = rho f_bar and Q_bar = rho^2 P_bar, which are linear, too. With u = a D,
// g_bar is the sum of P_bar kappa, and u_bar = 2 P_bar S - f_bar f.
struct SinglePull {
    const double a, quad_bar, logdet_bar;
    double phi = 0.0, after_bar = 0.0, rate_lanes[LANES] = {}, g_lanes[LANES] = {}, rate_bar = 0.0, g_bar = 0.0;
    double gap_bar[CHUNK], diag_bar[CHUNK], y_bar[CHUNK];

    void pull(const Chunk& c, const double* r, const double* gain, const double* f, const double* loss) {  // r = 1 / d
        double z[CHUNK], rest[CHUNK], own[CHUNK], factor[CHUNK], added[CHUNK], phis[CHUNK], bars[CHUNK];
        for (int j = 0; j < CHUNK; ++j) {
            z[j] = c.y[j] - f[j], rest[j] = c.diag[j] * r[j], own[j] = 2.0 * quad_bar * z[j] * r[j];
            factor[j] = c.rho[j] * rest[j], added[j] = -c.rho[j] * own[j];
        }
        run_affine<true>(factor, added, phi, phis);
        for (int j = 0; j < CHUNK; ++j) {
            diag_bar[j] = (logdet_bar - quad_bar * z[j] * z[j] * r[j]) * r[j];  // e, so far
            added[j] = c.rho[j] * c.rho[j] * (diag_bar[j] + phis[j] * z[j] * r[j] * rest[j]);
            factor[j] *= factor[j];
        }
        neutral(c, added);
        run_affine<true>(factor, added, after_bar, bars);
        for (int j = 0; j < CHUNK; ++j) {
            const double pushed = phis[j] * z[j] * r[j];
            const double p_bar = diag_bar[j] + pushed * rest[j] + rest[j] * rest[j] * bars[j];
            const double u_bar = 2.0 * p_bar * loss[j] - (phis[j] * rest[j] - own[j]) * f[j];
            gap_bar[j] = a * u_bar;
            y_bar[j] = phis[j] * gain[j] + own[j];
            diag_bar[j] += bars[j] * gain[j] * gain[j] - pushed * gain[j];
            added[j] = c.gap[j] * u_bar, factor[j] = p_bar * c.kappa[j];
        }
        neutral(c, added), neutral(c, factor);
        rate_bar = total(added, rate_lanes), g_bar = total(factor, g_lanes);
    }
    void write(const Chunk& c, const Points& points, int64_t base, const StatePullback& s) const {
        double *gaps = s.gaps_bar + points.begin + base, *diags = s.diag_bar, *ys = s.y_bar;
        if (c.count == CHUNK && !points.order)
            return collect(gap_bar, gaps), collect(diag_bar, diags + points.begin + base),
                   collect(y_bar, ys + points.begin + base);
        for (int j = 0; j < c.count; ++j) {
            const int64_t k = points.place(base + j);
            gaps[j] = gap_bar[slot(j)], diags[k] = diag_bar[slot(j)], ys[k] = y_bar[slot(j)];
        }
    }
    static void neutral(const Chunk& c, double (&x)[CHUNK]) {
        for (int j = c.count; j < CHUNK; ++j) x[slot(j)] = 0.0;
    }
};

void single_pullback(const StatePullback& s, int64_t series) {
    const Points points(s.kernel, series);
    SinglePull pull{s.kernel.rates[series], s.quad_bar[series], s.logdet_bar[series]};
    const double* kept = s.kept + series * state_kept_size(s.kernel);
    Chunk chunk;
    for (int64_t i = block_count(points.count, CHUNK) - 1; i >= 0; --i) {
        const int64_t base = i * CHUNK;
        chunk.load(points, base, s.kernel, s.diag, s.y, pull.a);
        const double* from = kept + 4 * base;
        pull.pull(chunk, from, from + CHUNK, from + 2 * CHUNK, from + 3 * CHUNK);
        pull.write(chunk, points, base, s);
    }
    s.gaps_bar[points.begin] = 0.0;
    s.rates_bar[series] = pull.rate_bar, s.squares_bar[series] = 0.0, s.g_bar[series] = pull.g_bar;
}

}  // namespace laplex::LAPLEX_ISA
