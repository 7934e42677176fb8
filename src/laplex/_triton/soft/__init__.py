"""Soft ranks, sorts and masks of rows: ``laplex._sorted`` in Triton."""
