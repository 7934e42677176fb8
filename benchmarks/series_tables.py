"""Tables of the fits to two real series, CO2 and sunspots, from the committed JSON."""

import math
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, source, table

FITS, CURVES = "time-series-fits.json", "time-series-curves.json"


def _seconds(row: dict[str, Any]) -> str:
    return f"{statistics.median(row['seconds']):.1g} s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def co2_forecasts() -> str:
    """Four trends: what the likelihood says, and ten years ahead."""
    rows = [
        (
            f"`{row['trend']}`", f"{row['log_likelihood']:.1f}", f"{row['forecast']['error']:.1f} ppm",
            _percent(row["forecast"]["inside"]), f"{row['forecast']['last_width']:.1f} ppm",
            str(row["evaluations"]), _seconds(row),
        )
        for row in content(FITS)["co2"]["fits"]
    ]  # fmt: skip
    header = (
        "trend", "log likelihood", "error of the forecast", "inside the band", "half-width of the band, last week",
        "evaluations", "fit",
    )  # fmt: skip
    return table(header, rows, _sizes("co2"), source(FITS))


def co2_parameters() -> str:
    """What was fitted, of the first trend."""
    parameters = content(FITS)["co2"]["fits"][0]["parameters"]
    rows = [
        ("trend", _scale(parameters, "trend"), f"{parameters['trend_sigma']:.3g} ppm"),
        ("over years", _scale(parameters, "years"), f"{parameters['years_sigma']:.2g} ppm"),
        ("season", f"quality {parameters['year_quality']:.0f}", f"{parameters['year_sigma']:.2g} ppm"),
        ("season, half a year", f"quality {parameters['half_quality']:.0f}", f"{parameters['half_sigma']:.2g} ppm"),
        ("over weeks", f"{365.25 * parameters['weeks_scale']:.0f} days", f"{parameters['weeks_sigma']:.2g} ppm"),
        ("noise", "", f"{parameters['noise']:.2g} ppm"),
    ]
    return table(("part", "scale", "standard deviation"), rows, source(FITS))


def _scale(parameters: dict[str, float], part: str) -> str:
    return f"{parameters[f'{part}_scale']:.2g} years"


def sunspot_fits() -> str:
    """Three kernels: the period, the quality factor, and 22 years ahead."""
    report = content(FITS)["sunspots"]
    fits, without = report["fits"], report["without_square_roots"]
    rows = [
        (
            row["kernel"], f"{row['log_likelihood']:.1f}", _period(row), _quality(row),
            f"{row['forecast']['error_of_numbers']:.0f}", _percent(row["forecast"]["inside"]),
            _percent(row["left_out_inside"]), _seconds(row),
        )
        for row in fits
    ]  # fmt: skip
    header = (
        "kernel", "log likelihood", "period, years", "quality", "error of the forecast", "inside the band",
        "leave-one-out, inside", "fit",
    )  # fmt: skip
    plain = (
        f"The mean of all years before, as a forecast, has an error of {without['forecast']['error_of_the_mean']:.0f}. "
        f"The last kernel, fitted without square roots: period {_period(without)}, error of the forecast "
        f"{without['forecast']['error_of_numbers']:.0f}, {_percent(without['forecast']['inside'])} inside the band, "
        f"leave-one-out {_percent(without['left_out_inside'])}."
    )
    return table(header, rows, plain, _sizes("sunspots"), source(FITS))


def _period(row: dict[str, Any]) -> str:
    period, error = row["parameters"]["period"], row["standard_errors_of_logarithms"]["period"]
    return f"{period:.1f} ± {period * error:.1f}"


def _quality(row: dict[str, Any]) -> str:
    """One standard deviation of its logarithm to either side."""
    quality, error = row["parameters"]["quality"], row["standard_errors_of_logarithms"]["quality"]
    return f"{quality:.1f} ({quality * math.exp(-error):.1f} to {quality * math.exp(error):.1f})"


def _sizes(series: str) -> str:
    fits = content(FITS)
    sizes, machine = fits[series], fits["machine"]
    rounds = len(sizes["fits"][0]["seconds"])
    return (
        f"{sizes['observations']} observations fitted, {sizes['held_out']} held out. Errors are root mean squares. "
        f"Times are medians of {rounds} fits, on a machine with other work: {machine['cpu']}, one thread."
    )


CONTENT: dict[str, Callable[[], str]] = {
    "co2 forecasts": co2_forecasts,
    "co2 parameters": co2_parameters,
    "sunspot fits": sunspot_fits,
}
