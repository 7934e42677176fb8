// Gaussian processes whose kernel is a sum of state-space blocks: the layout of the states, the transition matrices
// Phi, and one step of the filter. src/laplex/_states/__init__.py has the mathematics. All arrays are float64.
//
// Loops over states run over a Layout. Fixed<A, B, C> has A blocks of three states, then B of two, then C of one. Its
// loops are unrolled by templates, so that the states live in registers. Any<MAX> counts at run time.
#pragma once

#include "decay.h"

#if defined(__GNUC__)
#define LAPLEX_INLINE __attribute__((always_inline))
#else
#define LAPLEX_INLINE
#endif
#define LAPLEX_EACH [&](int u) LAPLEX_INLINE
#define LAPLEX_BLOCK [&](auto kind, int first, int block) LAPLEX_INLINE

namespace laplex::LAPLEX_ISA {

constexpr int POINTS_PER_CHUNK = 64;         // points whose transitions are computed together
constexpr double MAX_GAP = 1e100;  // its cube is finite; the decay over such a gap is 0, or its rate is

// --- Layouts ---------------------------------------------------------------------------------------------------------

template <int K> struct Kind {
    static constexpr int value = K;
};

// f(0), ..., f(N - 1), unrolled.
template <int N, class F>
LAPLEX_INLINE inline void repeat(const F& f) {
    if constexpr (N > 0) {
        repeat<N - 1>(f);
        f(N - 1);
    }
}

template <int A, int B, int C> struct Fixed {
    static constexpr int SIZE = 3 * A + 2 * B + C, BLOCKS = A + B + C;
    Fixed(int, int, int) {}
    // f(u) for every state u.
    template <class F> LAPLEX_INLINE void states(const F& f) const { repeat<SIZE>(f); }
    // f(kind, first state, block) for every block.
    template <class F> LAPLEX_INLINE void blocks(const F& f) const {
        repeat<A>([&](int i) LAPLEX_INLINE { f(Kind<3>{}, 3 * i, i); });
        repeat<B>([&](int i) LAPLEX_INLINE { f(Kind<2>{}, 3 * A + 2 * i, A + i); });
        repeat<C>([&](int i) LAPLEX_INLINE { f(Kind<1>{}, 3 * A + 2 * B + i, A + B + i); });
    }
};

template <int MAX> struct Any {
    static constexpr int SIZE = MAX, BLOCKS = MAX;
    int a, b, c;
    Any(int threes, int twos, int ones) : a(threes), b(twos), c(ones) {}
    int size() const { return 3 * a + 2 * b + c; }
    template <class F> void states(const F& f) const {
        for (int u = 0; u < size(); ++u) f(u);
    }
    template <class F> void blocks(const F& f) const {
        for (int i = 0; i < a; ++i) f(Kind<3>{}, 3 * i, i);
        for (int i = 0; i < b; ++i) f(Kind<2>{}, 3 * a + 2 * i, a + i);
        for (int i = 0; i < c; ++i) f(Kind<1>{}, 3 * a + 2 * b + i, a + b + i);
    }
};

// The caller's blocks in the order of a Layout.
struct Arrangement {
    int count[4] = {};           // blocks of every kind
    int block[MAX_STATES] = {};  // the caller's block of every block
    int state[MAX_STATES] = {};  // the caller's state of every state

