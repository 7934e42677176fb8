"""Tables of `python -m paper experiment networks`, and the verdict on the entry networks, from made-up results."""

import pytest

from made_results import verdict, write
from paper.experiments import network_tables
from paper.experiments.network_models import METHODS
from paper.report import to_html
from paper.results import read

BITS = {"laplex": 1.5, "laplex-phased": 1.4, "dense-narrow": 1.6, "low-rank": 1.8, "monarch": 1.7, "btt": 1.65,
        "kronecker": 1.9, "dense": 1.2}  # fmt: skip


def made_runs(bits=BITS, key="bits", rates=(1e-3, 2e-3, 4e-3), seeds=3):
    """Runs of all methods and budgets; the middle rate is the best."""
    runs = []
    for budget in (None, 8, 16, 32):
        for method in (one for one in METHODS if (one == "dense") == (budget is None)):
            settings = {"data": "x", "method": method, "budget": budget, "size": budget or 0, "precision": "high"}
            settings |= {"width": 256, "heads": 4, "blocks": 4, "tokens": 256, "batch": 48, "expansion": 4}
            for lr in rates:
                for seed in range(seeds if lr == 2e-3 else 1):
                    value = bits[method] + 0.001 * seed + (0.1 if lr != 2e-3 else 0.0) * (1 if key == "bits" else -1)
                    result = {"loss": 1.0, key: value, "diverged": False, "curve": []}
                    result |= {"parameters": {"blocks": 1000 * (budget or 99), "all": 2000 * (budget or 99)}}
                    result |= {"multiply_adds": {"maps": 100, "elsewhere": 10, "forming": 12288}}
                    result |= {"bytes": {"gradients": 4, "optimizer": 8, "checkpoint": 5}}
                    runs.append((settings | {"lr": lr, "steps": 5000, "seed": seed}, result))
            runs.append((settings | {"timed": True}, {"seconds_per_step": 0.01, "peak_bytes": 10**9, "steps": 100}))
    return runs


def test_a_summary_has_the_best_rate_and_all_its_seeds(tmp_path):
    runs = made_runs()
    other = (runs[0][0] | {"data": "y"}, runs[0][1] | {"bits": 0.1})  # earlier, on other data
    write(tmp_path, "networks-text", [other, *runs])
    rows = network_tables.summaries(read(tmp_path / "networks-text.json"))
    assert [row.method for row in rows[:3]] == ["dense", "laplex", "laplex-phased"]
    row = rows[1]
    assert (row.lr, row.rates, row.at_end, row.seeds, row.diverged) == (2e-3, 3, False, 3, 0)
    assert row.figure == pytest.approx(1.501)
    assert row.deviation == pytest.approx(0.001)
    assert row.multiply_adds == 100 + 10 + 1
    assert row.seconds_per_step == 0.01


def test_the_table_marks_the_best_and_rates_at_the_end(tmp_path, capsys):
    runs = [(one, two) for one, two in made_runs() if one["method"] != "btt" or one.get("lr") != 1e-3]
    write(tmp_path, "networks-text", runs)
    network_tables.write(tmp_path / "networks-text.json", "text")
    table = (tmp_path / "networks-text.md").read_text()
    assert "| laplex-phased | 8 | 0.002 | 3 | 3 | 8,000 | 16,000 | 111 | 10.00 | **1.4010 ± 0.0010** |" in table
    assert "| btt | 8 | 0.002 (end of grid) | 2 | 3 |" in table
    assert "| laplex | 8 | 0 | 0 | 0 | 1,000 |" in table  # memory


def test_accuracies_are_better_when_higher():
    results = {1e-3: {"accuracy": 0.5}, 1e-2: {"accuracy": 0.6}, 1e-1: {"loss": None}}
    assert network_tables.best_rate(results) == 1e-2
    assert network_tables.best_rate({lr: {"bits": -one.get("accuracy", 0)} for lr, one in results.items()}) == 1e-2


@pytest.mark.parametrize(("bits", "want"), [(1.5, "exceeded"), (1.62, "not reproduced")])
def test_the_verdict_is_whether_laplex_is_below_every_rival(tmp_path, bits, want):
    write(tmp_path, "networks-text", made_runs(BITS | {"laplex": bits}))
    write(tmp_path, "networks-images", made_runs({name: 1 - 0.3 * one for name, one in BITS.items()}, "accuracy"))
    outcome = verdict("networks", tmp_path)
    assert outcome.verdict == want
    assert len(outcome.figures) == 15
    assert outcome.figures[0].ours == pytest.approx(1.6 - bits)
    assert [table.title for table in outcome.tables] == ["Networks, text", "Networks, images"]
    assert [len(plot.series) for plot in outcome.plots] == [7, 7]
    page = to_html([outcome])
    assert "Our claim" in page
    assert "Of 0 entries 0 were run" in page
    assert "Not in the paper, and ours: networks." in page
    assert f"&nbsp;{'holds' if want == 'exceeded' else 'does not hold'}" in page


@pytest.mark.parametrize("less", [{"rates": (1e-3, 2e-3)}, {"seeds": 2}])
def test_an_entry_that_is_not_complete_is_not_run(tmp_path, less):
    assert verdict("networks", tmp_path).verdict == "not run"
    write(tmp_path, "networks-text", made_runs(**less))
    outcome = verdict("networks", tmp_path)
    assert outcome.verdict == "not run"
    assert outcome.reason.endswith("15 of 15 comparisons are not complete.")


def test_a_seed_of_laplex_that_diverges_decides(tmp_path):
    runs = made_runs()
    hit = next(one for one in runs if one[0]["method"] == "laplex" and one[0].get("seed") == 2)
    hit[1].update(diverged=True, loss=None)
    del hit[1]["bits"]
    write(tmp_path, "networks-text", runs)
    outcome = verdict("networks", tmp_path)
    assert outcome.verdict == "not reproduced"
    assert outcome.figures[0].note == "1 of 3 seeds of LAPLEX diverged"
