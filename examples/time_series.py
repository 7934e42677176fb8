"""CO2 at Mauna Loa, week by week: fit a Gaussian process, forecast ten years, and split the series into parts.

The model: a trend over decades, variations over years, a season, weather over weeks, and noise, all of them fitted.
Needs statsmodels, for the data. Run it: python examples/time_series.py
"""

import torch
from statsmodels.datasets import co2

from laplex.gp import SHO, GaussianProcess, Matern32, Matern52, fit


def series():
    """Times in years, and parts per million; weeks without a value are left out."""
    values = co2.load_pandas().data["co2"].dropna()
    days = torch.tensor(values.index.to_julian_date().to_numpy(), dtype=torch.float64)
    return 2000 + (days - 2451544.5) / 365.25, torch.tensor(values.to_numpy(), dtype=torch.float64)


def main() -> None:
    t, y = series()
    order = torch.randperm(len(t), generator=torch.Generator().manual_seed(0))
    t, y = t[order], y[order]  # any order will do
    old = t < 1992

    trend, years = Matern52(scale=60.0, sigma=40.0), Matern52(scale=2.0, sigma=0.6)
    season = SHO(period=torch.tensor(1.0), quality=5000.0, sigma=2.0)  # a period given as a tensor is not fitted
    overtone = SHO(period=torch.tensor(0.5), quality=5000.0, sigma=0.6)
    weeks = Matern32(scale=0.05, sigma=0.3)
    kernel = trend + years + season + overtone + weeks
    process = GaussianProcess(kernel, t[old], diag=0.0, mean=float(y[old].mean()))
    process, noise, log_likelihood = fit(process, y[old], noise=0.3)
    print(f"fitted {len(t[old])} weeks: log likelihood {float(log_likelihood):.1f}, noise {noise:.2f} ppm")
    trend, years, season, overtone, weeks = process.kernel.terms()
    print(f"trend: {trend.scale:.0f} years; years: {years.scale:.1f} years; weeks: {365 * weeks.scale:.0f} days")

    given = process.condition(y[old])
    mean, variance = given.mean(t[~old]), given.variance(t[~old])
    error = y[~old] - mean
    inside = (error.abs() < 1.96 * (variance + noise**2).sqrt()).double().mean()
    typical = error.square().mean().sqrt()
    print(f"{len(mean)} later weeks: error {typical:.2f} ppm, {100 * inside:.0f} % within the 95 % band")
    swing = given.mean(t, kernel=season + overtone, include_mean=False)
    print(f"the season goes from {swing.min():.1f} to {swing.max():.1f} ppm")

    # The self-check: compare with dense matrices.
    covariance = process.kernel(t[old])
    covariance.diagonal().add_(noise**2)
    residual = y[old] - y[old].mean()
    dense = torch.distributions.MultivariateNormal(torch.zeros_like(residual), covariance)
    assert abs(float(log_likelihood / dense.log_prob(residual)) - 1) < 1e-8, "the likelihood differs from the dense one"
    cross = process.kernel(t[~old], t[old])
    solved = torch.linalg.solve(covariance, torch.cat([residual[:, None], cross.mT], 1))
    differs = (mean - y[old].mean() - cross @ solved[:, 0]).abs().max()
    assert differs < 1e-6, f"the mean differs from the dense one by {differs:.1e} ppm"
    prior = sum(part.sigma**2 for part in process.kernel.terms())
    differs = (variance - (prior - (cross * solved[:, 1:].mT).sum(1))).abs().max()
    assert differs < 1e-6, f"the variance differs from the dense one by {differs:.1e} ppm^2"
    assert typical < 1.5, f"the forecast is off by {typical:.2f} ppm"
    print("OK")


if __name__ == "__main__":
    main()
