r"""A Gaussian process given observations: mean, variance, covariance and samples at any times.

Between two neighbouring points the state is moved from either side. With n the last point at or before a time t, and
Phi the transitions over the gaps to t and from t,

    S = Phi (S_n + d_n w_n w_n^T) Phi^T        f = Phi (f_n + w_n z_n)        the information from the points before t
    N = Phi^T N_{n+1} Phi                      r = Phi^T r_{n+1}              the information from those after it

    mean = p^T f + c^T r        variance = p^T c - c^T N c        c = q - S p
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from laplex._checks.counts import flag
from laplex._checks.counts import generator as generator_on
from laplex._small import product, times
from laplex._states.chain import Chain, Factored, factorise
from laplex._states.components import Reading, joined_readings, joined_steps
from laplex._states.exposures import Events
from laplex._states.line import Line
from laplex.gp import _checks as checks
from laplex.gp._kernel import Kernel
from laplex.gp._series import Series, padded, unpadded

if TYPE_CHECKING:
    from laplex.gp._process import GaussianProcess

# To draw values without noise, one of these, times k(0), is added to the diagonal: without it, rounding errors leave no
# factor where times are very close together. The smallest one that gives a factor is used.
JITTERS = (1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10)


class Conditional:
    """A Gaussian process, without noise, given observations; :meth:`GaussianProcess.condition` makes it.

    Times are (*batch, m), in any order, or a list if those of the process are; None stands for the observed times.
    If the process's kernel is a sum, ``kernel`` may be a term of it: results are then for the part of the process with
    that kernel. ``band`` (*batch, m) holds the bands of the times.
    """

    __module__ = "laplex.gp"

    def __init__(
        self,
        process: GaussianProcess,
        factored: Factored,
        line: Line | Events,
        y: Tensor,
        dtype: torch.dtype,
        named: str | None = None,
    ) -> None:
        """``y`` (h, n, m): observations minus the mean, in the order of the line; errors may name another function."""
        # Everything is copied as it is now, because the caller may write to it later.
        chain = factored.chain._replace(diag=factored.chain.diag.clone())
        self.process, self._factored, self._line = _snapshot(process), factored._replace(chain=chain), line
        self._y, self._dtype, self._named = y.clone(), dtype, named
        self._z, self._f = factored.whiten(y)
        terms = process.kernel.terms()
        self._terms = [term.components_by(lambda parameter: parameter.double().clone()) for term in terms]
        self._components = [component for term in self._terms for component in term]
        self._t = process.series.t.clone()
        self._times, self._known = line.times.clone(), line.sorted_times().clone()
        self._held_information: Tensor | None = None
        self._held_gathered: Tensor | None = None

    def __repr__(self) -> str:
        return f"Conditional({self.process})"

    def mean(self, t: Any = None, *, include_mean: bool = True, kernel: Kernel | None = None, band: Any = None) -> Any:
        """The mean of the process at times t, (*batch, m)."""
        with_mean = flag(self._where("mean"), "include_mean", include_mean)
        points = self._points("mean", t, kernel, band)
        values = points.series.shaped(self._means(points)[..., 0])
        if with_mean:
            values = values + self._prior_mean("mean", points)
        return points.in_callers_form(values.to(self._dtype))

    def variance(self, t: Any = None, *, kernel: Kernel | None = None, band: Any = None) -> Any:
        """The variance of the process at times t, (*batch, m); never negative."""
        points = self._points("variance", t, kernel, band)
        c, _, later = self._neighbours(points)
        inner = _within(later, self._information, points.after)
        p = points.reading.p
        removed = (c * times(inner, c)).sum(-1)
        variance = ((p * c).sum(-1) - removed).clamp(min=0.0)
        return points.in_callers_form(points.series.shaped(variance).to(self._dtype))

    def covariance(self, t: Any = None, *, kernel: Kernel | None = None, band: Any = None) -> Tensor:
        """The covariance of the process at times t, (*batch, m, m), in O((n + m) m)."""
        where = self._where("covariance")
        checks.not_ragged(where, self.process.counts)
        checks.not_exposed(where, self.process.exposure)
        points = self._points("covariance", t, kernel, band)
        h, m = points.series.t.shape
        n = self.process.series.n
        units = torch.eye(m, dtype=torch.float64, device=self.process.t.device).expand(h, m, m)
        both = Joint.of_both(self, points)
        prior = both.chain.apply(torch.cat([units.new_zeros(h, n, m), units], 1)[both.rows()])
        prior = both.back(prior)  # the columns of K of the new times, at all times: (h, n + m, m)
        covariance = prior[:, n:] - self._with_observations(self._line.take(prior[:, :n]))._means(points)
        return points.series.shaped((covariance + covariance.mT) / 2).to(self._dtype)

    def sample(
        self,
        size: int | None = None,
        t: Any = None,
        *,
        include_mean: bool = True,
        kernel: Kernel | None = None,
        band: Any = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Draw from the process at times t, (*batch, m) or (size, *batch, m), in O(n + m) each, by Matheron's rule.

        A draw from the prior is corrected by how far the observations differ from it.
        """
        where = self._where("sample")
        draws, with_mean = checks.draws(where, size), flag(where, "include_mean", include_mean)
        generator_on(where, generator, self.process.t.device, "t")
        checks.not_exposed(where, self.process.exposure)
        points = self._points("sample", t, kernel, band)
        n, device = self.process.series.n, self.process.t.device
        both = Joint.of_both(self, points)
        prior = both.back(both.draw(draws, generator))  # (h, n + m, draws)
        shape = *self._factored.d.shape, draws
        noise = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
        diag = self._factored.chain.diag
        noise = noise * torch.where(diag.isinf(), 0.0, diag).sqrt()[..., None]
        correction = self._with_observations(self._y - self._line.take(prior[:, :n]) - noise)._means(points)
        values = points.series.shaped(prior[:, n:] + correction).movedim(-1, 0)
        if with_mean:
            values = values + self._prior_mean("sample", points)
        values = values.to(self._dtype)
        return points.in_callers_form(values if size is not None else values[0])

    def _where(self, name: str) -> str:
        """What errors in a method name."""
        return self._named or f"laplex.gp.Conditional.{name}"

    def _with_observations(self, y: Tensor) -> Conditional:
        """The same process, given other observations."""
        other = copy.copy(self)
        other._y, other._held_gathered = y, None
        other._z, other._f = self._factored.whiten(y)
        return other

    # --- The information from the observations at a point ------------------------------------------------------------

    # Each is computed when it is first asked for. (functools.cached_property takes a lock, which breaks a graph.)

    @property
    def _information(self) -> Tensor:
        if self._held_information is None:
            self._held_information = self._factored.information()
        return self._held_information

    @property
    def _states_after(self) -> Tensor:
        return self._factored.states + self._factored.c[..., :, None] * self._factored.w[..., None, :]

    @property
    def _means_after(self) -> Tensor:
        """f + w z, (h, n, s, m)."""
        return self._f + self._factored.w[..., None] * self._z[..., None, :]

    @property
    def _gathered(self) -> Tensor:
        if self._held_gathered is None:
            self._held_gathered = self._factored.gather(self._z)
        return self._held_gathered

    def _means(self, points: Points) -> Tensor:
        """The means at the points, without the prior mean, (h, m, columns)."""
        c, earlier, later = self._neighbours(points)
        f = product(earlier, _picked(self._means_after, points.before))
        r = product(later.mT, _picked(self._gathered, points.after))
        return (points.reading.p[..., None] * f + c[..., None] * r).sum(-2)

    def _neighbours(self, points: Points) -> tuple[Tensor, Tensor, Tensor]:
        """c (h, m, s), and the transitions from the point before and to the point after, 0 where there is none."""
        earlier, later = points.transitions()
        state = product(product(earlier, _picked(self._states_after, points.before)), earlier.mT)
        return points.reading.q - times(state, points.reading.p), earlier, later

    def _prior_mean(self, name: str, points: Points) -> Any:
        return self.process._mean_at(self._where(name), None if points.observed else points.t)

    def _points(self, name: str, t: Any, kernel: Kernel | None, band: Any) -> Points:
        where, process = self._where(name), self.process
        counts, sizes = process.counts, process.series.counts
        if t is None:
            times, band = process.series.shaped(self._t), process.band if band is None else band
        elif process.counts is not None:
            single = torch.Size()
            series_times = checks.one_tensor_per_series("t", t, process.counts)
            times, sizes = padded([checks.new_times(where, tensor, single, process.t) for tensor in series_times])
            counts = sizes.tolist()
        else:
            times = checks.new_times(where, t, process.series.batch, process.t)
        if isinstance(band, list | tuple) and counts is not None:
            band = padded(checks.one_value_per_time("band", band, counts))[0]
        batch = torch.broadcast_shapes(times.shape[:-1], process.series.batch)
        series = Series(times, batch, None, sort=False)
        bands = checks.bands(where, band, times)
        chosen = checks.chosen_terms(where, process.kernel, kernel)
        mask = chosen and [keep for keep, term in zip(chosen, self._terms, strict=True) for _ in term]
        return Points.located(self, series, times, bands, mask, counts, t is None)


