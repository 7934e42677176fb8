"""``laplex.density`` on a GPU: the same numbers as on the CPU."""

import pytest
import torch

from helpers import error
from laplex import density
from laplex.density._em import em_round
from test_density import VARIANTS, model_of
from test_density_em import smooth

pytestmark = pytest.mark.gpu
variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@variants
def test_log_prob_and_gradients(variant):
    model = model_of(variant, 300, 42, torch.float32)
    there = model_of(variant, 300, 42, torch.float32).to("cuda")
    x = torch.randn(6, 300)
    likelihood, on_gpu = model.log_prob(x), there.log_prob(x.cuda())
    assert error(on_gpu.cpu(), likelihood) <= 1e-5
    likelihood.sum().backward()
    on_gpu.sum().backward()
    for (name, one), two in zip(model.named_parameters(), there.parameters(), strict=True):
        assert error(two.grad.cpu(), one.grad) <= 1e-3, name  # sums of float32 numbers that cancel


@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
def test_rounds_of_em(shrinkage):
    values = smooth(dtype=torch.float32)
    histories = []
    for device in ("cpu", "cuda"):
        examples = density.Examples(values, device)
        state = density.start(examples, 24, places=torch.linspace(0, 1, 90))
        history = []
        for _ in range(5):
            state, likelihood = em_round(examples, state, jump=False, shrinkage=shrinkage)
            history.append(likelihood)
        histories.append(history)
    assert histories[1] == pytest.approx(histories[0], rel=1e-4)


def test_a_fit_on_the_device_from_bytes_on_the_host():
    values = (255 * torch.rand(60, 200)).to(torch.uint8)
    examples = density.Examples(values, "cuda")
    model = density.fit(examples, 12, rounds=4, progress=lambda done, total: None).model
    trainer = density.Trainer(model, examples, batch=16)
    before = density.evaluate(model, examples).log_likelihood
    for _ in range(3):
        trainer.epoch()
    assert density.evaluate(model, examples).log_likelihood > before


def test_a_step_does_not_wait():
    examples = density.Examples(smooth(dtype=torch.float32).cuda())
    model = density.LaplexGaussian(90, 8, device="cuda")
    model.mean.copy_(examples.mean)
    trainer = density.Trainer(model, examples)
    batches = trainer._batches()
    for rows in batches:
        trainer.step(examples.some(rows))
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.step(examples.some(batches[0]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
