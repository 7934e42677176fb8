"""`python -m paper experiment density`: a smooth process whose features are permuted, and the command end to end."""

import json
import math
import re

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from laplex.density import PlacedGaussian
from paper import __main__ as paper
from paper.experiments import density, density_data, density_runs, density_tables, published
from paper.experiments.density_runs import DensitySpec
from paper.experiments.record import Target
from paper.methods.gaussian import matched_rank

pytestmark = pytest.mark.usefixtures("one_thread")

N, DIM, VAL, TEST = 240, 150, 40, 30
SMALL = ("--rank", 20, "--fits", "q1", "q2@24", "--studied", "q1", "--components", 1, "--rounds", 15, "--device", "cpu")
TRAINED = ("--epochs", 3, "--lr", 0.02, "--after-epochs", 2, "--after-lr", 1e-4)


def process():
    """The covariance (DIM, DIM) of a smooth process on a line with noise, its features in a random order."""
    points = torch.rand(DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    covariance = torch.exp(-(points[:, None] - points).abs() / 0.1) + 0.05 * torch.eye(DIM, dtype=torch.float64)
    return MultivariateNormal(torch.full((DIM,), 0.5, dtype=torch.float64), covariance / 100)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Draws of the process to fit, and to evaluate."""
    root = tmp_path_factory.mktemp("data")
    torch.manual_seed(0)
    for name, count in (("train", N), ("val", VAL + TEST)):
        np.save(root / f"{name}.npy", process().sample((count,)).float().numpy())
    return root


def sources(root):
    return "--data", root / "train.npy", "--val", root / "val.npy", "--val-count", VAL, "--name", "line"


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """The folder of a run of everything, and its results by method and rank."""
    out = tmp_path_factory.mktemp("out")
    arguments = ["experiment", "density", *sources(files), "--out", out, *SMALL, *TRAINED]
    assert paper.main([str(one) for one in arguments]) == 0
    return out


def results(out):
    """Runs as pairs of settings and result."""
    return [(run["settings"], run["result"]) for run in json.loads((out / "density-line.json").read_text())["runs"]]


def only(out, **wanted):
    """The result of the one run with these settings."""
    (outcome,) = (result for given, result in results(out) if wanted.items() <= given.items())
    return outcome


# --- What is found ----------------------------------------------------------------------------------------------------


def test_em_from_the_tree_beats_dense_models_of_the_same_budget(finished, files):
    em = only(finished, method="em", functions=1, start="tree", jump=True, permuted=False)
    rank = matched_rank(em["parameters"], DIM)
    truth = float(process().log_prob(torch.from_numpy(np.load(files / "val.npy"))[VAL:].double()).mean())
    for method in ("ppca", "low-rank"):
        dense = only(finished, method=method, rank=rank)
        assert abs(dense["parameters"] / em["parameters"] - 1) < 0.2
        assert dense["test"]["log_likelihood"] + 5 < em["test"]["log_likelihood"] < truth + 2


def test_adam_starts_where_em_stopped(finished):
    before = only(finished, method="em", functions=2, start="tree")
    after = only(finished, method="em-adam", functions=2)
    assert len(after["history"]) == len(before["history"]) + 2
    assert [score for _, score in after["history"][:15]] == [score for _, score in before["history"]]
    assert after["history"][-1][1] > before["history"][-1][1] - 1
    assert all(one[0] < two[0] for one, two in zip(after["history"], after["history"][1:], strict=False))


def test_a_permutation_hurts_raster_order_and_not_the_tree(finished):
    scores = {
        (start, permuted): only(finished, method="em", rank=20, start=start, jump=False, permuted=permuted)["val"]
        for start in ("tree", "raster")
        for permuted in (False, True)
    }
    reached = {key: one["log_likelihood"] for key, one in scores.items()}
    assert reached["tree", False] == pytest.approx(reached["tree", True], abs=2.0)
    assert max(reached["raster", False], reached["raster", True]) < reached["tree", True] - 5


def test_a_diagonal_latent_covariance_has_fewer_parameters_and_learns(finished):
    diagonal, dense = (only(finished, method=method, components=1) for method in ("diagonal", "adam"))
    assert dense["parameters"] - diagonal["parameters"] == 20 * 19 // 2
    assert diagonal["history"][-1][1] > diagonal["history"][0][1]


def test_few_of_the_images_are_fitted_and_the_held_out_ones_stay(files, tmp_path):
    def prepared(count):
        options = density.Options(data=(str(files / "train.npy"),), hold_out=40, train_count=count)
        return density.prepare(options, Target(tmp_path)).data

    few = prepared(30)
    for count in (1, N):
        with pytest.raises(ValueError, match=f"--train-count must be from 2 to 200, the images to fit, got {count}"):
            prepared(count)
    assert len(few.train) == 30
    assert few.val.values.equal(prepared(None).val.values)


def test_figures_of_a_run(finished):
    ceiling = only(finished, method="empirical")
    assert ceiling["parameters"] == (N + 1) * DIM
    assert ceiling["rank"] == DIM
    assert ceiling["ridge"] > 0
    for given, result in results(finished):
        for part in ("train", "val", "test"):
            assert result[part]["closure"] == result[part]["log_likelihood"] / ceiling[part]["log_likelihood"]
            bits = -result[part]["log_likelihood"] / DIM / math.log(2)
            assert result[part]["bits_per_dim"] == pytest.approx(bits)
            assert 0 < result[part]["rmse"] < 0.11
        assert result["seconds"] > 0
        assert result["read_seconds"] is None if given["permuted"] else result["read_seconds"] > 0
        assert result["peak_bytes"] > 1e7
        if given["method"] == "em":
            model = PlacedGaussian(DIM, given["rank"], given["functions"])
            assert result["parameters"] == sum(one.numel() for one in model.parameters())


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_the_spread_of_samples_is_that_of_many_draws_over_that_of_the_examples(channels):
    torch.manual_seed(0)
    model = PlacedGaussian(12, 4, 2)
    values = torch.rand(50, 12)
    examples = density_runs.Examples(values)
    spread = density_runs.spread(model, examples, channels)

    def size(rows, mean):
        pixels = (rows - mean).unflatten(1, (-1, channels))
        return pixels.square().mean(), (pixels - pixels.mean(2, keepdim=True)).square().mean()

    drawn, smooth = (model.sample(200_000, noise=noise).detach() for noise in (True, False))
    ours = size(drawn, model.mean)[0], size(smooth, model.mean)[1]
    theirs = size(values, values.mean(0))
    assert spread["variance"] == pytest.approx(float(ours[0] / theirs[0]), rel=0.02)
    if channels == 1:
        assert spread["colour"] is None
    else:
        assert spread["colour"] == pytest.approx(float(ours[1] / theirs[1]), rel=0.02)


def test_every_run_tells_how_much_its_samples_vary(finished):
    for _, result in results(finished):
        assert result["samples"]["variance"] > 0  # far above 1 where Adam has only begun
        assert result["samples"]["colour"] is None  # draws of a process have no channels


def test_the_page_and_the_plot(finished):
    page = (finished / "density-line.md").read_text()
    assert page.startswith("# Gaussian densities of line, n = 150\n\n## Models\n")
    em = only(finished, method="em", functions=1, start="tree", jump=True, permuted=False)
    shown = f"{em['val']['log_likelihood']:,.0f} | {100 * em['val']['closure']:.1f}"
    assert f"| EM, q = 1, from the tree | 20 | {em['parameters']:,} | {shown} |" in page
    assert re.search(r"\| Adam, I = 1, from raster order \| 20 \|.*\|  \|  \|\n", page)  # the paper's has rank 1000
    assert re.search(r"\| empirical Gaussian, ridge 0\.\d+ \| 150 \|.*\| 315,549 \| 100 \|\n", page)
    starts = page[page.index("## Starts") :]
    assert "| from a Hilbert curve |" not in starts  # the file does not say how large the images are
    row = r"\| from (?:the tree|raster order|random places) (?:\| -?[\d,]+ \(-?\d+\.\d %\) ){4}\|"
    assert len(re.findall(row, starts)) == 3
    assert published.densities(DIM).name in page
    assert (finished / "density-line.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_run_repeats_nothing(finished, files, command, monkeypatch):
    before = (finished / "density-line.json").read_text(), (finished / "density-line.md").read_text()

    def never(*_):
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(density, "measure", never)
    status, _, errors = command("density", *sources(files), "--out", finished, *SMALL, *TRAINED)
    assert status == 0, errors
    assert ((finished / "density-line.json").read_text(), (finished / "density-line.md").read_text()) == before


def test_images_of_a_folder_and_all_starts(tmp_path, command):
    from made_images import SIDE, unpack

    root = unpack(tmp_path / "images", 12, 0)
    given = ("--data", root, "--hold-out", 8, "--side", SIDE, "--methods", "em", "--device", "cpu", "--out", tmp_path)
    status, _, errors = command("density", *given, "--rank", 8, "--fits", "q1", "--studied", "q1", "--quick")
    assert status == 0, errors
    assert "[8/16] EM, q = 1, from random places, no jumps, rank 8: " in errors
    page = (tmp_path / "density-images-quick.md").read_text()
    assert "a quick look" in page
    assert re.search(r"\| from a Hilbert curve (\| -?[\d,]+ \(.*?\) ){4}\|", page)
    runs = json.loads((tmp_path / "density-images-quick.json").read_text())["runs"]
    bits = [run["result"]["val"]["bits_per_dim"] for run in runs]
    assert all(0 < one < 9 for one in bits)  # of values of 8 bits


def test_what_is_held_out_is_the_same_every_time():
    values = torch.arange(20)[:, None].expand(20, 3)
    train, val = density_data.held_out(values, 5)
    assert sorted([*train[:, 0].tolist(), *val[:, 0].tolist()]) == list(range(20))
    assert val[:, 0].tolist() == np.random.RandomState(0).permutation(20)[:5].tolist()


def test_a_gpu_is_warmed_up_once_for_all_starts(files, monkeypatch):
    values, fitted = torch.from_numpy(np.load(files / "train.npy")), []
    data = density_data.Data((values[:50], values[50:60], values[:0]), None, "cpu")
    monkeypatch.setitem(density_runs.FITS, "em", lambda data, spec, recipe: fitted.append((spec, recipe)))
    for _ in range(2):
        density_runs._warm_up(data, DensitySpec("em", 20, functions=1, start="raster", jump=True), density_runs.SHORT)
    ((spec, recipe),) = fitted
    assert (spec.start, recipe.rounds, recipe.epochs) == ("raster", 1, 1)


def test_a_fit_that_diverges_says_so(files, tmp_path, command, monkeypatch):
    def fails(self):
        raise FloatingPointError

    monkeypatch.setattr(density_runs.density.Trainer, "epoch", fails)
    given = ("--methods", "low-rank", "--dense-ranks", 2, "--device", "cpu", "--out", tmp_path)
    assert command("density", *sources(files), *given)[0] == 0
    assert "| dense low rank, Adam, diverged in epoch 0 | 2 |" in (tmp_path / "density-line.md").read_text()


def test_a_negative_ceiling_closes_nothing(tmp_path, command):
    np.save(tmp_path / "wide.npy", 100 * np.random.default_rng(0).normal(size=(30, 12)))
    options = ("--hold-out", 10, "--methods", "ppca", "--dense-ranks", 2, "--device", "cpu", "--out", tmp_path)
    assert command("density", "--data", tmp_path / "wide.npy", *options)[0] == 0
    assert re.search(r"\| PPCA \| 2 \| 38 \| -\d+ \|  \| \d", (tmp_path / "density-wide.md").read_text())


def test_the_paper_s_figure_is_that_of_the_same_budget():
    expected = {
        DensitySpec("em", 1000, functions=2): 198_549,
        DensitySpec("em", 999, functions=3): 229_607,
        DensitySpec("em", 1000, functions=4): 238_578,
        DensitySpec("adam", 1000, components=2): 229_607,
        DensitySpec("low-rank", 11): 66_107,
        DensitySpec("empirical"): 315_549,
    }
    for spec, figure in expected.items():
        assert density_tables.published_figure(307_200, 1000, spec).log_likelihood == figure
    for spec in (DensitySpec("em", 2000, functions=2), DensitySpec("em", 1000, functions=1), DensitySpec("ppca", 40)):
        assert density_tables.published_figure(307_200, 1000, spec) is None
    assert published.densities(2_000_000).name.startswith("DIV2K")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fits", "x2"), "--fits and --studied must be words such as q2 or q2@2000, got 'x2'"),
        (("--fits", "q3@10"), "the rank of q3@10 must be a multiple of its 3 functions, .* got 10; write q3@9"),
        (("--rank", 3), "the rank of q2 must be a multiple of its 2 functions, .* got 2; write q2@4"),
        (("--rounds", 0), "--rounds must be at least 1, got 0"),
        (("--lr", 0), "--lr must be positive and finite, got 0.0"),
        (("--methods", "svd"), "--methods must be among em, .*, got 'svd'"),
        (("--hold-out", 5), "--val or --hold-out must be given, and not both"),
        (("--starts", "curve"), "--starts must not have curve where the shape of images is not known"),
        (("--data", "missing.npy"), "missing.npy, which does not exist"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_bad_options_are_refused_and_nothing_is_written(options, message, files, tmp_path, command):
    given = ("--out", tmp_path / "out", "--device", "cpu", "--rank", 20)
    status, output, errors = command("density", *sources(files), *given, *options)
    assert (status, output) == (2, "")
    assert re.search(message, errors)
    assert list(tmp_path.iterdir()) == []
