"""Neural network parts whose weights are Laplace-kernel matrices.

LaplexLinear        in place of nn.Linear: a weighted sum of kernels
replace_linear      swaps the dense layers of a model
reseat_step         lets a layer's anchors jump during training
"""

from laplex.nn._linear import LaplexLinear as LaplexLinear
from laplex.nn._replace import Replacement as Replacement
from laplex.nn._replace import Replacements as Replacements
from laplex.nn._replace import replace_linear as replace_linear
from laplex.nn._reseat_step import reseat_step as reseat_step

__all__ = ["LaplexLinear", "Replacement", "Replacements", "replace_linear", "reseat_step"]
