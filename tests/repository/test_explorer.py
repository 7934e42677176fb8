"""The explorer of a small K on the documentation's front page, in a real browser: it shows what laplex computes."""

import shutil
from pathlib import Path

import pytest
import torch

import laplex

pytestmark = pytest.mark.browser
STATIC = Path(__file__).parents[2] / "docs" / "_static"
RIGHT, SHIFT = "\ue014", "\ue008"
RANKS = {"random": None, "interlaced": 8, "apart": 1, "ties": None, "permutation": 8}  # by preset


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A page with nothing else."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(STATIC, folder / "_static")
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    page = folder / "index.html"
    page.write_text(head + (STATIC / "explorer.html").read_text(encoding="utf-8"), encoding="utf-8")
    return page


def vector(page, name):
    return torch.tensor(page.run(f"Explorer.state.{name}"), dtype=torch.float64)


def matrix(page):
    """K as laplex has it, for the anchors that the explorer has now."""
    phases = {name: vector(page, name) for name in ("phi", "psi")} if page.run("Explorer.state.phi") else {}
    return laplex.reference.kernel(vector(page, "a"), vector(page, "b"), float(vector(page, "tau")), **phases)


def shown(page):
    """The strengths of the cells, as they are coloured."""
    script = "[...document.querySelectorAll('.cell')].map(c => parseFloat(c.style.getPropertyValue('--strength')))"
    return torch.tensor(page.run(script), dtype=torch.float64).view(8, 8) / 100


def drag(page, selector, across, down=0):
    page.pointer(page.one(selector)).click_and_hold().move_by_offset(across, down).release().perform()


def test_cells_show_the_matrix(page):
    assert torch.allclose(shown(page), matrix(page), atol=6e-4)
    page.click("#explorer-phases")
    assert torch.allclose(shown(page), matrix(page).abs(), atol=6e-4)
    assert len(page.all(".cell.of-b")) == int((matrix(page) < 0).sum())


def test_dragging_an_anchor_changes_its_row(page):
    before, position = shown(page), page.run("Explorer.state.a[1]")
    drag(page, "[aria-label='anchor a2'] .head", -60)
    assert page.run("Explorer.state.a[1]") < position
    assert ((shown(page) - before).abs().amax(1) > 1e-3).tolist() == [row == 1 for row in range(8)]
    assert torch.allclose(shown(page), matrix(page), atol=6e-4)


def test_arrow_keys_move_an_anchor(page):
    before = page.run("Explorer.state.b[0]")
    handle = page.one("[aria-label='anchor b1']")
    handle.send_keys(RIGHT)
    assert page.run("Explorer.state.b[0]") == pytest.approx(before + 0.05)
    handle.send_keys(SHIFT + RIGHT)
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(before + 0.55)


def test_on_a_phone_a_finger_moves_an_anchor_and_reads_a_cell(page, path):
    page.show(path, width=360, height=740, dark=True)
    assert page.run("document.documentElement.scrollWidth") <= 360
    before = page.run("Explorer.state.a[1]")
    page.touch(page.one("[aria-label='anchor a2'] .head"), across=-50)
    assert page.run("Explorer.state.a[1]") < before - 0.5
    page.touch(page.all(".cell rect")[9])
    assert page.text("#explorer-entry").startswith("K[a2, b2] = ")
    assert all(page.pixels(part).std() > 5 for part in ("#explorer-line", "#explorer-matrix"))


@pytest.mark.parametrize("name", RANKS)
def test_ranks_and_products_of_presets(page, name):
    page.click(f"[data-preset='{name}']")
    rank = int(page.text("#explorer-rank"))
    assert rank == laplex.rank(vector(page, "a"), vector(page, "b")) == len(page.all(".interval"))
    assert RANKS[name] in (None, rank)
    for _ in range(2):  # without phases, and with
        y = torch.tensor(page.run("Explorer.product()"), dtype=torch.float64)
        assert torch.allclose(y, matrix(page) @ vector(page, "x"), atol=1e-14)
        page.click("#explorer-phases")


def test_dragging_a_bar_of_x_changes_y(page):
    before = page.run("Explorer.product()")
    drag(page, "[aria-label='x3'] .reach", 0, -15)
    assert page.run("Explorer.state.x[2]") != 0.3
    assert page.run("Explorer.product()") != before


def test_the_smallest_tau_routes(page):
    page.click("[data-preset='permutation']")
    page.slide("#explorer-tau", 1)
    assert page.run("Explorer.state.tau") == pytest.approx(1e-3)
    order = vector(page, "a").long()
    assert torch.equal(shown(page), torch.eye(8, dtype=torch.float64)[order])
    assert page.text("#explorer-limit").endswith("At this tau that is exact.")
    assert torch.equal(torch.tensor(page.run("Explorer.product()"), dtype=torch.float64), vector(page, "x")[order])


def test_a_cell_is_written_out(page):
    page.pointer(page.all(".cell rect")[9]).perform()
    text = page.text("#explorer-entry")
    assert text.startswith("K[a2, b2] = exp(−|6.3 − 5.6| / 1.000) = ")
    assert text.endswith(f"{float(matrix(page)[1, 1]):.4f}")
    assert page.one("[aria-label='anchor a2']").get_attribute("class").endswith("now")


def test_rows_and_columns_are_sorted(page):
    page.click("#explorer-sorted")
    places = page.run(
        "[...document.querySelectorAll('.cell')].map(c => c.style.transform.match(/[\\d.]+/g).map(Number))"
    )
    columns, rows = (torch.tensor(places).view(8, 8, 2) - torch.tensor([24, 70])).div(27).unbind(-1)
    assert torch.equal(rows[:, 0].long(), vector(page, "a").argsort().argsort())
    assert torch.equal(columns[0].long(), vector(page, "b").argsort().argsort())


def test_the_sweeps_step_by_step(page):
    page.slide("#explorer-step", 0)
    heights = "[...document.querySelectorAll('.row .value')].map(bar => Number(bar.getAttribute('width')))"
    assert page.run(heights) == [1] * 8
    page.slide("#explorer-step", 1)
    assert page.text("#explorer-product").startswith("Sweep from the left: ")
    page.slide("#explorer-step", 17)
    assert page.text("#explorer-product").startswith("Sweep from the right: ")
    page.slide("#explorer-step", 32)
    assert float(page.text("#explorer-product").split()[-1].rstrip(".").replace("−", "-")) < 4e-15
