r"""The ordered scan: products with K(t, s) for any targets t and sources s, in O(n + k) once the anchors are sorted.

This file holds the mathematics; the code is in

    order.py                      the sorted order of the anchors, and the matrix it belongs to
    torch.py, cpp.py, dense.py    the scan, one file per backend; ``laplex._triton`` has the GPU's
    ops.py, results.py            the operators that PyTorch sees; the memory of their results
    autograd.py                   derivatives, made of the same scan

Definitions
    For targets t_i (the rows), sources s_j (the columns), d_ij = exp(-|t_i - s_j| / tau) and a vector x,

        left     L_i = sum over s_j < t_i of d_ij x_j
        ties     T_i = sum over s_j = t_i of x_j
        right    R_i = sum over s_j > t_i of d_ij x_j

        even     E x = L + T + R = K x
        odd      S x = R - L            S_ij = sign(s_j - t_i) d_ij,  0 at ties

    The tie rule: a source at distance 0 counts once in E x and not at all in S x. S gives the derivative,
    dK/dt = S / tau, and the derivative of |t - s| at 0 is taken as 0, as autograd takes it in the dense definition.

The recurrence
    Visit the sources in order, from the left. The state is a pair (position, value). The value is the sum of all
    sources visited so far, each with its decay up to the position. Source j alone is the state (s_j, x_j). At the
    next source the old value decays over the gap and the new one is added:

        (s_1, v_1) + (s_2, v_2)  ->  (s_2, exp(-|s_2 - s_1| / tau) v_1 + v_2)

    L_i is the value at the last source left of t_i, times the decay over the remaining gap. R is the same from the
    right. No exponent is positive, so nothing overflows.

    The operation is associative. For positions in order the gaps add up, so the decays from s_1 to s_2 and from s_2 to
    s_3 multiply to the decay from s_1 to s_3, and both ways to combine three states give

        (s_3, exp(-|s_3 - s_1| / tau) v_1 + exp(-|s_3 - s_2| / tau) v_2 + v_3)

    So the running sums are a prefix scan. It can be cut into chunks that are reduced in parallel. The chunks' totals
    are then scanned, and at last every chunk is scanned from the state that enters it.

Why positions are carried
    The same scan could carry (decay, value) and multiply decays. In float32 that fails: the decay over a gap below
    3e-8 tau rounds to 1, so a million small gaps would multiply to no decay at all, and errors grow with n. With
    positions, the decay over a span is one exponential of the difference of its ends, with one rounding error. For the
    same reason the difference is taken first and divided by tau afterwards. (A chunk of the compiled core does multiply
    decays: at most 512 of them, in float64.)

Degree 1
    The gradient of tau needs sums weighted by distance. With u = |t - s| / tau, the state has two values,

        v = sum of exp(-u) x        p = sum of u exp(-u) x        over a gap of u:  (v, p) -> exp(-u) (v, p + u v)

    Two states at the same position add up, so this scan is associative for the same reason. Nothing is subtracted.
    (v, p) is also the state of a Matern 3/2 kernel, (1 + u) exp(-u): its product is v + p.

Three ways to compute it
    merged        both sides sorted; the sources are scanned and every target reads its two neighbours
                  torch.py ``_read``, csrc/merged.cpp, _triton/scan (which sorts both sides into one sequence)
    short axis    one side much shorter than the other; only the short side is sorted. Few sources: scan them, and every
                  target reads two states. Few targets: sum the sources into the intervals between targets, and scan
                  the targets. torch.py ``_read`` and ``_collect``, csrc/short_axis.cpp, _triton/short
    dense         small matrices: every pair is formed, no order is needed
                  dense.py, _triton/scan/direct.py

Literature
    G. E. Blelloch, Prefix sums and their applications, Report CMU-CS-90-190, Carnegie Mellon University (1990).
    Y. Eidelman, I. Gohberg, On a new class of structured matrices, Integral Equations and Operator Theory 34 (1999)
        293-324; R. Vandebril, M. Van Barel, N. Mastronardi, Matrix Computations and Semiseparable Matrices, volume 1:
        Linear Systems, Johns Hopkins University Press (2008): L and R are products with the two triangles of a
        quasiseparable (semiseparable) matrix of order 1.
    D. Foreman-Mackey, E. Agol, S. Ambikasaran, R. Angus, Fast and scalable Gaussian process modeling with applications
        to astronomical time series, The Astronomical Journal 154 (2017) 220, arXiv:1703.09710: celerite, the same
        recurrence for sorted points, with phases as complex exponentials.
"""
