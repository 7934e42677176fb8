"""``laplex.density.Trainer``: Adam on the exact likelihood."""

import copy

import numpy as np
import pytest
import torch

from laplex import density
from paper.methods.gaussian import LowRankGaussian
from test_density_em import smooth

pytestmark = pytest.mark.usefixtures("one_thread")
MODELS = {
    "phased": lambda: density.LaplexGaussian(90, 8),
    "two": lambda: density.LaplexGaussian(90, 8, 2),
    "diagonal": lambda: density.LaplexGaussian(90, 30, latent="diagonal"),
    "functions": lambda: density.PlacedGaussian(90, 8, 2),
    "low_rank": lambda: LowRankGaussian(90, 8),
}
models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def trainer_of(make, **options):
    torch.manual_seed(0)
    examples = density.Examples(smooth(dtype=torch.float32))
    model = make()
    model.mean.copy_(examples.mean)
    return density.Trainer(model, examples, **{"lr": 1e-2, "batch": 32} | options)


def same(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@models
def test_training_raises_the_likelihood(make):
    trainer = trainer_of(make)
    before = density.evaluate(trainer.model, trainer.examples).log_likelihood
    seen = [trainer.epoch() for _ in range(6)]
    after = density.evaluate(trainer.model, trainer.examples).log_likelihood
    assert trainer.epochs == 6
    assert after > max(before, seen[0])


def test_the_first_step_is_that_of_adam():
    trainer = trainer_of(MODELS["phased"])
    other = copy.deepcopy(trainer.model)
    x = trainer.examples.some(slice(0, 32))
    trainer.step(x)
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-2)
    (-other.log_prob(x).mean() / 90).backward()
    optimizer.step()
    for (name, one), two in zip(trainer.model.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6), name


@models
def test_resumed_after_an_epoch_to_the_same_bits(make):
    trainer = trainer_of(make)
    trainer.epoch()
    model, state = copy.deepcopy(trainer.model), copy.deepcopy(trainer.state_dict())
    trainer.epoch()
    resumed = density.Trainer(model, trainer.examples, lr=1e-2, batch=32)
    resumed.load_state_dict(state)
    resumed.epoch()
    assert resumed.epochs == 2
    assert same(resumed.model, trainer.model)


def test_shares_of_a_batch_are_the_batch():
    batches = trainer_of(MODELS["phased"])._batches()
    shares = [trainer_of(MODELS["phased"], share=(index, 2))._batches() for index in range(2)]
    for rows, one, two in zip(batches, *shares, strict=True):
        assert sorted(rows.tolist()) == sorted(one.tolist() + two.tolist())


def test_batches_are_new_in_every_epoch_and_fewer_examples_than_a_batch_are_one():
    trainer = trainer_of(MODELS["phased"])
    first = torch.cat(trainer._batches())
    trainer.epochs = 1
    assert not torch.equal(first, torch.cat(trainer._batches()))
    assert [len(rows) for rows in trainer_of(MODELS["phased"], batch=999)._batches()] == [200]


def test_one_bad_batch_among_good_ones_stops_all_and_can_be_gone_on_from(monkeypatch):
    trainer = trainer_of(MODELS["phased"])
    trainer.epoch()
    before, good = copy.deepcopy(trainer.model), trainer.examples.some
    bad = trainer._batches()[1]

    def some(rows):
        return good(rows) * (float("nan") if torch.equal(rows, bad) else 1.0)

    stopped = {}
    step = trainer.step

    def watched(x):
        result = step(x)
        stopped.setdefault("first", copy.deepcopy(trainer.model))
        return result

    monkeypatch.setattr(trainer, "step", watched)
    monkeypatch.setattr(trainer.examples, "some", some)
    with pytest.raises(FloatingPointError, match="the parameters are those before that step"):
        trainer.epoch()
    assert not same(before, trainer.model)
    assert same(stopped["first"], trainer.model)  # the second batch was bad, and nothing after it moved anything
    monkeypatch.setattr(trainer.examples, "some", good)
    trainer.epoch()
    assert not same(stopped["first"], trainer.model)


@pytest.mark.parametrize(("count", "processes", "sizes"), [(10, 4, [2]), (200, 2, [16] * 6), (3, 3, [1])])
def test_shares_are_of_one_size(count, processes, sizes):
    examples = density.Examples(smooth(count))
    model = density.LaplexGaussian(90, 4)
    for index in range(processes):
        batch = 32 // processes * processes
        trainer = density.Trainer(model, examples, batch=batch, share=(index, processes))
        assert [len(rows) for rows in trainer._batches()] == sizes


def test_what_is_not_finite_changes_nothing():
    trainer = trainer_of(MODELS["phased"])
    with torch.no_grad():
        trainer.model.weight[0, 0] = float("inf")
    before = copy.deepcopy(trainer.model)
    with pytest.raises(FloatingPointError, match=r"was not finite in epoch 0; .* use a smaller `lr`"):
        trainer.epoch()
    assert same(before, trainer.model)
    assert trainer.epochs == 0


def test_a_step_that_leads_nowhere_is_told():
    """The gradients are finite, and tau is not after the step."""
    trainer = trainer_of(MODELS["phased"], lr=1e6)
    message = r"in epoch 0 a step led to parameters that the model refuses \(.*`tau`.*\); go back .* use a smaller `lr`"
    with pytest.raises(FloatingPointError, match=message):
        trainer.epoch()


def test_examples_of_another_size_are_no_divergence():
    trainer = density.Trainer(density.LaplexGaussian(90, 8), density.Examples(smooth()[:, :80]), start=False)
    trainer.epochs = 3  # as after load_state_dict
    with pytest.raises(ValueError, match="must have 90 features"):
        trainer.epoch()


@pytest.mark.parametrize("lr", [np.float32(1e-2), torch.tensor(1e-2), 1], ids=["numpy", "tensor", "int"])
def test_numbers_of_any_kind_are_learning_rates(lr):
    trainer_of(MODELS["phased"], lr=lr).epoch()


def test_models_that_cannot_be_trained():
    examples = density.Examples(smooth())
    for model in (3, density.LaplexGaussian(90, 8).requires_grad_(False)):
        with pytest.raises(TypeError, match=f"`model` must be a module with .* got {type(model).__name__}; give a"):
            density.Trainer(model, examples)


ERRORS = {
    "lr_text": ({"lr": "x"}, "`lr` must be a positive number, got 'x'"),
    "index": ({"batch": 9, "share": (5, 3)}, r"`share` must be \(index, count\) .*, got \(5, 3\)"),
    "seed": ({"seed": 1 << 70}, r"`seed` must be at most 2\^63 - 1, got"),
    "lr": ({"lr": -1.0}, "`lr` must be positive and finite, got -1.0"),
    "batch": ({"batch": 0}, "`batch` must be at least 1, got 0"),
    "examples": ({"batch": 300, "share": (0, 300)}, "`examples` must be at least one per process, got 200 for 300"),
    "share": ({"batch": 5, "share": (0, 2)}, "`batch` must be a multiple of the 2 processes, got 5"),
}


@pytest.mark.parametrize(("options", "message"), ERRORS.values(), ids=ERRORS)
def test_bad_arguments(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        trainer_of(MODELS["phased"], **options)
