"""`python -m paper experiment projection`: heads, training, tables and the command, on images with a known answer."""

import json
import re

import pytest
import torch
from torch import nn

from made_images import CLASSES, SIDE, D, load_files, pack, unpack, write_files
from paper.experiments import projection, projection_maps, projection_tables, published
from paper.experiments.images import Images, flatten
from paper.experiments.projection_maps import PROJECTIONS, Maps, Projection
from paper.experiments.projection_tables import ProjectionResult
from paper.experiments.projection_training import HeadRecipe, JointRecipe, fit_heads, frozen_run, joint_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def data(folder):
    return load_files(folder)


@pytest.fixture(scope="module")
def maps(data):
    return Maps(data, 64)


SMALL = ("--side", SIDE, "--device", "cpu", "--name", "tiny")


# --- Heads and training ----------------------------------------------------------------------------------------------


def test_heads_fitted_together_are_those_of_adamw_alone(data):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(400, 6, generator=generator)
    seen = torch.ones(400, 2)
    seen[data.held, 0] = 0
    decays, recipe = (0.1, 1.0), HeadRecipe(steps=40)
    weight, bias = fit_heads(z, data.train.y, CLASSES, seen, decays, recipe, seed=3)
    for index, rows in enumerate((data.rest, torch.arange(400))):
        torch.manual_seed(3)
        head = nn.Linear(6, CLASSES)
        optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=decays[index])
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(z[rows]), data.train.y[rows]).backward()
            optimizer.step()
        torch.testing.assert_close(weight[index], head.weight.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(bias[index], head.bias.detach(), rtol=1e-3, atol=1e-4)


def test_validation_images_choose_nothing(data, monkeypatch):
    known = {"held": [0.5, 0.7, 0.7], "val": [0.9, 0.6, 0.8]}

    def accuracies(z, y, weight, bias):
        return [*known["held"], 0, 0, 0] if len(y) == len(data.held) else [0, 0, 0, *known["val"]]

    monkeypatch.setattr("paper.experiments.projection_training._accuracies", accuracies)
    z = torch.randn(400, 3)
    result = frozen_run(data, z, z, HeadRecipe(steps=1), 0)
    assert result == {"val": 0.6, "held": 0.7, "decay": 0.1, "best": 0.9}


def test_features_of_any_scale_give_the_same_head_and_zeros_do_no_harm(data, maps):
    train, val = maps.features(Projection("placed"), 4, 0)
    train, val = (torch.cat([one, torch.zeros(len(one), 1)], 1) for one in (train, val))
    scale = torch.tensor([2.0**-7, 1.0, 2.0**5, 2.0**7, 1.0])
    recipe = HeadRecipe(steps=30)
    first, second = frozen_run(data, train, val, recipe, 0), frozen_run(data, train * scale, val * scale, recipe, 0)
    assert first == second
    nothing = frozen_run(data, torch.zeros(400, 2), torch.zeros(400, 2), recipe, 0)
    assert nothing["val"] == pytest.approx(1 / CLASSES, abs=0.01)  # every image gets the same class


def test_pixels_placed_from_the_data_keep_more_than_random_places(data, maps):
    def reached(variant):
        return frozen_run(data, *maps.features(variant, 8, 0), HeadRecipe(), 0)["val"]

    placed, random = reached(Projection("placed")), reached(Projection("laplex", 0.1))
    assert placed > 0.8
    assert placed > random + 0.1


@pytest.mark.parametrize(
    ("method", "tau"), [("trained-laplex", 0.1), ("trained-placed", 0.05), ("trained-dense", None)]
)
def test_projections_are_trained_with_the_head(method, tau, data, maps):
    recipe = JointRecipe(lr=projection.RECIPES[method].lr, epochs=25)
    layer = maps.trainable(Projection(method, tau), 8, 0)
    before = [value.detach().clone() for value in layer.parameters()]
    result = joint_run(layer, 8, data, recipe, 0)
    assert result["val"] > 0.7
    assert not result["diverged"]
    assert all(not torch.equal(one, other) for one, other in zip(before, layer.parameters(), strict=True))
    again = joint_run(maps.trainable(Projection(method, tau), 8, 0), 8, data, recipe, 0)
    assert again == result


# --- The command -----------------------------------------------------------------------------------------------------


def test_projection_runs_every_method_and_resumes(folder, tmp_path, command, monkeypatch):
    arguments = ("projection", "--data", folder, "--out", tmp_path / "new", "--quick", "--widths", 5, 3, *SMALL)
    status, output, errors = command(*arguments)
    assert status == 0, errors
    assert output.count("wrote ") == 2
    page = (tmp_path / "new" / "projection-tiny-quick.md").read_text()
    assert page.startswith("# Projections of tiny, a quick look: too short to compare methods\n")
    assert all(f"| {variant} |" in page for variant in PROJECTIONS)
    assert "| projection | numbers | m = 3 | m = 5 |" in page
    assert f"| LAPLEX, placed, tau = 1/m | {D + 4} to {D + 6} |" in page
    assert f"[{2 * len(PROJECTIONS)}/{2 * len(PROJECTIONS)}] trained dense, m = 5: " in errors
    assert (tmp_path / "new" / "projection-tiny-quick.png").read_bytes().startswith(b"\x89PNG")
    runs = json.loads((tmp_path / "new" / "projection-tiny-quick.json").read_text())["runs"]
    assert len(runs) == 2 * len(PROJECTIONS)
    assert {run["settings"].get("epochs") for run in runs} == {2, None}

    def never(*_):
        raise AssertionError("a finished run was repeated")

    for name in ("frozen_run", "joint_run"):
        monkeypatch.setattr(projection, name, never)
    assert command(*arguments)[0] == 0
    assert (tmp_path / "new" / "projection-tiny-quick.md").read_text() == page


def test_files_and_folders_name_the_same_images(folder, tmp_path, command):
    options = ("--methods", "countsketch", "--widths", 4, "--seeds", 2, *SMALL)
    files = ("--train", folder / "some_train0.npz", folder / "some_train1.npz")
    assert command("projection", "--data", folder / "some_val.npz", *files, "--out", tmp_path, *options)[0] == 0
    before = (tmp_path / "projection-tiny.json").read_text()
    assert len(json.loads(before)["runs"]) == 2
    assert command("projection", "--data", folder, "--out", tmp_path, *options)[0] == 0
    assert (tmp_path / "projection-tiny.json").read_text() == before  # the same data: nothing is run again
    unpack(tmp_path / "tree" / "train", 12, 0)
    unpack(tmp_path / "tree" / "val", 4, 1)
    assert command("projection", "--data", tmp_path / "tree", "--out", tmp_path, *options)[0] == 0
    assert len(json.loads((tmp_path / "projection-tiny.json").read_text())["runs"]) == 4
    page = (tmp_path / "projection-tiny.md").read_text()
    assert re.search(r"\| CountSketch \| 864 \| \*\*[\d.]+ ± [\d.]+ \([\d.]+\)\*\* \|", page)
    assert "Trained with the head" not in page


def test_more_components_than_images_are_skipped_and_told(folder, tmp_path, command):
    options = ("--methods", "pca", "--widths", 2, 400, "--quick", *SMALL)
    status, _, errors = command("projection", "--data", folder, "--out", tmp_path, *options)
    assert status == 0
    assert "skipped: PCA, m = 400: the images have 359 principal components" in errors


def test_where_all_is_skipped_it_is_refused(folder, tmp_path, command):
    options = ("--methods", "pca", "--widths", 400, *SMALL)
    status, output, errors = command("projection", "--data", folder, "--out", tmp_path / "out", *options)
    assert (status, output) == (2, "")
    assert "--widths must have one of at most 359, the number of principal components, for pca alone, got 400" in errors
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    ("--widths", "0"): "--widths must be at least 1, got 0",
    ("--seeds", "0"): "--seeds must be at least 1, got 0",
    ("--side", "0"): "--side must be at least 1, got 0",
    ("--methods", "pca", "lda"): "--methods must be among countsketch, laplex, placed, .*got 'lda'",
    ("--name", "a/b"): "--name must consist of letters",
    ("--data", "nowhere"): "--data must be a folder with train and validation images, got nowhere; for one file of",
    (
        "--train",
        "nowhere.npz",
    ): "python -m paper experiment projection: `path` must be a readable .npz file, got nowhere.npz",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_bad_options_are_refused_and_nothing_is_written(arguments, folder, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("--data", folder, *SMALL, "--out", "out", *arguments)
    status, output, errors = command("projection", *given)
    assert (status, output) == (2, "")
    assert re.search(REFUSED[arguments], errors)
    assert errors.splitlines()[-1].startswith("python -m paper experiment projection: ")
    assert list(tmp_path.iterdir()) == []


def test_parts_with_other_classes_are_refused(folder, tmp_path, command):
    other = pack(tmp_path / "other.npz", 2, 0, classes=CLASSES + 1)
    given = ("--data", folder / "some_val.npz", "--train", folder / "some_train0.npz", other)
    status, _, errors = command("projection", *given, "--out", tmp_path / "out", *SMALL)
    assert status == 2
    assert "python -m paper experiment projection: `train` and `val` must have the same classes in every part" in errors
    assert not (tmp_path / "out").exists()


def test_too_few_and_equal_images_are_refused():
    def images(count):
        return Images(torch.zeros(count, 2, 2, 3, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64), ("a",))

    where = "paper.experiments.images: `train` must have "
    with pytest.raises(ValueError, match=where + "10 images of some class, got fewer of every class; one in ten"):
        flatten(images(9), images(2), "cpu")
    with pytest.raises(ValueError, match=where + "images that differ, got equal ones; check the files"):
        flatten(images(20), images(2), "cpu")


# --- Tables ----------------------------------------------------------------------------------------------------------


def cell(method, width, val, tau=None, held=0.5, **others):
    variant = Projection(method, tau, phase=others.pop("phase", False))
    return ProjectionResult(variant, width, 1000 + width, val, 0.01, 5, held, **others)


RESULTS = [
    cell("countsketch", 25, 0.30, best=0.31),
    cell("laplex", 25, 0.20, 0.1, held=0.6),
    cell("laplex", 25, 0.25, 0.1, held=0.5, phase=True),
    cell("laplex", 30, 0.15, 0.1),
    cell("placed", 25, 0.35),
    cell("trained-laplex", 25, 0.40, 0.1, held=None),
    cell("trained-dense", 25, 0.38, held=None, diverged=1),
]


def test_the_tables_have_the_paper_s_figures_beside_ours(tmp_path):
    projection_tables.write(tmp_path / "p.json", "some", RESULTS)
    page = (tmp_path / "p.md").read_text()
    assert page.splitlines()[:12] == [
        "# Projections of some",
        "",
        "## Frozen",
        "",
        "| projection | numbers | m = 25 | m = 30 |",
        "| --- | --- | --- | --- |",
        "| CountSketch | 1,025 | 30.0 ± 1.0 (31.0) |  |",
        "| paper: CountSketch |  | 26.88 ± 2.17 |  |",
        "| LAPLEX, random, tau = 0.1 | 1,025 to 1,030 | 20.0 ± 1.0 | **15.0 ± 1.0** |",
        "| LAPLEX, random, tau = 0.1, with phases | 1,025 | 25.0 ± 1.0 |  |",
        "| paper: LAPLEX, tau = 0.1 |  | 27.96 ± 1.17 |  |",
        "| LAPLEX, placed, tau = 1/m | 1,025 | **35.0 ± 1.0** |  |",
    ]
    assert "| LAPLEX, random start, tau = 0.1 | 1,025 | **40.0 ± 1.0** |\n| paper: LAPLEX |  | 43.5 |\n" in page
    assert "| dense | 1,025 | 38.0 ± 1.0 (1 of 5 diverged) |\n| paper: dense |  | 43.5 |\n" in page
    assert published.FROZEN_SOURCE in page
    assert published.TRAINED_SOURCE in page


def test_curves_have_one_line_a_method_chosen_on_held_out_rows():
    curves = projection_tables._curves(RESULTS[:5])
    assert set(curves) == {"CountSketch", "LAPLEX, random", "LAPLEX, placed"}
    assert [(point.x, round(point.y)) for point in curves["LAPLEX, random"]] == [(25, 20), (30, 15)]


def test_published_figures_are_found_by_method_and_tau():
    assert published.projection("laplex", 0.1)[1000] == (31.28, 1.48)
    assert published.projection("gaussian", None)[25] == (27.96, 0.52)
    trained = published.projection("trained-laplex", None)
    assert {width: one.mean for width, one in trained.items()} == {25: 43.5, 100: 43.6, 500: 43.8, 1000: 44.2}
    assert str(trained[25]) == "43.5"
    assert published.projection("laplex", 0.2) == published.projection("placed", None) == {}
    assert all(set(published.projection("laplex", tau)) == set(projection.WIDTHS) for tau in projection_maps.TAUS)
