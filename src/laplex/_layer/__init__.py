r"""A layer's product y = x W^T + bias with W = sum over r of mix_r K_r, as one node of autograd's graph.

Every node takes as long as several launches: that includes views, conversions and a sum over rows. So a layer's
training step computes the result of ``laplex.linear`` and an addition in one node, if its backend can. With g for the
cotangent of y, E for the one kernel of a scan, S for its odd part (``laplex._scan``), and t, s for a and b:

    x_bar   = mix E^T g                              bias_bar = sum over rows of g
    t_bar   = mix / tau sum over rows of g * S x     s_bar    = mix / tau sum over rows of x * S^T g
    mix_bar = <g, E x> = <x, E^T g>                  tau_bar  = mix / tau sum over rows of g * A_1 x

A layer may multiply the gradients of its parameters by ``Factors``: they precondition gradient descent, as different
units for the parameters would. The factors act only on gradients, so that every value stays as it is.

    inputs.py    what goes into a step, and the factors
    scaled.py    tensors whose gradients are multiplied by a factor
    product.py   the step, and the same computed by functions that have all derivatives
"""
