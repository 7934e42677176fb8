"""``LaplexGaussian.start_from``: a start that knows the examples, and which models ``Trainer`` starts so."""

import copy
import math
import os

import pytest
import torch
from torch import nn

from laplex import density
from laplex.density import files

pytestmark = pytest.mark.usefixtures("one_thread")
DIM, RANK = 60, 20
KINDS = {
    "phased": {},
    "plain": {"phase": False},
    "two": {"components": 2},
    "three_plain": {"components": 3, "phase": False},
    "diagonal": {"latent": "diagonal"},
    "wide": {"dtype": torch.float64},
}
kinds = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def drawn(count=150, dtype=torch.float32, scale=1.0):
    """Examples of a process whose neighbours vary alike, features of different means and variances: (count, DIM)."""
    generator = torch.Generator().manual_seed(1)
    points = torch.linspace(0, 1, DIM, dtype=torch.float64)
    covariance = torch.exp(-(points[:, None] - points).abs() / 0.3) + 0.05 * torch.eye(DIM)
    z = torch.randn(count, DIM, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(covariance).mT
    return (scale * (2 + points + (0.1 + points) * z)).to(dtype)


def examples_like(options, **drawing):
    return density.Examples(drawn(dtype=options.get("dtype", torch.float32), **drawing))


def fresh(seed=0, **options):
    torch.manual_seed(seed)
    return density.LaplexGaussian(DIM, RANK, **options)


def started(examples, seed=0, **options):
    model = fresh(**options)
    model.start_from(examples, seed=seed)
    return model


def same(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().values(), strict=True)
    return all(torch.equal(value, second) for (_, value), second in pairs)


def likelihood(model, examples):
    return density.evaluate(model, examples).log_likelihood


# --- The start --------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("scale", [1e-3, 1.0, 255.0])
def test_every_feature_has_its_mean_and_its_variance(options, scale):
    examples = examples_like(options, scale=scale)
    model = started(examples, **options)
    assert torch.equal(model.mean, examples.mean)
    assert torch.allclose(model.distribution().variance, examples.variance, rtol=1e-4, atol=0)


@kinds
def test_neighbours_vary_alike(options):
    covariance = started(examples_like(options), **options).covariance()
    assert bool((covariance.diagonal(1) > 0).all())


@kinds
def test_it_is_far_likelier_than_what_the_class_makes(options):
    examples = examples_like(options)
    model = fresh(**options)
    model.mean.copy_(examples.mean)
    assert likelihood(started(examples, **options), examples) > likelihood(model, examples) + 10


@pytest.mark.parametrize("components", [1, 2, 3])
def test_adam_comes_further_from_it(components):
    examples, reached = density.Examples(drawn(scale=0.3)), {}
    for start in (True, False):
        model = fresh(components=components)
        model.mean.copy_(examples.mean)
        trainer = density.Trainer(model, examples, lr=2e-3, batch=32, start=start)
        for _ in range(20):
            trainer.epoch()
        reached[start] = likelihood(model, examples)
    assert reached[True] > reached[False] + 5


def test_functions_of_components_are_independent():
    model = started(density.Examples(drawn()), components=3)
    factor = model.factor.detach()
    for i in range(3):
        for j in range(i):
            assert not (factor[i].mT @ factor[j]).any()
    assert (factor.diagonal(dim1=1, dim2=2) > 0).sum(0).tolist() == [1] * RANK


def test_places_keep_their_order_and_their_distances_in_knots():
    examples = density.Examples(drawn())
    model = fresh()
    with torch.no_grad():
        model.a.copy_(torch.rand(DIM))
    before = copy.deepcopy(model)
    model.start_from(examples)
    scale = (model.b[-1] / before.b[-1]).detach()
    assert torch.allclose(model.a, scale * before.a)
    assert torch.allclose(model.b, scale * before.b)


def test_the_same_seed_gives_the_same_start_whatever_was_drawn_before():
    examples = density.Examples(drawn())
    one, two = (started(examples, components=2) for _ in range(2))
    torch.randn(7)
    three = fresh(seed=9, components=2)
    three.start_from(examples)
    assert same(one, two)
    assert same(one, three)
    assert not same(one, started(examples, seed=1, components=2))


def test_a_feature_that_never_changes_has_little_noise_and_no_weight():
    values = drawn()
    values[:, 3] = 0.7
    model = started(density.Examples(values), components=2)
    assert not model.weight[:, 3].any()
    assert math.isfinite(likelihood(model, density.Examples(values)))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_few_knots(rank):
    examples = density.Examples(drawn())
    for components in (1, 3):
        model = density.LaplexGaussian(DIM, rank, components)
        model.start_from(examples)
        assert torch.allclose(model.distribution().variance, examples.variance, rtol=1e-4)


def test_autocast_changes_nothing():
    examples = density.Examples(drawn())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = started(examples)
    assert same(model, started(examples))


# --- Who is started ---------------------------------------------------------------------------------------------------


@kinds
def test_a_trainer_starts_a_model_as_its_class_made_it(options):
    examples = examples_like(options)
    model = fresh(**options)
    density.Trainer(model, examples, seed=5)
    assert same(model, started(examples, seed=5, **options))


def one_step(model, examples):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    (-model.log_prob(examples.some(slice(0, 32))).mean() / DIM).backward()
    optimizer.step()


def loaded(model, examples):
    other = copy.deepcopy(model)
    one_step(other, examples)
    model.load_state_dict(other.state_dict())


def quieter(model, examples):
    with torch.no_grad():
        model.log_noise -= 0.1


def shorter(model, examples):
    with torch.no_grad():
        model.log_tau -= 0.1


KNOWN = {
    "trained": one_step,
    "loaded": loaded,
    "started": lambda model, examples: model.start_from(examples, seed=3),
    "noise": quieter,
    "tau": shorter,
}


@kinds
@pytest.mark.parametrize("change", KNOWN.values(), ids=KNOWN)
def test_a_trainer_leaves_a_model_that_knows_something(options, change):
    examples = examples_like(options)
    model = fresh(**options)
    change(model, examples)
    before = copy.deepcopy(model)
    density.Trainer(model, examples)
    assert same(model, before)


def test_a_trainer_leaves_a_model_from_a_file(tmp_path):
    examples = density.Examples(drawn())
    model = fresh()
    density.Trainer(model, examples).epoch()
    files.save(tmp_path / "model.safetensors", model)
    read, _ = files.load(tmp_path / "model.safetensors")
    density.Trainer(read, examples)
    assert same(model, read)


def test_a_trainer_can_be_told_not_to_start():
    model = fresh()
    before = copy.deepcopy(model)
    density.Trainer(model, density.Examples(drawn()), start=False)
    assert same(model, before)


def test_a_copy_and_a_conversion_know_as_little():
    examples = density.Examples(drawn(dtype=torch.float64))
    model = copy.deepcopy(fresh(components=2)).double()
    density.Trainer(model, examples)
    assert torch.allclose(model.distribution().variance, examples.variance, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"components": 2}], ids=["one", "two"])
