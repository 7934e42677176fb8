"""Three tasks over long sequences, which are drawn as they are needed, and the models that learn them.

regression    given n noisy points of a random function on a line, predict its values elsewhere, as neural processes do
recall        given n pairs of a symbol and a value, return the values of some of the symbols; symbols have no order
pixels        name a seven-segment digit, rotated, scaled and noisy, given as a sequence of n pixels

A model is the same for both kinds of attention, except for the width of its feed-forward layers, which makes up for
the parameters that LaplaceAttention does not have.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from laplex.nn import LaplaceAttention

EMBED, HIDDEN = 64, 128  # the size of a token, and of a feed-forward layer in a model with dot products
NOISE = 0.1  # on each point of a function
VALUES, DIGITS = 16, 10
SEGMENTS = torch.tensor(  # of a digit, from (x, y) to (x, y): top, two on the right, bottom, two on the left, middle
    [[-1, 2, 1, 2], [1, 2, 1, 0], [1, 0, 1, -2], [-1, -2, 1, -2], [-1, 0, -1, -2], [-1, 2, -1, 0], [-1, 0, 1, 0]]
).float()
LIT = ["1111110", "0110000", "1101101", "1111001", "0110011", "1011011", "1011111", "1110000", "1111111", "1111011"]


class Batch(NamedTuple):
    """What a model is given, and what it should return."""

    inputs: tuple[Tensor, ...]
    wanted: Tensor


class Task(NamedTuple):
    """How to draw a batch, to build a model and to score it, and the name of the score."""

    draw: Callable[[int, int, torch.Generator], Batch]  # rows, n, generator
    model: Callable[[int, Callable[..., nn.Module], int], nn.Module]  # n, attention, width
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]
    measure: str
    larger_is_better: bool


class DotProducts(nn.Module):
    """torch.nn.MultiheadAttention, without forming weights, and returning only the output."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = self.attention(query, key, value, need_weights=False)[0]
        return output


KINDS: dict[str, Callable[..., nn.Module]] = {"dot products": DotProducts, "distances": LaplaceAttention}


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to the queries."""

    def __init__(self, attention: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.attention = attention()
        self.before, self.between = nn.LayerNorm(EMBED), nn.LayerNorm(EMBED)
        self.feed = nn.Sequential(nn.Linear(EMBED, width), nn.GELU(), nn.Linear(width, EMBED))

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        normal = self.before(query)
        key = normal if key is None else self.before(key)
        query = query + self.attention(normal, key, key if value is None else value)
        return query + self.feed(self.between(query))  # type: ignore[no-any-return]


def perceptron(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, EMBED), nn.GELU(), nn.Linear(EMBED, EMBED))


class FunctionReader(nn.Module):
    """Points (x, y) and other x -> the mean and the log standard deviation of y there."""

    def __init__(self, _n: int, attention: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.place, self.point = perceptron(1), perceptron(2)
        self.block, self.head = Block(attention, width), nn.Linear(EMBED, 2)

    def forward(self, x: Tensor, y: Tensor, elsewhere: Tensor) -> Tensor:
        points = self.point(torch.stack([x, y], -1))
        return self.head(self.block(self.place(elsewhere[..., None]), self.place(x[..., None]), points))  # type: ignore[no-any-return]


class Lookup(nn.Module):
    """Pairs of symbols and values, and some of the symbols -> scores for their values."""

    def __init__(self, n: int, attention: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.symbols, self.values = nn.Embedding(2 * n, EMBED), nn.Embedding(VALUES, EMBED)
        self.block, self.head = Block(attention, width), nn.Linear(EMBED, VALUES)

    def forward(self, symbols: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        return self.head(self.block(self.symbols(asked), self.symbols(symbols), self.values(values)))  # type: ignore[no-any-return]


class PixelReader(nn.Module):
    """Pixels -> scores for digits, by two blocks of self-attention and the mean over pixels."""

    def __init__(self, n: int, attention: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        side = math.isqrt(n)
        line = torch.linspace(-1, 1, side)
        places = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(n, 2)
        waves = [function(math.pi * 2**i * places) for i in range(3) for function in (torch.sin, torch.cos)]
        self.register_buffer("places", torch.cat([places, *waves], -1))
        self.token = perceptron(1 + 2 + 12)
        self.blocks = nn.ModuleList(Block(attention, width) for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(EMBED), nn.Linear(EMBED, DIGITS))

    def forward(self, pixels: Tensor) -> Tensor:
        places: Any = self.places
        tokens = self.token(torch.cat([pixels[..., None], places.expand(len(pixels), *places.shape)], -1))
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))  # type: ignore[no-any-return]


def draw_functions(rows: int, n: int, generator: torch.Generator) -> Batch:
    """Draw sums of eight waves, whose frequencies are another function's times a random speed."""
    device = generator.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    x, elsewhere = 4 * uniform(rows, n) - 2, 4 * uniform(rows, n) - 2
    frequency = uniform(rows, 1, 8) * (0.5 + 2 * uniform(rows, 1, 1))
    phase, size = uniform(rows, 1, 8), torch.randn((rows, 1, 8), generator=generator, device=device) / 2
    y, wanted = ((size * torch.sin(2 * math.pi * (frequency * t[..., None] + phase))).sum(-1) for t in (x, elsewhere))
    noise, other_noise = (NOISE * torch.randn((rows, n), generator=generator, device=device) for _ in range(2))
    return Batch((x, y + noise, elsewhere), wanted + other_noise)


