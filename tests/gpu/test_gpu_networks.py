"""On a CUDA device: captured training steps of `python -m paper experiment networks` are the eager ones."""

import pytest
import torch

from paper.experiments.network_models import METHODS, Candidate, Shape, candidate_within
from paper.experiments.network_tasks import TextTask
from paper.experiments.network_training import PRECISIONS, Recipe, Training, time_steps, train
from paper.experiments.training import seeded

pytestmark = pytest.mark.gpu
SHAPE = Shape(width=64, heads=4, blocks=2, tokens=32, batch=16)
STEPS = 20


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, 256, (50, 8), generator=generator, dtype=torch.uint8)
    content = words[torch.randint(0, 50, (2000,), generator=generator)].flatten()
    return TextTask(content.cuda(), "random words", SHAPE)


def training(task, method, precision="highest"):
    candidate = Candidate(method, None, 0) if method == "dense" else candidate_within(method, 8, SHAPE)
    with seeded(0):
        net = task.network(candidate)
    return Training(net, task, Recipe(1e-3, STEPS, precision, warm_up=5), 0)


@pytest.mark.parametrize("method", METHODS)
def test_captured_steps_are_eager_steps(task, method):
    eager, captured = training(task, method), training(task, method)
    for _ in range(STEPS):
        eager.step()
    assert captured.run(method)
    assert captured.done == eager.done == STEPS
    torch.testing.assert_close(captured.losses, eager.losses, rtol=1e-3, atol=1e-3)
    assert captured.losses[-1] < captured.losses[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_runs_of_every_precision_learn_and_are_timed(task, precision):
    net = training(task, "laplex", precision).net
    result = train(net, task, Recipe(1e-2, 200, precision), 0, "laplex")
    assert not result["diverged"]
    assert result["bits"] < 7
    times = time_steps(net, task, Recipe(1e-2, 200, precision), "laplex")
    assert times["seconds_per_step"] > 0
    assert times["peak_bytes"] > 4 * SHAPE.batch * SHAPE.tokens * 256  # the scores


def test_a_run_that_diverges_is_noticed(task):
    broken = training(task, "laplex")
    with torch.no_grad():
        broken.net.blocks[0].widen.mix.fill_(float("nan"))
    assert not broken.run("laplex")
