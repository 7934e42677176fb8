"""`python -m paper experiment`: the command and what it refuses; `compress`: residual energies with known answers."""

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from laplex.nn import LaplexLinear
from paper import experiments
from paper.experiments import compress

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--sweeps", 4, "--device", "cpu")


def saved(folder, **arrays):
    np.savez(folder / "head.npz", **arrays)
    return folder / "head.npz"


def results(folder, stem):
    runs = json.loads((folder / f"compress-{stem}.json").read_text())["runs"]
    return {
        (run["settings"]["way"], run["settings"]["rank"]): run["result"] for run in runs if "way" in run["settings"]
    }


# --- compress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_the_truncated_svd_leaves_the_energy_of_the_other_singular_values(weighted):
    head = nn.Linear(9, 6).double()
    h = torch.rand(9, dtype=torch.float64) + 0.1 if weighted else None
    energies = torch.linalg.svdvals(head.weight.detach() * (1.0 if h is None else h.sqrt())).square()
    for rank in (1, 3, 6):
        approximation = compress.approximation(head, h, "svd", rank, 1)
        assert torch.linalg.matrix_rank(approximation) == rank
        want = float(energies[rank:].sum() / energies.sum())
        assert compress.residual_energy(head.weight, approximation, h) == pytest.approx(want, abs=1e-12)


def test_weights_of_kernels_are_the_best_ones():
    layer, h = LaplexLinear(9, 6, kernels=3).double(), torch.rand(9, dtype=torch.float64) + 0.1
    weight = layer.to_dense().detach()
    with torch.no_grad():
        layer.mix.fill_(1.0)  # is found again
        torch.testing.assert_close(compress.best_sum(layer, weight, h), weight, rtol=1e-6, atol=1e-9)
        target = torch.randn(6, 9, dtype=torch.float64)
        best = compress.residual_energy(target, compress.best_sum(layer, target, h), h)
        for _ in range(20):
            layer.mix.normal_()
            assert best <= compress.residual_energy(target, layer.to_dense(), h)


def test_a_laplex_weight_is_compressed_better_by_laplex(tmp_path, command):
    weight = LaplexLinear(30, 20).to_dense().detach().numpy()
    path = saved(tmp_path, W=weight.astype(np.float16), b=np.ones(20), importance=np.linspace(0.5, 2, 30))
    status, output, errors = command(
        "compress", "--weight", path, "--out", tmp_path / "out", "--ranks", 1, "--device", "cpu"
    )
    assert status == 0, errors
    outcomes = results(tmp_path / "out", "head")
    assert outcomes["reseated", 1]["residual"] < outcomes["singular", 1]["residual"] < 1
    assert outcomes["reseated", 1]["residual"] < 0.5 * outcomes["svd", 1]["residual"]
    assert all(one["test"] is None for one in outcomes.values())
    page = (tmp_path / "out" / "compress-head.md").read_text()
    assert page.startswith("# head, 20 x 30, compressed\n")
    assert "| truncated SVD | 1 | 50 |" in page
    assert "| LAPLEX, re-seated | 1 | 51 |" in page
    assert (tmp_path / "out" / "compress-head.png").exists()
    assert output.count("wrote ") == 2


def test_more_kernels_than_singular_vectors(tmp_path, command):
    """Of a small head the default ranks are more than it has; what can be measured is."""
    path = saved(tmp_path, W=np.random.default_rng(0).standard_normal((5, 30)))
    status, _, errors = command("compress", "--weight", path, "--out", tmp_path / "out", "--ranks", 4, 8, "--sweeps", 2)
    assert status == 0, errors
    ways = [("svd", 4), ("singular", 4), ("reseated", 4), ("svd", 8), ("reseated", 8)]
    assert list(results(tmp_path / "out", "head")) == ways


def test_a_head_is_trained_first_where_features_are_given(file, tmp_path, command, monkeypatch):
    arguments = ("compress", "--data", file, "--out", tmp_path, "--ranks", 2, 5, *SMALL)
    status, _, errors = command(*arguments)
    assert status == 0, errors
    outcomes = results(tmp_path, "made")
    assert outcomes["svd", 5]["residual"] < 1e-10  # five classes: the full rank
    assert outcomes["svd", 5]["test"] > 0.95
    assert outcomes["svd", 2]["test"] < outcomes["svd", 5]["test"]
    before = (tmp_path / "compress-made.md").read_text()
    (full,) = re.findall(r"\| the head itself \|  \| 80 \| 0 \| ([\d.]+) \|", before)
    assert float(full) == pytest.approx(100 * outcomes["svd", 5]["test"], abs=0.05)
    monkeypatch.setattr(compress, "train", None)  # a call would fail
    assert command(*arguments)[0] == 0
    assert (tmp_path / "compress-made.md").read_text() == before


