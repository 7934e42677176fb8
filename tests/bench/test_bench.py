"""The benchmark itself: its oracle, its gate, its file. Times here are never looked at."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_suite import ERROR, INSTANT, ROW, SIZE, SUITE, Silent

import laplex
from benchmarks import report
from benchmarks.measures import measure
from benchmarks.problems import Side, Size, Suite
from benchmarks.result import Measured, Result, from_json, to_json
from benchmarks.run import SUITES, choose_suite, run
from benchmarks.suites import QUICK
from benchmarks.tables import plain, tables
from laplex.testing import Times


def test_every_declared_row_can_be_named_and_labelled() -> None:
    for suite in (QUICK, *SUITES.values()):
        names = [row.name for row in suite.rows]
        assert len(set(names)) == len(names)
        for row in suite.rows:
            for side in (row.ours, row.against or row.ours, *row.also):
                assert side.label


def test_every_row_of_the_cpu_suite_runs_when_shrunk() -> None:
    for row in SUITES["cpu"].rows:
        if row.measure == "import":
            continue
        size = row.sizes[0]
        small = Size(min(size.n, 64) * (1 if size.n <= size.k else 16), min(size.k, 64), 1)
        if any(side is not None and side.method == "toeplitz" for side in (row.against, *row.also)):
            small = Size(64, 64, 1)
        result = measure(Suite("shrunk", "cpu", (), INSTANT, committed=False), row, small)
        assert result.status in (("info",) if row.bar is None else ("pass", "miss", "skipped")), result


def test_a_row_may_ask_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), []
    right = laplex.linear

    def linear(*args: object, **options: object) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return right(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(laplex, "linear", linear)
    row = next(row for row in SUITES["cpu"].rows if row.name == "time-celerite2-symmetric-1-thread")
    measure(Suite("shrunk", "cpu", (), INSTANT, committed=False), row, Size(64, 64, 1))
    assert set(seen) == {1}
    assert torch.get_num_threads() == before


def test_wrong_gradients_of_nn_linear_are_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args: tuple(1.1 * grad for grad in right(*args)))
    row = replace(ROW, against=Side("nn.Linear", "forward+backward whole"))
    assert measure(SUITE, row, SIZE).status == "wrong"


def test_a_right_answer_is_timed() -> None:
    result = measure(SUITE, ROW, SIZE)
    assert result.status == "pass"
    ours = result.sides["laplex, plan kept"]
    assert ours.time is not None
    assert ours.time.p20 <= ours.time.median <= ours.time.p80
    assert ours.error is not None
    assert ours.error < 1e-6
    assert ours.backend in laplex.backends.available()


@pytest.mark.parametrize("spoil", [lambda y: 1.0001 * y, lambda y: y * math.nan])
def test_a_wrong_answer_is_never_timed(monkeypatch: pytest.MonkeyPatch, spoil: object) -> None:
    right = laplex.linear
    monkeypatch.setattr(laplex, "linear", lambda *args, **options: spoil(right(*args, **options)))  # type: ignore[operator]
    result = measure(SUITE, ROW, SIZE)
    assert result.status == "wrong"
    assert result.value is None
    assert all(side.time is None for side in result.sides.values())
    assert "error" in result.note


def test_wrong_gradients_are_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = laplex.linear
    monkeypatch.setattr(laplex, "linear", lambda x, a, *args, **options: right(x, a.detach() + 0 * a, *args, **options))
    row = replace(ROW, ours=Side(mode="forward+backward"), against=Side())
    assert measure(SUITE, row, SIZE).status == "wrong"


def test_an_error_must_also_stay_below_the_named_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Side("dense", "whole")
    right = laplex.linear
    monkeypatch.setattr(laplex, "linear", lambda *args, **options: right(*args, **options) * (1 + 1e-5))
    result = measure(SUITE, replace(ERROR, bar=1e-4, against=dense), SIZE)
    assert result.status == "miss"
    assert "not below" in result.note


def test_a_missing_package_skips_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celerite2", None)
    result = measure(SUITE, replace(ROW, against=Side("celerite2")), SIZE)
    assert result.status == "skipped"
    assert "pip install" in result.note


def test_results_survive_the_file(tmp_path: Path) -> None:
    outcome = run(SUITE, Silent(), out=tmp_path)
    saved = json.loads(outcome.path.read_text())
    assert saved["machine"]["cpu"]
    assert saved["versions"]["torch"] == torch.__version__
    assert set(saved["git"]) == {"commit", "dirty"}
    assert [from_json(result) for result in saved["results"]] == outcome.results
    assert from_json(json.loads(json.dumps(to_json(outcome.results[0])))) == outcome.results[0]


def test_ctrl_c_keeps_what_was_finished_and_resume_continues(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(SUITE, Silent(interrupt_at=2), out=tmp_path)
    (path,) = tmp_path.glob("*.json")
    assert len(json.loads(path.read_text())["results"]) == 2
    second = Silent()
    outcome = run(SUITE, second, out=tmp_path, resume=True)
    assert second.begun == ["dense (n = 70, k = 50, B = 2)"]
    assert len(outcome.results) == 3


def test_resume_repeats_what_gave_no_figure() -> None:
    results = [Result("r", "", None, "s", 1.0, status) for status in ("wrong", "failed", "skipped")]
    assert report.Report("s", Path("unused"), {}, results=results).finished() == set()


def test_resume_refuses_to_mix_conditions(tmp_path: Path) -> None:
    outcome = run(SUITE, Silent(), out=tmp_path)
    saved = json.loads(outcome.path.read_text())
    saved["versions"]["torch"] = "0.0"
    outcome.path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="--resume would mix"):
        run(SUITE, Silent(), out=tmp_path, resume=True)


def test_a_part_of_a_suite_stays_out_of_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report.COMMITTED.mkdir(parents=True)
    committed = replace(SUITE, committed=True)
    assert run(committed, Silent(), only="err*").path.parent == report.SCRATCH
    assert (report.SCRATCH / ".gitignore").read_text() == "*\n"
    assert run(committed, Silent()).path.parent == report.COMMITTED


@pytest.mark.parametrize(
    ("options", "message"), [({"only": "nothing"}, "matches no row"), ({"threads": 0}, "--threads must be at least 1")]
)
def test_bad_requests_say_so(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(SUITE, Silent(), out=tmp_path, **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_unknown_suite_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="there are: cpu"):
        choose_suite("tpu", quick=False)


def test_a_table_shows_every_result() -> None:
    sides = {"laplex, plan kept": Measured(1e-8, Times(1e-3, 1e-3, 1e-3, 5))}
    claim = Result("r", "a claim", SIZE, "ratio", 0.4, "miss", 0.5, "", sides)
    assert "a claim" in plain(tables([claim])[0])
    assert "<= 0.4" in plain(tables([claim])[0])
    time, error = tables([replace(claim, bar=None, status="info")])
    assert "1 ms" in plain(time)
    assert "1.0e-08" in plain(error)


def test_the_page_holds_its_picture_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.page import save

    for name, suite in {"bars": SUITE, "none": replace(SUITE, rows=(replace(ROW, bar=None),))}.items():
        png, page = save(run(suite, Silent(), out=tmp_path / name))
        assert png.read_bytes().startswith(b"\x89PNG")
        text = page.read_text()
        assert "data:image/png;base64," in text
        assert "://" not in text  # not "http", which a picture in base64 may spell by chance
