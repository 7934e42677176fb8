"""Neural network parts whose weights are Laplace-kernel matrices.

LaplexLinear        in place of nn.Linear: a weighted sum of kernels
LaplexProjection    many features to few, frozen or trained
SpreadLinear        a layer whose features are spread over processes
LaplaceAttention    attention by distances on a line, in O(n log n)
laplace_attention   the same for given queries, keys and values
replace_linear      replaces the dense layers of a model
parametrize         puts kernels behind a weight of any other module
parameter_groups    for optimizers: anchors may have a learning rate of their own
reseat_step         lets a layer's anchors jump during training
routing             what kernels become as tau tends to 0: permutations and sketches
"""

from laplex.nn import routing as routing
from laplex.nn._attention import LaplaceAttention as LaplaceAttention
from laplex.nn._attention import laplace_attention as laplace_attention
from laplex.nn._groups import parameter_groups as parameter_groups
from laplex.nn._linear import LaplexLinear as LaplexLinear
from laplex.nn._parametrize import parametrize as parametrize
from laplex.nn._projection import LaplexProjection as LaplexProjection
from laplex.nn._replace import Remainder as Remainder
from laplex.nn._replace import Replacement as Replacement
from laplex.nn._replace import Replacements as Replacements
from laplex.nn._replace import replace_linear as replace_linear
from laplex.nn._reseat_step import reseat_step as reseat_step
from laplex.nn._spread import SpreadLinear as SpreadLinear

__all__ = [
    "LaplaceAttention",
    "LaplexLinear",
    "LaplexProjection",
    "Remainder",
    "Replacement",
    "Replacements",
    "SpreadLinear",
    "laplace_attention",
    "parameter_groups",
    "parametrize",
    "replace_linear",
    "reseat_step",
    "routing",
]
