"""A sum over the items of a step, saved to the disk after each of them, so that an interruption costs one item.

While the sum after item i is written, the manifest is that of item i - 1, or still that of item i - 2, because it is
saved while the next item is computed. A kill or a full disk may leave either. So the last two sums must stay whole,
and the one being written needs a third place: three places, used in turn, however many items there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from laplex.disk._workspace import Workspace

PLACES = 3


class RunningSum:
    """An array of float64 to which the items of a step add.

    Args:
        workspace: has the file "sums".
        step: the name of the step.
        items: how many items it has.
        shape: the shape of the array ``values``, which holds the sum after the last complete item.
    """

    def __init__(self, workspace: Workspace, step: str, items: int, shape: tuple[int, ...]) -> None:
        self.values: np.ndarray[Any, Any] = np.zeros(shape)
        self.scratch = workspace.scratch("sums", np.float64)
        done = workspace.done(step, items)
        if done:
            self.scratch.read(self.values, (done - 1) % PLACES * self.values.size)

    def save(self, item: int) -> None:
        """Write the sum after an item."""
        self.scratch.write(self.values, item % PLACES * self.values.size)