def test_resumed_in_a_model_made_anew_to_the_same_bits(options):
    examples = density.Examples(drawn())
    trainer = density.Trainer(fresh(**options), examples, batch=32)
    trainer.epoch()
    weights, state = copy.deepcopy(trainer.model.state_dict()), copy.deepcopy(trainer.state_dict())
    trainer.epoch()
    resumed = density.Trainer(fresh(seed=8, **options), examples, batch=32)
    resumed.model.load_state_dict(weights)
    resumed.load_state_dict(state)
    resumed.epoch()
    assert same(resumed.model, trainer.model)


def start_together(rank, path):
    """One of two processes. Their examples differ, as where each has its own part of the data."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(path / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = fresh(seed=rank)
    examples = density.Examples(drawn()[rank::2])
    density.Trainer(nn.parallel.DistributedDataParallel(model), examples)
    torch.save(model.state_dict(), path / f"{rank}.pt")
    torch.distributed.barrier()  # a process that leaves early closes connections that the other still reads
    torch.distributed.destroy_process_group()
    os._exit(0)  # the group's threads outlive it under DistributedDataParallel, and may abort Python as it ends


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_processes_that_train_together_start_as_the_first(tmp_path):
    torch.multiprocessing.spawn(start_together, args=(tmp_path,), nprocs=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    first = started(density.Examples(drawn()[0::2])).state_dict()
    for name, value in first.items():
        assert torch.equal(one[name], value), name
        assert torch.equal(two[name], value), name


# --- Errors -----------------------------------------------------------------------------------------------------------

WHERE = r"laplex\.density\.LaplexGaussian\.start_from: "
ERRORS = {
    "tensor": (lambda: drawn(), {}, TypeError, "`examples` must be a laplex.density.Examples, got Tensor"),
    "features": (
        lambda: density.Examples(drawn()[:, :9]),
        {},
        ValueError,
        "`examples` must have 60 features, as the model, got 9; make the model with dim=9",
    ),
    "alike": (
        lambda: density.Examples(torch.ones(4, DIM)),
        {},
        ValueError,
        "`examples` must differ from one another, got 4 that are equal, or whose squared differences torch.float32 "
        "cannot hold; give more of them, or scale them",
    ),
    "seed": (lambda: density.Examples(drawn()), {"seed": -1}, ValueError, "`seed` must be"),
}


@pytest.mark.parametrize(("make", "options", "kind", "message"), ERRORS.values(), ids=ERRORS)
def test_bad_arguments(make, options, kind, message):
    with pytest.raises(kind, match=WHERE + message):
        fresh().start_from(make(), **options)
