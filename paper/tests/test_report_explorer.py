"""The explorer of a small K in a real browser: what it shows is what laplex computes."""

import pytest
import torch

import laplex
from laplex import reference
from paper import report

RIGHT, SHIFT = "\ue014", "\ue008"
PRESETS = {"random": None, "sorted": None, "interlaced": 8, "apart": 1, "ties": None, "permutation": 8}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    written = tmp_path_factory.mktemp("report") / "page.html"
    written.write_text(report.to_html([]), encoding="utf-8")
    return written


def vector(page, name):
    return torch.tensor(page.run(f"Explorer.state.{name}"), dtype=torch.float64)


def matrix(page):
    """K as laplex has it, for the anchors that the explorer has now."""
    phases = {name: vector(page, name) for name in ("phi", "psi")} if page.run("Explorer.state.phases") else {}
    return reference.kernel(vector(page, "a"), vector(page, "b"), float(vector(page, "tau")), **phases)


def shown(page):
    """The strengths of the cells, as they are coloured."""
    script = "[...document.querySelectorAll('.cell')].map(c => parseFloat(c.style.getPropertyValue('--strength')))"
    return torch.tensor(page.run(script), dtype=torch.float64).view(8, 8) / 100


def preset(page, name):
    page.click(f"[data-preset='{name}']")


def drag(page, selector, across, down=0):
    page.pointer(page.one(selector)).click_and_hold().move_by_offset(across, down).release().perform()


def test_cells_show_the_matrix(page):
    assert torch.allclose(shown(page), matrix(page), atol=6e-4)
    page.click("#phases")
    assert torch.allclose(shown(page), matrix(page).abs(), atol=6e-4)
    assert len(page.all(".cell.negative")) == int((matrix(page) < 0).sum())


def test_no_stem_crosses_the_name_of_an_anchor(page):
    """All stems are drawn before the first name: one of a handle that stands on another passes behind that one."""
    order = page.run("[...document.querySelectorAll('.stem, .head-name')].map(one => one.matches('.stem'))")
    assert order == [True] * 16 + [False] * 16


def test_dragging_an_anchor_changes_the_matrix(page):
    before, place = shown(page), page.run("Explorer.state.a[1]")
    drag(page, ".handle.of-a:nth-of-type(4) .head", -60)
    moved = (shown(page) - before).abs().amax(1) > 1e-3
    assert place > page.run("Explorer.state.a[1]")
    assert moved.tolist() == [row == 1 for row in range(8)]
    assert torch.allclose(shown(page), matrix(page), atol=6e-4)


def test_arrow_keys_move_an_anchor(page):
    before = page.run("Explorer.state.b[0]")
    handle = page.one("[aria-label='anchor b1']")
    handle.send_keys(RIGHT)
    assert page.run("Explorer.state.b[0]") == pytest.approx(before + 0.05)
    handle.send_keys(SHIFT + RIGHT)
    assert page.run("Explorer.state.b[0]") == pytest.approx(before + 0.55)
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(before + 0.55)


def test_a_finger_moves_an_anchor_and_reads_a_cell(page, path):
    page.show(path, width=390, height=800)
    before = page.run("Explorer.state.a[1]")
    page.touch(page.one("[aria-label='anchor a2'] .head"), across=-50)
    assert page.run("Explorer.state.a[1]") < before - 0.5
    page.touch(page.all(".cell rect")[9])
    assert page.text("#cell-told").startswith("K[a2, b2] = ")


@pytest.mark.parametrize("name", PRESETS)
def test_ranks_of_presets(page, name):
    for _ in range(5 if PRESETS[name] is None else 1):
        preset(page, name)
        rank = int(page.text("#exact-rank"))
        assert rank == laplex.rank(vector(page, "a"), vector(page, "b"))
        assert rank == int(page.text("#numeric-rank"))
        assert len(page.all("#rank-order .interval")) == rank
        assert PRESETS[name] in (None, rank)


def test_phases_at_most_double_the_rank(page):
    preset(page, "apart")
    page.click("#phases")
    assert int(page.text("#phased-rank")) == 2


@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_the_sweeps_agree_with_the_sum(page, name, phases):
    preset(page, name)
    if phases:
        page.click("#phases")
    assert page.run("Number(document.getElementById('difference').dataset.value)") < 4e-15
    y = page.run("Kernel.scans(ExplorerState.matrixOf(Explorer.state), Explorer.state.x).y")
    assert torch.allclose(torch.tensor(y, dtype=torch.float64), matrix(page) @ vector(page, "x"), atol=1e-14)


