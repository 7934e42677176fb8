"""Gaussian processes over time, exact and in O(n): likelihoods, predictions, samples, and all their derivatives.

    kernel = laplex.gp.Matern32(scale=2.0, sigma=1.5) + laplex.gp.SHO(period=3.0, quality=10.0)
    process = laplex.gp.GaussianProcess(kernel, t, yerr=0.1)
    process.log_likelihood(y)
    mean, variance = process.predict(y, new_times, return_var=True)

The times may be in any order, irregular, and equal. ``laplex._states`` has the mathematics.
"""

from laplex.gp._conditional import Conditional
from laplex.gp._distribution import ProcessDistribution
from laplex.gp._fit import Fitted, fit, fixed, trainable
from laplex.gp._kernel import Kernel, Product, Scale, Sum
from laplex.gp._kernels import SHO, Celerite, Constant, Cosine, Exponential, Linear, Matern32, Matern52, Rotation
from laplex.gp._process import GaussianProcess, Prediction
from laplex.gp._systems import CARMA, Bands, StateSpace

__all__ = [
    "CARMA",
    "SHO",
    "Bands",
    "Celerite",
    "Conditional",
    "Constant",
    "Cosine",
    "Exponential",
    "Fitted",
    "GaussianProcess",
    "Kernel",
    "Linear",
    "Matern32",
    "Matern52",
    "Prediction",
    "ProcessDistribution",
    "Product",
    "Rotation",
    "Scale",
    "StateSpace",
    "Sum",
    "fit",
    "fixed",
    "trainable",
]
