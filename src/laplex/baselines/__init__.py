"""What LAPLEX is compared with, as plain PyTorch modules: other heads with few parameters, other projections."""
