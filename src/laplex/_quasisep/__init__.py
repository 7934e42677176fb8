r"""Solves, determinants and triangular factors of symmetric quasiseparable matrices, in O(n).

This file holds the mathematics; the code is in

    arrays.py              the arrays that the operators read and write, with their shapes
    ops.py                 the five operators that PyTorch sees: schemas, shapes, registrations
    torch.py, cpp.py       the operators' implementations: the same functions in the same order
    autograd.py            derivatives
    systems.py             how K and the Gram matrices become quasiseparable matrices

Definition
    The points are sorted, and i, j = 0 .. n - 1 count them in that order. A symmetric n x n matrix A is quasiseparable
    of order r if there are p_i, q_i in R^r, transitions T_i in R^(r x r) and numbers diag_i with

        A_ij = p_i^T T_i T_{i-1} ... T_{j+1} q_j     for i > j
        A_ii = p_i^T q_i + diag_i
        A_ij = A_ji                                  for i < j

    p, q, T and diag are the *generators* of A. T_i leads from point i - 1 to point i; nothing leads to point 0, so T_0
    is not used (the code sets rho_0 = 0). For n = 4 the lower triangle is

        [ p_0^T q_0 + diag_0                                                                             ]
        [ p_1^T T_1 q_0           p_1^T q_1 + diag_1                                                     ]
        [ p_2^T T_2 T_1 q_0       p_2^T T_2 q_1         p_2^T q_2 + diag_2                               ]
        [ p_3^T T_3 T_2 T_1 q_0   p_3^T T_3 T_2 q_1     p_3^T T_3 q_2           p_3^T q_3 + diag_3       ]

    All that points 0 .. i - 1 contribute to row i passes through a state of r numbers, T_i (...), which is why one walk
    over the points is enough for a product, a factorisation or a solve.

The symmetric K(a, a)
    Let t be the anchors in order and rho_i = exp(-(t_i - t_{i-1}) / tau). For i >= j the distances add up, so the
    decays multiply:

        K_ij = exp(-(t_i - t_j) / tau) = rho_i rho_{i-1} ... rho_{j+1}          p_i = q_i = 1,  T_i = rho_i,  r = 1

    With phases K_ij has the factor cos(phi_i - phi_j) = e_i^T e_j, where e_i = (cos phi_i, sin phi_i):

        p_i = q_i = e_i,   T_i = rho_i I,   r = 2

The Gram matrix M = K diag(w) K^T
    M_ij = sum over l of w_l exp(-|a_i - b_l| / tau) exp(-|a_j - b_l| / tau). Take a_i >= a_j. A column b_l lies

        left of both      (a_i - b) + (a_j - b) = (a_i - a_j) + 2 (a_j - b)
        between them      (a_i - b) + (b - a_j) = (a_i - a_j)
        right of both     (b - a_i) + (b - a_j) = (a_i - a_j) + 2 (b - a_i)

    so that in all three cases exp(-(a_i - a_j) / tau) is a factor, and

        M_ij = exp(-(a_i - a_j) / tau) (U_j + W_ij + V_i)

        U_j  = sum of w_l exp(-2 (a_j - b_l) / tau)  over the b_l left of a_j
        W_ij = sum of w_l                            over the b_l between a_j and a_i
        V_i  = sum of w_l exp(-2 (b_l - a_i) / tau)  over the b_l right of a_i

    A b_l that is equal to an anchor counts half on each side of it. U and V are the half sums of a product with
    K(a, b) at tau / 2. W_ij is the sum of the masses W_k of the gaps before points k = j + 1 .. i, and shears add:

        [1  W_i] [1  W_{i-1}]     [1  W_{j+1}]   [1  W_ij]
        [0   1 ] [0     1   ] ... [0     1   ] = [0    1 ]

        (1, V_i) [[1, W_ij], [0, 1]] (U_j, 1)^T = U_j + W_ij + V_i

    Hence M is quasiseparable of order 2:

        p_i = (1, V_i),   q_j = (U_j, 1),   T_i = exp(-gap_i / tau) [[1, W_i], [0, 1]],   gap_i = a_i - a_{i-1}

    With phases, w_l becomes the 2 x 2 matrix w_l (cos psi_l, sin psi_l) (cos psi_l, sin psi_l)^T, and U, V and W become
    sums of such matrices, which are symmetric. Then M_ij = exp(..) e_i^T (U_j + W_ij + V_i) e_j, and the order is 4:

        p_i = (e_i, V_i e_i),   q_j = (U_j e_j, e_j),   T_i = exp(-gap_i / tau) [[I, W_i], [0, I]]

    For w >= 0 every one of these sums has terms of one sign: the generators have no cancellation.

The factor
    A = L diag(d) L^T, where L is lower triangular with ones on its diagonal. L is quasiseparable with the same p and T:

        L_ij = p_i^T T_i ... T_{j+1} z_j     for i > j

    Insert this into A_ij = (sum over k < j of L_ik d_k L_jk) + L_ij d_j, for i >= j. Every term of the sum has the
    factor p_i^T T_i ... T_{j+1} on the left and p_j on the right. What remains is an r x r matrix S_j, and

        S_0 = 0,     S_j = T_j (S_{j-1} + d_{j-1} z_{j-1} z_{j-1}^T) T_j^T
        c_j = q_j - S_j p_j,     d_j = diag_j + p_j^T c_j,     z_j = c_j / d_j

    A is positive definite just when all d_j > 0, and log det A is the sum of log d_j. C = L diag(d)^1/2 is the Cholesky
    factor. The subtraction in c loses what every Cholesky factorisation loses, rounding errors of the size of A_jj.

    For K itself the subtraction can be avoided. There q = p has length 1 and T = rho I, so with P = I - S

        P_j = rho_j^2 P+_{j-1} + (1 - rho_j^2) I,     c_j = P_j p_j,     d_j = diag_j + p_j^T c_j
        P+_j = P_j - c_j c_j^T / d_j

    and P+ can be written without a difference, too. This needs 1 - rho^2 to full precision, so for K the code stores
    rho - 1 = expm1(-gap / tau), not rho.

Products and solves with L
    With the state f_0 = 0, f_i = T_i (f_{i-1} + z_{i-1} x_{i-1}):

        y = L x:     y_i = x_i + p_i^T f_i           x = L^-1 y:     x_i = y_i - p_i^T f_i

    L^T and L^-T are the same walk from the last point to the first, with p and z swapped and T transposed.
    A^-1 y = L^-T diag(d)^-1 L^-1 y.

Literature
    Y. Eidelman, I. Gohberg, On a new class of structured matrices, Integral Equations and Operator Theory 34 (1999)
        293-324: quasiseparable matrices, and their inversion in linear time.
    D. Foreman-Mackey, E. Agol, S. Ambikasaran, R. Angus, Fast and scalable Gaussian process modeling with applications
        to astronomical time series, The Astronomical Journal 154 (2017) 220, arXiv:1703.09710: celerite, with the
        recursion of the factor for sums of exponentials with phases.
    D. Foreman-Mackey, Scalable backpropagation for Gaussian processes using celerite, Research Notes of the AAS 2
        (2018) 31, arXiv:1801.10156: the gradients of that recursion, as in celerite2
        (https://celerite2.readthedocs.io).
    D. Foreman-Mackey, tinygp (https://tinygp.readthedocs.io): Gaussian processes by quasiseparable matrices in JAX.
    S. Sarkka, A. F. Garcia-Fernandez, Temporal parallelization of Bayesian smoothers, IEEE Transactions on Automatic
        Control 66 (2021) 299-306, arXiv:1905.13002: the recursion by a parallel scan, as in torch.py.
"""