def _snapshot(process: GaussianProcess) -> GaussianProcess:
    """Copy the process with its present times, bands and mean. A mean that is a function is called when needed."""
    snapshot, mean = object.__new__(type(process)), process.mean  # torch.compile of torch 2.11 cannot trace copy.copy
    band = None if process.band is None else process.band.clone()
    snapshot._t, snapshot.counts = process.t.clone(), process.counts
    snapshot.engine = process.engine.replaced(band=band)
    snapshot._mean = mean.clone() if isinstance(mean, Tensor) else mean
    return snapshot


class Points(NamedTuple):
    """Times at which results are wanted."""

    conditional: Conditional
    series: Series
    t: Tensor  # (*batch, m), as the caller gave them
    reading: Reading  # what is read of the states there
    before: Tensor  # (h, m): the last observed point at or before the time, in order; -1 for none
    after: Tensor  # (h, m): the first one after it; -1 for none
    counts: list[int] | None
    observed: bool  # whether they are the times observed

    @classmethod
    def located(
        cls,
        conditional: Conditional,
        series: Series,
        t: Tensor,
        band: Tensor | None,
        mask: list[bool] | None,
        counts: list[int] | None,
        observed: bool,
    ) -> Points:
        """Locate times (*batch, m) among the observed points; ``mask`` chooses components of the kernel."""
        components, line, sizes = conditional._components, conditional._line, conditional.process.series.counts
        after = torch.searchsorted(conditional._known.contiguous(), series.t.detach().contiguous(), right=True)
        last = conditional._known.shape[-1] if sizes is None else sizes[:, None]
        used = [True] * len(components) if mask is None else mask
        chosen = [float(keep) for keep, component in zip(used, components, strict=True) for _ in range(component.size)]
        weights = series.t.new_tensor(chosen)
        flat_band = None if band is None else series.flat(band).long()
        reading = line.reading(components, series.t, flat_band, after - 1, weights, series.per_series)
        following = torch.where(after < last, after, -1)
        return cls(conditional, series, t, reading, after - 1, following, counts, observed)

    def transitions(self) -> tuple[Tensor, Tensor]:
        """The transitions from the point before and to the point after, (h, m, s, s); 0 where there is none."""
        line, ordered = self.conditional._line, self.conditional._times
        steps: list[Tensor] = []
        for index, sign in ((self.before, 1), (self.after, -1)):
            gap = sign * (self.series.t - ordered.gather(1, index.clamp(min=0)))
            inside = index >= 0
            step = line.steps(self.conditional._components, torch.where(inside, gap, 0.0), self.series.per_series)
            steps.append(torch.where(inside[..., None, None], step, 0.0))
        return steps[0], line.entering(steps[1], self.after)

    def in_callers_form(self, values: Tensor) -> Any:
        """Return values (..., m) in the form of the caller's times: one tensor, or one for each series."""
        return values if self.counts is None else unpadded(values, self.counts)


