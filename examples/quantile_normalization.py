"""Quantile normalization inside a model: measurements from two laboratories are given the same distribution.

Each laboratory has an instrument with its own scale: an unknown increasing function of the truth. It does not affect
ranks. The soft ranks are differentiable, so what comes before the normalization, the weights that mix the features,
is trained through it. Run it: python examples/quantile_normalization.py
"""

import torch
from torch import Tensor, nn

import laplex

SAMPLES, FEATURES = 400, 6
NORMAL = torch.distributions.Normal(0.0, 1.0)


def sample(distort, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """A laboratory's measurements, and labels that depend on one direction of the true features."""
    true = torch.randn(SAMPLES, FEATURES)
    return distort(true), (true @ wanted > 0).float()


class Normalized(nn.Module):
    """A learned direction whose values, batch by batch, become normally distributed; then a label."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(FEATURES, 1, bias=False), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        target = NORMAL.icdf((torch.arange(len(x)) + 0.5) / len(x))
        each = laplex.soft.quantile_normalize(x, target, 0, tau="auto")  # every feature by itself
        mixed = self.mix(each)
        return self.head(laplex.soft.quantile_normalize(mixed, target, 0, tau=0.05))[:, 0]


def accuracy(model: nn.Module, x: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float(((model(x) > 0) == (labels > 0)).float().mean())


def main() -> None:
    torch.manual_seed(0)
    wanted = torch.randn(FEATURES)
    train, labels = sample(torch.exp, wanted)
    other, other_labels = sample(lambda true: 100 + true**3, wanted)  # another instrument
    plain = nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 1), nn.Flatten(0))
    reached = {}
    for name, model in (("without", plain), ("with", Normalized())):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(300):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(train), labels).backward()
            optimizer.step()
        reached[name] = accuracy(model, other, other_labels)
        seen = accuracy(model, train, labels)
        print(f"{name:7} quantile normalization: {seen:.3f} right, {reached[name]:.3f} in the other laboratory")

    # The self-check: as tau goes to 0 the sorted result is the target, and the trained direction transfers.
    x, target = torch.randn(100, dtype=torch.float64), torch.randn(100, dtype=torch.float64)
    normalized = laplex.soft.quantile_normalize(x, target, tau=1e-9)
    differs = (normalized[x.argsort()] - target.sort().values).abs().max()
    assert differs < 1e-6, f"the result differs from the target by {differs:.1e}"
    assert reached["with"] > 0.9, f"too few labels are right: {reached}"
    assert reached["with"] > reached["without"] + 0.05, f"normalization should help here: {reached}"
    print("OK")


if __name__ == "__main__":
    main()
