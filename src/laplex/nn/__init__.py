"""Layers, projections and routing made of Laplace-kernel matrices."""
