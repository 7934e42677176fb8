"""Verdicts of `paper`: on made-up results, and on the committed ones."""

import json

import pytest

from made_results import measured, square, took, verdict, write
from paper.entry import VERDICTS, Figure
from paper.judging import compare, overall
from paper.measuring import BOTH, DENSE, FORWARD, LAPLEX, LOGS, PLANNED, SCANNED, TOEPLITZ
from paper.results import COMMITTED, Archive
from paper.sections import ENTRIES, fft, operator, outcomes

# --- One number ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "better", "want"),
    [
        (10.0, 9.2, "lower", "reproduced"),
        (10.0, 10.9, "lower", "reproduced"),
        (10.0, 8.0, "lower", "exceeded"),
        (10.0, 12.0, "lower", "not reproduced"),
        (10.0, 12.0, "higher", "exceeded"),
        (10.0, 8.0, "higher", "not reproduced"),
        (None, 8.0, "higher", "not run"),
        (10.0, None, "higher", "not run"),
    ],
)
def test_a_number_is_judged_by_a_tenth(theirs, ours, better, want):
    assert compare(theirs, ours, better) == want


@pytest.mark.parametrize(
    ("graded", "conditions", "want"),
    [
        (["exceeded", "reproduced"], [], "reproduced"),
        (["exceeded", "not reproduced", "not run"], [], "not reproduced"),
        (["exceeded", "not run"], [], "not run"),
        (["exceeded", None], [], "exceeded"),
        (["exceeded", None], ["reproduced"], "exceeded"),
        (["exceeded"], ["not reproduced"], "not reproduced"),
        (["exceeded"], ["not run"], "not run"),
        ([], ["reproduced"], "reproduced"),
        ([None], [], "not run"),
        ([], [], "not run"),
    ],
)
def test_the_verdict_of_an_entry_follows_from_its_rows(graded, conditions, want):
    rows = [Figure("", None, None, "", "lower", one) for one in graded]
    rows += [Figure("", None, None, "", "lower", one, condition=True) for one in conditions]
    assert overall(rows) == want


# --- Entries without results -----------------------------------------------------------------------------------------


def test_without_results_nothing_is_run(tmp_path):
    for outcome in outcomes([tmp_path]):
        assert outcome.verdict == "not run", outcome.entry.name
        assert outcome.reason.endswith(".")
        assert not outcome.figures


def test_quick_looks_are_not_results(tmp_path):
    write(tmp_path, "heads-made-tuned-quick", [({"n": 1}, {"rank": [1]})])
    assert Archive([tmp_path]).experiments("heads-*") == []


def test_a_later_folder_wins_and_devices_stand_side_by_side(tmp_path):
    for folder, milliseconds in (("old", 5.0), ("new", 3.0)):
        write(tmp_path / folder, "cpu-sizes", [(square(fft.CPU_SIZE), measured(laplex=took(milliseconds)))], "cpu")
    write(tmp_path / "old", "cuda-sizes", [(square(1 << 19), measured(laplex=took(0.2)))])
    outcome = verdict("cpu", tmp_path / "old", tmp_path / "new")
    assert outcome.figures[0].ours == pytest.approx(3.0)
    runtime = verdict("runtime", tmp_path / "old", tmp_path / "new")
    assert {machine["device"] for machine in runtime.machines} == {"cpu", "cuda"}
    assert len(runtime.files) == 2


def test_a_gpu_entry_on_a_cpu_alone_is_not_run_but_shown(tmp_path):
    write(tmp_path, "cpu-gram", [({"n": 1024, "k": 1 << 17}, measured(laplex=took(0.1)))], "cpu")
    outcome = verdict("gram", tmp_path)
    assert outcome.verdict == "not run"
    assert "--device cuda" in outcome.reason
    assert outcome.plots


def test_missing_sizes_are_not_run(tmp_path):
    write(tmp_path, "cuda-sizes", [(square(1 << 10), measured(laplex=took(0.1)))])
    outcome = verdict("runtime", tmp_path)
    assert (outcome.verdict, "--full" in outcome.reason) == ("not run", True)


