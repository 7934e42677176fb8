"""Which of several runs counts: one rule for judges, documentation and README."""

from paper.results import Run, latest_recipe, tuned_head


def head(start, lr, seed, val):
    return Run({"start": start, "lr": lr, "seed": seed}, {"val": val}, "2026-01-01", {})


def test_validation_rows_choose_the_rate_at_the_first_seed_and_the_start_by_the_mean():
    rates = [head("random", 0.1, 0, 0.9), head("random", 0.01, 0, 0.9), head("random", 1.0, 0, 0.5)]
    seeds = [head("random", 0.01, 1, 0.5), head("random", 0.01, 2, 0.4)]
    assert tuned_head(rates + seeds) == [rates[1], *seeds]  # the lowest of equal rates; other rates have one seed
    better = [head("svd", 0.1, 0, 0.7), head("svd", 0.1, 1, 0.7)]
    assert tuned_head([*rates, *seeds, *better]) == better


def test_the_recipe_that_was_run_last_counts():
    old = [Run({"lr": 0.1, "epochs": 5, "seed": seed}, {}, "2026-01-01", {}) for seed in (0, 1)]
    new = [Run({"lr": 0.1, "epochs": 9, "seed": seed}, {}, f"2026-01-0{seed + 1}", {}) for seed in (0, 1)]
    assert latest_recipe([*new, *old]) == new
