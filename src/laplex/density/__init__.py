"""Gaussian densities over very many numbers, such as the pixels of images."""

from laplex.density._em import State as State
from laplex.density._em import em_round as em_round
from laplex.density._examples import Examples as Examples
from laplex.density._factor import FactorGaussian as FactorGaussian
from laplex.density._gaussian import LaplexGaussian as LaplexGaussian
from laplex.density._gaussian import PlacedGaussian as PlacedGaussian
from laplex.density._structured import StructuredGaussian as StructuredGaussian

__all__ = [
    "Examples",
    "FactorGaussian",
    "LaplexGaussian",
    "PlacedGaussian",
    "State",
    "StructuredGaussian",
    "em_round",
]
