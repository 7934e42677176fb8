"""`python -m paper experiment heads`: runs, starts, tables and the command, on data with a known answer."""

import json
import re
import sys

import pytest
import torch
from torch import nn

from laplex.nn import LaplexLinear
from made_features import CLASSES, WIDTH
from paper.experiments import head_tables, heads, published, report, training
from paper.experiments.data import features
from paper.experiments.head_methods import HEAD_METHODS, HeadMethod, Heads, discriminant_head
from paper.experiments.head_tables import HeadResult
from paper.experiments.record import Record
from paper.experiments.training import Recipe, train
from paper.methods.heads import METHODS, Count, count

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = ("--quick", "--device", "cpu", "--name", "tiny")


# --- Training --------------------------------------------------------------------------------------------------------


def test_the_paper_s_recipe_is_its_table():
    assert Recipe(1e-4, 30, 128, decay=0.0, floor=1e-6, bias_lr=1e-5, bias_decay=0.05) == training.PAPER
    assert Recipe(1e-5, 30, 128, decay=0.05, floor=1e-6, bias_lr=1e-5, bias_decay=0.05) == training.PAPER_FULL
    groups = training._groups(LaplexLinear(4, 3), training.PAPER)
    assert [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups] == [
        (3, 1e-4, 0.0),
        (1, 1e-5, 0.05),
    ]
    assert len(training._groups(LaplexLinear(4, 3), training.TUNED)) == 1


