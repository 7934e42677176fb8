r"""Likelihoods, factors and predictions of Gaussian processes with state-space kernels, exact and in O(n).

This file holds the mathematics; the code is in

    components.py          what a kernel is made of: states, transitions, what is observed of them
    blocks.py              components of one to three states, which the fast likelihood knows
    order.py               the order of times
    line.py, exposures.py  the chain of states at times in order; the same at the starts and ends of exposures
    core_likelihood.py     the likelihood of blocks in C++ (csrc/state*.cpp), with the kernel's arithmetic: one node
    numbers.py             that arithmetic: numbers that carry their derivatives
    arithmetic.py          the same arithmetic, on the host, for the likelihood of blocks on a GPU
    result.py              the result of a likelihood, and how it is read
    likelihood.py          the likelihood of blocks by Triton, on CUDA, and that of the chain
    chain.py               any chain of states: factor, solve, predict, sample, and their derivatives
    torch.py, cpp.py       the chain's three recursions: the same functions in the same order
    fast.py                which module has them: cpp, or on CUDA ``laplex._triton.states``

Blocks
    Times are sorted, D_0 = 0 and D_n = t_n - t_{n-1} >= 0; equal times are allowed. The kernel is, for D >= 0,

        k(D) = h^T Phi(D) g,        Phi(D + D') = Phi(D) Phi(D')

    with s states, g in R^s, and Phi made of blocks on the diagonal. h is 1 at the first state of each block, and 0
    elsewhere. With a >= 0, and with C = cos(sqrt(b) D) and S = sin(sqrt(b) D) / sqrt(b), the blocks are

        kind 1    Phi = e^{-aD}                                              k = e^{-aD} g0
        kind 2    Phi = e^{-aD} [[C, S], [-b S, C]]                          k = e^{-aD} (C g0 + S g1)
        kind 3    Phi = e^{-aD} [[1, D, D^2/2], [0, 1, D], [0, 0, 1]]        k = e^{-aD} (g0 + D g1 + D^2/2 g2)

    C and S are analytic in b: for b < 0 they are cosh and sinh of sqrt(-b) D, and for b = 0 they are 1 and D. A kernel
    that decays has a >= sqrt(-b). For b < 0 the products e^{-aD} C and e^{-aD} S are sums of e^{-(a - sqrt(-b)) D} and
    e^{-(a + sqrt(-b)) D}, which do not overflow. For |b D^2| <= 1 they, and their derivatives in b, are power series.

    Matern kernels with nu = 1/2, 3/2 and 5/2 are of kind 1, of kind 2 with b = 0, and of kind 3; a damped oscillator is
    of kind 2, with b > 0, b = 0 or b < 0 if it is under-, critically or overdamped.

The chain
    Any kernel of ``components.py`` leads to a chain: A_nm = p_n^T T_n ... T_{m+1} q_m for n > m, where T_n leads from
    point n - 1 to point n. For blocks p = h, q = g and T = Phi. As in ``laplex._quasisep``, A + diag = L diag(d) L^T,
    with ones on the diagonal of L and L_nm = p_n^T T_n ... T_{m+1} w_m for n > m:

        S_0 = 0,     c_n = q_n - S_n p_n,     d_n = diag_n + p_n^T c_n,     w_n = c_n / d_n
        S_{n+1} = T_{n+1} (S_n + c_n c_n^T / d_n) T_{n+1}^T

    and z = L^-1 y is

        f_0 = 0,     z_n = y_n - p_n^T f_n,     f_{n+1} = T_{n+1} (f_n + w_n z_n)

    With them y^T A^-1 y is the sum of z^2 / d, and log det A that of log d. This is the Kalman filter: p_n^T f_n is the
    mean of y_n, given the values before, and d_n its variance. The subtraction loses what every Cholesky factorisation
    loses: errors of the size of eps A_nn in d_n, and so of about eps times the sum of A_nn / d_n in log det A. One
    state needs no subtraction: with P = g - S,

        P_n = e^{-2aD} Q_{n-1} + g (1 - e^{-2aD}),     d_n = P_n + diag_n,     Q_n = P_n diag_n / d_n

The smoother
    At a point where nothing is observed diag and d are infinite, and nothing is added to S and f. The process, without
    noise, given all observations has at every point the mean and variance

        p^T f + c^T r        p^T c - c^T N c

    where r (s,) and N (s, s) collect the information from the point itself and those after it, from the last point to
    the first:

        r_n = p_n z_n / d_n + J_{n+1}^T r_{n+1}        N_n = p_n p_n^T / d_n + J_{n+1}^T N_{n+1} J_{n+1}

    with J_{n+1} = T_{n+1} (I - w_n p_n^T). The same J moves f, f_{n+1} = J_{n+1} f_n + T_{n+1} w_n y_n.

Literature
    J. Hartikainen, S. Sarkka, Kalman filtering and smoothing solutions to temporal Gaussian process regression models,
        IEEE International Workshop on Machine Learning for Signal Processing (2010): kernels as state-space models.
    D. Foreman-Mackey, E. Agol, S. Ambikasaran, R. Angus, Fast and scalable Gaussian process modeling with applications
        to astronomical time series, The Astronomical Journal 154 (2017) 220, arXiv:1703.09710: celerite.
    J. Durbin, S. J. Koopman, Time Series Analysis by State Space Methods, 2nd ed., Oxford (2012): the smoother with r
        and N.
"""