# --- Times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "want"), [(0.5, "exceeded"), (1.0, "reproduced"), (2.0, "not reproduced")])
def test_runtime(tmp_path, factor, want):
    runs = [
        (square(1 << 19), measured(laplex=took(0.34 * factor))),
        (square(1 << 29), measured(laplex=took(704 * factor, 41 * factor))),
    ]
    write(tmp_path, "cuda-sizes", runs)
    outcome = verdict("runtime", tmp_path)
    assert outcome.verdict == want
    assert "a GPU" in outcome.reason


@pytest.mark.parametrize(("both", "want"), [(500.0, "exceeded"), (430.0, "reproduced"), (12.0, "not reproduced")])
def test_ratios_to_dense(tmp_path, both, want):
    ours = {FORWARD: took(1.0, 0.01), BOTH: took(1.0)}
    dense = {FORWARD: took(80.0, 1.2), BOTH: took(both)}
    write(tmp_path, "cuda-batch8", [(square(1 << 14, 8), measured(**{LAPLEX: ours, DENSE: dense}))])
    outcome = verdict("batch8-against-dense", tmp_path)
    assert outcome.verdict == want
    assert ("the ratio is that of a slow rival" in outcome.reason) is (both < 140)


def test_batch8_and_gram_and_asymmetric(tmp_path):
    write(tmp_path, "cuda-batch8", [
        (square(1 << 16, 8), measured(laplex=took(0.2))),
        (square(1 << 20, 8), measured(laplex={FORWARD: took(0.4, 0.2), BOTH: took(1.6)})),
    ])  # fmt: skip
    assert verdict("batch8", tmp_path).verdict == "exceeded"
    both = measured(**{LAPLEX: took(0.2, 0.01), DENSE: took(7.0, 1.0)})
    write(tmp_path, "cuda-gram", [({"n": 1024, "k": 1 << 17}, both)])
    outcome = verdict("gram", tmp_path)
    assert [one.verdict for one in outcome.figures] == ["exceeded", "exceeded", "not reproduced"]
    assert "where the paper has 216 ms" in outcome.reason
    write(tmp_path, "cuda-gram", [({"n": 1024, "k": 1 << 17}, measured(**{LAPLEX: took(0.2), DENSE: took(7.0)}))])
    assert "Not measured, or withdrawn: peak memory at k = 2^17." in verdict("gram", tmp_path).reason
    pair = measured(**{LAPLEX: took(0.1), DENSE: took(4.0)})
    sizes = [(1024, 1 << 17), (1024, 1 << 18), (1 << 18, 1024), (1024, 1 << 20)]
    write(tmp_path, "cuda-asymmetric", [({"n": n, "k": k, "batch": 8}, pair) for n, k in sizes])
    assert verdict("asymmetric", tmp_path).verdict == "reproduced"  # 40 times faster than dense, 37 in the paper


@pytest.mark.parametrize(("dense", "growth", "want"), [
    (1.0, 4.0, "exceeded"), (1.0, 40.0, "reproduced"), (0.01, 4.0, "not reproduced"),
])  # fmt: skip
def test_batches(tmp_path, dense, growth, want):
    runs = []
    for batch in (1 << power for power in range(9)):
        milliseconds = 0.02 * growth if batch == 256 else 0.02
        ours, theirs = ({way: took(one) for way in (FORWARD, BOTH)} for one in (milliseconds, dense))
        runs.append((square(1 << 14, batch), measured(**{LAPLEX: ours, DENSE: theirs})))
    write(tmp_path, "cuda-batches", runs)
    assert verdict("batch-scaling", tmp_path).verdict == want


