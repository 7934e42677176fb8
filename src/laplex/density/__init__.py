"""Gaussian densities over very many numbers, such as the pixels of images."""

from laplex.density import images as images
from laplex.density._anneal import annealed as annealed
from laplex.density._em import State as State
from laplex.density._em import em_round as em_round
from laplex.density._examples import Examples as Examples
from laplex.density._factor import FactorGaussian as FactorGaussian
from laplex.density._fit import Evaluation as Evaluation
from laplex.density._fit import Fitted as Fitted
from laplex.density._fit import Round as Round
from laplex.density._fit import evaluate as evaluate
from laplex.density._fit import fit as fit
from laplex.density._gaussian import LaplexGaussian as LaplexGaussian
from laplex.density._gaussian import PlacedGaussian as PlacedGaussian
from laplex.density._starts import start as start
from laplex.density._structured import StructuredGaussian as StructuredGaussian
from laplex.density._train import Trainer as Trainer

__all__ = [
    "Evaluation",
    "Examples",
    "FactorGaussian",
    "Fitted",
    "LaplexGaussian",
    "PlacedGaussian",
    "Round",
    "State",
    "StructuredGaussian",
    "Trainer",
    "annealed",
    "em_round",
    "evaluate",
    "fit",
    "images",
    "start",
]
