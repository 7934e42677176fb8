"""Launches that run at the same time as those that follow them, in a CUDA graph.

A small layer does not fill a GPU, so two launches that do not need each other take as long as the longer one if the
graph does not put them in a row. Outside of a capture they follow one another: there the GPU waits for the host, and
changing streams would add to the host's work.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


class Branch:
    """What is launched in its ``with`` block may run until :meth:`join` at the same time as what follows the block.

    Until then nothing may write to what the block reads, nor read what it writes. Tensors that the block creates belong
    to the second stream, whose later branches wait for all that was launched before them.
    """

    def __init__(self, device: torch.device) -> None:
        captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._side = _side_stream(device, torch.cuda.current_stream(device).cuda_stream) if captured else None
        self._entered: Any = None

    def __enter__(self) -> None:
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self._side.device))
            self._entered = torch.cuda.stream(self._side)
            self._entered.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._entered is not None:
            self._entered.__exit__(*error)

    def join(self) -> None:
        """What is launched from now on waits for the block."""
        if self._side is not None:
            torch.cuda.current_stream(self._side.device).wait_stream(self._side)


@functools.lru_cache(maxsize=64)
def _side_stream(device: torch.device, captured: int) -> torch.cuda.Stream:
    """One for each stream that is captured: captures do not meet in it, and the memory that it frees is used again only
    after the work of that stream."""
    return torch.cuda.Stream(device)
