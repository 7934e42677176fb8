"""Figures of the paper's operator benchmarks, from its captions and text; `paper.experiments.published` has the rest.

The plots themselves came without their data, so a curve has the points that are named in words, and no others. Times
are in milliseconds and memory is in bytes. The paper's GPU is an NVIDIA H100.
"""

from __future__ import annotations

MB, GB = 1e6, 1e9

# Figure 15: one vector, n = k. "About 0.34 ms for n <= 2^19" is given as its two ends.
RUNTIME_MS = {1 << 10: 0.34, 1 << 19: 0.34, 1 << 29: 704.0}
RUNTIME_BYTES = {1 << 10: 64 * MB, 1 << 29: 41 * GB}
DENSE_RUNTIME_MS = {1 << 16: 155.0}
DENSE_RUNTIME_BYTES = {1 << 10: 80 * MB, 1 << 16: 65 * GB}

# Figures 8 and 3: 8 vectors, n = k. "Flat at about 1 ms below 2^17".
BATCH8_FORWARD_MS = {1 << 10: 1.0, 1 << 16: 1.0}
BATCH8_BOTH_MS = {1 << 20: 71.0}
BATCH8_BYTES = {1 << 20: 320 * MB}
BATCH8_SIZE = 1 << 14  # where the dense product is compared
BATCH8_RATIOS = {"forward": 65.0, "forward and backward": 430.0, "peak memory": 100.0}

# Figure 9: relative errors against float64, n = k = 2^10 to 2^14, 8 vectors.
ACCURACY_L2, ACCURACY_LARGEST = 1.5e-7, 5e-7
ACCURACY_SIZE, ACCURACY_DENSE_FACTOR = 1 << 14, 2.0  # dense is 2 to 5 times worse there

# Figure 10: n = k = 2^14.
BATCHES_SIZE, BATCHES_MOST = 1 << 14, 256
BATCHES_DENSE_BOTH_MS = 1400.0

# Figure 11: one side 1024, 8 vectors assumed as in its other figures; times of n = 1024 over k.
ASYMMETRIC_MS = {1 << 10: 1.1, 1 << 17: 1.1, 1 << 20: 7.0}
ASYMMETRIC_DENSE_MS = {1 << 18: 91.0}
ASYMMETRIC_SIZE, ASYMMETRIC_RATIO = 1 << 18, 37.0  # 37 to 47 times faster than dense there

# Figure 12: n = 1024, over k.
GRAM_SIZE = 1 << 17
GRAM_MS, GRAM_DENSE_MS = {GRAM_SIZE: 1.45}, {GRAM_SIZE: 216.0}
GRAM_BYTES, GRAM_DENSE_BYTES = {GRAM_SIZE: 33 * MB}, {GRAM_SIZE: 1.0 * GB}
GRAM_RATIO = 149.0

# Figure 13: one vector, n = k = 2^10 to 2^14.
CPU_SIZE = 1 << 14
CPU_MS, CPU_DENSE_MS = {CPU_SIZE: 6.0}, {1 << 10: 0.7, CPU_SIZE: 662.0}
CPU_RATIO = 108.0

# Figure 14: LAPLEX takes 4 times as long as a Toeplitz product by FFT at 2^20.
FFT_SIZE, FFT_RATIO = 1 << 20, 4.0

# Figure 17: one thread, at n = 2^18.
CPU_FFT_SIZE = 1 << 18
CPU_FFT_MS = {"laplex": 64.0, "toeplitz": 6.0, "fft": 0.65}

# Figure 16: the largest relative error at n = 2^14 on a uniform grid.
GRID_SIZE = 1 << 14
GRID_LARGEST = {"laplex": 4.2e-7, "toeplitz": 4.4e-7, "dense": 1.1e-6}

# Figure 6.
RFF_SIZE, RFF_FEATURES = 1 << 16, 1024
RFF_LAPLEX_MS = 0.5
RFF_CROSSOVER = 16  # features that take as long as LAPLEX
RFF_RATIO = 75.0  # times as long take so many features, whose error is below a tenth
RFF_VALUE_FALL, RFF_GRADIENT_FALL = 57.0, 26.0  # from D = 1 to 2048; Figure 18

# Figure 21: mean RMSE of ten held-out images, by the number of components.
RECONSTRUCTION_RMSE = {1: 0.119, 2: 0.105, 3: 0.102}
