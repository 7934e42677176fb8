"""What the networks of `python -m paper experiment networks` learn: here the next byte of a text.

The data of a task are on the device, and a batch is gathered there from a row of numbers that was drawn ahead. So a
training step reads nothing from the host, and can be captured in a CUDA graph.
"""

from __future__ import annotations

import hashlib
import math
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from laplex._writing import replaced
from paper.experiments.network_models import BYTES, Candidate, Shape, TextNetwork

WHERE = "paper.experiments.networks"
TEXT = Shape(width=256, heads=4, blocks=4, tokens=256, batch=48)
QUICK = {"width": 16, "heads": 2, "blocks": 2, "batch": 4}
QUICK_TOKENS = 16
VALIDATION_BATCHES = 20
VALIDATION_SEED = 5


class Task(Protocol):
    """Data on a device, the network that learns from them, and how it is judged."""

    @property
    def shape(self) -> Shape:
        """The sizes of a network of full width."""

    @property
    def digest(self) -> str:
        """Tells one set of data from another: runs on other data are other runs."""

    @property
    def facts(self) -> dict[str, int]:
        """Sizes of the data."""

    @property
    def ends(self) -> int:
        """Multiply-adds per token outside of the blocks, for each feature of the width."""

    def network(self, candidate: Candidate) -> nn.Module:
        """A network with maps of the candidate, on the CPU."""

    def draws(self, steps: int, seed: int) -> Tensor:
        """Numbers (steps, ...) that say what the batch of each step is."""

    def loss(self, net: nn.Module, draw: Tensor) -> Tensor:
        """The loss on the batch that one row of the draws names."""

    def validate(self, net: nn.Module) -> dict[str, float]:
        """The loss on what is held out, and the figure that the task reports."""

    def pack(self, path: Path) -> None:
        """Write the data into one file, which another machine can read without further packages."""


# --- Text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextTask:
    """The next byte of a text, whose last tenth is for validation; in bits per byte."""

    content: Tensor  # (bytes,) uint8
    digest: str
    shape: Shape
    ends: int = BYTES  # of the output head

    @property
    def cut(self) -> int:
        """Where the validation part begins."""
        return len(self.content) * 9 // 10

    @property
    def facts(self) -> dict[str, int]:
        """Sizes of the data."""
        return {"bytes": len(self.content), "train_bytes": self.cut}

    def network(self, candidate: Candidate) -> nn.Module:
        """A network with maps of the candidate, on the CPU."""
        return TextNetwork(candidate.shape(self.shape), candidate.make)

    def draws(self, steps: int, seed: int) -> Tensor:
        """The first bytes (steps, batch) of the rows of each batch."""
        return self._starts(steps, 0, self.cut, seed)

    def loss(self, net: nn.Module, draw: Tensor) -> Tensor:
        """The mean cross entropy of the next byte, in nats."""
        places = draw[:, None] + torch.arange(self.shape.tokens + 1, device=draw.device)
        rows = self.content[places].long()
        return nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1).float(), rows[:, 1:].flatten())

    def validate(self, net: nn.Module) -> dict[str, float]:
        """The loss in nats and in bits per byte, over the same batches for every network."""
        starts = self._starts(VALIDATION_BATCHES, self.cut, len(self.content), VALIDATION_SEED)
        loss = float(torch.stack([self.loss(net, draw) for draw in starts]).double().mean())
        return {"loss": loss, "bits": loss / math.log(2)}

    def pack(self, path: Path) -> None:
        """Write the text as it is."""
        with replaced(path) as file:
            file.write(self.content.cpu().numpy().tobytes())

    def _starts(self, batches: int, begin: int, end: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)  # of the CPU: a seed means the same batches on every device
        shape = batches, self.shape.batch
        return torch.randint(begin, end - self.shape.tokens, shape, generator=generator).to(self.content.device)


def text_task(path: str, device: str, *, quick: bool) -> TextTask:
    """The text of a file, or of the standard library where none is named, on a device."""
    content = _read(path) if path else standard_library()
    shape = replace(TEXT, tokens=QUICK_TOKENS, **QUICK) if quick else TEXT
    least = 20 * shape.tokens  # the validation part, a tenth, then has at least two rows
    if len(content) < least:
        raise ValueError(
            f"--text must be a file of at least {least} bytes, got {len(content)} in {path}; use more text"
        )
    digest = hashlib.sha256(content).hexdigest()[:16]
    return TextTask(torch.from_numpy(np.frombuffer(content, np.uint8).copy()).to(device), digest, shape)


def standard_library() -> bytes:
    """The source code of the standard library of the running Python, in the order of its paths, without tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    return b"".join((root / path).read_bytes() for path in paths if not any(map(_left_out, path.parts)))


def _left_out(part: str) -> bool:
    """Whether a folder or file holds tests, or packages that were installed later."""
    stem = part.removesuffix(".py")
    return part in ("site-packages", "dist-packages") or stem.startswith("test") or stem.endswith(("_test", "tests"))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"--text must be a file that can be read, got {path} ({error.strerror or error})") from None
