"""Training steps of densities on the exact likelihood: forward, backward and the update of Adam.

    PYTHONPATH=src python3 -m benchmarks.studies.density_steps --out DIR [--device cuda]   writes DIR/density-steps.json

Milliseconds are wall time, averaged over some steps after warm-up. Memory is the most that torch held on the device,
besides the batch, including parameters, gradients and Adam's averages. Likelihoods are checked first, on a smaller
model of the same kind, against the dense covariance in float64.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch.distributions import MultivariateNormal

from benchmarks.report import conditions
from laplex.density import Examples, LaplexGaussian, Trainer

ROWS, STEPS, WARM_UP = 64, 10, 4
MODELS = {  # features, rank, components, latent covariance
    "photographs": (3_145_728, 1000, 1, "dense"),
    "ImageNette": (150_528, 1000, 1, "dense"),
    "ImageNette, three components": (150_528, 1000, 3, "dense"),
    "ImageNette, diagonal": (150_528, 10_000, 1, "diagonal"),
    "photographs, diagonal": (3_145_728, 100_000, 1, "diagonal"),
    "small": (3_000, 50, 1, "dense"),
}


def error(components: int, latent: str, device: str) -> float:
    """The relative error of likelihoods of a small model in float32."""
    torch.manual_seed(0)
    model = LaplexGaussian(200, 20, components, latent=latent)
    wide = LaplexGaussian(200, 20, components, latent=latent, dtype=torch.float64)
    wide.load_state_dict(model.state_dict())
    x = torch.randn(8, 200)
    want = MultivariateNormal(wide.mean, wide.covariance()).log_prob(x.double())
    got = model.to(device).log_prob(x.to(device)).cpu()
    return float(((got - want) / want).abs().max().detach())


def measured(name: str, device: str) -> dict[str, float | None]:
    dim, rank, components, latent = MODELS[name]
    cuda = device != "cpu"
    examples = Examples(torch.rand(ROWS, dim, device=device))
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    model = LaplexGaussian(dim, rank, components, latent=latent, device=device)
    model.mean.copy_(examples.mean)
    trainer = Trainer(model, examples)
    for _ in range(WARM_UP):
        trainer.step(examples.values)
    if cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        trainer.step(examples.values)
    if cuda:
        torch.cuda.synchronize()
    step = (time.perf_counter() - begun) / STEPS
    peak = (torch.cuda.max_memory_allocated() - before) / 1e9 if cuda else None
    return {"error": error(components, latent, device), "step ms": round(1e3 * step, 3), "peak GB": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of density-steps.json")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS), help="the models")
    given = parser.parse_args()
    results: dict[str, dict[str, float | None]] = {}
    head = conditions(given.device)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        results[name] = measured(name, given.device)
        print(f"{name}, {MODELS[name]}, {ROWS} rows:", results[name], flush=True)
        # Written after each, as compiling for the next may take longer than the time that is left.
        (given.out / "density-steps.json").write_text(json.dumps(head | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
