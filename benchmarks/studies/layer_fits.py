"""How much of a trained network's hidden layers `from_linear` misses, against low rank with as many parameters.

    python -m benchmarks.studies.layer_fits            writes benchmarks/results/layer-fits.json; needs scikit-learn

The network and the digits are those of `benchmarks.studies.layer_starts`. Residuals are shares of the energy: of the
weight or, if the mean of x x^T over the layer's inputs is the importance, of the layer's results.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.report import conditions
from benchmarks.studies.layer_starts import accuracy, digits, network
from laplex.nn import LaplexLinear

OUT = Path(__file__).parents[1] / "results" / "layer-fits.json"
KERNELS = (1, 4, 8)


def inputs_of(model: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """The inputs that each dense layer gets."""
    given = {}
    with torch.no_grad():
        for name, part in model.named_children():
            given[name] = x
            x = part(x)
    return {name: value for name, value in given.items() if isinstance(model.get_submodule(name), nn.Linear)}


def fitted(layer: nn.Linear, kernels: int, importance: Tensor | None) -> dict[str, float]:
    """The residuals, and the seconds that the fit took."""
    begun = time.perf_counter()
    layer_fit = LaplexLinear.from_linear(layer, kernels, importance=importance, progress=lambda done, total: None)
    seconds = time.perf_counter() - begun
    assert layer_fit.fit_residual is not None
    assert layer_fit.svd_residual is not None
    return {
        "fit": round(layer_fit.fit_residual, 4),
        "svd": round(layer_fit.svd_residual, 4),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, model = digits(), network()
    results: dict[str, Any] = {"accuracy": accuracy(model, data), "layers": {}}
    for name, x in inputs_of(model, data[0]).items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        for kernels in KERNELS:
            for kind, importance in (("weight", None), ("results", x.T @ x / len(x))):
                key = f"{layer.in_features} -> {layer.out_features}, {kernels} kernels, {kind}"
                results["layers"][key] = fitted(layer, kernels, importance)
                print(key, results["layers"][key], flush=True)
    head = conditions("cpu")
    OUT.write_text(json.dumps(head | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
