r"""Sums of the kernel of sorted numbers with themselves: soft ranks, sorts, masks and their gradients, fused.

One call does all of forward, another one all of the first backward.

Let s_0 <= ... <= s_{n-1} be a row of numbers in order, u_ij = |s_i - s_j| / tau and K = exp(-u). Rows and columns of K
are the same numbers, sorted once, so nothing is merged, and place i reads the states of its own place:

    L_i = sum over j <= i of exp(-u_ij)       R_i = sum over j >= i of exp(-u_ij)
    p_i = sum over j <= i of u_ij exp(-u_ij)  q_i = sum over j >= i of u_ij exp(-u_ij)

with E_i = L_i + R_i - 1, the sum of row i, and D_i = q_i - p_i. ``laplex._scan`` derives the recurrence of such states.

**Ranks**, from 1 on. F(u) is 1 - exp(-u) / 2 for numbers before i and exp(-u) / 2 for those after it, and 1/2 for ties
either way:

    rank_i = 1 + i + (R_i - L_i) / 2          x_bar_i = sum over j of K_ij (g_i - g_j) / (2 tau)

**Sorted values**. P = K / E, and P s is measured from s_i, so that the size of the numbers does not matter:

    y_i = s_i + tau D_i / E_i

Their gradient. K_ij depends on s_i as a target and on s_j as a source; the sign of a tie is 0. Write w = g / E,
z = w D / E, A_1 for K weighted by u, and C_i = (p_i + q_i - O_i D_i / E_i) / E_i with O = R - L without ties:

    s_bar_j = (K w)_j - (A_1 w)_j + (sum of K z over s_i < s_j) - (sum over s_i > s_j) + g_j C_j

**Masks**. p_i = F((x_i - b) / tau) with the b for which their sum is k, in closed form from L and R at two neighbours
(``laplex.soft._threshold``). With f_i = exp(-|x_i - b| / tau) / (2 tau) and q = f / sum of f,

    k_bar = sum of q g        x_bar_i = f_i (g_i - k_bar)        tau_bar = sum of f g (sum of q u - u)

A module of a backend has ``ranks``, ``pull_ranks``, ``values``, ``pull_values``, ``mask`` and ``pull_mask``. Rows are
(*batch, n), contiguous, in float32 or float64, tau and k (*batch), contiguous, in float64; sums are float64. A
pull returns a tuple of gradients. These functions have first derivatives only: ``laplex.soft`` composes the same ones
from scans, which have all derivatives, and takes these where it can.
"""
