r"""Products with phases, K[i, j] = exp(-|t_i - s_j| / tau) cos(phi_i - psi_j), made of products without.

This file holds the mathematics; the code is in

    composition.py    the product as two stacked operands of one scan, in pointwise torch: every backend, every order
    autograd.py       the product as one Function, fused in backends that can (``Backend.phased``)

Because cos(phi - psi) = cos phi cos psi + sin phi sin psi, an operand x has two *channels*, x cos psi and x sin psi,
which go through the same scan as more rows. With E_c, E_s for the even sums of the two channels (``laplex._scan``),
O_c, O_s for the odd sums, and P_c, P_s for the sums weighted by distance (degree 1), at target i

    y_i = cos phi_i E_c + sin phi_i E_s

The derivative, for a cotangent g of y. The targets' side reads the channels of x, summed over rows:

    t_bar_i   = 1/tau sum of g_i ( cos phi_i O_c + sin phi_i O_s)
    phi_bar_i =       sum of g_i (-sin phi_i E_c + cos phi_i E_s)

K is transposed by swapping (t, phi) with (s, psi), so the sources' side reads the channels of g, which are g cos phi
and g sin phi, in the same way. With H, Q and Z for the even, the odd and the weighted sums of these at source j,

    x_bar_j   = cos psi_j H_c + sin psi_j H_s
    s_bar_j   = 1/tau sum of x_j ( cos psi_j Q_c + sin psi_j Q_s)
    psi_bar_j =       sum of x_j (-sin psi_j H_c + cos psi_j H_s)

Either side gives the gradient of tau; a backend takes the cheaper one:

    tau_bar = 1/tau sum over rows and targets of g_i (cos phi_i P_c + sin phi_i P_s)
            = 1/tau sum over rows and sources of x_j (cos psi_j Z_c + sin psi_j Z_s)
"""
