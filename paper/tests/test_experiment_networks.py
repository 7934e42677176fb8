"""`python -m paper experiment networks`: tasks, training and runs, with tiny networks on the CPU."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from made_images import write_files
from paper.experiments import network_tables, network_training, networks
from paper.experiments.jobs import JobError
from paper.experiments.network_images import SHIFT, SIDE, image_task
from paper.experiments.network_models import METHODS, Candidate, Shape, block_parameters
from paper.experiments.network_tasks import standard_library, text_task
from paper.experiments.network_training import Recipe, Training, train
from paper.experiments.training import seeded

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = Shape(width=16, heads=2, blocks=2, tokens=16, batch=4)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "some.txt"
    path.write_bytes(b"".join(b"line %d of a text\n" % number for number in range(300)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("images"))


@pytest.fixture
def look(command, text, tmp_path):
    """A quick look at text; its exit status, output and errors."""

    def run(*options):
        return command(
            "networks", "--task", "text", "--text", text, "--quick", "--device", "cpu", "--out", tmp_path, *options
        )

    return run


# --- Tasks -----------------------------------------------------------------------------------------------------------


def test_text_is_split_and_batches_are_of_the_train_part(text):
    task = text_task(str(text), "cpu", quick=True)
    assert task.facts == {"bytes": len(text.read_bytes()), "train_bytes": task.cut}
    starts = task.draws(500, 0)
    assert starts.max() + task.shape.tokens < task.cut
    assert torch.equal(starts, task.draws(500, 0))
    assert not torch.equal(starts, task.draws(500, 1))

    class Uniform(nn.Module):
        def forward(self, x):
            return torch.zeros(*x.shape, 256)

    assert task.validate(Uniform())["bits"] == pytest.approx(8)


def test_the_standard_library_is_code_without_tests():
    content = standard_library()
    assert b"class ArgumentParser(" in content
    assert b"class ArgumentParserTestCase" not in content


def test_scores_of_a_byte_do_not_depend_on_what_follows(text):
    task = text_task(str(text), "cpu", quick=True)
    net = task.network(Candidate("laplex", 2, 2))
    rows = torch.randint(0, 256, (1, task.shape.tokens))
    other = rows.clone()
    other[0, -1] = (other[0, -1] + 1) % 256
    one, two = net(rows), net(other)
    torch.testing.assert_close(one[:, :-1], two[:, :-1])
    assert not torch.allclose(one[:, -1], two[:, -1])


def test_images_are_shifted_and_mirrored(folder):
    task = image_task(str(folder), "cpu", quick=True)
    draws = task.draws(60, 0)
    assert sorted(draws.flatten(0, 1)[:240, 0].unique().tolist()) == sorted(draws.flatten(0, 1)[:240, 0].tolist())
    assert draws[..., 1:3].abs().max() == SHIFT
    seen = []

    class Seeing(nn.Module):
        def forward(self, x):
            seen.append(x)
            return torch.zeros(len(x), 4)

    moved = torch.tensor([[7, 0, 0, 0], [7, 2, 3, 0], [7, 0, 0, 1]])
    assert float(task.loss(Seeing(), moved)) == pytest.approx(math.log(4))
    plain, shifted, mirrored = seen[0]
    torch.testing.assert_close(plain, (task.train.pixels[7] - task.mean) / task.deviation)
    assert torch.equal(shifted[:-2, :-3], plain[2:, 3:])
    assert torch.equal(shifted[-1, :-3], plain[-1, 3:])  # what is uncovered repeats the border
    assert torch.equal(mirrored, plain.flip(1))


def test_packed_images_are_the_same_and_small_networks_learn_them(command, folder, tmp_path):
    packed = tmp_path / "packed.npz"
    options = ("networks", "--task", "images", "--device", "cpu", "--out", tmp_path)
    status, output, errors = command(*options, "--images", folder, "--pack", packed)
    assert status == 0, errors
    assert output == f"wrote {packed}\n"
    one, two = (image_task(str(path), "cpu", quick=True) for path in (folder, packed))
    assert one.digest == two.digest
    assert torch.equal(one.train.pixels, two.train.pixels)
    assert one.facts == {"train_images": 400, "validation_images": 400, "side": SIDE}
    net = two.network(Candidate("laplex", 2, 2))
    result = train(net, two, Recipe(3e-3, 120, warm_up=5), 0, "laplex")
    assert result["accuracy"] > 0.5
    status, _, errors = command(*options, "--images", packed, "--quick", "--methods", "laplex", "dense", "--steps", 2)
    assert status == 0, errors
    assert "accuracy" in (tmp_path / "networks-images-quick.md").read_text()


def test_a_packed_text_is_the_text(command, text, tmp_path):
    packed = tmp_path / "packed.txt"
    options = ("networks", "--task", "text", "--device", "cpu", "--out", tmp_path)
    assert command(*options, "--text", text, "--pack", packed)[0] == 0
    assert packed.read_bytes() == text.read_bytes()


# --- Training --------------------------------------------------------------------------------------------------------


def test_the_rate_rises_and_falls_to_0(text):
    factors = Recipe(1e-3, 1000).factors()
    assert factors[0] == pytest.approx(0.01, rel=1e-3)
    assert factors[99] == pytest.approx(1, abs=0.03)
    assert factors[-1] < 1e-5
    assert factors.argmax() in (98, 99, 100)


def test_a_step_is_that_of_adamw_with_clipped_gradients(text):
    task = text_task(str(text), "cpu", quick=True)
    recipe = Recipe(1e-2, 3, "highest", warm_up=2)
    with seeded(0):
        net = task.network(Candidate("dense", None, 0))
    with seeded(0):
        same = task.network(Candidate("dense", None, 0))
    training = Training(net, task, recipe, 5)
    plain = torch.optim.AdamW(same.parameters(), weight_decay=0.0)
    for step, draw in enumerate(task.draws(3, 5)):
        training.step()
        plain.zero_grad()
        loss = task.loss(same, draw)
        loss.backward()
        nn.utils.clip_grad_norm_(same.parameters(), 1.0)
        plain.param_groups[0]["lr"] = 1e-2 * float(recipe.factors()[step])
        plain.step()
        assert float(training.losses[step]) == pytest.approx(float(loss.detach()), rel=1e-5)
    for (name, one), two in zip(net.named_parameters(), same.parameters(), strict=True):
        if not name.endswith("key.bias"):  # its gradient is 0 but for rounding: scores of a query all shift by the same
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    assert training.done == 3


@pytest.mark.parametrize("precision", network_training.PRECISIONS)
def test_a_run_has_its_figures_and_leaves_the_precision_alone(precision, text):
    before = torch.get_float32_matmul_precision()
    task = text_task(str(text), "cpu", quick=True)
    with seeded(0):
        net = task.network(Candidate("laplex", 2, 2))
    result = train(net, task, Recipe(1e-2, 120, precision), 0, "laplex")
    assert torch.get_float32_matmul_precision() == before
    assert result["bits"] == pytest.approx(result["loss"] / math.log(2))
    assert result["bits"] < 6  # at the start it is 8 and more
    assert len(result["curve"]) == 40
    assert result["curve"][-1] < result["curve"][0]
    numbers = sum(one.numel() for one in net.parameters())
    assert result["bytes"]["gradients"] == 4 * numbers
    assert result["bytes"]["optimizer"] >= 8 * numbers
    assert result["bytes"]["checkpoint"] > 4 * numbers


def test_a_run_that_diverges_is_stopped(text):
    task = text_task(str(text), "cpu", quick=True)
    net = task.network(Candidate("laplex", 2, 2))
    net.blocks[0].query.a.register_hook(lambda gradient: gradient * float("nan"))
    result = train(net, task, Recipe(1e-2, 20), 0, "laplex")
    assert (result["diverged"], result["loss"]) == (True, None)
    assert len(result["curve"]) == 1
    assert network_tables.figure(result) is None
    assert network_tables.figure_text(result) == "diverged"


def test_a_step_that_cannot_be_captured_names_its_method(text, monkeypatch):
    task = text_task(str(text), "cpu", quick=True)
    training = Training(task.network(Candidate("dense", None, 0)), task, Recipe(1e-2, 5), 0)
    training.on_gpu = True

    class Stream:
        def wait_stream(self, other):
            pass

    class Refused:
        def __init__(self, graph):
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda side: torch.enable_grad())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", Refused)
    with pytest.raises(JobError, match=r"a training step of monarch cannot be captured in a CUDA graph: operation not"):
        training.captured("monarch")
    assert training.done == network_training.EAGER_STEPS


# --- The command -----------------------------------------------------------------------------------------------------


def test_all_methods_run_and_resume(look, tmp_path):
    options = ("--steps", 3, "--rates", "1e-3", "1e-2", "--seeds", 2)
    status, _, errors = look(*options)
    assert status == 0, errors
    path = tmp_path / "networks-text-quick.json"
    content = path.read_text()
    runs = json.loads(content)["runs"]
    assert len(runs) == len(METHODS) * (2 + 1 + 1)  # rates, one more seed, and a time
    assert len([line for line in errors.splitlines() if "bits per byte" in line]) == len(METHODS) * 3
    assert {run["settings"]["method"] for run in runs} == set(METHODS)
    trained = next(run for run in runs if run["settings"]["method"] == "laplex" and "lr" in run["settings"])
    assert trained["result"]["data"]["train_bytes"] == trained["result"]["data"]["bytes"] * 9 // 10
    assert trained["result"]["parameters"]["blocks"] == block_parameters(Candidate("laplex", 2, 2), TINY)
    table = (tmp_path / "networks-text-quick.md").read_text()
    assert all(re.search(rf"^\| {method} \|", table, re.MULTILINE) for method in METHODS)
    assert "a quick look: too short to compare methods" in table
    assert (tmp_path / "networks-text-quick.png").exists() or "matplotlib" in errors

    assert look(*options)[2].count("seed") == 0  # nothing is repeated
    assert path.read_text() == content


def test_it_ends_in_time_and_resumes(look, tmp_path, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(networks, "time", SimpleNamespace(time=lambda: next(clock)))
    options = ("--steps", 2, "--methods", "dense", "low-rank", "laplex")
    status, _, errors = look(*options, "--seconds", 4)
    assert status == 0
    assert "out of time: 1 of 3 runs are missing; the same command resumes" in errors
    assert len(json.loads((tmp_path / "networks-text-quick.json").read_text())["runs"]) == 2
    status, _, errors = look(*options)
    assert "out of time" not in errors
    assert len(json.loads((tmp_path / "networks-text-quick.json").read_text())["runs"]) == 6


def test_without_a_finished_run_there_is_no_table(look, tmp_path, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(networks, "time", SimpleNamespace(time=lambda: next(clock)))
    assert look("--seconds", 1)[0] == 0
    assert list(tmp_path.glob("*.md")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "sound"), "--task must be one of text, images, got 'sound'"),
        (("--task", "images"), "--images must be given for this task: a packed file, or a folder with"),
        (("--precision", "half"), "--precision must be one of high, highest, bf16, got 'half'"),
        (("--methods", "monarchs"), "--methods must be among dense, laplex, .* got 'monarchs'; did you mean"),
        (("--budgets", "0"), "--budgets must be at least 1, got 0"),
        (("--seconds", "0"), "--seconds must be at least 1, got 0"),
        (("--rates", "1e-3", "0"), "--rates must be positive, got 0"),
        (("--text", "nowhere.txt"), r"--text must be a file that can be read, got nowhere.txt \(No such file"),
    ],
)
def test_options_are_refused(look, options, message):
    status, _, errors = look(*options)
    assert status == 2
    assert re.search(f"python -m paper experiment networks: {message}", errors)


def test_data_that_do_not_fit_are_refused(look, command, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert f"--text must be a file of at least 320 bytes, got 9 in {short}; use more text" in look("--text", short)[2]
    wrong = tmp_path / "wrong.npz"
    labels = {"train_y": [0, 1], "val_y": [0, 1]}
    np.savez(wrong, train=np.zeros((2, 8, 8, 3)), val=np.zeros((2, 8, 8, 3)), **labels, classes=["one", "two"])
    errors = look("--task", "images", "--images", wrong)[2]
    assert "`train` must be uint8 of shape (2, 64, 64, 3), got float64 of shape (2, 8, 8, 3) in" in errors


def test_a_method_without_a_network_that_small_is_skipped(look):
    status, _, errors = look("--budgets", 1, "--methods", "btt", "laplex")
    assert status == 0
    assert "skipped: btt, budget of 1 kernels: its smallest network has" in errors