def test_ffts(tmp_path):
    ours = measured(**{LAPLEX: took(0.2), PLANNED: took(0.05), TOEPLITZ: took(0.1), DENSE: took(30.0), LOGS: took(6.0)})
    write(tmp_path, "cuda-sizes", [(square(1 << 20), ours)])
    write(tmp_path, "cpu-sizes", [(square(1 << 14), ours), (square(1 << 18), ours)], "cpu")
    assert verdict("fft", tmp_path).verdict == "exceeded"
    assert verdict("cpu-fft", tmp_path).verdict == "exceeded"
    outcome = verdict("cpu", tmp_path)
    assert outcome.verdict == "exceeded"
    assert outcome.figures[2].verdict is None  # our writing of the paper's path is not part of the criterion


def test_sizes_beyond_those_of_the_paper_are_drawn_and_compared_with_ffts(tmp_path):
    pairs = {1 << 10: 2.0, 1 << 20: 0.9, 1 << 24: 2.0, 1 << 29: 2.5}
    runs = [(square(n), measured(**{LAPLEX: took(one), TOEPLITZ: took(1.0)})) for n, one in pairs.items()]
    write(tmp_path, "cuda-sizes", runs)
    outcome = verdict("fft", tmp_path)
    assert outcome.reason.endswith(
        "From n = 2^24 on the whole call is slower than the Toeplitz product: 2 times as long, and 2.5 times at 2^29."
    )
    assert outcome.plots[0].series[0].x == [float(n) for n in pairs]
    write(tmp_path, "cuda-sizes", runs[:2])
    assert "slower" not in verdict("fft", tmp_path).reason


def test_a_busy_machine_is_named(tmp_path):
    for others, message in ((0.5, True), (0.01, False)):
        result = measured(**{LAPLEX: took(1.0), DENSE: took(200.0)}) | {"others": others}
        write(tmp_path, "cpu-sizes", [(square(1 << 14), result)], "cpu")
        assert ("these times are noisy" in verdict("cpu", tmp_path).reason) is message


# --- Errors, gradients, theory ---------------------------------------------------------------------------------------


def off(error):
    return {"error": error, "largest_error": 2 * error}


def test_accuracy(tmp_path):
    write(tmp_path, "cpu-accuracy", [(square(1 << 14, 8), measured(**{LAPLEX: off(3e-8), DENSE: off(3e-7)}))], "cpu")
    assert verdict("accuracy", tmp_path).verdict == "exceeded"
    write(tmp_path, "cuda-accuracy", [(square(1 << 14, 8), measured(**{LAPLEX: off(3e-7), DENSE: off(3e-7)}))])
    assert verdict("accuracy", tmp_path).verdict == "not reproduced"
    as_asked = measured(**{LAPLEX: off(3e-7), SCANNED: off(3e-8), DENSE: off(3e-6)})
    write(tmp_path, "cuda-accuracy", [(square(1 << 14, 8), as_asked)])
    outcome = verdict("accuracy", tmp_path)
    assert outcome.verdict == "not reproduced"  # by what laplex chooses
    assert [one.verdict for one in outcome.figures if one.note] == [None, None]
    assert "laplex errs by at most 3e-07 in the Euclidean norm, at n = 2^14" in outcome.reason
    lost = measured(**{LAPLEX: off(float("nan")), SCANNED: off(3e-8), DENSE: off(3e-6)})
    write(tmp_path, "cuda-accuracy", [(square(1 << 14, 8), lost)])
    assert "a GPU: not all sizes." in verdict("accuracy", tmp_path).reason
    write(tmp_path, "cuda-accuracy", [(square(1 << 12, 8), measured(**{LAPLEX: off(3e-8), DENSE: off(3e-7)}))])
    outcome = verdict("accuracy", tmp_path)
    assert (outcome.verdict, "up to n = 2^14" in outcome.reason) == ("not run", True)


@pytest.mark.parametrize(("fft", "want"), [(2e-7, "exceeded"), (1e-8, "not reproduced")])
def test_accuracy_on_a_grid(tmp_path, fft, want):
    errors = measured(**{LAPLEX: off(3e-8), DENSE: off(1e-6), TOEPLITZ: off(fft)})
    write(tmp_path, "cuda-grid-accuracy", [(square(1 << 14, 8), errors)])
    assert verdict("toeplitz-accuracy", tmp_path).verdict == want


