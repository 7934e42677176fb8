"""What laplex is compared with: small, tested and importable.

heads         layers of equal parameters: low rank, Kronecker sums, projections with a dense head
sketch        projections: CountSketch, Gaussian, principal components
rff           random Fourier features of the Laplace kernel
toeplitz      products with evenly spaced anchors by FFT
logcumsumexp  products in the log domain: the paper's portable path
gaussian      densities with a dense factor: trained low rank, probabilistic PCA
empirical     the full empirical Gaussian with a ridge
"""