@pytest.mark.parametrize("recipe", [training.PAPER, training.PAPER_FULL])
@pytest.mark.parametrize("rows", [15_000, 500, 12_811_670])
def test_the_paper_s_recipe_carries_as_far_on_any_number_of_rows(recipe, rows):
    steps, of_paper = (-(-count // 128) * 30 for count in (rows, 1_281_167))
    assert of_paper == 300_300
    scaled = training.scaled(recipe, rows)
    for rate in ("lr", "bias_lr", "floor"):
        assert steps * getattr(scaled, rate) == pytest.approx(of_paper * getattr(recipe, rate))
    assert (scaled.epochs, scaled.batch, scaled.decay, scaled.bias_decay) == (
        recipe.epochs, recipe.batch, recipe.decay, recipe.bias_decay,
    )  # fmt: skip
    assert training.scaled(recipe, training.PAPER_ROWS) == recipe


def test_a_seed_decides_a_run(file):
    data = features(file).standardised()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    factory = Heads(data)
    runs = [train(factory.make(HeadMethod("laplex"), 2, seed), data, Recipe(1e-2, 2, 64), seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0]["loss"] != runs[2]["loss"]
    assert torch.equal(torch.rand(3), expected)  # the user's random numbers are not touched


def test_a_run_that_diverges_is_stopped_and_told(file):
    data = features(file).standardised()

    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x) * float("nan")

    result = train(Broken(WIDTH, CLASSES), data, Recipe(1e-2, 2, 64), 0)
    assert result == {"val": 0.0, "test": 0.0, "loss": None, "diverged": True}


def test_a_run_that_ends_with_nan_has_diverged(file):
    data = features(file).standardised()
    head = nn.Linear(WIDTH, CLASSES)
    head.weight.register_hook(lambda gradient: gradient * float("nan"))
    rows = len(data.train[1])  # one step: its loss is still finite
    assert train(head, data, Recipe(1e-2, 1, rows), 0)["diverged"]


def test_accuracy_counts_rows_over_blocks(monkeypatch):
    monkeypatch.setattr(training, "ROWS", 2)
    y = torch.tensor([0, 1, 2, 0, 1])
    assert training.accuracy(nn.Identity(), torch.eye(3)[torch.tensor([0, 1, 0, 0, 2])], y) == 3 / 5


# --- Methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", HEAD_METHODS, ids=str)
def test_every_variant_has_the_parameters_it_is_counted_with(variant, file):
    data = features(file).standardised()
    factory = Heads(data)
    first, other = factory.make(variant, 2, 0), factory.make(variant, 2, 1)
    errors = count(variant.method, WIDTH, CLASSES, 2).trained
    assert sum(parameter.numel() for parameter in first.parameters()) == errors
    fitted = variant.start != "random"
    equal = all(torch.equal(*pair) for pair in zip(first.parameters(), other.parameters(), strict=True))
    assert equal == fitted  # a start from the data does not depend on the seed
    with torch.no_grad():
        next(first.parameters()).add_(1)
    assert not torch.equal(next(first.parameters()), next(factory.make(variant, 2, 0).parameters()))


def test_phases_of_a_start_from_the_data_can_move(file):
    data = features(file).standardised()
    head = Heads(data).make(HeadMethod("laplex-phased", "singular"), 2, 0)
    nn.functional.cross_entropy(head(data.train[0]), data.train[1]).backward()
    assert head.phi.grad.abs().max() > 0


def test_the_discriminant_separates_gaussian_classes():
    generator = torch.Generator().manual_seed(0)
    means = 4 * torch.randn(CLASSES, WIDTH, generator=generator)
    y = torch.arange(500) % CLASSES
    x = means[y] + torch.randn(500, WIDTH, generator=generator) + 3.0
    assert training.accuracy(discriminant_head(x, y, CLASSES), x, y) > 0.99


# --- heads -----------------------------------------------------------------------------------------------------------


def test_heads_reach_the_known_answer(file, tmp_path, command):
    options = ("--methods", "full", "laplex", "--ranks", 4, "--seeds", 2, "--device", "cpu")
    status, output, errors = command("heads", "--data", file, "--out", tmp_path, *options)
    assert status == 0, errors
    page = (tmp_path / "heads-made-tuned.md").read_text()
    full = float(re.search(r"\| full \|.*?\*\*([\d.]+)", page)[1])
    best = max(float(value) for value in re.findall(r"\| laplex \|.*?\*\*([\d.]+)", page))
    assert full > 95
    assert best > 85
    assert "(end of grid)" not in page or "end of the grid is marked" in page
    assert (tmp_path / "heads-made-tuned.png").read_bytes().startswith(b"\x89PNG")
    assert output.count("wrote ") == 2


def test_heads_runs_every_method_and_resumes(file, tmp_path, command, monkeypatch):
    arguments = ("heads", "--data", file, "--out", tmp_path / "new", "--ranks", 3, *QUICK)
    status, _, errors = command(*arguments)
    assert status == 0, errors
    page = (tmp_path / "new" / "heads-tiny-tuned-quick.md").read_text()
    assert page.startswith("# Heads on tiny, recipe tuned, a quick look: too short to compare methods\n")
    assert all(f"| {method} |" in page for method in METHODS)
    assert f"[{len(HEAD_METHODS)}/{len(HEAD_METHODS)}]" in errors
    runs = json.loads((tmp_path / "new" / "heads-tiny-tuned-quick.json").read_text())["runs"]
    assert len(runs) == 3 * len(HEAD_METHODS)  # the seed of the chosen rate is the one that chose it
    assert all(run["settings"]["epochs"] == 3 for run in runs)

    def never(*_):
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(heads, "train", never)
    assert command(*arguments)[0] == 0
    assert (tmp_path / "new" / "heads-tiny-tuned-quick.md").read_text() == page
    with pytest.raises(AssertionError, match="repeated"):
        command(*arguments, "--fresh")


def test_ctrl_c_keeps_finished_runs(file, tmp_path, command, monkeypatch):
    count_ = []

    def interrupted(*arguments):
        count_.append(1)
        if len(count_) == 3:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(heads, "train", interrupted)
    arguments = ("heads", "--data", file, "--out", tmp_path, "--methods", "full", *QUICK)
    status, output, errors = command(*arguments)
    assert (status, output) == (130, "")
    assert (
        "python -m paper experiment heads: interrupted; finished runs are kept, and the same command resumes from there"
        in errors
    )
    assert len(json.loads((tmp_path / "heads-tiny-tuned-quick.json").read_text())["runs"]) == 2
    assert command(*arguments)[0] == 0
    assert len(count_) == 4


def test_the_paper_s_recipe_tunes_nothing(file, tmp_path, command):
    arguments = ("--recipe", "paper", "--methods", "full", "low-rank", "--ranks", 2, "--seeds", 2, *QUICK)
    assert command("heads", "--data", file, "--out", tmp_path, *arguments)[0] == 0
    runs = json.loads((tmp_path / "heads-tiny-paper-quick.json").read_text())["runs"]
    rows = len(features(file).train[1])
    rates = [training.scaled(recipe, rows).lr for recipe in (training.PAPER_FULL, training.PAPER)]
    assert rates[1] > training.PAPER.lr
    assert [run["settings"]["lr"] for run in runs] == [rates[0]] * 2 + [rates[1]] * 4
    page = (tmp_path / "heads-tiny-paper-quick.md").read_text()
    assert "The recipe is the paper's (Table 5)" in page
    assert "steps times rate, about as far as Adam can carry an anchor, is the paper's" in page


def test_what_a_budget_does_not_buy_is_skipped_and_told(file, tmp_path, command):
    options = ("--methods", "laplex", "laplex-phased", "--ranks", 1, 6, *QUICK)
    status, _, errors = command("heads", "--data", file, "--out", tmp_path, *options)
    assert status == 0
    assert "skipped: laplex-phased, r = 1: paper.methods.heads.size_for_budget: `budget` must be at least" in errors
    assert "skipped: laplex, singular, r = 6: a weight 5 x 16 has 5 singular vectors" in errors


def test_the_learning_rate_is_the_best_on_validation_rows(file, tmp_path, monkeypatch):
    values = {1e-3: 0.5, 1e-2: 0.7, 1e-1: 0.7}
    tests = iter([0.6, 0.8])

    def known(head, data, recipe, seed):
        return {"val": values[recipe.lr], "test": next(tests) if recipe.lr == 1e-2 else 0.0, "diverged": False}

    monkeypatch.setattr(heads, "train", known)
    data = features(file).standardised()
    options = heads.Options(data=str(file), seeds=2, quick=True)
    experiment = heads.Experiment(options, data, Record(tmp_path / "r.json", "heads"))
    row = heads.measure(Heads(data), experiment, (HeadMethod("seeded"), 2, 4))
    assert (row.lr, row.at_end, row.val, row.seeds) == (1e-2, False, 0.7, 2)
    assert (row.test, row.deviation) == (pytest.approx(0.7), pytest.approx(0.02**0.5))
    assert row.text == "70.0 ± 14.1"


# --- Tables and plots ------------------------------------------------------------------------------------------------


def row(method, start, rank, val, test=0.5, **others):
    known = {"size": 2, "parameters": Count(1000 * (rank or 9), 1200), "lr": 0.01, "at_end": False, "deviation": 0.01}
    return HeadResult(method, start, rank, val=val, test=test, **(known | {"seeds": 5} | others))


ROWS = [
    row("full", "random", None, 0.9, test=0.9),
    row("laplex", "random", 4, 0.6),
    row("laplex", "singular", 4, 0.8, test=0.7, at_end=True),
    row("low-rank", "random", 4, 0.3),
    row("laplex", "random", 16, 0.8),
    row("seeded", "random", 16, 0.8, seeds=1),
]


def test_the_best_start_of_a_method_is_chosen_on_validation_rows():
    assert head_tables.best_starts(ROWS) == [ROWS[0], ROWS[2], *ROWS[3:]]


def test_the_table_has_the_paper_s_figures_beside_ours(tmp_path):
    head_tables.write(tmp_path / "heads-some.json", "some", "tuned", ROWS)
    page = (tmp_path / "heads-some.md").read_text()
    lines = page.splitlines()
    assert lines[0] == "# Heads on some, recipe tuned"
    assert lines[2].endswith("| test % | paper, Swin-T | paper, MaxViT-T |")
    assert lines[4] == (
        "| full | random |  |  | 9,000 | 1,200 | 0.01 | 90.0 | **90.0 ± 1.0** | 81.37 ± 0.03 | 83.37 ± 0.04 |"
    )
    assert lines[6] == (
        "| laplex | singular | 4 | 2 | 4,000 | 1,200 | 0.01 (end of grid) | 80.0 | **70.0 ± 1.0** | 54.04 ± 0.29 | "
        "78.61 ± 0.16 |"
    )
    assert lines[5].endswith("| 60.0 | 50.0 ± 1.0 | 54.04 ± 0.29 | 78.61 ± 0.16 |")
    assert lines[9] == "| seeded | random | 16 | 2 | 16,000 | 1,200 | 0.01 | 80.0 | **50.0** |  |  |"
    assert "ImageNet-1k (Table 6)" in page
    assert "end of the grid" in page


def test_without_matplotlib_there_is_a_table_and_it_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    head_tables.write(tmp_path / "heads-some.json", "some", "paper", ROWS)
    assert [path.name for path in tmp_path.iterdir()] == ["heads-some.md"]
    errors = capsys.readouterr().err
    assert "plots need matplotlib, which is missing; pip install matplotlib and run the same command" in errors


def test_seeds_that_diverged_are_told():
    assert row("laplex", "random", 4, 0.6, diverged=2).text == "50.0 ± 1.0 (2 of 5 diverged)"


def test_curves_have_one_line_a_method_over_what_counts():
    rows = [*ROWS, row("pca-stored", "random", 4, 0.5)]
    curves, level = head_tables._curves(rows)
    assert set(curves) == {"laplex", "low-rank", "seeded", "pca-stored"}
    assert [(point.x, round(point.y)) for point in curves["laplex"]] == [(4000, 70), (16000, 50)]
    assert curves["pca-stored"][0].x == 1200
    assert level == report.Point(9000, 90, 1)


def test_published_figures_are_found_by_network_method_and_rank():
    assert published.head("Swin-T", "low-rank", 8).accuracy == 46.80
    assert published.head("MaxViT-T", "laplex", 16) == ("MaxViT-T", "laplex", 16, "42.1 K", 82.65, 0.03)
    assert published.head("Swin-T", "laplex", 2) is None
    assert {one.method for one in published.HEADS} <= set(METHODS)
    assert len({one[:3] for one in published.HEADS}) == len(published.HEADS) == 14


def test_a_cell_may_hold_a_bar():
    assert report.page("T", [report.Section(["a"], [["x|y"]], ["N."])]) == "# T\n\n| a |\n| --- |\n| x\\|y |\n\nN.\n"
