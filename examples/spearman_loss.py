"""A loss on ranks for tabular data: the progression of diabetes, from a network that minimizes 1 - rank correlation.

If only the order of predictions matters, a mean squared error asks for too much. With the targets as measured, both
losses do equally well; with the same targets on a scale with a long tail, the squared error sees little but the tail,
while ranks do not see the scale at all. Run it: python examples/spearman_loss.py
"""

import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import laplex

TRAIN = 300


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))


def squared_error(scores: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(scores, (y - y.mean()) / y.std())


def rank_loss(scores: Tensor, y: Tensor) -> Tensor:
    return laplex.soft.spearman(scores, y, tau=0.1)


def trained(loss, x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def correlation(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(spearmanr(model(x).numpy(), y.numpy()).statistic)


def main() -> None:
    torch.manual_seed(0)
    data = load_diabetes()
    order = torch.randperm(len(data.target))
    x, y = (torch.tensor(part, dtype=torch.float32)[order] for part in (data.data, data.target))
    x = (x - x[:TRAIN].mean(0)) / x[:TRAIN].std(0)
    stretched = torch.exp(y[:TRAIN] / 25)  # the same order, and a long tail
    reached = {}
    for target, values in (("as measured", y[:TRAIN]), ("stretched", stretched)):
        for name, loss in (("mean squared error", squared_error), ("1 - Spearman", rank_loss)):
            model = trained(loss, x[:TRAIN], values)
            reached[target, name] = correlation(model, x[TRAIN:], y[TRAIN:])
            print(f"targets {target:12} {name:18}: Spearman's correlation {reached[target, name]:.3f} on new patients")

    # The self-check: as tau goes to 0 the loss is what SciPy computes, and stretching does not change it.
    with torch.no_grad():
        scores = model(x[:TRAIN])
    exact = 1 - correlation(model, x[:TRAIN], y[:TRAIN])
    differs = abs(float(laplex.soft.spearman(scores, y[:TRAIN], tau=1e-9)) - exact)
    assert differs < 1e-5, f"the loss differs from SciPy's by {differs:.1e}"
    ranked = reached["as measured", "1 - Spearman"], reached["stretched", "1 - Spearman"]
    assert abs(ranked[0] - ranked[1]) < 1e-6, f"an increasing function of the target changed the result: {ranked}"
    assert ranked[1] > reached["stretched", "mean squared error"] + 0.02, f"ranks should win here: {reached}"
    print("OK")


if __name__ == "__main__":
    main()