class Joint(NamedTuple):
    """The observed times and new ones as one chain of n + m points, without noise."""

    chain: Chain
    order: Tensor  # (h, n + m)

    @classmethod
    def of_both(cls, conditional: Conditional, points: Points) -> Joint:
        """Join the observed points and the new ones."""
        components, process, series = conditional._components, conditional.process, conditional.process.series
        t = torch.cat([conditional._t, points.series.t], 1)
        order = torch.argsort(t.detach(), dim=-1, stable=True)
        band = None if process.band is None else series.flat(process.band).long()
        seen = joined_readings(components, conditional._t, band, series.per_series)
        p, q = (
            torch.cat(both, 1).gather(1, order[..., None].expand(*order.shape, seen.p.shape[-1]))
            for both in zip(seen, points.reading, strict=True)
        )
        gaps = torch.nn.functional.pad(t.gather(1, order).diff(dim=1), (1, 0))
        steps = joined_steps(components, gaps, series.per_series)
        return cls(Chain(steps, p, q, torch.zeros_like(t)), order)

    def rows(self) -> tuple[Tensor, Tensor]:
        """The index that puts (h, n + m, ...) into the order of time."""
        return torch.arange(len(self.order), device=self.order.device)[:, None], self.order

    def back(self, values: Tensor) -> Tensor:
        """Put values (h, n + m, columns) of points in order back into the caller's order."""
        return values.gather(1, torch.argsort(self.order, -1)[..., None].expand(values.shape))

    def draw(self, draws: int, generator: torch.Generator | None) -> Tensor:
        """Draw from the process, (h, n + m, draws), in the order of time."""
        variance = (self.chain.p * self.chain.q).sum(-1)
        largest = variance.detach().max(-1, keepdim=True).values.expand_as(variance)
        for jitter in JITTERS if checks.readable(variance) else JITTERS[-1:]:
            factored, failed = factorise(self.chain._replace(diag=jitter * largest))
            if not checks.readable(failed) or max(failed.tolist()) < 0:
                break
        else:
            raise LinAlgError(
                "laplex.gp.Conditional.sample: the kernel must be positive definite to draw from it, but its matrix at "
                "the observed and the new times is not; check its parameters (of Celerite: a c >= |b d|)"
            )
        shape, device = (*variance.shape, draws), variance.device
        white = torch.randn(shape, dtype=variance.dtype, device=device, generator=generator)
        return factored.colour(factored.d.sqrt()[..., None] * white)


def _picked(values: Tensor, index: Tensor) -> Tensor:
    """values (h, n, ...) at the points ``index`` (h, m); any value where the index is -1."""
    rows = torch.arange(len(index), device=index.device)[:, None]
    return values[rows, index.clamp(min=0)]


def _within(step: Tensor, matrices: Tensor, index: Tensor) -> Tensor:
    """Phi^T N Phi, with the N of the points ``index``."""
    return product(step.mT, product(_picked(matrices, index), step))
