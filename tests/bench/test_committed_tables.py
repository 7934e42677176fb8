"""Tables of the committed results: a bound is never printed smaller than it is, and a number stays on one line."""

import json

import pytest

from benchmarks import committed, soft_tables

SPACE = "\N{NO-BREAK SPACE}"


def test_the_bound_of_a_ratio_is_rounded_up(tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "COMMITTED", tmp_path)
    row = {"what": "kde", "n": 10**6, "seconds": 0.104, "rival": "scikit-learn", "rival points": 4883}
    row |= {"rival seconds": 95.0, "ratio": 0.104 / 95}  # 0.00109
    rows = [row | {"bound": True}, row | {"bound": False}, row | {"bound": True, "ratio": 6.37e-5}]
    (tmp_path / soft_tables.STATS).write_text(json.dumps({"rows": rows}))
    lines = soft_tables.statistics_times().splitlines()[2:5]
    ratios = [line.split("|")[-2].strip().replace(SPACE, " ").replace("\N{NON-BREAKING HYPHEN}", "-") for line in lines]
    assert ratios == ["< 0.002", "0.001", "< 7e-05"]


@pytest.mark.parametrize(("bound", "text"), [(0.002, "0.002"), (0.001, "0.001"), (0.0996, "0.1"), (7e-5, "7e-05")])
def test_a_bound_of_one_digit_stays(bound, text):
    assert soft_tables.rounded_up(bound) == text


def test_thousands_are_not_torn_apart():
    long = "1 024 x 1 000 numbers, rank 10 000, 3 145 728 in all"
    want = "1_024 x 1_000 numbers, rank 10_000, 3_145_728 in all".replace("_", SPACE)
    assert committed.unbroken(long) == want
    assert committed.unbroken("n = 1000, k = 768, B = 128") == "n = 1000, k = 768, B = 128"
    assert committed.unbroken("4.7 ms") == f"4.7{SPACE}ms"


def test_arrows_are_not_torn_apart():
    arrow = f"{SPACE}\N{NON-BREAKING HYPHEN}>{SPACE}"
    assert committed.unbroken("8 blocks of 768 -> 3072 and back") == f"8 blocks of 768{arrow}3072 and back"
