"""Sums weighted by distance, for the gradient of tau."""