    explicit Arrangement(const StateProblem& kernel) {
        int blocks = 0, states = 0;
        for (int kind = 3; kind > 0; --kind)
            for (int i = 0, first = 0; i < kernel.blocks; first += kernel.kinds[i++]) {
                if (kernel.kinds[i] != kind) continue;
                ++count[kind];
                block[blocks++] = i;
                for (int part = 0; part < kind; ++part) state[states++] = first + part;
            }
    }
};

// f(layout) with the layout of these blocks. Layouts of up to six states are compiled; the others count at run time.
template <class F>
auto with_layout(const Arrangement& arranged, const F& f) {
    const int a = arranged.count[3], b = arranged.count[2], c = arranged.count[1];
#define LAPLEX_LAYOUT(A, B, C) \
    if (a == A && b == B && c == C) return f(Fixed<A, B, C>(a, b, c));
    LAPLEX_LAYOUT(0, 0, 2) LAPLEX_LAYOUT(0, 1, 0)
    LAPLEX_LAYOUT(0, 0, 3) LAPLEX_LAYOUT(0, 1, 1) LAPLEX_LAYOUT(1, 0, 0)
    LAPLEX_LAYOUT(0, 0, 4) LAPLEX_LAYOUT(0, 1, 2) LAPLEX_LAYOUT(0, 2, 0) LAPLEX_LAYOUT(1, 0, 1)
    LAPLEX_LAYOUT(0, 1, 3) LAPLEX_LAYOUT(0, 2, 1) LAPLEX_LAYOUT(1, 0, 2) LAPLEX_LAYOUT(1, 1, 0)
    LAPLEX_LAYOUT(0, 2, 2) LAPLEX_LAYOUT(0, 3, 0) LAPLEX_LAYOUT(1, 1, 1) LAPLEX_LAYOUT(2, 0, 0)
#undef LAPLEX_LAYOUT
    if (3 * a + 2 * b + c <= 12) return f(Any<12>(a, b, c));
    return f(Any<MAX_STATES>(a, b, c));
}

// The points of one series, in the order of time.
struct Points {
    int64_t begin, count;              // of the first point in arrays (h, n), and the number of points
    const int64_t* order;              // of the series, or null
    const double *times, *diag, *y;    // of the series
    int64_t diag_column;

    Points(const StateProblem& problem, int64_t series)
        : begin(series * problem.n), count(problem.counts ? problem.counts[series] : problem.n),
          order(problem.order ? problem.order + begin : nullptr), times(problem.times + begin),
          diag(problem.diag + series * problem.diag_row), y(problem.y + begin), diag_column(problem.diag_column) {}
    // Where y and diag of a point are.
    int64_t place(int64_t point) const { return order ? order[point] : point; }
    // The steps into `size` points; none leads to the first.
    void gaps(int64_t base, int size, double* to) const {
        for (int j = 0; j < size; ++j) to[j] = base + j > 0 ? times[base + j] - times[base + j - 1] : 0.0;
    }
};

// The numbers of a kernel for one series.
struct Numbers {
    const double *rates, *squares, *g;

