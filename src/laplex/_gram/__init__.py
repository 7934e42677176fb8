r"""The weighted Gram matrix M = K diag(w) K^T, made of sums over the columns.

For one matrix, one weight and a_i >= a_j, with D = exp(-(a_i - a_j) / tau),

    M_ij = D (U_j + (W_i - W_j) + V_i)        U_j = sum over b < a_j of exp(-2 (a_j - b) / tau) w      left
                                              V_i = sum over b > a_i of exp(-2 (b - a_i) / tau) w      right
                                              W_i = sum over b < a_i of w

where a b that ties with an anchor counts half on each side, in U, V and W alike. So with E, S of ``laplex._scan`` at
half of tau, U = (E - S) w / 2 and V = (E + S) w / 2. With S of an endless tau, at which nothing decays, W_i - W_j =
(S_j - S_i) w / 2, because L + R is then the same everywhere.

W_i - W_j cancels: where a spans many tau, or lies far from b, an error of eps times the total mass is larger than M
itself. So W must be exact. Each weight is split into a high and a low part, both so coarse that sums of either are
never rounded: the mass between two anchors then does not depend on the weights elsewhere, and is 0 if there is none.
What is dropped is less than 16 k^2 2^-104 of the largest weight.

With phases cos(phi_i - psi) cos(phi_j - psi) = [cos(phi_i - phi_j) + cos(phi_i + phi_j - 2 psi)] / 2, so

    M = 1/2 [cos(phi_i - phi_j) M(w) + cos(phi_i + phi_j) M(w cos 2 psi) + sin(phi_i + phi_j) M(w sin 2 psi)]

gives three channels of weights; without phases there is one. The tensors, all float64:

    weight     (h, m, channels, k)
    sums       (h, m, channels, 4, n)     U, V, and the high and the low part of W
    direction  (h, 2, n)                  cos phi, sin phi; (h, 0, n) without phases

The derivative, for a cotangent g of M and G = g + g^T off the diagonal, g on it. With P the cosines and sines above,
every pair contributes ("pulls with") q = G_ij D P_ij at U_j and V_i, q at W_i and -q at W_j. Where a_i = a_j the roles
of i and j are free: half of q goes each way. So the pull at W is that at V less that at U:

    gU_i = sum of q over j right of i       gV_i = sum of q over j left of i        gW = gV - gU

The half ties decay like all other terms, dU/da = -2 U / tau and dV/da = 2 V / tau. Together with D, the two halves of
a b that ties with a_i then contribute 0 to the derivative, as the definition demands. So the anchors are pulled with

    a_i: 1/tau sum of q (V_i - U_j - (W_i - W_j))       a_j: 1/tau sum of q (V_i - U_j + (W_i - W_j))

and the columns by the transposed scan, because the sum right of b is (E + S) / 2 and the sum left of it (E - S) / 2:

    w_bar = 1/2 [E (gU + gV) + S (gU - gV)] + 1/2 S_endless (gV - gU)          (E_endless gW = sum of gW = 0)
    b_bar = w / tau [E (gU - gV) + S (gU + gV)]                                  summed over weights and channels

Beyond the outermost a the endless sum is 0; it is set to 0, not computed. tau changes D, U and V. These terms do not
cancel, however far apart the anchors lie. With U_1 and V_1 for U and V with u exp(-u) in place of exp(-u),
u = 2 |a - b| / tau,

    tau_bar = 1/tau [ sum over pairs of q |a_i - a_j| / tau (U_j + W_i - W_j + V_i)  +  gU . U_1  +  gV . V_1 ]
"""
