"""Products with matrices whose anchors are spread over processes, on torch.distributed."""

from laplex.distributed._functional import linear as linear
from laplex.distributed._plan import Plan as Plan

__all__ = ["Plan", "linear"]
