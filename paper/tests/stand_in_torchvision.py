"""A small torchvision for tests: networks whose heads are where torchvision has them, with random weights."""

import sys
from types import ModuleType, SimpleNamespace

import torch
from torch import nn

CLASSES, SWIN_WIDTH, MAXVIT_WIDTH = 3, 10, 6


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, SWIN_WIDTH, 8, stride=8)
        self.norm = nn.LayerNorm(SWIN_WIDTH)
        self.drop = nn.Dropout(0.9)  # a network in training mode would be noticed
        self.head = nn.Linear(SWIN_WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.features(x).tanh().mean((2, 3)))))


class MaxVit(nn.Module):
    def __init__(self, input_size):
        super().__init__()
        self.input_size = input_size
        self.stem = nn.Conv2d(3, MAXVIT_WIDTH, 32, stride=32)
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.LayerNorm(MAXVIT_WIDTH),
            nn.Linear(MAXVIT_WIDTH, MAXVIT_WIDTH),
            nn.Tanh(),
            nn.Linear(MAXVIT_WIDTH, CLASSES, bias=False),
        )

    def forward(self, x):
        assert tuple(x.shape[2:]) == self.input_size
        return self.classifier(self.stem(x).tanh())


def drawn(make, *arguments):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return make(*arguments)


class Weights:
    """The weights that are loaded, as torchvision's enumerations offer them."""

    url = "https://example.org/weights.pth"
    fails = False

    def get_state_dict(self, *, progress, check_hash):
        assert progress
        assert check_hash
        if self.fails:
            raise OSError("no network")
        return drawn(Swin).state_dict()


def install(monkeypatch):
    """Make `import torchvision` find the small one; its module of models is returned."""
    models = ModuleType("torchvision.models")
    models.weights = Weights()
    models.swin_t = lambda *, weights: Swin()
    models.maxvit_t = lambda *, weights, input_size=(224, 224): MaxVit(input_size)
    models.get_model_weights = lambda name: SimpleNamespace(DEFAULT=models.weights)
    package = ModuleType("torchvision")
    package.models = models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return models