@pytest.mark.parametrize(("error", "want"), [(1e-7, "reproduced"), (1e-4, "not reproduced")])
def test_rounding(tmp_path, error, want):
    write(
        tmp_path, "cpu-rounding", [({"n": 9, "span": 10.0}, measured(**{LAPLEX: off(3e-8), LOGS: off(error)}))], "cpu"
    )
    assert verdict("rounding", tmp_path).verdict == want


def test_a_path_whose_answer_is_no_number_is_not_reproduced(tmp_path):
    spans = [({"n": 9, "span": span}, measured(**{LAPLEX: off(3e-8), LOGS: off(error)})) for span, error in (
        (10.0, 1e-7), (10_000.0, float("nan")))]  # fmt: skip
    write(tmp_path, "cpu-rounding", spans, "cpu")
    outcome = verdict("rounding", tmp_path)
    assert outcome.verdict == "not reproduced"
    assert "rises to 1.0e-07 (at 10,000 tau it is not a number), laplex's to 3.0e-08;" in outcome.reason


@pytest.mark.parametrize(("cell", "more", "want"), [
    (True, True, "exceeded"), (True, False, "reproduced"), (False, True, "not reproduced"),
])  # fmt: skip
def test_differentiability(tmp_path, cell, more, want):
    asked = [("gradient for x", True, cell), ("gradient for tau", None, more)]
    runs = [
        ({"method": LAPLEX, "asked": one, "paper": theirs}, {"has": ours, "error": 1e-7 if ours else None, "words": ""})
        for one, theirs, ours in asked
    ]
    write(tmp_path, "cpu-gradients", runs, "cpu")
    assert verdict("differentiability", tmp_path).verdict == want
    for error in (None, 0.5, float("nan")):  # a file that contradicts itself
        write(tmp_path, "cpu-gradients", [(one, result | {"error": error}) for one, result in runs], "cpu")
        assert verdict("differentiability", tmp_path).verdict == "not reproduced"


def test_theory(tmp_path):
    right, wrong = [1e-16, 1e-16], [1e-16, 0.3]
    for strict, want in ((right, "reproduced"), (wrong, "not reproduced")):
        result = {"printed": wrong, "strict": strict, "mended": right, "laplex": right}
        write(tmp_path, "cpu-theorem", [({"n": 8}, result)], "cpu")
        assert verdict("theorem-1", tmp_path).verdict == want
    for ranks, want in (([64, 64, 40], "reproduced"), ([40, 41, 64], "not reproduced")):
        write(tmp_path, "cpu-rank", [({"n": 64}, {"rank": ranks, "numerical": ranks})], "cpu")
        assert verdict("full-rank", tmp_path).verdict == want


# --- Committed results -----------------------------------------------------------------------------------------------


def test_outcomes_of_the_committed_results():
    outcome = outcomes([COMMITTED])
    assert [one.entry for one in outcome] == list(ENTRIES)
    by_name = {one.entry.name: one for one in outcome}
    for one in outcome:
        assert one.verdict in VERDICTS
        assert one.reason
        assert one.verdict == "not run" or (one.machines and one.files), one.entry.name
        assert all((COMMITTED.parents[1] / path).is_file() for path in one.files)
        for plot in one.plots:
            assert all(len(series.x) == len(series.y) > 0 for series in plot.series), (one.entry.name, plot.title)
        for table in one.tables:
            assert all(len(row) == len(table.columns) for row in table.rows)
    assert not any(
        one.verdict == "exceeded" and "not reproduced" in [row.verdict for row in one.figures] for one in outcome
    )
    # What the paper says and is not so stays "not reproduced".
    assert {by_name[name].verdict for name in ("theorem-1", "full-rank", "rounding")} == {"not reproduced"}
    assert by_name["heads"].verdict in ("reproduced", "exceeded")


