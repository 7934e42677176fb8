"""Gram matrices, and their gradients."""
