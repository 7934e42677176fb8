"""Sums of kernel matrices, formed: W = sum over q of w_q K_q once, for torch to multiply, and its pullback."""
