"""A Gaussian process on irregular times: hyperparameters by gradients, then mean and variance at new times.

The model: values = amplitude * f(times) + noise, where f has the covariance exp(-|t - t'| / tau).
Run it: python examples/gaussian_process.py
"""

import math

import torch

import laplex


def likelihood(times, values, plan, log_tau, log_amplitude, log_noise):
    """The log density of the values, in O(n); their covariance is amplitude^2 (K + (noise / amplitude)^2)."""
    K = laplex.LaplaceOperator(times, tau=log_tau.exp(), plan=plan)
    diag = (2 * (log_noise - log_amplitude)).exp()
    scaled = values / log_amplitude.exp()
    volume = K.logdet(diag) + 2 * len(values) * log_amplitude
    return -0.5 * (scaled @ K.solve(scaled, diag) + volume + len(values) * math.log(2 * math.pi))


def predict(times, values, new, tau, amplitude, noise, block=500):
    """Mean and variance of f at new times, in any order: O(n) for the mean, O(n) per new time for the variance."""
    K, cross = laplex.LaplaceOperator(times, tau=tau), laplex.LaplaceOperator(new, times, tau)
    diag = (noise / amplitude) ** 2
    mean = cross @ K.solve(values, diag)  # the rectangular matrix K(new, times), never formed
    factor, explained = K.cholesky(diag), []
    for rows in torch.arange(len(new)).split(block):  # blocks bound the memory: n * block numbers
        explained.append(factor.solve(cross[rows, :].to_dense().mT).square().sum(0))
    return mean, amplitude**2 * (1 - torch.cat(explained))


def main() -> None:
    torch.manual_seed(0)
    times = 200 * torch.rand(3000, dtype=torch.float64)  # irregular and unsorted
    truth = 2.0 * laplex.LaplaceOperator(times, tau=1.5).sample(diag=1e-10)
    values = truth + 0.4 * torch.randn_like(truth)
    old, new = slice(0, 2000), slice(2000, None)

    plan = laplex.Plan(times[old], times[old])  # the times are fixed: one sort serves all steps
    logs = [torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.LBFGS(logs, max_iter=40, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = -likelihood(times[old], values[old], plan, *logs) / 2000
        loss.backward()
        return loss

    optimizer.step(closure)
    tau, amplitude, noise = (float(one.detach().exp()) for one in logs)
    print(f"fitted: tau {tau:.2f} (true 1.5), amplitude {amplitude:.2f} (2.0), noise {noise:.2f} (0.4)")
    mean, variance = predict(times[old], values[old], times[new], tau, amplitude, noise)
    inside = ((truth[new] - mean).abs() < 1.96 * variance.sqrt()).double().mean()
    print(f"{len(mean)} new times: {100 * float(inside):.0f} % of the truth lie within the 95 % intervals")

    # The self-check: compare with dense matrices.
    covariance = amplitude**2 * laplex.reference.kernel(times[old], times[old], tau)
    covariance.diagonal().add_(noise**2)
    cross = amplitude**2 * laplex.reference.kernel(times[new], times[old], tau)
    dense_mean = cross @ torch.linalg.solve(covariance, values[old])
    dense_variance = amplitude**2 - (cross * torch.linalg.solve(covariance, cross.mT).mT).sum(1)
    error = max(float((mean - dense_mean).abs().max()), float((variance - dense_variance).abs().max()))
    assert error < 1e-9, f"the prediction differs from the dense one by {error:.1e}"
    dense = torch.distributions.MultivariateNormal(torch.zeros(2000, dtype=torch.float64), covariance)
    ours = float(likelihood(times[old], values[old], plan, *logs).detach())
    assert abs(ours / float(dense.log_prob(values[old])) - 1) < 1e-10, "the likelihood differs from the dense one"
    assert 0.9 < float(inside) < 0.99, f"the intervals are not calibrated: {float(inside):.2f}"
    print("OK")


if __name__ == "__main__":
    main()
