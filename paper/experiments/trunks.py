"""Trained image networks of torchvision, each as a trunk, which gives features, and the head that the paper replaces.

swin_t     head: Linear(768, 1000)
maxvit_t   head: Linear(512, 512) - tanh - Linear(512, 1000) without a bias; the layers before it belong to the trunk
"""

from __future__ import annotations

import importlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper.experiments.data import digest

WHERE = "paper.experiments.features"
MODELS = ("swin_t", "maxvit_t")
DEFAULT = "default"  # the weights that torchvision names so
# Of images as torchvision's weights were trained on them, by channel.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Network:
    """A network that is not trained any more.

    Attributes:
        trunk: images (rows, 3, side, side) -> features (rows, width).
        head: features (rows, width) -> scores (rows, classes).
        weights: tells one file of weights from another.
        side: of the images that the trunk takes.
        covered: images are resized to cover a square of this side, of which the middle is used.
    """

    trunk: nn.Module
    head: nn.Sequential
    weights: str
    side: int
    covered: int

    @property
    def layers(self) -> list[nn.Linear]:
        """The linear layers of the head."""
        return [layer for layer in self.head if isinstance(layer, nn.Linear)]

    def to(self, device: str) -> Network:
        """The same network, moved to a device."""
        self.trunk.to(device)
        self.head.to(device)
        return self

    def features(self, squares: Tensor) -> Tensor:
        """Pixels (rows, covered, covered, 3) uint8 -> features (rows, width)."""
        margin = (self.covered - self.side) // 2
        middle = slice(margin, margin + self.side)
        x = squares[:, middle, middle].permute(0, 3, 1, 2).float() / 255
        mean, deviation = (torch.tensor(values, device=x.device).view(3, 1, 1) for values in (MEAN, DEVIATION))
        features: Tensor = self.trunk((x - mean) / deviation)
        return features


def load(name: str, weights: str, side: int) -> Network:
    """A network of torchvision.

    Args:
        name: one of ``MODELS``.
        weights: "default", or a file with the state dict of the whole network.
        side: of the images. MaxViT divides them into windows, so there it is a multiple of 224.
    """
    models = _torchvision()
    state, label = _state(models, name, weights)
    swin = name == "swin_t"
    model = models.swin_t(weights=None) if swin else models.maxvit_t(weights=None, input_size=(side, side))
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{WHERE}: `--weights` must be a state dict of torchvision's {name}, got {weights}, which does not fit "
            f"({str(error).splitlines()[0]}); save it with torch.save(model.state_dict(), FILE)"
        ) from None
    model.eval().requires_grad_(False)
    if swin:
        head = nn.Sequential(model.head)
        model.head = nn.Identity()
    else:
        head = model.classifier[3:]
        model.classifier = model.classifier[:3]
    # The images on which torchvision reports accuracies are cropped at the centre for Swin, and not for MaxViT.
    return Network(model, head, label, side, round(side * 232 / 224) if swin else side)


def _torchvision() -> Any:
    try:
        return importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        raise ImportError(
            f"{WHERE}: networks need torchvision, which cannot be imported ({error}); pip install torchvision, in the "
            f"version that belongs to torch {torch.__version__}"
        ) from None


def _state(models: Any, name: str, weights: str) -> tuple[Any, str]:
    """A state dict, and what tells it from others."""
    if weights == DEFAULT:
        standard = models.get_model_weights(name).DEFAULT
        try:
            return standard.get_state_dict(progress=True, check_hash=True), standard.url
        except (OSError, RuntimeError) as error:  # RuntimeError: the file is not the one that was asked for
            raise ValueError(
                f"{WHERE}: `--weights` default must be loaded from {standard.url}, which fails ({error}); download the "
                "file elsewhere and name it: --weights FILE.pth"
            ) from None
    try:
        return torch.load(weights, map_location="cpu", weights_only=True), digest(Path(weights))
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ValueError(
            f"{WHERE}: `--weights` must be {DEFAULT} or a file that torch.load reads with weights_only=True, got "
            f"{weights} ({reason}); check the file"
        ) from None
