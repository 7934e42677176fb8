"""What can be called and timed, and how far what it returns is from the truth."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from laplex import testing
from laplex.testing import Problem

GRAM_ROWS = 64  # of a Gram matrix looked at: a row is as much work as the whole of a product
Call = Callable[[], Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Runnable:
    """A call, and the problem it claims to solve (None: a yardstick), or a judge of its own of what it returns."""

    call: Call
    solves: Problem | None = None
    backend: str | None = None  # laplex's
    gram: bool = False  # a Gram matrix, not a product
    judge: Callable[..., float] | None = None

    def error(self, sample: int) -> float | None:
        """The relative l2 error of one call over up to `sample` rows; of gradients, that of the worst."""
        if self.judge is not None:
            return self.judge(self.call())
        if self.solves is None:
            return None
        got, problem = self.call(), self.solves
        rows = testing.sample(len(problem.a), sample, problem.a.device)
        if self.gram:
            rows = testing.sample(len(problem.a), min(sample, GRAM_ROWS), problem.a.device)
            return testing.relative_error(got[:, rows], testing.gram(problem, rows))  # type: ignore[call-overload]
        if isinstance(got, Tensor):
            return testing.relative_error(got[:, rows], testing.product(problem, rows))
        cols = testing.sample(len(problem.b), sample, problem.b.device)
        grad_x, grad_a, grad_b = got
        picked = grad_x[:, cols], grad_a[rows], grad_b[cols]
        truth = testing.gradients(problem, rows, cols)
        return max(map(testing.relative_error, picked, (truth["x"], truth["a"], truth["b"])))
