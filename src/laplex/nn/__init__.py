"""Neural network parts whose weights are Laplace-kernel matrices."""

from laplex.nn.linear import LaplexLinear as LaplexLinear

__all__ = ["LaplexLinear"]
