"""One copy of the input: a yardstick for memory traffic. It computes nothing."""

from collections.abc import Callable

from torch import Tensor


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Ignore the kernel: a copy has none."""
    del a, b, tau
    return Tensor.clone
