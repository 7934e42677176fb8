r"""Likelihoods, factors and predictions of Gaussian processes with a state-space kernel, exact and in O(n s^2).

This file holds the mathematics; the code is in

    blocks.py              the blocks of a kernel
    torch.py               the recursions as loops of differentiable tensor operations
    cpp.py                 the same in C++ (csrc/states*.cpp), with a pullback written by hand
    autograd.py            the likelihood, which uses C++ where it can, and its derivatives

Definition
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

The factor
    K_nm = h^T Phi(t_n - t_m) g for n >= m is quasiseparable (``laplex._quasisep``) with p = h, q = g and T = Phi, so that
    A = K + diag = L diag(d) L^T, with ones on the diagonal of L and L_nm = h^T Phi(t_n - t_m) w_m for n > m:

        S_0 = 0,     d_n = k(0) + diag_n - h^T S_n h,     w_n = (g - S_n h) / d_n
        S_{n+1} = Phi_{n+1} (S_n + d_n w_n w_n^T) Phi_{n+1}^T

    and z = L^-1 y is

        f_0 = 0,     z_n = y_n - h^T f_n,     f_{n+1} = Phi_{n+1} (f_n + w_n z_n)

    With them y^T A^-1 y is the sum of z^2 / d, and log det A that of log d.

    This is the Kalman filter: h^T f_n is the mean of y_n, given the values before, and d_n its variance. The subtraction
    loses what every Cholesky factorisation loses. One state needs none: with P = g - S,

        P_n = e^{-2aD} Q_{n-1} + g (1 - e^{-2aD}),     d_n = P_n + diag_n,     Q_n = P_n diag_n / d_n

The smoother
    At some points nothing is observed. There S and f take the step Phi, and nothing is added. The process, without noise,
    given all observations has at every point the mean and variance

        h^T f + u^T r        h^T u - u^T N u        u = g - S h

    where r (s,) and N (s, s) collect what the point itself and those after it tell, from the last point to the first:

        r <- h z / d + (I - h w^T) r        N <- h h^T / d + (I - h w^T) N (I - w h^T)        at an observed point
        r <- Phi^T r                        N <- Phi^T N Phi                                  before the step

    The mean of block i alone is h_i^T f + u_i^T r with u_i = g_i - S h_i, where h_i and g_i are the parts of h and g in
    the block (csrc/states_smooth.cpp has the reason).

Literature
    J. Hartikainen, S. Sarkka, Kalman filtering and smoothing solutions to temporal Gaussian process regression models,
        IEEE International Workshop on Machine Learning for Signal Processing (2010): kernels as state-space models.
    D. Foreman-Mackey, E. Agol, S. Ambikasaran, R. Angus, Fast and scalable Gaussian process modeling with applications
        to astronomical time series, The Astronomical Journal 154 (2017) 220, arXiv:1703.09710: celerite.
    J. Durbin, S. J. Koopman, Time Series Analysis by State Space Methods, 2nd ed., Oxford (2012): the smoother with r
        and N.
"""

from laplex._states.blocks import Blocks

__all__ = ["Blocks"]
