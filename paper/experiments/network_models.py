"""Small transformers whose blocks are of linear maps of one method, and what they count.

All six linear maps of a block are of the method: queries, keys, values, the output of attention, and the two of the
MLP. Embedding, positions, the last norm and the output head stay dense. "dense-narrow" is dense throughout, and
narrower: its size is its width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from paper.methods import layers

METHODS = ("dense", "laplex", "laplex-phased", "dense-narrow", "low-rank", "monarch", "btt", "kronecker")
EXCESS = 1.03  # the most parameters in the blocks, relative to those of LAPLEX
BYTES = 256  # values of a byte
# Not cuDNN's attention: in bfloat16, on an H200 with torch 2.11, its gradients became NaN in the middle of many runs on
# images (heads of 48 features), of dense networks too. The same steps are finite with these three.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

Make = Callable[[int, int], nn.Module]  # a linear map from in to out features


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer, and the rows of a training step."""

    width: int
    heads: int
    blocks: int
    tokens: int  # of one row: bytes of text, or patches of an image
    batch: int
    expansion: int = 4  # of the MLP

    @property
    def maps(self) -> list[tuple[int, int]]:
        """The linear maps of a block, in and out features of each."""
        inner = self.expansion * self.width
        return [(self.width, self.width)] * 4 + [(self.width, inner), (inner, self.width)]


class Candidate(NamedTuple):
    """A method at a size: with the parameters of LAPLEX with ``budget`` kernels, or without a budget."""

    method: str
    budget: int | None
    size: int

    def __str__(self) -> str:
        return self.method if self.budget is None else f"{self.method}, budget of {self.budget} kernels"

    def shape(self, full: Shape) -> Shape:
        """The sizes of the network: a narrow one has its own width."""
        return replace(full, width=self.size) if self.method == "dense-narrow" else full

    @property
    def layer(self) -> str:
        """The method of ``paper.methods.layers``."""
        return self.method.removesuffix("-narrow")

    def make(self, in_features: int, out_features: int) -> nn.Module:
        """A linear map of a block."""
        return layers.make_layer(self.layer, in_features, out_features, self.size)


# --- Sizes -----------------------------------------------------------------------------------------------------------


def block_parameters(candidate: Candidate, full: Shape) -> int:
    """The parameters in the blocks: linear maps with their biases, and two norms for each block."""
    shape = candidate.shape(full)
    maps = sum(layers.count(candidate.layer, *sides, candidate.size) for sides in shape.maps)
    return shape.blocks * (maps + 4 * shape.width)


def candidate_within(method: str, kernels: int, full: Shape) -> Candidate:
    """The size of a method whose parameters are nearest to those of LAPLEX with so many kernels.

    They are at most a few percent more; ValueError where the smallest size has more than that.
    """
    budget = block_parameters(Candidate("laplex", kernels, kernels), full)
    counts = {one: block_parameters(one, full) for one in _candidates(method, kernels, full)}
    within = {one: number for one, number in counts.items() if number <= EXCESS * budget}
    if not within:
        least = min(counts.values(), default=0)
        raise ValueError(f"its smallest network has {least:,} parameters in its blocks, and the budget is {budget:,}")
    return min(within, key=lambda one: abs(within[one] - budget))


def _candidates(method: str, kernels: int, full: Shape) -> Iterator[Candidate]:
    """All sizes of a method that may have the budget."""
    if method == "dense-narrow":
        sizes: Iterator[int] = iter(range(full.heads, full.width + 1, full.heads))
    else:
        sizes = iter(range(1, 4 * kernels + 1))  # no method has a step that is much cheaper than a kernel
    for size in sizes:
        candidate = Candidate(method, kernels, size)
        shape = candidate.shape(full)
        if all(layers.exists(candidate.layer, *sides, size) for sides in shape.maps):
            yield candidate


def multiply_adds(candidate: Candidate, full: Shape, ends: int) -> dict[str, int]:
    """The multiply-adds of a forward pass: per token in linear maps and elsewhere, and per step for forming matrices.

    Args:
        candidate, full: of the network.
        ends: multiply-adds per token in what is not a block, for each feature of the width.
    """
    shape = candidate.shape(full)
    costs = [layers.cost(candidate.layer, *sides, candidate.size) for sides in shape.maps]
    attention = 2 * shape.tokens * shape.width  # scores, and the sum that they weight
    return {
        "maps": shape.blocks * sum(one.per_row for one in costs),
        "elsewhere": shape.blocks * attention + ends * shape.width,
        "forming": shape.blocks * sum(one.per_call for one in costs),
    }


# --- Networks --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and an MLP, each after a norm and added to its input."""

    def __init__(self, shape: Shape, make: Make, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = shape.heads, causal
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(2))
        self.query, self.key, self.value, self.mixed, self.widen, self.narrow = (make(*sides) for sides in shape.maps)

    def forward(self, x: Tensor) -> Tensor:
        """X (batch, tokens, width) -> the same shape."""
        normed = self.norms[0](x)
        parts = (layer(normed).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in parts)  # (batch, heads, tokens, width / heads)
        with sdpa_kernel(ATTENTION):
            attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.mixed(attended.transpose(1, 2).flatten(2))
        y: Tensor = x + self.narrow(nn.functional.gelu(self.widen(self.norms[1](x))))
        return y


class TextNetwork(nn.Module):
    """Bytes (batch, tokens) to scores of the next byte (batch, tokens, 256)."""

    def __init__(self, shape: Shape, make: Make) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, shape.width)
        self.positions = nn.Parameter(0.02 * torch.randn(shape.tokens, shape.width))
        self.blocks = nn.Sequential(*(Block(shape, make, causal=True) for _ in range(shape.blocks)))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, BYTES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of what follows each byte."""
        scores: Tensor = self.head(self.norm(self.blocks(self.embedding(x) + self.positions)))
        return scores


class ImageNetwork(nn.Module):
    """Images (batch, side, side, 3) to scores of classes, from the mean of all patches after the last norm."""

    def __init__(self, shape: Shape, make: Make, patch: int, classes: int) -> None:
        super().__init__()
        self.patch = patch
        self.embedding = nn.Linear(3 * patch**2, shape.width)
        self.positions = nn.Parameter(0.02 * torch.randn(shape.tokens, shape.width))
        self.blocks = nn.Sequential(*(Block(shape, make, causal=False) for _ in range(shape.blocks)))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (batch, classes)."""
        strips = x.unflatten(1, (-1, self.patch)).unflatten(3, (-1, self.patch))  # (batch, down, p, right, p, 3)
        patches = strips.transpose(2, 3).flatten(3).flatten(1, 2)  # (batch, tokens, 3 p^2)
        scores: Tensor = self.head(self.norm(self.blocks(self.embedding(patches) + self.positions)).mean(1))
        return scores
