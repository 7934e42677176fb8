"""Results that are damaged, or of several seeds: what cannot be read is "not run", and the rest is shown as usual."""

import json

import pytest

from made_results import measured, square, took, verdict, write
from paper.measuring import DENSE, LAPLEX, LOGS
from paper.results import COMMITTED
from paper.sections import NAMES, outcomes


def damage(tmp_path, name, change):
    """A copy of all committed results, of which one file is changed: the outcomes."""
    for place in ("reproduce", "experiments"):
        (tmp_path / place).mkdir()
        for path in (COMMITTED / place).glob("*.json"):
            (tmp_path / place / path.name).write_text(path.read_text())
    (path,) = tmp_path.glob(f"*/{name}.json")
    content = json.loads(path.read_text())
    change(content["runs"])
    path.write_text(json.dumps(content))
    return {one.entry.name: one for one in outcomes([tmp_path])}


def no_result(runs):
    runs[3]["result"] = {}


def null_result(runs):
    runs[3]["result"] = None


def no_k(runs):
    for run in runs:
        run["settings"].pop("k", None)


def null_values(runs):
    for run in runs:
        run["result"]["value"] = None


def not_numbers(runs):
    for run in runs:
        run["result"]["value"] = float("nan")


def text(runs):
    for run in runs:
        run["result"]["measured"][LAPLEX]["forward"]["seconds"] = "fast"


def no_accuracy(runs):
    for run in runs:
        del run["result"]["test"]


def zero_sizes(runs):
    runs[0]["result"]["rank"] = []


def no_way(runs):
    runs[-1]["settings"]["way"] = None


@pytest.mark.parametrize(
    ("name", "change", "hit", "message"),
    [
        ("compress-tinyimagenet200_efflite0_1280_f16", no_way, {"heads"}, "a cell must be text, got None"),
        ("cuda-gram", no_result, {"gram"}, "KeyError: 'measured'"),
        ("cuda-gram", null_result, {"gram"}, "TypeError"),
        ("cuda-asymmetric", no_k, {"asymmetric"}, "KeyError: 'k'"),
        ("cpu-gram", text, {"gram"}, "seconds of laplex, forward, must be a number, got 'fast'"),
        ("rff", null_values, {"rff-value", "rff-gradient"}, "TypeError"),
        ("rff", not_numbers, {"rff-value", "rff-gradient"}, "nan"),
        ("heads-clinc150-tuned", no_accuracy, {"heads"}, "KeyError: 'test'"),
        ("cpu-rank", zero_sizes, {"full-rank"}, "ValueError"),
    ],
)
def test_what_cannot_be_read_is_not_run_and_named(tmp_path, name, change, hit, message):
    usual = {one.entry.name: one.verdict for one in outcomes([COMMITTED])}
    outcome = damage(tmp_path, name, change)
    for entry in hit:
        assert outcome[entry].verdict == "not run"
        assert message in outcome[entry].reason
        assert f"{name}.json" in outcome[entry].reason
        assert f"{name}.json" in str(outcome[entry].files)
    assert {one: outcome[one].verdict for one in set(NAMES) - hit} == {one: usual[one] for one in set(NAMES) - hit}


def test_a_file_that_is_no_json_is_named(tmp_path):
    (tmp_path / "cuda-sizes.json").write_text('{"runs": [1')
    outcome = verdict("runtime", tmp_path)
    assert outcome.verdict == "not run"
    assert "cuda-sizes.json must be a file of results" in outcome.reason


@pytest.mark.parametrize("milliseconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_missing(tmp_path, milliseconds):
    runs = [
        (square(1 << 19), measured(laplex=took(milliseconds))),
        (square(1 << 29), measured(laplex=took(100.0, milliseconds))),
    ]
    write(tmp_path, "cuda-sizes", runs)
    outcome = verdict("runtime", tmp_path)
    assert outcome.verdict == "not run"
    assert [one.ours for one in outcome.figures] == [None, pytest.approx(100.0), None]


def test_an_error_that_is_no_number_passes_nothing(tmp_path):
    wrong = {"error": float("nan"), "largest_error": float("nan")}
    right = {"error": 3e-8, "largest_error": 6e-8}
    write(tmp_path, "cpu-accuracy", [(square(1 << 14, 8), measured(**{LAPLEX: wrong, DENSE: right}))], "cpu")
    write(tmp_path, "cpu-grid-accuracy", [(square(1 << 14, 8), measured(**{LAPLEX: wrong, DENSE: right}))], "cpu")
    write(tmp_path, "cpu-rounding", [({"n": 9, "span": 1.0}, measured(**{LAPLEX: right, LOGS: wrong}))], "cpu")
    assert {verdict(name, tmp_path).verdict for name in ("accuracy", "toeplitz-accuracy", "rounding")} == {"not run"}


def test_the_seed_of_the_last_run_is_judged_and_drawn(tmp_path):
    runs = [(square(n) | {"seed": seed}, measured(laplex=took(5.0 + seed))) for seed in (0, 1) for n in (64, 1 << 14)]
    write(tmp_path, "cpu-sizes", runs, "cpu")
    outcome = verdict("cpu", tmp_path)
    assert outcome.figures[0].ours == pytest.approx(6.0)
    assert outcome.plots[0].series[0].y == [pytest.approx(6.0)] * 2