    Numbers(const StateProblem& problem, int64_t series)
        : rates(problem.numbers + series * (2 * problem.blocks + problem.size)), squares(rates + problem.blocks),
          g(squares + problem.blocks) {}
};

// Whether all parameters of a series are finite, and no rate is negative. Otherwise its results are NaN.
inline bool is_valid(const StateProblem& problem, int64_t series) {
    const Numbers numbers(problem, series);
    bool valid = true;
    for (int i = 0; i < problem.blocks; ++i)
        valid = valid && is_finite(numbers.rates[i]) && numbers.rates[i] >= 0.0 && is_finite(numbers.squares[i]);
    for (int i = 0; i < problem.size; ++i) valid = valid && is_finite(numbers.g[i]);
    return valid;
}

// The logarithm of the density, from the two parts that depend on the data.
inline double log_density(double quad, double logdet, int64_t count) {
    return -0.5 * (quad + logdet + double(count) * 1.83787706640934548356);  // log 2 pi
}

// The parameters of one series, in the order of the layout.
template <class L> struct Model {
    L layout;
    double rate[L::BLOCKS], square[L::BLOCKS], g[L::SIZE];

    Model(const L& given, const StateProblem& problem, const Arrangement& arranged, int64_t series) : layout(given) {
        const Numbers numbers(problem, series);
        layout.blocks([&](auto, int, int block) {
            rate[block] = numbers.rates[arranged.block[block]];
            square[block] = numbers.squares[arranged.block[block]];
        });
        layout.states([&](int u) { g[u] = numbers.g[arranged.state[u]]; });
    }
};

// --- Transitions -----------------------------------------------------------------------------------------------------

// sin x and cos x for 0 <= x <= MAX_ANGLE, without branches. With q = round(x / (pi / 2)) and pi / 2 in three parts, of
// which q times the first two is exact, r = x - q pi / 2 is in [-pi / 4, pi / 4]; the polynomials are those of fdlibm.
constexpr double MAX_ANGLE = 1 << 19;

inline void sine_cosine(double x, double& sine, double& cosine) {
    constexpr double SHIFT = 6755399441055744.0;  // as in decay.h
    const double shifted = x * 0.6366197723675814 + SHIFT, q = shifted - SHIFT;
    const double r = ((x - q * 1.57079632673412561417) - q * 6.07710050630396597660e-11) - q * 2.02226624879595063154e-21;
    const double v = r * r;
    double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11;
    s = s * v - 2.50507602534068634195e-08, c = c * v + 2.08757232129817482790e-09;
    s = s * v + 2.75573137070700676789e-06, c = c * v - 2.75573143513906633035e-07;
    s = s * v - 1.98412698298579493134e-04, c = c * v + 2.48015872894767294178e-05;
    s = s * v + 8.33333333332248946124e-03, c = c * v - 1.38888888888741095749e-03;
    s = s * v - 1.66666666666666324348e-01, c = c * v + 4.16666666666666019037e-02;
    s = r + r * v * s, c = 1.0 - (0.5 * v - v * v * c);
    int64_t quadrant;
    std::memcpy(&quadrant, &shifted, 8);
    const double first = (quadrant & 1) ? c : s, second = (quadrant & 1) ? s : c;
    sine = (quadrant & 2) ? -first : first;
    cosine = ((quadrant + 1) & 2) ? -second : second;
}

// For |x| <= 1, x = b D^2:   C = sum of (-x)^k / (2k)!,   S / D = sum of (-x)^k / (2k + 1)!,   and (dS/db) / D^3.
inline void small_angle(double x, double& c, double& s, double& slope) {
    constexpr double INVERSE[] = {1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                                  1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0,
                                  1.0 / 87178291200.0, 1.0 / 1307674368000.0, 1.0 / 20922789888000.0,
                                  1.0 / 355687428096000.0, 1.0 / 6402373705728000.0, 1.0 / 121645100408832000.0};
    c = s = slope = 0.0;  // INVERSE[k] is 1 / (k + 1)!
    for (int k = 9; k > 0; --k) {
        c = INVERSE[2 * k - 1] - x * c;
        s = INVERSE[2 * k] - x * s;
        slope = k * INVERSE[2 * k] - x * slope;
    }
    c = 1.0 - x * c, s = 1.0 - x * s, slope = -slope;
}

// Where |b D^2| > 1: C, S and dS/db = (D C - S) / (2 b), times e^(-a D).
inline void oscillation(double a, double b, const double* gap, int count, double (*part)[POINTS_PER_CHUNK + 1]) {
    const double w = std::sqrt(b), over_w = 1.0 / w, over_b = 0.5 / b;
    double largest = 0.0;
    for (int j = 0; j < count; ++j) largest = larger(largest, w * gap[j]);
    if (largest <= MAX_ANGLE)
        for (int j = 0; j < count; ++j) sine_cosine(w * gap[j], part[1][j], part[0][j]);
    else
        for (int j = 0; j < count; ++j) part[1][j] = std::sin(w * gap[j]), part[0][j] = std::cos(w * gap[j]);
    for (int j = 0; j < count; ++j) {
        const double rho = decay<double>(a * gap[j]);
        part[0][j] *= rho;
        part[1][j] *= rho * over_w;
        part[2][j] = (gap[j] * part[0][j] - part[1][j]) * over_b;
    }
}

inline void overdamped(double a, double b, const double* gap, int count, double (*part)[POINTS_PER_CHUNK + 1]) {
    const double w = std::sqrt(-b), over_w = 0.5 / w, over_b = 0.5 / b;
    for (int j = 0; j < count; ++j) {
        const double slow = decay<double>((a - w) * gap[j]), fast = decay<double>((a + w) * gap[j]);
        part[0][j] = 0.5 * (slow + fast);
        part[1][j] = (slow - fast) * over_w;
        part[2][j] = (gap[j] * part[0][j] - part[1][j]) * over_b;
    }
}

inline void damped(double a, double b, const double* gap, int count, double (*part)[POINTS_PER_CHUNK + 1]) {
    if (b > 0) oscillation(a, b, gap, count, part);
    if (b < 0) overdamped(a, b, gap, count, part);
    for (int j = 0; j < count; ++j) {
        const double d = gap[j], x = b * d * d, rho = decay<double>(a * d);
        const bool is_small = x <= 1.0 && x >= -1.0;
        double c, s, slope;
        small_angle(is_small ? x : 0.0, c, s, slope);
        part[0][j] = is_small ? rho * c : part[0][j];
        part[1][j] = is_small ? rho * d * s : part[1][j];
        part[2][j] = is_small ? rho * d * (d * d) * slope : part[2][j];
    }
}

// The entries of Phi of the steps into `count` points:
//     kind 1    e^(-aD)
//     kind 2    e^(-aD) times C, S and dS/db
//     kind 3    e^(-aD) times 1, D and D^2 / 2
template <class L> struct Transitions {
    double part[L::BLOCKS][3][POINTS_PER_CHUNK + 1], gap[POINTS_PER_CHUNK + 1];

    void fill(const Model<L>& model, const Points& points, int64_t base, int count) {
        points.gaps(base, count, gap);
        for (int j = 0; j < count; ++j) gap[j] = smaller(gap[j], MAX_GAP);
        model.layout.blocks([&](auto kind, int, int block) {
            const double a = model.rate[block], b = model.square[block];
            double(*own)[POINTS_PER_CHUNK + 1] = part[block];
            if constexpr (decltype(kind)::value == 2)
                if (b != 0) return damped(a, b, gap, count, own);
            for (int j = 0; j < count; ++j) own[0][j] = decay<double>(a * gap[j]);
            if constexpr (decltype(kind)::value > 1)
                for (int j = 0; j < count; ++j) own[1][j] = own[0][j] * gap[j];
            if constexpr (decltype(kind)::value == 2)
                for (int j = 0; j < count; ++j) own[2][j] = -1.0 / 6 * own[1][j] * gap[j] * gap[j];
            if constexpr (decltype(kind)::value == 3)
                for (int j = 0; j < count; ++j) own[2][j] = 0.5 * own[1][j] * gap[j];
        });
    }
};

// x <- Phi x for the K states of one block; p are its entries at a point.
template <int K>
LAPLEX_INLINE inline void step(const double (&p)[3], double b, double (&x)[K]) {
    if constexpr (K == 1) x[0] *= p[0];
    if constexpr (K == 2) {
        const double first = p[0] * x[0] + p[1] * x[1];
        x[1] = p[0] * x[1] - b * p[1] * x[0], x[0] = first;
    }
    if constexpr (K == 3) {
        x[0] = p[0] * x[0] + p[1] * x[1] + p[2] * x[2];
        x[1] = p[0] * x[1] + p[1] * x[2];
        x[2] *= p[0];
    }
}

// x <- Phi^T x.
template <int K>
LAPLEX_INLINE inline void step_back(const double (&p)[3], double b, double (&x)[K]) {
    if constexpr (K == 1) x[0] *= p[0];
    if constexpr (K == 2) {
        const double first = p[0] * x[0] - b * p[1] * x[1];
        x[1] = p[0] * x[1] + p[1] * x[0], x[0] = first;
    }
    if constexpr (K == 3) {
        x[2] = p[0] * x[2] + p[1] * x[1] + p[2] * x[0];
        x[1] = p[0] * x[1] + p[1] * x[0];
        x[0] *= p[0];
    }
}

// Phi of one step, applied to vectors and symmetric matrices.
template <class L> struct Step {
    const Model<L>& model;
    const Transitions<L>& all;
    int j;

    template <bool BACK> LAPLEX_INLINE void vector(double (&x)[L::SIZE]) const {
        model.layout.blocks(LAPLEX_BLOCK {
            constexpr int K = decltype(kind)::value;
            const double p[3] = {all.part[block][0][j], all.part[block][1][j], all.part[block][2][j]};
            double part[K];
            for (int i = 0; i < K; ++i) part[i] = x[first + i];
            if constexpr (BACK) step_back<K>(p, model.square[block], part);
            else step<K>(p, model.square[block], part);
            for (int i = 0; i < K; ++i) x[first + i] = part[i];
        });
    }
    // Phi X Phi^T, or Phi^T X Phi if BACK, of a symmetric X. Only the entries on and above the diagonal of the result
    // are computed: otherwise rounding errors would grow in the antisymmetric part.
    template <bool BACK> LAPLEX_INLINE void symmetric(double (&x)[L::SIZE][L::SIZE]) const {
        model.layout.states(LAPLEX_EACH { vector<BACK>(x[u]); });  // X Phi^T: every row
        model.layout.states([&](int v) LAPLEX_INLINE {
            double column[L::SIZE];
            model.layout.states(LAPLEX_EACH { column[u] = x[u][v]; });
            vector<BACK>(column);
            model.layout.states(LAPLEX_EACH {
                if (u <= v) x[u][v] = column[u];
            });
        });
        model.layout.states([&](int v) LAPLEX_INLINE {
            model.layout.states(LAPLEX_EACH {
                if (u < v) x[v][u] = x[u][v];
            });
        });
    }
};

// --- The filter ------------------------------------------------------------------------------------------------------

// The sum of log d, by the product of the mantissas.
struct LogSum {
    double product = 1.0;
    int64_t exponent = 0;

