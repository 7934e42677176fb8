"""What can be called and timed, and how far what it returns is from the truth."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from benchmarks import oracle
from benchmarks.inputs import Inputs

GRAM_ROWS = 64  # of a Gram matrix looked at: a row is as much work as the whole of a product
Call = Callable[[], Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Runnable:
    """A call, and the problem it claims to solve (None: a yardstick), or a judge of its own of what it returns."""

    call: Call
    solves: Inputs | None = None
    backend: str | None = None  # laplex's
    gram: bool = False  # a Gram matrix, not a product
    judge: Callable[..., float] | None = None

    def error(self, sample: int) -> float | None:
        """The relative l2 error of one call over up to `sample` rows; of gradients, that of the worst."""
        if self.judge is not None:
            return self.judge(self.call())
        if self.solves is None:
            return None
        got, inputs = self.call(), self.solves
        rows = oracle.rows_to_check(len(inputs.a), sample, inputs.a.device)
        if self.gram:
            rows = oracle.rows_to_check(len(inputs.a), min(sample, GRAM_ROWS), inputs.a.device)
            return oracle.relative_error(got[:, rows], oracle.gram(inputs, rows))  # type: ignore[call-overload]
        if isinstance(got, Tensor):
            return oracle.relative_error(got[:, rows], oracle.product(inputs, rows))
        cols = oracle.rows_to_check(len(inputs.b), sample, inputs.b.device)
        grad_x, grad_a, grad_b = got
        picked = grad_x[:, cols], grad_a[rows], grad_b[cols]
        return max(map(oracle.relative_error, picked, oracle.gradients(inputs, rows, cols)))
