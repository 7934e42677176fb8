"""A projection of many features to few by one kernel matrix, frozen or trained."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from laplex import _checks
from laplex._checks.counts import integer, positive
from laplex._seriation import seriate
from laplex.nn._anchored import Anchored, in_single, uniform
from laplex.nn._checks import at_least_single, length_in
from laplex.nn.routing import Routing, routing_of


class LaplexProjection(Anchored):
    r"""y = (x * signs) K^T with one kernel matrix K(a, b): x (..., in_features) to y (..., out_features).

    A random projection that stores in_features + out_features numbers and costs O((d + m) log(d + m)) for every row.
    :meth:`to_routing` gives the sparse matrix nearest to it. (It does not become a CountSketch as tau tends to 0: if
    all places differ, K tends to 0. ``laplex.nn.routing.count_sketch`` makes one.)

    The places of the inputs decide what the projection keeps. By default the places of inputs and outputs are uniform
    in [0, 1]. :meth:`place` puts inputs that vary alike near one another, and the outputs on an even grid.

    Frozen (the default): anchors, phases and log_tau are buffers, and the order of the anchors is kept between calls
    until they change. (On CUDA writes through ``.data`` go unnoticed: write under ``torch.no_grad()`` instead.) The
    order is not part of ``state_dict``, copies and pickles, which rebuild it. Trainable: the same tensors are
    parameters. Both have the same ``state_dict``, so that one can be loaded into the other.

    Args:
        in_features: the number d of inputs.
        out_features: the number m of outputs.
        tau: length scale, for anchors that span [0, 1]. None is 1 / m, the spacing of outputs on an even grid: each
            output then listens to its own part of the line, no input is left out, and neighbours overlap.
        phase: whether to draw random phases phi (m,) and psi (d,), uniform in [0, 2 pi].
        signs: whether to draw random signs of the inputs, 1 or -1, which are never trained. Without phases or signs all
            entries of K are positive, and outputs are weighted means of inputs.
        trainable: whether the anchors, the phases and log_tau are trained.
        generator: for the random numbers; None uses torch's own.
        device: of the anchors.
        dtype: of the anchors, float32 or float64. Half precision would tie most anchors together, so for it, and under
            ``.half()`` and ``.to(torch.bfloat16)``, anchors are float32. Inputs may still be half precision; the output
            has the dtype of the input.

    Example:
        >>> projection = LaplexProjection(150_528, 100, signs=True)
        >>> projection(torch.randn(8, 150_528)).shape
        torch.Size([8, 100])
    """

    __module__ = "laplex.nn"  # the name that users import and that saved files hold

    a: Tensor  # (m,)
    b: Tensor  # (d,)
    log_tau: Tensor  # (1,): FSDP refuses parameters without dimensions
    phi: Tensor | None  # (m,)
    psi: Tensor | None  # (d,)
    signs: Tensor | None  # (d,) int8

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        tau: float | None = None,
        phase: bool = False,
        signs: bool = False,
        trainable: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "laplex.nn.LaplexProjection"
        self.in_features = integer(where, "in_features", in_features)
        self.out_features = integer(where, "out_features", out_features)
        dtype = at_least_single(where, dtype)
        length = 1 / self.out_features if tau is None else positive(where, "tau", tau, "None")
        self._first_tau = length_in(where, length, dtype)
        self.trainable = trainable

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        self._keep("a", empty(self.out_features))
        self._keep("b", empty(self.in_features))
        self._keep("log_tau", empty(1))
        self._keep("phi", empty(self.out_features) if phase else None)
        self._keep("psi", empty(self.in_features) if phase else None)
        self.register_buffer("signs", empty(self.in_features).to(torch.int8) if signs else None)
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new anchors, phases and signs, and reset tau to that of the constructor.

        A projection made on the meta device is ready after ``to_empty`` and this call.

        Args:
            generator: for the random numbers; None uses torch's own.
        """
        for anchors in (self.a, self.b):
            anchors.copy_(uniform(anchors, generator))
        self.log_tau.fill_(math.log(self._first_tau))
        for phases in (self.phi, self.psi):
            if phases is not None:
                phases.copy_(2 * math.pi * uniform(phases, generator))
        if self.signs is not None:
            self.signs.copy_(2 * (uniform(self.signs, generator, self.a.dtype) < 0.5) - 1)

    def _keep(self, name: str, value: Tensor | None) -> None:
        """Register a tensor, as a parameter if it is trained, otherwise as a buffer."""
        if self.trainable:
            self.register_parameter(name, None if value is None else Parameter(value))
        else:
            self.register_buffer(name, value)

    @property
    def tau(self) -> Tensor:
        """The length scale, ()."""
        (log_tau,) = in_single(self.log_tau)
        return log_tau[0].exp()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d) to y (..., m), in the dtype of x."""
        if self.signs is not None:
            _checks.operand("laplex.nn.LaplexProjection", x, self.b, ())
            x = x * self.signs
        a, b, tau, phi, psi = in_single(self.a, self.b, self.tau, self.phi, self.psi)
        return self._product(x, a, b, tau, phi=phi, psi=psi)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load as every module does, including from old files, in which log_tau has no dimension."""
        saved = state_dict.get(prefix + "log_tau")
        if isinstance(saved, Tensor) and saved.dim() == 0:
            state_dict[prefix + "log_tau"] = saved[None]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle as every module does, including from old files."""
        super().__setstate__(state)
        if self.log_tau.dim() == 0:
            self._keep("log_tau", self.log_tau.detach()[None])

    @torch.no_grad()
    def place(self, data: Tensor, *, generator: torch.Generator | None = None) -> LaplexProjection:
        """Put inputs that vary alike near one another, by :func:`laplex.seriate`, and the outputs on an even grid.

        Signs stay as they are; a projection on which this is used should have none, since neighbours would cancel.

        Args:
            data (N, d): samples of the input.
            generator: for :func:`laplex.seriate`; None uses one with seed 0.

        Returns:
            The module itself.
        """
        _checks.check_tensor("laplex.nn.LaplexProjection.place", "data", data)
        if data.dim() != 2 or data.shape[1] != self.in_features:
            raise ValueError(
                f"laplex.nn.LaplexProjection.place: `data` must be (N, {self.in_features}), one row per sample, got "
                f"shape {tuple(data.shape)}; use .flatten(1)"
            )
        m = self.out_features
        self.b.copy_(seriate(data, generator=generator))
        self.a.copy_((torch.arange(m, dtype=torch.float64, device=data.device) + 0.5) / m)
        return self

    def to_routing(self) -> Routing:
        """The sparse routing close to this projection, signs included, with a bound on the difference of every entry.

        :func:`laplex.nn.routing.routing_of` defines it. ``routing.linear(x)`` applies it.
        """
        routing = routing_of(self.a, self.b, self.tau, self.phi, self.psi)
        return routing if self.signs is None else routing._replace(sign=routing.sign * self.signs)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        tau = "" if self.log_tau.is_meta else f", tau={float(self.tau.detach()):.3g}"
        return f"{sizes}{tau}, phase={self.phi is not None}, signs={self.signs is not None}, trainable={self.trainable}"
