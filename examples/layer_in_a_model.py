"""Replace a model's wide layer by a layer of kernels: few parameters suffice if its anchors start in the right places.

The data are signals with 3000 features. Neighbouring features vary together, but they are shuffled, and the model
does not know their order. Run it: python examples/layer_in_a_model.py
"""

import torch
from torch import Tensor, nn

import laplex

FEATURES, HIDDEN, CLASSES = 3000, 100, 8


def signals(count: int, templates: Tensor, shuffled: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy copies of one smooth template per class, with shuffled features."""
    labels = torch.randint(CLASSES, (count,))
    return (templates[labels] + torch.randn(count, FEATURES))[:, shuffled], labels


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def placed(model: nn.Sequential, x: Tensor) -> nn.Sequential:
    """Put the anchors of the first layer where the data suggest, because gradient descent does not find an order."""
    with torch.no_grad():
        model[0].b.copy_(HIDDEN * laplex.seriate(x))  # features that vary together lie close to each other
        model[0].a.copy_(torch.arange(HIDDEN) + 0.5)  # each hidden unit covers its part of the line
    return model


def test_accuracy(model: nn.Sequential, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], lr: float) -> float:
    """Take sixty steps of Adam, then return the fraction of test signals that are recognised."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train[0]), train[1]).backward()
        optimizer.step()
    with torch.no_grad():
        return float((model(test[0]).argmax(1) == test[1]).float().mean())


def main() -> None:
    torch.manual_seed(0)
    templates = torch.randn(CLASSES, FEATURES).cumsum(1) / FEATURES**0.5  # random walks
    shuffled = torch.randperm(FEATURES)
    train, test = signals(300, templates, shuffled), signals(1000, templates, shuffled)

    dense, anywhere, seriated = network(), network(), network()
    for model in (anywhere, seriated):
        # In place. The places come from the data and should stay close to them: with tau = 1 Adam moves them slowly.
        table = laplex.nn.replace_linear(model, kernels=1, include="0", tau=1.0)
    print(table)
    models = {"nn.Linear": dense, "kernels": anywhere, "kernels, placed": placed(seriated, train[0])}
    accuracies = {}
    for name, model in models.items():
        rate = 1e-3 if model is dense else 1e-2  # the same rate for the kernels and for the dense layer above them
        accuracies[name] = test_accuracy(model, train, test, rate)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name:16} {count:7,} parameters, test accuracy {accuracies[name]:.3f}")

    # The self-check: the layer applies the matrix that it claims to have, and the model learned.
    layer = seriated[0]
    with torch.no_grad():
        difference = (layer(test[0]) - layer.to_linear()(test[0])).abs().max()
    assert difference < 1e-3, f"the layer differs from its dense form by {difference:.1e}"
    best = max(0.9, accuracies["kernels"])
    assert accuracies["kernels, placed"] > best, f"the kernels learned too little: {accuracies}"
    print("OK")


if __name__ == "__main__":
    main()
