"""A Gaussian over photographs: fit it by EM, sample from it, and condition it. Needs laplex[images].

Writes samples and inpainted photographs as PNG files to a folder, by default a temporary one.
Run it: python examples/density_of_images.py [folder]
"""

import sys
import tempfile
from pathlib import Path

import torch

import laplex

SHAPE = (32, 32, 3)


def reduced(pictures: laplex.density.images.Pictures) -> torch.Tensor:
    """Photographs of 64 x 64 x 3 bytes as rows of 32 x 32 x 3 numbers from 0 to 1."""
    images = pictures.values.reshape(-1, 32, 2, 32, 2, 3).float() / 255
    return images.mean((2, 4)).flatten(1)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    train, held_out = map(reduced, laplex.density.images.bundled())
    examples = laplex.density.Examples(train)
    model, history = laplex.density.fit(examples, rank=120, functions=4, rounds=14, progress=lambda done, total: None)
    first, last = history[0].log_likelihood, history[-1].log_likelihood
    print(f"{len(train)} photographs of {train.shape[1]} numbers: log-likelihood from {first:.0f} to {last:.0f}")

    known = torch.zeros(SHAPE, dtype=torch.bool)
    known[: SHAPE[0] // 2] = True  # the upper half
    known = known.flatten()
    filled = model.inpaint(known, held_out)
    masked = torch.where(known, held_out, 0.5)
    path = folder / "density.png"
    rows = [("held out", held_out[:8]), ("given", masked[:8]), ("inpainted", filled[:8]), ("samples", model.sample(8))]
    laplex.density.pictures.grid(path, rows, SHAPE)
    print(f"wrote {path}")

    # The self-check: inpainting beats the mean photograph, and the likelihood equals that of a dense Gaussian.
    error, plain = ((guess - held_out)[:, ~known].square().mean().sqrt() for guess in (filled, model.mean))
    print(f"error in the unseen half: {error:.3f}; with the mean photograph: {plain:.3f}")
    assert error < 0.95 * plain, f"inpainting is no better than the mean: {error:.3f} against {plain:.3f}"
    some = torch.randperm(train.shape[1])[:300]  # a marginal is small enough to be formed
    part = model.marginal(some)
    dense = torch.distributions.MultivariateNormal(part.mean.double(), part.covariance().double())
    ours, theirs = part.log_prob(held_out[:, some]), dense.log_prob(held_out[:, some].double())
    assert torch.allclose(ours, theirs, rtol=1e-3), "the likelihood differs from that of the dense Gaussian"
    print("OK")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