    void add(double d) {
        if (d < 2.2250738585072014e-308) d *= 18014398509481984.0, exponent -= 54;  // subnormal
        double mantissa;
        int64_t more;
        split_number(d, mantissa, more);
        product *= mantissa, exponent += more;
    }
    // At least once in 1000 additions, which may double the product each.
    void normalise() {
        int more;
        product = std::frexp(product, &more);
        exponent += more;
    }
    double value() const { return std::log(product) + double(exponent) * LN_2; }
};

inline bool is_pivot(double d) { return d > 0.0 && d < INFINITE; }

// The state before a point, and what the point adds to it.
template <class L> struct Filter {
    double s[L::SIZE][L::SIZE] = {}, f[L::SIZE] = {};  // S and f
    double c[L::SIZE] = {}, over_d = 0.0, z = 0.0;     // c = d w = g - S h

    // Returns d.
    LAPLEX_INLINE double measure(const Model<L>& model, double diag, double y) {
        model.layout.states(LAPLEX_EACH { c[u] = model.g[u]; });
        z = y;
        double d = diag;
        model.layout.blocks(LAPLEX_BLOCK {
            (void)kind, (void)block;
            const int column = first;
            model.layout.states(LAPLEX_EACH { c[u] -= s[column][u]; });
            z -= f[first];
        });
        model.layout.blocks(LAPLEX_BLOCK { (void)kind, (void)block, d += c[first]; });
        over_d = 1.0 / d;
        return d;
    }
    // S <- Phi (S + d w w^T) Phi^T,   f <- Phi (f + w z). As Phi S Phi^T + v v^T / d with v = Phi c only the last
    // product waits for the division.
    LAPLEX_INLINE void advance(const Step<L>& step) {
        const auto& layout = step.model.layout;
        double v[L::SIZE];
        layout.states(LAPLEX_EACH { v[u] = c[u]; });
        step.template vector<false>(v);
        step.template vector<false>(f);
        step.template symmetric<false>(s);
        const double scaled = z * over_d;
        layout.states([&](int k) LAPLEX_INLINE {
            f[k] += v[k] * scaled;
            layout.states(LAPLEX_EACH { s[k][u] += v[k] * v[u] * over_d; });
        });
    }
};

// --- One state (state_single*.cpp) -----------------------------------------------------------------------------------

int64_t single_checkpoint_size(int64_t n);
void fill_with_nan(const StatePullback&, int64_t series);
Status single_likelihood(const StateLikelihood&);
Status single_pullback(const StatePullback&);

}  // namespace laplex::LAPLEX_ISA
