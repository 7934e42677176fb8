r"""Products with the matrix formed, and multiplied by like any other matrix, with exact sums.

At the sizes of layers, a thousand features and hundreds of rows, the fastest exact product writes the matrix once,

    W = sum over q of w_q K_q,      K_q[i, j] = exp(-u) cos(phi_qi - psi_qj),      u = |t_qi - s_qj| / tau_q

and multiplies: y = x W^T, where float32 sums are carried in float64, or in blocks that are added so. The r matrices of
a sum exist only in registers, so the memory is that of W, whatever r is; backward has W, its gradient G = dL/dW, which
is also a product, and partial sums, at most as many numbers.
With c and d for the cosine and the sine of phi_qi - psi_qj:

    t_bar_qi   = w_q / tau_q sum over j of G_ij sign(s_qj - t_qi) exp(-u) c       s_bar: the opposite, summed over i
    tau_bar_q  = w_q / tau_q sum over i, j of G_ij u exp(-u) c
    w_bar_q    = sum over i, j of G_ij exp(-u) c
    phi_bar_qi = -w_q sum over j of G_ij exp(-u) d                                psi_bar: the opposite, summed over i

Every entry is visited once forwards and once backwards, which is r n k exponentials; a sum over the rows of x costs no
more than in any other matrix product. The scan (``laplex._scan``) visits r m (n + k) points instead, for m rows of x.

    kernels.py     the r matrices that are summed, and which gradients are needed
    autograd.py    x W^T as a differentiable function
    matrix.py      W as a differentiable tensor
    ops.py         the operators that PyTorch sees
    torch.py       plain torch, any device; the definition for derivatives of derivatives
    cpp.py         the compiled core; ``laplex._triton.formed`` has the GPU's
"""