# Rows that are not part of the criterion of an entry, by how their labels begin.
SHOWN = {
    "fft": ("laplex with its plan kept",),
    "cpu": ("dense over the paper's portable path",),
    "accuracy": ("Euclidean norm, laplex, asked to scan", "largest component, laplex, asked to scan"),
    "rounding": ("largest error of laplex",),
    "rff-value": ("median error", "most features that are no slower"),
    "rff-gradient": ("improvement of K x",),
    "theorem-1": ("right as the text prints it", "right with a last interval", "laplex right"),
    "projection-frozen": ("LAPLEX, m = 1000", "CountSketch", "Gaussian", "PCA"),
    "heads": ("gap to dense",),
    "heads-recipe": (*(f"lead over low rank, r = {r}, {name}, best" for r in (4, 8, 16)
                       for name in ("clinc150", "tinyimagenet200")),),
    "heads-curves": tuple(f"epochs with the lower validation loss, r = {r}, random" for r in (4, 8, 16)),
}  # fmt: skip


def test_a_row_that_is_not_judged_has_no_verdict():
    for one in outcomes([COMMITTED]):
        shown = SHOWN.get(one.entry.name, ())
        outcome = {row.label for row in one.figures if row.verdict is None}
        assert outcome == {row.label for row in one.figures if row.label.startswith(shown)}, one.entry.name
        assert all(any(label.startswith(start) for label in outcome) for start in shown), one.entry.name


def test_memory_says_what_it_counts():
    for one in outcomes([COMMITTED]):
        rows = [row for row in one.figures if "memory" in row.label]
        assert all("inputs and result counted" in row.note for row in rows), one.entry.name
        assert all("counted" in plot.y_label for plot in one.plots if "memory" in plot.title), one.entry.name
        assert bool(rows) == (one.entry.name in ("runtime", "batch8", "batch8-against-dense", "gram"))


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_results_of_an_interrupted_run_are_read(tmp_path, count):
    """A file may hold any of its first runs."""
    for place in ("reproduce", "experiments"):
        (tmp_path / place).mkdir()
        for path in (COMMITTED / place).glob("*.json"):
            content = json.loads(path.read_text())
            (tmp_path / place / path.name).write_text(json.dumps(content | {"runs": content["runs"][:count]}))
    assert len(outcomes([tmp_path])) == len(ENTRIES)


def test_no_picture_is_of_images_that_may_not_be_shown():
    for one in outcomes([COMMITTED]):
        assert all(picture.path.parent == COMMITTED / "density" for picture in one.pictures)


# --- Measurements that were cut off ----------------------------------------------------------------------------------


def test_a_part_of_the_numbers_of_vectors_decides_nothing(tmp_path):
    both = measured(**{LAPLEX: {FORWARD: took(0.1), BOTH: took(1)}, DENSE: {FORWARD: took(2), BOTH: took(8)}})
    write(tmp_path, "cuda-batches", [(square(1 << 14, batch), both) for batch in (1, 8, 256)])
    outcome = verdict("batch-scaling", tmp_path)
    assert outcome.verdict == "not run"
    assert "1 to 256 vectors" in outcome.reason
    assert [one.ours for one in outcome.figures] == [None, None, pytest.approx(1.0)]  # the last is of 8 and 256 alone
    assert outcome.plots
    assert "`python -m paper run batch-scaling --device cuda` measures it" in outcome.reason  # --full has no more


def test_a_missing_figure_of_a_criterion_is_not_passed(tmp_path):
    fast = measured(**{LAPLEX: took(0.01), DENSE: took(1)})
    sizes = [(1024, k) for k in operator.ASYMMETRIC_MS]
    write(tmp_path, "cuda-asymmetric", [({"n": n, "k": k, "batch": 8}, fast) for n, k in sizes])
    outcome = verdict("asymmetric", tmp_path)
    assert outcome.verdict == "not run"
    assert "long side 2^18" in outcome.reason