W = np.ones((3, 4), np.float32)
BAD_HEADS = {
    "no W": ({"V": W}, "python -m paper experiment compress: `path` must have the keys W, got"),
    "W of one dimension": ({"W": W[0]}, "`W` must have the shape (out, in), got (4,); pass the weight of one layer"),
    "an empty W": ({"W": W[:0]}, "`W` must have the shape (out, in), got (0, 4);"),
    "another bias": (
        {"W": W, "b": W[0]},
        "`b` must have the shape (3,), for `W` (3, 4), got (4,); give one number per row",
    ),
    "another importance": (
        {"W": W, "importance": W[:, 0]},
        "`importance` must have the shape (4,), for `W` (3, 4), got (3,)",
    ),
    "NaN": ({"W": W * np.nan}, "`W` must be finite, got NaN or infinity; find it with numpy.isfinite"),
    "importance 0": ({"W": W, "importance": 0 * W[0]}, "`importance` must be positive, got 0; it is the mean of x_j^2"),
}


@pytest.mark.parametrize("case", BAD_HEADS)
def test_a_bad_head_is_refused_and_nothing_is_written(case, tmp_path, command):
    arrays, message = BAD_HEADS[case]
    status, output, errors = command(
        "compress", "--weight", saved(tmp_path, **arrays), "--out", tmp_path / "out", *SMALL
    )
    assert (status, output) == (2, "")
    assert message in errors
    assert errors.startswith("python -m paper experiment compress: ")
    assert not (tmp_path / "out").exists()


# --- The command -----------------------------------------------------------------------------------------------------


def test_experiments_are_listed(command):
    status, output, _ = command("--list")
    assert status == 0
    assert [line.split()[0] for line in output.splitlines()] == list(experiments.NAMES)
    status, output, _ = command()
    assert status == 2
    assert "--list" in output
    assert command("nonsense")[0] == 2


def test_an_experiment_runs_from_python(tmp_path, capsys):
    options = {"size": 20, "features": (1, 2), "seeds": 1}
    assert experiments.run("rff", options, tmp_path) == 0
    assert len(json.loads((tmp_path / "rff.json").read_text())["runs"]) == 4
    assert experiments.run("rff", options | {"size": 0}, tmp_path) == 2
    assert "python -m paper experiment rff: --size must be at least 1, got 0" in capsys.readouterr().err
    with pytest.raises(TypeError, match="sise"):
        experiments.run("rff", {"sise": 20}, tmp_path)


REFUSED = {
    ("heads", "--ranks", "0"): "--ranks must be at least 1, got 0",
    ("heads", "--ranks", "2.5"): "argument --ranks: invalid int value: '2.5'",
    ("heads", "--seeds", "0"): "--seeds must be at least 1, got 0",
    ("heads", "--head", "deep"): "--head must be one of linear, mlp, got 'deep'",
    ("heads", "--jobs", "0"): "--jobs must be at least 1, got 0",
    ("heads", "--recipe", "best"): "--recipe must be one of tuned, paper, got 'best'",
    ("heads", "--methods", "full", "fuller"): "--methods must be among full, laplex, .*got 'fuller'",
    ("heads", "--name", "a/b"): "--name must consist of letters, digits, '-', '_' and '.', got 'a/b'",
    ("heads", "--name", ".."): "--name must consist of letters",
    ("heads", "--device", "tpu"): "--device must be cpu, cuda or cuda:INDEX, got 'tpu'",
    (
        "heads",
        "--data",
        "nowhere.npz",
    ): "python -m paper experiment heads: `path` must be a readable .npz file, got nowhere",
    ("compress", "--ranks", "0"): "--ranks must be at least 1, got 0",
    ("compress", "--sweeps", "0"): "--sweeps must be at least 1, got 0",
    ("compress", "--weight", "nowhere.npz"): "--weight or --data must be given, and not both",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_bad_options_are_refused_and_nothing_is_written(arguments, file, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *options = arguments
    status, output, errors = command(name, "--data", file, "--device", "cpu", "--out", "out", *options)
    assert (status, output) == (2, "")
    assert re.search(REFUSED[arguments].replace("(", r"\("), errors)
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["--data", "--out"])
def test_what_is_required_is_told(missing, file, tmp_path, command):
    given = {"--data": file, "--out": tmp_path}
    del given[missing]
    status, _, errors = command("heads", *(part for pair in given.items() for part in pair))
    assert status == 2
    assert f"the following arguments are required: {missing}" in errors


def test_a_folder_that_cannot_be_made_is_told(file, tmp_path, command):
    (tmp_path / "taken").write_text("a file")
    status, _, errors = command("heads", "--data", file, "--device", "cpu", "--out", tmp_path / "taken")
    assert status == 2
    assert "--out: cannot write into" in errors


def test_a_damaged_results_file_is_refused(file, tmp_path, command):
    path = tmp_path / "heads-made-tuned.json"
    path.write_text("{")
    status, _, errors = command("heads", "--data", file, "--device", "cpu", "--out", tmp_path)
    assert status == 2
    assert str(path) in errors
    assert "nothing was changed" in errors
    assert path.read_text() == "{"
