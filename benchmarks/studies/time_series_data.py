"""Gaussian processes on two real series: CO2 at Mauna Loa, week by week, and the yearly number of sunspots.

    python -m benchmarks.studies.time_series_data        writes benchmarks/results/time-series-*.json

Both series come with statsmodels. Every kernel is fitted by maximum likelihood to the earlier part of a series, and
forecasts the later part, which it has not seen: ten years of CO2, 22 years of sunspots. `time-series-fits.json` has the
fits and the errors, `time-series-curves.json` what the pictures show. A band is the mean plus and minus 1.96 standard
deviations of an observation, its noise included; `inside` is the share of held-out observations within the band.
The first trend of CO2, which is drawn, was chosen after comparing several forecasts with the held-out data, so its
error flatters; the kernel that is drawn for the sunspots has the largest likelihood of the three.
`seconds` are those of several repetitions of the same fit, one after another, on one thread.
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import conditions
from laplex import gp

OUT = Path(__file__).parents[1] / "results"
BAND = 1.96
ROUNDS = 5  # fits that are timed; all of them find the same
CO2_UNTIL, SUNSPOTS_UNTIL = 1992.0, 1987.0  # times before these are fitted

Parameters = dict[str, Any]
Parts = dict[str, gp.Kernel]


def fitted(process: Callable[[Parameters], gp.GaussianProcess], start: Parameters, y: Tensor) -> dict[str, Any]:
    """The parameters of the largest likelihood, and the seconds of every round."""
    rounds = [fitted_once(process, start, y) for _ in range(ROUNDS)]
    return {**rounds[0], "seconds": [one["seconds"] for one in rounds]}


def fitted_once(process: Callable[[Parameters], gp.GaussianProcess], start: Parameters, y: Tensor) -> dict[str, Any]:
    """One such fit. All parameters are positive, and their logarithms are trained."""
    logs = [torch.tensor(math.log(value), dtype=torch.float64, requires_grad=True) for value in start.values()]
    optimizer = torch.optim.LBFGS(logs, max_iter=100, line_search_fn="strong_wolfe")

    def parameters() -> Parameters:
        return {name: log.exp() for name, log in zip(start, logs, strict=True)}

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -process(parameters()).log_likelihood(y) / len(y)
        loss.backward()
        return loss

    began = time.perf_counter()
    optimizer.step(closure)
    seconds = time.perf_counter() - began
    return {
        "parameters": {name: float(value.detach()) for name, value in parameters().items()},
        "log_likelihood": float(process(parameters()).log_likelihood(y).detach()),
        "evaluations": optimizer.state[logs[0]]["func_evals"],
        "seconds": seconds,
    }


def standard_errors(
    process: Callable[[Parameters], gp.GaussianProcess], parameters: Parameters, y: Tensor
) -> dict[str, float]:
    """Standard errors of the logarithms of parameters, from the likelihood's second derivatives at its maximum."""

    def loss(logs: Tensor) -> Tensor:
        return -process(dict(zip(parameters, logs.exp(), strict=True))).log_likelihood(y)

    logs = torch.tensor([math.log(value) for value in parameters.values()], dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(loss, logs)
    return dict(zip(parameters, torch.linalg.inv(hessian).diagonal().sqrt().tolist(), strict=True))


def forecast(process: gp.GaussianProcess, noise: float, y: Tensor, t: Tensor, seen: Tensor) -> dict[str, Any]:
    """How well held-out observations were forecast; ``seen`` are these observations."""
    mean, variance = process.predict(y, t, return_var=True)
    width = BAND * (variance + noise**2).sqrt()
    error = seen - mean
    return {
        "error": float(error.square().mean().sqrt()),
        "inside": float((error.abs() < width).double().mean()),
        "last_width": float(width[-1]),
    }


def total(parts: Parts) -> gp.Kernel:
    first, *others = parts.values()
    for other in others:
        first = first + other
    return first


def curves(process: gp.GaussianProcess, noise: float, y: Tensor, t: Tensor, parts: Parts) -> dict[str, Any]:
    """Means and standard deviations at times t, for an observation and for every part."""
    given = process.condition(y)
    deviation = (given.variance(t) + noise**2).sqrt()
    result: dict[str, Any] = {"t": rounded(t), "mean": rounded(given.mean(t)), "sd": rounded(deviation)}
    for name, part in parts.items():
        mean, variance = given.mean(t, kernel=part, include_mean=False), given.variance(t, kernel=part)
        result[name] = {"mean": rounded(mean), "sd": rounded(variance.sqrt())}
    return result


def rounded(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


# --- CO2 -------------------------------------------------------------------------------------------------------------


def co2() -> tuple[Tensor, Tensor]:
    """Times in years, and parts per million; weeks without a value are left out."""
    from statsmodels.datasets import co2 as data

    values = data.load_pandas().data["co2"].dropna()
    days = torch.tensor(values.index.to_julian_date().to_numpy(), dtype=torch.float64)
    return 2000 + (days - 2451544.5) / 365.25, torch.tensor(values.to_numpy(), dtype=torch.float64)


def co2_parts(p: Parameters, trend: gp.Kernel) -> Parts:
    return {
        "trend": trend,
        "years": gp.Matern52(scale=p["years_scale"], sigma=p["years_sigma"]),
        "season": gp.SHO(period=1.0, quality=p["year_quality"], sigma=p["year_sigma"])
        + gp.SHO(period=0.5, quality=p["half_quality"], sigma=p["half_sigma"]),
        "weeks": gp.Matern32(scale=p["weeks_scale"], sigma=p["weeks_sigma"]),
    }


def smooth(p: Parameters) -> gp.Kernel:
    return gp.Matern52(scale=p["trend_scale"], sigma=p["trend_sigma"])


def line(p: Parameters) -> gp.Kernel:
    return gp.Linear(sigma=p["slope"], center=1975.0)


def parabola(p: Parameters) -> gp.Kernel:
    bend = gp.Linear(sigma=p["bend"], center=1975.0) * gp.Linear(center=1975.0)
    return gp.Constant(sigma=10.0) + line(p) + bend


CO2_START = {
    "years_scale": 2.0, "years_sigma": 0.6, "year_quality": 5000.0, "year_sigma": 2.0, "half_quality": 5000.0,
    "half_sigma": 0.6, "weeks_scale": 0.05, "weeks_sigma": 0.3, "noise": 0.3,
}  # fmt: skip
CO2_TRENDS: dict[str, tuple[Callable[[Parameters], gp.Kernel], Parameters]] = {
    "Matern52": (smooth, {"trend_scale": 60.0, "trend_sigma": 40.0}),
    "Linear + Matern52": (
        lambda p: line(p) + smooth(p),
        {"slope": 1.3, "trend_scale": 40.0, "trend_sigma": 20.0},
    ),
    "Linear": (line, {"slope": 1.3}),
    "Constant + Linear + Linear * Linear": (parabola, {"slope": 1.3, "bend": 0.02}),
}


def study_co2() -> tuple[dict[str, Any], dict[str, Any]]:
    t, y = co2()
    old = t < CO2_UNTIL
    level = float(y[old].mean())
    rows: list[dict[str, Any]] = []
    shown: dict[str, Any] = {}
    for name, (trend, start) in CO2_TRENDS.items():

        def process(p: Parameters, trend: Callable[[Parameters], gp.Kernel] = trend) -> gp.GaussianProcess:
            return gp.GaussianProcess(total(co2_parts(p, trend(p))), t[old], yerr=p["noise"], mean=level)

        row = {"trend": name, **fitted(process, {**start, **CO2_START}, y[old])}
        parameters = row["parameters"]
        row["forecast"] = forecast(process(parameters), parameters["noise"], y[old], t[~old], y[~old])
        rows.append(row)
        print("co2", row, flush=True)
        if not shown:
            parts = co2_parts(parameters, trend(parameters))
            chosen = gp.GaussianProcess(total(parts), t[old], yerr=parameters["noise"], mean=level)
            grid = torch.linspace(1958.2, 2002.0, 1052, dtype=torch.float64)  # 24 per year
            shown = curves(chosen, parameters["noise"], y[old], grid, parts)
    shown |= {"until": CO2_UNTIL, "level": level, "observed": {"t": rounded(t), "y": rounded(y)}}
    return {"observations": int(old.sum()), "held_out": int((~old).sum()), "fits": rows}, shown


# --- Sunspots --------------------------------------------------------------------------------------------------------


def sunspots() -> tuple[Tensor, Tensor]:
    """Years, and the mean number of sunspots in each."""
    from statsmodels.datasets import sunspots as data

    values = data.load_pandas().data
    return torch.tensor(values["YEAR"].to_numpy()), torch.tensor(values["SUNACTIVITY"].to_numpy())


def cycle(p: Parameters) -> Parts:
    return {"cycle": gp.SHO(period=p["period"], quality=p["quality"], sigma=p["sigma"])}


def cycle_level(p: Parameters) -> Parts:
    return {**cycle(p), "level": gp.Matern32(scale=p["level_scale"], sigma=p["level_sigma"])}


def cycle_overtone_level(p: Parameters) -> Parts:
    overtone = gp.SHO(period=p["period"] / 2, quality=p["overtone_quality"], sigma=p["overtone_sigma"])
    return {**cycle_level(p), "cycle": cycle(p)["cycle"] + overtone}


CYCLE = {"period": 11.0, "quality": 5.0, "sigma": 3.0, "noise": 0.5, "mean": 6.0}
LEVEL = {"level_scale": 40.0, "level_sigma": 1.0}
OVERTONE = {"overtone_quality": 5.0, "overtone_sigma": 1.0}
TENFOLD = {"sigma", "level_sigma", "overtone_sigma", "noise", "mean"}  # these start larger without square roots
SUNSPOT_KERNELS: dict[str, tuple[Callable[[Parameters], Parts], Parameters]] = {
    "SHO": (cycle, CYCLE),
    "SHO + Matern32": (cycle_level, CYCLE | LEVEL),
    "SHO + SHO at half the period + Matern32": (cycle_overtone_level, CYCLE | LEVEL | OVERTONE),
}


def study_sunspots() -> tuple[dict[str, Any], dict[str, Any]]:
    """Fit the square roots, because the numbers are not negative, and vary more the larger they are."""
    t, y = sunspots()
    old = t < SUNSPOTS_UNTIL
    rows = []
    for name, (parts, start) in SUNSPOT_KERNELS.items():
        rows.append({"kernel": name, **fitted_sunspots(parts, start, roots=True)})
        print("sunspots", rows[-1], flush=True)
    large = {name: value * 10 if name in TENFOLD else value for name, value in start.items()}
    plain = {"kernel": name, **fitted_sunspots(parts, large, roots=False)}  # the last kernel, without square roots
    print("sunspots", plain, flush=True)

    parameters = rows[-1]["parameters"]
    terms = parts(parameters)
    chosen = gp.GaussianProcess(total(terms), t[old], yerr=parameters["noise"], mean=parameters["mean"])
    grid = torch.linspace(1700, 2020, 1281, dtype=torch.float64)  # four per year
    shown = curves(chosen, parameters["noise"], y[old].sqrt(), grid, terms)
    shown |= {"until": SUNSPOTS_UNTIL, "level_mean": parameters["mean"]}
    shown["observed"] = {"t": rounded(t), "y": rounded(y)}
    sizes = {"observations": int(old.sum()), "held_out": int((~old).sum())}
    return {**sizes, "fits": rows, "without_square_roots": plain}, shown


def fitted_sunspots(parts: Callable[[Parameters], Parts], start: Parameters, *, roots: bool) -> dict[str, Any]:
    """A fit to the earlier years, its forecast, and the prediction of every earlier year from all others."""
    t, y = sunspots()
    old = t < SUNSPOTS_UNTIL
    z = y.sqrt() if roots else y

    def process(p: Parameters) -> gp.GaussianProcess:
        return gp.GaussianProcess(total(parts(p)), t[old], yerr=p["noise"], mean=p["mean"])

    row = fitted(process, start, z[old])
    chosen, noise = process(row["parameters"]), row["parameters"]["noise"]
    row["standard_errors_of_logarithms"] = standard_errors(process, row["parameters"], z[old])
    row["forecast"] = forecast(chosen, noise, z[old], t[~old], z[~old])
    foretold = chosen.predict(z[old], t[~old]).clamp(min=0)
    foretold = foretold.square() if roots else foretold
    row["forecast"]["error_of_numbers"] = float((y[~old] - foretold).square().mean().sqrt())
    row["forecast"]["error_of_the_mean"] = float((y[~old] - y[old].mean()).square().mean().sqrt())
    alone = chosen.leave_one_out(z[old])
    row["left_out_inside"] = float(((z[old] - alone.mean).abs() < BAND * alone.variance.sqrt()).double().mean())
    return row


def main() -> None:
    torch.set_num_threads(1)
    fits, shown = zip(study_co2(), study_sunspots(), strict=True)
    head = conditions("cpu")
    content = {**head, "co2": fits[0], "sunspots": fits[1]}
    (OUT / "time-series-fits.json").write_text(json.dumps(content, indent=1) + "\n")
    (OUT / "time-series-curves.json").write_text(json.dumps({"co2": shown[0], "sunspots": shown[1]}) + "\n")


if __name__ == "__main__":
    main()
