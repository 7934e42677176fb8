"""What laplex is compared with, as plain PyTorch: other projections, other ways to the same kernel.

sketch     CountSketch, Gaussian random projections, principal components
rff        random Fourier features of the Laplace kernel
toeplitz   the product on an even grid, by FFT
"""