def test_dragging_a_bar_of_x_changes_y(page):
    before = page.run("[...document.querySelectorAll('.bars.of-y .value')].map(b => b.getAttribute('height'))")
    drag(page, ".bars.of-x .bar:nth-of-type(3) .reach", 0, -40)
    assert page.run("Explorer.state.x[2]") != 0.3
    assert before != page.run("[...document.querySelectorAll('.bars.of-y .value')].map(b => b.getAttribute('height'))")


def test_the_smallest_tau_routes(page):
    preset(page, "permutation")
    assert "is-routing" not in page.one("#explorer").get_attribute("class")
    page.slide("#tau", 1)
    assert page.run("Explorer.state.tau") == pytest.approx(1e-3)
    order = vector(page, "a").long()
    assert torch.equal(shown(page), torch.eye(8, dtype=torch.float64)[order])
    assert "is-routing" in page.one("#explorer").get_attribute("class")
    assert "a permutation. At this tau the limit is reached: K is this routing matrix exactly" in page.text(
        "#routing-limit"
    )
    y = page.run("Kernel.scans(ExplorerState.matrixOf(Explorer.state), Explorer.state.x).y")
    assert torch.equal(torch.tensor(y, dtype=torch.float64), vector(page, "x")[order])


def test_without_ties_the_limit_is_zero_and_rows_keep_their_nearest_column(page):
    preset(page, "interlaced")
    page.slide("#tau", 1)
    assert "No row is tied with a column here, so K tends to 0" in page.text("#routing-limit")
    assert float(shown(page).max()) == 0
    page.click("#shares")
    nearest = (vector(page, "a")[:, None] - vector(page, "b")).abs()
    want = (nearest <= nearest.amin(1, keepdim=True) + 1e-9).double()
    assert torch.allclose(shown(page), want / want.sum(1, keepdim=True), atol=1e-3)
    assert "less than a millionth" in page.text("#routing-shares")


def test_a_large_tau_makes_everything_alike(page):
    page.slide("#tau", 0)
    assert page.run("Explorer.state.tau") == pytest.approx(10)
    assert float(shown(page).min()) > 0.4


def test_a_cell_is_written_out(page):
    page.pointer(page.all(".cell rect")[9]).perform()
    told = page.text("#cell-told")
    assert told.startswith("K[a2, b2] = exp(−|6.3 − 5.6| / 1.000) = ")
    assert told.endswith(f"{float(matrix(page)[1, 1]):.4f}")
    assert page.one("[aria-label='anchor a2']").get_attribute("class").endswith("pointed")


def test_rows_in_order(page):
    page.click("#in-order")
    rows, cols = vector(page, "a").argsort(), vector(page, "b").argsort()
    assert torch.allclose(shown(page), matrix(page)[rows][:, cols], atol=6e-4)


def test_the_sweeps_step_by_step(page):
    page.click("#step-first")
    assert page.text("#step-count") == "step 1 of 32"
    assert page.text("#step-told").startswith("Sweep from the left: ")
    filled = "[...document.querySelectorAll('#sweeps tr')].filter(r => r.children[arguments[0]].textContent).length"
    for _ in range(5):
        page.click("#step-on")
    assert [page.run(filled, column) for column in (3, 4)] == [6, 0]
    for _ in range(11):
        page.click("#step-on")
    assert [page.run(filled, column) for column in (3, 4)] == [16, 1]
    assert page.text("#step-told").startswith("Sweep from the right: ")
    page.click("#step-all")
    assert [page.run(filled, column) for column in (3, 4, 5)] == [16, 16, 8]


def test_it_is_drawn_on_a_phone_in_the_dark(page, path):
    page.show(path, width=360, height=740, dark=True)
    assert page.run("document.documentElement.scrollWidth") <= 360
    for part in ("#explorer-line", "#explorer-matrix", "#bars-x", "#bars-y", ".sweeps"):
        assert page.pixels(part).std() > 5, part


@pytest.mark.parametrize("call", ["ExplorerState.written(-8.2e-199)", "Scales.html('linear', -8.2e-199)"])
def test_numbers_have_one_kind_of_minus(page, call):
    told = page.run(call)
    assert "-" not in told
    assert told.count("−") == 2
