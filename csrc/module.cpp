// The Python module laplex._core: the core's functions for the best instruction set of this processor.
//
// Arrays are passed as addresses, 0 for an array that is not given; laplex.h has their shapes. The callers, in Python,
// check dtypes and contiguity and turn a status into an exception.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include "laplex.h"

namespace nb = nanobind;
using namespace laplex;

Tally laplex::tally{};
double laplex::late_at = 0;

namespace {

enum class Isa { baseline, avx2, avx512 };

Isa detect() {
#ifdef LAPLEX_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (avx2 && avx512) return Isa::avx512;
    if (avx2) return Isa::avx2;
#endif
    return Isa::baseline;
}

const Isa isa = detect();

// Call a function of the best instruction set.
#ifdef LAPLEX_X86
#define LAPLEX_BEST(function, args)              \
    (isa == Isa::avx512 ? avx512::function(args) \
     : isa == Isa::avx2 ? avx2::function(args)   \
                        : baseline::function(args))
#else
#define LAPLEX_BEST(function, args) baseline::function(args)
#endif

template <class P>
P* address(uintptr_t value) {
    return reinterpret_cast<P*>(value);
}

int scan(uintptr_t x, uintptr_t target, uintptr_t source, uintptr_t tau, uintptr_t target_index, uintptr_t source_index,
         uintptr_t target_values, uintptr_t source_values, uintptr_t even, uintptr_t odd, uintptr_t weights,
         uintptr_t pull, uintptr_t tail, int64_t h, int64_t m, int64_t n, int64_t k, int64_t pads, int target_channels,
         int source_channels, int degree, bool is_double, int threads) {
    const Scan args{address<void>(x), address<void>(target), address<void>(source), address<double>(tau),
                    address<int32_t>(target_index), address<int32_t>(source_index), address<void>(target_values),
                    address<void>(source_values), address<void>(even), address<void>(odd), address<void>(weights),
                    address<void>(pull), address<void>(tail), h, m, n, k, pads, target_channels, source_channels,
                    degree, threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(scan<double>, args) : LAPLEX_BEST(scan<float>, args);
}

int order(uintptr_t a, uintptr_t b, uintptr_t a_index, uintptr_t b_index, uintptr_t a_values, uintptr_t b_values,
          int64_t h, int64_t n, int64_t k, int a_channels, int b_channels, bool from_old, bool is_double, int threads) {
    const Order args{address<void>(a), address<void>(b), address<int32_t>(a_index), address<int32_t>(b_index),
                     address<void>(a_values), address<void>(b_values), h, n, k, a_channels, b_channels, from_old,
                     threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(order<double>, args) : LAPLEX_BEST(order<float>, args);
}

int row_dot(uintptr_t x, uintptr_t y, uintptr_t tau, uintptr_t out, int64_t h, int64_t m, int64_t n, bool is_double,
            int threads) {
    const RowDot args{address<void>(x), address<void>(y), address<double>(tau), address<void>(out), h, m, n, threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(row_dot<double>, args) : LAPLEX_BEST(row_dot<float>, args);
}

int reduce(uintptr_t x, uintptr_t source, double end, double tau, uintptr_t out, int64_t m, int64_t k, int64_t stride,
           int degree, bool is_double, int threads) {
    const Reduce args{address<void>(x), address<void>(source), end, tau, address<double>(out), m, k, stride, degree,
                      threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(reduce<double>, args) : LAPLEX_BEST(reduce<float>, args);
}

void factor(uintptr_t decay, uintptr_t p, uintptr_t q, uintptr_t mass, uintptr_t diag, uintptr_t d, uintptr_t z,
            uintptr_t states, int64_t h, int64_t n, int r, int block, int threads) {
    const Factor args{address<double>(decay), address<double>(p), address<double>(q), address<double>(mass),
                      address<double>(diag), address<double>(d), address<double>(z), address<double>(states),
                      h, n, r, block, threads};
    nb::gil_scoped_release release;
    LAPLEX_BEST(factor, args);
}

void factor_pullback(uintptr_t decay, uintptr_t p, uintptr_t mass, uintptr_t d, uintptr_t z, uintptr_t states,
                     uintptr_t d_bar, uintptr_t z_bar, uintptr_t p_bar, uintptr_t q_bar, uintptr_t mass_bar,
                     uintptr_t diag_bar, uintptr_t gap_bar, int64_t h, int64_t n, int r, int block, int threads) {
    const FactorPullback args{address<double>(decay), address<double>(p), address<double>(mass), address<double>(d),
                              address<double>(z), address<double>(states), address<double>(d_bar),
                              address<double>(z_bar), address<double>(p_bar), address<double>(q_bar),
                              address<double>(mass_bar), address<double>(diag_bar), address<double>(gap_bar), h, n, r,
                              block, threads};
    nb::gil_scoped_release release;
    LAPLEX_BEST(factor_pullback, args);
}

void sweep(uintptr_t decay, uintptr_t p, uintptr_t z, uintptr_t mass, uintptr_t order, uintptr_t divisor, uintptr_t x,
           uintptr_t y, int64_t h, int64_t n, int64_t m, int r, int block, bool transposed, bool inverse, int threads) {
    const Sweep args{address<double>(decay), address<double>(p), address<double>(z), address<double>(mass),
                     address<int64_t>(order), address<double>(divisor), address<double>(x), address<double>(y),
                     h, n, m, r, block, transposed, inverse, threads};
    nb::gil_scoped_release release;
    LAPLEX_BEST(sweep, args);
}

int sweep_pullback(uintptr_t decay, uintptr_t p, uintptr_t z, uintptr_t mass, uintptr_t left, uintptr_t right,
                   uintptr_t p_bar, uintptr_t z_bar, uintptr_t mass_bar, uintptr_t gap_bar, int64_t h, int64_t n,
                   int64_t m, int r, int block, int threads) {
    const SweepPullback args{address<double>(decay), address<double>(p), address<double>(z), address<double>(mass),
                             address<double>(left), address<double>(right), address<double>(p_bar),
                             address<double>(z_bar), address<double>(mass_bar), address<double>(gap_bar), h, n, m, r,
                             block, threads};
    nb::gil_scoped_release release;
    return LAPLEX_BEST(sweep_pullback, args);
}

StateProblem state_problem(uintptr_t times, uintptr_t kinds, uintptr_t numbers, uintptr_t counts, uintptr_t order,
                           uintptr_t diag, uintptr_t y, int64_t h, int64_t n, int64_t diag_row, int64_t diag_column,
                           int blocks, int size, int threads) {
    return {address<double>(times), address<int32_t>(kinds), address<double>(numbers), address<int64_t>(counts),
            address<int64_t>(order), address<double>(diag), address<double>(y), h, n, diag_row, diag_column, blocks,
            size, threads};
}

int state_likelihood(const StateProblem& problem, uintptr_t value, uintptr_t loss, uintptr_t failed,
                     uintptr_t checkpoints) {
    const StateLikelihood args{problem, address<double>(value), address<double>(loss), address<int64_t>(failed),
                               address<double>(checkpoints)};
    nb::gil_scoped_release release;
    return LAPLEX_BEST(state_likelihood, args);
}

int state_pullback(const StateProblem& problem, uintptr_t checkpoints, uintptr_t value_bar, uintptr_t times_bar,
                   uintptr_t diag_bar, uintptr_t y_bar, uintptr_t numbers_bar) {
    const StatePullback args{problem, address<double>(checkpoints), address<double>(value_bar),
                             address<double>(times_bar), address<double>(diag_bar), address<double>(y_bar),
                             address<double>(numbers_bar)};
    nb::gil_scoped_release release;
    return LAPLEX_BEST(state_pullback, args);
}

bool times_in_order(uintptr_t times, uintptr_t counts, int64_t h, int64_t n) {
    const Times args{address<double>(times), address<int64_t>(counts), nullptr, nullptr, h, n, 1};
    nb::gil_scoped_release release;
    return LAPLEX_BEST(times_in_order, args);
}

int sort_times(uintptr_t times, uintptr_t counts, uintptr_t order, uintptr_t sorted, int64_t h, int64_t n, int threads) {
    const Times args{address<double>(times), address<int64_t>(counts), address<int64_t>(order),
                     address<double>(sorted), h, n, threads};
    nb::gil_scoped_release release;
    return LAPLEX_BEST(sort_times, args);
}

std::pair<double, double> extremes(uintptr_t values, int64_t size) {
    const Values args{address<double>(values), size};
    nb::gil_scoped_release release;
    const Extremes found = LAPLEX_BEST(extremes, args);
    return {found.low, found.high};
}

void chain_scan(uintptr_t steps, uintptr_t source, uintptr_t result, int64_t h, int64_t n, int64_t m, int size,
                bool reverse, int threads) {
    const ChainScan args{address<double>(steps), address<double>(source), address<double>(result), h, n, m, size,
                         reverse, threads};
    nb::gil_scoped_release release;
    LAPLEX_BEST(chain_scan, args);
}

void chain_matrices(uintptr_t steps, uintptr_t source, uintptr_t result, int64_t h, int64_t n, int size, bool reverse,
                    int threads) {
    const ChainMatrices args{address<double>(steps), address<double>(source), address<double>(result), h, n, size,
                             reverse, threads};
    nb::gil_scoped_release release;
    LAPLEX_BEST(chain_matrices, args);
}

void chain_factor(uintptr_t steps, uintptr_t p, uintptr_t q, uintptr_t diag, uintptr_t states, uintptr_t failed,
                  int64_t h, int64_t n, int size, int threads) {
    const ChainFactor args{address<double>(steps), address<double>(p), address<double>(q), address<double>(diag),
                           address<double>(states), address<int64_t>(failed), h, n, size, threads};
    nb::gil_scoped_release release;
    LAPLEX_BEST(chain_factor, args);
}

int gram(uintptr_t sums, uintptr_t direction, uintptr_t target, uintptr_t tau, uintptr_t matrix, uintptr_t pulls,
         int64_t h, int64_t m, int64_t n, int channels, bool is_double, int threads) {
    const Gram args{address<double>(sums), address<double>(direction), address<double>(target), address<double>(tau),
                    address<void>(matrix), address<double>(pulls), h, m, n, channels, threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(gram<double>, args) : LAPLEX_BEST(gram<float>, args);
}

Kernels kernels(uintptr_t target, uintptr_t source, uintptr_t tau, uintptr_t weight, uintptr_t target_direction,
                uintptr_t source_direction, int64_t h, int64_t r, int64_t n, int64_t k) {
    return {address<void>(target), address<void>(source), address<double>(tau), address<double>(weight),
            address<void>(target_direction), address<void>(source_direction), h, r, n, k};
}

int form(uintptr_t target, uintptr_t source, uintptr_t tau, uintptr_t weight, uintptr_t target_direction,
         uintptr_t source_direction, uintptr_t matrix, int64_t h, int64_t r, int64_t n, int64_t k, bool is_double,
         int threads) {
    const Form args{kernels(target, source, tau, weight, target_direction, source_direction, h, r, n, k),
                    address<void>(matrix), threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(form<double>, args) : LAPLEX_BEST(form<float>, args);
}

int form_pullback(uintptr_t target, uintptr_t source, uintptr_t tau, uintptr_t weight, uintptr_t target_direction,
                  uintptr_t source_direction, uintptr_t g, uintptr_t target_bar, uintptr_t source_bar,
                  uintptr_t tau_bar, uintptr_t weight_bar, uintptr_t phi_bar, uintptr_t psi_bar, int64_t h, int64_t r,
                  int64_t n, int64_t k, bool is_double, int threads) {
    const FormPullback args{kernels(target, source, tau, weight, target_direction, source_direction, h, r, n, k),
                            address<void>(g), address<void>(target_bar), address<void>(source_bar),
                            address<double>(tau_bar), address<double>(weight_bar), address<void>(phi_bar),
                            address<void>(psi_bar), threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(form_pullback<double>, args) : LAPLEX_BEST(form_pullback<float>, args);
}

int multiply(uintptr_t a, uintptr_t b, uintptr_t out, int64_t h, int64_t m, int64_t n, int64_t k, int64_t a_batch,
             int64_t a_row, int64_t a_col, int64_t b_batch, int64_t b_row, int64_t b_col, int threads) {
    const Multiply args{address<float>(a), address<float>(b), address<float>(out), h, m, n, k,
                        a_batch, a_row, a_col, b_batch, b_row, b_col, threads};
    nb::gil_scoped_release release;
    return LAPLEX_BEST(multiply, args);
}

int soft_rank(uintptr_t x, uintptr_t tau, uintptr_t sorted, uintptr_t order, uintptr_t ranks, int64_t h, int64_t n,
              bool descending, bool is_double, int threads) {
    const SoftRank args{address<void>(x), address<double>(tau), address<void>(sorted), address<int32_t>(order),
                        address<void>(ranks), h, n, descending, threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(soft_rank<double>, args) : LAPLEX_BEST(soft_rank<float>, args);
}

int soft_sort(uintptr_t x, uintptr_t tau, uintptr_t sorted, uintptr_t order, uintptr_t values, uintptr_t factors,
              int64_t h, int64_t n, bool descending, bool is_double, int threads) {
    const SoftSort args{address<void>(x), address<double>(tau), address<void>(sorted), address<int32_t>(order),
                        address<void>(values), address<void>(factors), h, n, descending, threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(soft_sort<double>, args) : LAPLEX_BEST(soft_sort<float>, args);
}

SoftPullback soft_pullback(uintptr_t g, uintptr_t sorted, uintptr_t order, uintptr_t tau, uintptr_t factors,
                           uintptr_t x_bar, int64_t h, int64_t n, bool descending, int threads) {
    return {address<void>(g), address<void>(sorted), address<int32_t>(order), address<double>(tau),
            address<void>(factors), address<void>(x_bar), h, n, descending, threads};
}

int pull_rank(uintptr_t g, uintptr_t sorted, uintptr_t order, uintptr_t tau, uintptr_t x_bar, int64_t h, int64_t n,
              bool descending, bool is_double, int threads) {
    const SoftPullback args = soft_pullback(g, sorted, order, tau, 0, x_bar, h, n, descending, threads);
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(pull_rank<double>, args) : LAPLEX_BEST(pull_rank<float>, args);
}

int pull_sort(uintptr_t g, uintptr_t sorted, uintptr_t order, uintptr_t tau, uintptr_t factors, uintptr_t x_bar,
              int64_t h, int64_t n, bool descending, bool is_double, int threads) {
    const SoftPullback args = soft_pullback(g, sorted, order, tau, factors, x_bar, h, n, descending, threads);
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(pull_sort<double>, args) : LAPLEX_BEST(pull_sort<float>, args);
}

int soft_mask(uintptr_t x, uintptr_t tau, uintptr_t k, uintptr_t mask, uintptr_t threshold, int64_t h, int64_t n,
              bool is_double, int threads) {
    const SoftMask args{address<void>(x), address<double>(tau), address<double>(k), address<void>(mask),
                        address<double>(threshold), h, n, threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(soft_mask<double>, args) : LAPLEX_BEST(soft_mask<float>, args);
}

int pull_mask(uintptr_t g, uintptr_t x, uintptr_t tau, uintptr_t k, uintptr_t threshold, uintptr_t x_bar,
              uintptr_t k_bar, uintptr_t tau_bar, int64_t h, int64_t n, bool is_double, int threads) {
    const SoftMaskPullback args{address<void>(g), address<void>(x), address<double>(tau), address<double>(k),
                                address<double>(threshold), address<void>(x_bar), address<double>(k_bar),
                                address<double>(tau_bar), h, n, threads};
    nb::gil_scoped_release release;
    return is_double ? LAPLEX_BEST(pull_mask<double>, args) : LAPLEX_BEST(pull_mask<float>, args);
}

}  // namespace

NB_MODULE(_core, m) {
    m.attr("STALE_PLAN") = int(STALE_PLAN);
    m.attr("BAD_TAU") = int(BAD_TAU);
    m.attr("NOT_FINITE_A") = int(NOT_FINITE_A);
    m.attr("NOT_FINITE_B") = int(NOT_FINITE_B);
    m.attr("OUT_OF_MEMORY") = int(OUT_OF_MEMORY);
    m.attr("ISA") = isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline";
    m.def("scan", &scan);
    m.def("order", &order);
    m.def("row_dot", &row_dot);
    m.def("reduce", &reduce);
    m.def("use_large_pages", [](uintptr_t data, int64_t bytes) { baseline::large_pages(address<void>(data), bytes); });
    m.def("factor", &factor);
    m.def("factor_pullback", &factor_pullback);
    m.def("sweep", &sweep);
    m.def("sweep_pullback", &sweep_pullback);
    nb::class_<StateProblem>(m, "StateProblem").def("checkpoint_size", [](const StateProblem& problem) {
        return LAPLEX_BEST(state_checkpoint_size, problem);
    });
    m.attr("MAX_STATES") = MAX_STATES;
    m.def("state_problem", &state_problem);
    m.def("state_likelihood", &state_likelihood);
    m.def("state_pullback", &state_pullback);
    m.def("times_in_order", &times_in_order);
    m.def("sort_times", &sort_times);
    m.def("extremes", &extremes);
    m.attr("MAX_CHAIN") = MAX_CHAIN;
    m.def("chain_scan", &chain_scan);
    m.def("chain_matrices", &chain_matrices);
    m.def("chain_factor", &chain_factor);
    m.def("gram", &gram);
    m.def("form", &form);
    m.def("form_pullback", &form_pullback);
    m.def("multiply", &multiply);
    m.def("soft_rank", &soft_rank);
    m.def("soft_sort", &soft_sort);
    m.def("pull_rank", &pull_rank);
    m.def("pull_sort", &pull_sort);
    m.def("soft_mask", &soft_mask);
    m.def("pull_mask", &pull_mask);
    m.def("set_late_at", [](double seconds) { __atomic_store(&late_at, &seconds, __ATOMIC_RELAXED); });  // for tests
    m.def("tally", [] { return std::pair{tally.regions, tally.sorts}; });
}
