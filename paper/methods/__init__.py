"""What laplex is compared with: small, tested and importable.

heads         layers of equal parameters: low rank, Kronecker sums, projections with a dense head
layers        linear maps inside networks: those, Monarch matrices and block tensor trains
sketch        projections: CountSketch, principal components
rff           random Fourier features of the Laplace kernel
products      products K x: dense, Toeplitz-FFT, celerite2, KeOps, the paper's portable path, and yardsticks
gaussian      densities with a dense factor: trained low rank, probabilistic PCA
empirical     the full empirical Gaussian with a ridge
"""
