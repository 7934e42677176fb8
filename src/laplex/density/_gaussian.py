"""The two densities: the paper's, with one phased kernel, and one with several functions at every place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from laplex import _autocast
from laplex._checks import counts
from laplex._checks.counts import integer
from laplex._functional import linear
from laplex.density._examples import Examples, check_fitted
from laplex.density._module import START_NOISE, Density, LowerTriangle
from laplex.density._structured import StructuredGaussian

START_TAU = 4.0  # in units of the knots' spacing, if nothing is known about the data
LATENTS = ("dense", "diagonal")

# If examples are known; `python -m benchmarks.studies.adam_start` compares these values with others.
NOISE = 0.8  # of the standard deviation of each feature: what many features share is learned before details
SPACING = 5e-3  # between neighbouring knots: a step of Adam moves a place by about the learning rate, such as 2e-3
KNOTS_IN_TAU = 100.0  # so long that places find their way past many knots; tau falls as the fit gets finer
OTHERS = 0.3  # weights of the second and later components, relative to those of the first
PHASES = 0.1  # in radians: if all phases were equal, they would have no gradient
UNMOVED = 1e-6  # how far rounding may move a parameter that was not changed


class LaplexGaussian(Density):
    r"""The paper's density: N(m, F F^T + diag(d^2)), F = sum over i of diag(w_i) A L_i^T, A = K(a, b; tau, phi, psi).

    With one component L is lower triangular with a positive diagonal; with several, each L_i is a full square matrix.
    Likelihood, samples, reconstructions, marginals and conditionals are exact. For large dim nothing of size dim x rank
    is stored.
    The module has dim (components + 3) + rank (rank + 1) / 2 + 2 rank + 1 parameters with one component. In place of
    rank (rank + 1) / 2 it has components rank^2 with several, and rank with a diagonal L. Without phases it has
    dim + rank fewer.

    Args:
        dim: n, how many features an example has.
        rank: k, the number of knots and of latent numbers.
        components: I.
        phase: whether the kernel has phases.
        latent: "dense", or "diagonal" for a diagonal L, which needs one component. Then everything costs O(k) instead
            of O(k^2) memory and O(k^3) time, so that the rank may be 100 000 and more.
        device, dtype: of the parameters; never half precision.

    Attributes:
        a, phi (dim,), b, psi (rank,): places and phases of the features and of the knots. Knots start evenly in [0, 1].
        weight (components, dim): w.
        log_noise (dim,), log_tau (): log d and log tau.
        triangle, factor (components, rank, rank), or log_scale (rank,): L for one component, for several, or the
            logarithm of a diagonal L.
        mean (dim,): m, a buffer.

    Example:
        >>> model = laplex.density.LaplexGaussian(images.shape[1], rank=100)
        >>> model.start_from(laplex.density.Examples(images))
        >>> loss = -model.log_prob(images[batch]).mean()
    """

    phi: nn.Parameter | None
    psi: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        rank: int,
        components: int = 1,
        *,
        phase: bool = True,
        latent: str = "dense",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, rank, device, dtype)
        self.components = integer(self._where, "components", components)
        self.latent = _latent(self._where, latent, components)
        self.a, self.b, self.log_tau = self._parameter(dim), self._parameter(rank), self._parameter()
        self.weight = self._parameter(components, dim)
        self.phi, self.psi = (self._parameter(dim), self._parameter(rank)) if phase else (None, None)
        self.triangle = LowerTriangle(rank, self._like) if components == 1 and latent != "diagonal" else None
        self.factor = None if components == 1 else self._parameter(components, rank, rank)
        self.log_scale = self._parameter(rank) if latent == "diagonal" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Put knots on an even grid of [0, 1] and features in the order given (raster order for images); mean 0.

        This uses nothing about the data, unlike :meth:`start_from`.
        """
        self.mean.zero_()
        for anchors in (self.a, self.b):
            anchors.copy_((torch.arange(len(anchors), device=anchors.device) + 0.5) / len(anchors))
        if self.phi is not None and self.psi is not None:
            self.phi.zero_()
            # Neighbouring knots are a quarter turn apart, so a feature's phase says how much it takes from each.
            self.psi.copy_(torch.arange(self.rank, device=self.psi.device) % 2 * (math.pi / 2))
        self.weight.normal_(0.0, 0.05)
        self.weight[0].fill_(0.05)  # all of one sign, so that features at one place vary together
        self.log_noise.fill_(math.log(START_NOISE))
        self.log_tau.fill_(math.log(START_TAU / self.rank))
        self._reset_factor(torch.ones(self.components, self.rank, device=self.b.device))

    def _reset_factor(self, diagonal: Tensor) -> None:
        """Make all L_i diagonal, with the diagonals (I, k); with one component, L becomes the identity."""
        if self.factor is not None:
            self.factor.copy_(diagonal.diag_embed())
        if self.triangle is not None:
            self.triangle.reset_parameters()
        if self.log_scale is not None:
            self.log_scale.zero_()

    @torch.no_grad()
    @_autocast.unaffected
    def start_from(self, examples: Examples, *, seed: int = 0) -> None:
        """Set all parameters to values from which training by Adam gets far; places and knots are only scaled.

        The mean is that of the examples. Each feature gets its variance, most of it as noise, so that what many
        features share is learned first and details later. For the same reason tau is long, and the weights of the first
        component have one sign, so that features near one another vary together. Components take turns with the knots,
        so that their functions are independent; the weights of all but the first are random.

        Args:
            examples: what will be fitted. Features whose places are near one another should vary together, as they do
                in raster order, or at the places from :func:`laplex.seriate`.
            seed: determines random weights and phases.
        """
        where = f"{self._where}.start_from"
        check_fitted(where, examples)
        if examples.dim != self.dim:
            raise ValueError(
                f"{where}: `examples` must have {self.dim} features, as the model, got {examples.dim}; make the model "
                f"with dim={examples.dim}"
            )
        generator = torch.Generator().manual_seed(counts.seed(where, seed))
        self.mean.copy_(examples.mean)
        self.log_noise.copy_(examples.noise_at_least(NOISE**2 * examples.variance).log() / 2)
        scale = SPACING / (float(self.b.max() - self.b.min()) / max(self.rank - 1, 1) or 1.0)
        self.a.mul_(scale)
        self.b.mul_(scale)
        self.log_tau.fill_(math.log(SPACING * min(KNOTS_IN_TAU, self.rank / 2)))
        if self.phi is not None and self.psi is not None:
            self.psi.zero_()
            self.phi.copy_(PHASES * torch.randn(self.dim, generator=generator, device="cpu"))
        latent, component = (torch.arange(size, device=self.b.device) for size in (self.rank, self.components))
        turns = latent % self.components == component[:, None]
        self._reset_factor(turns.to(self.b) * math.sqrt(self.components))
        shares = OTHERS * torch.randn(self.components, self.dim, generator=generator, device="cpu")
        shares[0] = 1.0
        self.weight.copy_(shares)
        self._match((1 - NOISE**2) * examples.variance)

    def _match(self, variance: Tensor) -> None:
        """Scale the weights so that the features have this variance (n,) without noise. Factors must be diagonal.

        The variance is the sum over i of w_i^2 K^2 l_i^2, where l_i is the diagonal of L_i and K is squared entry by
        entry: exp(-2 |a - b| / tau) cos(phi - psi)^2, and cos(x)^2 = (1 + cos 2x) / 2.
        """
        factor, tau = self._latent_factor(), self.log_tau.exp() / 2
        squares = (factor[None] if factor.dim() == 1 else factor.diagonal(dim1=1, dim2=2)).square()  # (I, k)
        sums = linear(squares, self.a, self.b, tau)
        if self.phi is not None and self.psi is not None:
            sums = (sums + linear(squares, self.a, self.b, tau, phi=2 * self.phi, psi=2 * self.psi)) / 2
        self.weight.mul_((variance / (self.weight.square() * sums).sum(0)).sqrt())

    @torch.no_grad()
    def _knows_nothing(self) -> bool:
        """Whether noise, tau and factors are still those of ``reset_parameters``: any training step changes them."""
        factor = self._latent_factor()
        unit = torch.ones_like(factor) if factor.dim() == 1 else torch.eye(self.rank, device=factor.device).to(factor)
        noise, tau = math.log(START_NOISE), math.log(START_TAU / self.rank)
        apart = (self.log_noise - noise, self.log_tau - tau, factor - unit)
        return all(bool((one.abs() < UNMOVED).all()) for one in apart)

    def distribution(self) -> StructuredGaussian:
        """The Gaussian with the parameters as they are, differentiable in them."""
        phases = None if self.phi is None or self.psi is None else (self.phi, self.psi)
        anchors, noise, tau = (self.a, self.b), self.log_noise.exp(), self.log_tau.exp()
        return StructuredGaussian(self.mean, noise, self.weight, self._latent_factor(), anchors, tau, phases)

    def _latent_factor(self) -> Tensor:
        if self.log_scale is not None:
            return self.log_scale.exp()
        return self.triangle()[None] if self.triangle is not None else self.factor  # type: ignore[return-value]

    def extra_repr(self) -> str:
        """What print shows."""
        shape = f"dim={self.dim}, rank={self.rank}, components={self.components}"
        return f"{shape}, phase={self.phi is not None}, latent={self.latent!r}"