def draw_pairs(rows: int, n: int, generator: torch.Generator) -> Batch:
    """Draw n of 2 n symbols, each with a value; a quarter of them are asked for."""
    device = generator.device
    symbols = torch.rand((rows, 2 * n), generator=generator, device=device).argsort(-1)[:, :n]
    values = torch.randint(VALUES, (rows, n), generator=generator, device=device)
    chosen = torch.randint(n, (rows, n // 4), generator=generator, device=device)
    return Batch((symbols, values, symbols.gather(-1, chosen)), values.gather(-1, chosen))


def draw_digits(rows: int, n: int, generator: torch.Generator) -> Batch:
    """Draw seven-segment digits, rotated by up to 0.2, with random size and position, and noise."""
    device, side = generator.device, math.isqrt(n)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand((rows, *shape), generator=generator, device=device)

    digits = torch.randint(DIGITS, (rows,), generator=generator, device=device)
    lit = torch.tensor([[int(one) for one in each] for each in LIT], device=device)[digits]  # (rows, 7)
    line = torch.linspace(-3.5, 3.5, side, device=device)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(1, n, 2)
    turn = uniform(-0.2, 0.2)
    matrix = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).reshape(rows, 2, 2)
    places = (grid - uniform(-0.5, 0.5, 1, 2)) @ matrix / uniform(0.7, 1.2, 1, 1)
    start, end = SEGMENTS.to(device).split(2, -1)
    along = end - start  # (7, 2)
    offset = places[:, :, None] - start  # (rows, n, 7, 2)
    share = ((offset * along).sum(-1) / along.square().sum(-1)).clamp(0, 1)
    distance = (offset - share[..., None] * along).norm(dim=-1)
    ink = (torch.sigmoid((0.25 - distance) / 0.08) * lit[:, None]).amax(-1)
    return Batch((3 * ink + 0.5 * torch.randn((rows, n), generator=generator, device=device),), digits)


def likelihood(output: Tensor, wanted: Tensor) -> Tensor:
    """Minus the log density, in float32."""
    mean, log_deviation = output.float().unbind(-1)
    deviation = 0.02 + functional.softplus(log_deviation)
    return (((wanted - mean) / deviation).square() / 2 + deviation.log()).mean() + math.log(2 * math.pi) / 2


def error(output: Tensor, wanted: Tensor) -> Tensor:
    return (output[..., 0].float() - wanted).square().mean()


def accuracy(output: Tensor, wanted: Tensor) -> Tensor:
    return (output.argmax(-1) == wanted).float().mean()


def entropy(output: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(output.float().flatten(0, -2), wanted.flatten())


TASKS = {
    "regression": Task(draw_functions, FunctionReader, likelihood, error, "mean squared error", False),
    "recall": Task(draw_pairs, Lookup, entropy, accuracy, "accuracy", True),
    "pixels": Task(draw_digits, PixelReader, entropy, accuracy, "accuracy", True),
}


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build(task: str, kind: str, heads: int, n: int) -> nn.Module:
    """A model, with feed-forward layers so wide that it has as many parameters as the one with dot products."""
    counts = [parameters(attention(EMBED, heads)) for attention in (KINDS["dot products"], KINDS[kind])]
    width = HIDDEN + round((counts[0] - counts[1]) / (2 * EMBED + 1))
    return TASKS[task].model(n, lambda: KINDS[kind](EMBED, heads), width)
