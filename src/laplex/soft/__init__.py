"""Soft sorting, ranks, top-k and quantiles, exact, differentiable and in O(n log n).

    values, P = laplex.soft.sort(x, tau=0.1)
    laplex.soft.rank(x, tau=0.1)
    laplex.soft.topk_mask(x, k=10, tau=0.1)
    laplex.soft.quantile(x, 0.9, tau=0.1)

tau is in the units of x. Nothing of size n x n is made, and nothing is squashed.
"""

from laplex.soft._losses import cross_entropy, ndcg, quantile_normalize, spearman
from laplex.soft._permutation import SoftPermutation
from laplex.soft._permutation import TransposedPermutation as TransposedPermutation  # pickled by this name
from laplex.soft._rank import rank
from laplex.soft._sort import Sorted, argsort, sort, topk
from laplex.soft._threshold import median, quantile, topk_mask

__all__ = [
    "SoftPermutation",
    "Sorted",
    "argsort",
    "cross_entropy",
    "median",
    "ndcg",
    "quantile",
    "quantile_normalize",
    "rank",
    "sort",
    "spearman",
    "topk",
    "topk_mask",
]