def _latent(where: str, latent: str, components: int) -> str:
    if latent not in LATENTS:
        raise ValueError(f'{where}: `latent` must be "dense" or "diagonal", got {latent!r}')
    if latent == "diagonal" and components > 1:
        raise ValueError(f"{where}: `components` must be 1 with a diagonal latent covariance, got {components}")
    return latent


class PlacedGaussian(Density):
    r"""The density that EM fits: several functions at every place, and for each feature a weight for each function.

        x_p = m_p + sum over c of w_cp y_c(a_p) + d_p eps,    y_c(s) = sum over j of K(s, b_j) y_cj,    y ~ N(0, R R^T)

    It has dim (functions + 2) + rank (rank + 1) / 2 + rank / functions + 1 parameters: with two functions about as many
    as :class:`LaplexGaussian` with one component, where a feature has a weight and a phase.

    Args:
        dim: how many features an example has.
        rank: the rank of the covariance without its diagonal; a multiple of ``functions``.
        functions: how many functions each place has, over rank / functions knots.
        device, dtype: of the parameters; never half precision.

    Attributes:
        a (dim,), b (rank / functions,): places of the features, and knots.
        weight (functions, dim): w.
        triangle: R, whose rows are those of the first function, then those of the second.
        log_noise (dim,), log_tau (): log d and log tau.
        mean (dim,): m, a buffer.
    """

    def __init__(
        self,
        dim: int,
        rank: int,
        functions: int = 2,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, rank, device, dtype)
        self.functions = integer(self._where, "functions", functions)
        if rank % functions:
            raise ValueError(
                f"{self._where}: `rank` must be a multiple of `functions`, got {rank} and {functions}; use rank="
                f"{max(rank // functions, 1) * functions}"
            )
        self.a, self.b, self.log_tau = self._parameter(dim), self._parameter(rank // functions), self._parameter()
        self.weight = self._parameter(functions, dim)
        self.triangle = LowerTriangle(rank, self._like)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Put knots on an even grid of [0, 1], features in the order given; small random weights, mean 0."""
        self.mean.zero_()
        self.a.copy_((torch.arange(self.dim, device=self.a.device) + 0.5) / self.dim)
        self.b.copy_(torch.linspace(0, 1, len(self.b), device=self.b.device))
        self.weight.normal_(0.0, 0.05)
        self.log_noise.fill_(math.log(START_NOISE))
        self.log_tau.fill_(math.log(START_TAU / len(self.b)))
        self.triangle.reset_parameters()

    def distribution(self) -> StructuredGaussian:
        """The Gaussian with the parameters as they are, differentiable in them."""
        factor = self.triangle().reshape(self.functions, len(self.b), self.rank).mT
        anchors, tau = (self.a, self.b), self.log_tau.exp()
        return StructuredGaussian(self.mean, self.log_noise.exp(), self.weight, factor, anchors, tau)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"dim={self.dim}, rank={self.rank}, functions={self.functions}"
