"""The layer that replaces ``torch.nn.Linear``: a weighted sum of Laplace-kernel matrices, LAPLEX^(r)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from laplex._checks.counts import integer, positive
from laplex._checks.renamed import renamed
from laplex._formed.kernels import Kernels
from laplex._formed.matrix import matrix
from laplex._layer.inputs import ONES, Factors
from laplex._layer.product import layer_product
from laplex._layer.scaled import scaled
from laplex.nn import _checks as checks
from laplex.nn import _encoders as encoders
from laplex.nn import _scales as scales
from laplex.nn import _search as search
from laplex.nn import _start as start
from laplex.nn._anchored import Anchored, in_single

if TYPE_CHECKING:
    from laplex._progress import Progress


class LaplexLinear(Anchored):
    r"""y = x W^T + bias with W = sum over r of mix_r K(a_r, b_r; tau_r), in place of ``torch.nn.Linear``.

        K(a, b; tau)[i, j] = exp(-|a_i - b_j| / tau) * cos(phi_i - psi_j)           the cosine only with phase=True

    A weight of out_features x in_features numbers is stored as kernels * (out_features + in_features + 1) numbers. It
    is not low-rank: a single kernel can have full rank. :func:`laplex.linear` multiplies by it exactly, and chooses by
    device and sizes whether to form W or to scan.

    **The start decides** what a layer can learn: gradient descent does not carry an anchor far, past many others.
    ``reset_parameters`` uses nothing about the data. If you have a dense weight, or examples with labels, call
    :meth:`init_from`; to replace a trained layer, :meth:`from_linear`.

    **Learning rates** that suit nn.Linear suit this layer, with Adam and with gradient descent. To this end tau is
    small, 1 / (2 sqrt(in_features)), so that a step changes W by as much as it would change a dense weight, and
    parameters receive derivatives times constants, which do not affect Adam; ``laplex.nn._scales`` derives both.

    The parameters stay in float32 (or float64), even under ``.half()``, ``.bfloat16()`` and ``dtype=torch.float16``,
    because anchors rounded to a thousandth of their size give a different matrix. Inputs may have any precision, and
    the result has the precision of the input. Autocast works as with nn.Linear.

    While its anchors are frozen (``requires_grad_(False)``), a layer keeps their sorted order between calls. On CUDA it
    does not notice writes through ``.data``, which torch does not count: write under ``torch.no_grad()`` instead.

    Args:
        in_features, out_features: sizes, at least 1.
        bias: whether a bias is added.
        kernels: r, how many kernels are summed.
        phase: whether kernels have phases, which take as many parameters again as the anchors.
        tau: the length scale of all kernels, a positive number; None for 1 / (2 sqrt(in_features)). Anchors start
            relative to it, so it matters only for learning rates: with a smaller tau Adam moves anchors faster.
        train_tau: whether tau is trained, one for each kernel, as ``log_tau``.
        scale_gradients: False for true derivatives, which L-BFGS, Hessians and comparisons of gradients need. It is
            also an attribute, and may be set at any time.
        device, dtype: of the parameters.

    Attributes:
        a (kernels, out_features), b (kernels, in_features): anchors.
        mix (kernels,): the weights of the kernels in the sum.
        weight (out_features, in_features): W. It is formed each time it is read.
        bias (out_features,): the bias, or None.
        phi (kernels, out_features), psi (kernels, in_features): phases, or None.
        tau (kernels,): length scales; with train_tau it is exp(log_tau).

    Example:
        >>> layer = laplex.nn.LaplexLinear(768, 1000, kernels=4)
        >>> layer(torch.randn(8, 768)).shape
        torch.Size([8, 1000])
        >>> sum(p.numel() for p in layer.parameters())
        8076
    """

    __module__ = "laplex.nn"  # the name that users import and that saved files hold

    fit_residual: float | None = None  # set by from_linear: the fraction of the energy that was not fitted
    svd_residual: float | None = None  # the fraction that the best matrix of rank `kernels` leaves
    scale_gradients: bool = False  # the value for old pickles
    _first_size: float = 1.0  # likewise

    @renamed("laplex.nn.LaplexLinear", rank="kernels")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        kernels: int = 1,
        phase: bool = False,
        tau: float | None = None,
        train_tau: bool = False,
        scale_gradients: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        encoders.watch(LaplexLinear)
        where = "laplex.nn.LaplexLinear"
        self.in_features = integer(where, "in_features", in_features)
        self.out_features = integer(where, "out_features", out_features)
        self.kernels = integer(where, "kernels", kernels)
        dtype = checks.at_least_single(where, dtype)
        length = scales.default_tau(self.in_features) if tau is None else positive(where, "tau", tau, "None")
        first_tau = checks.length_in(where, length, dtype)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.a, self.b = empty(kernels, out_features), empty(kernels, in_features)
        self.mix = empty(kernels)
        self.phi = empty(kernels, out_features) if phase else None
        self.psi = empty(kernels, in_features) if phase else None
        self.bias = empty(out_features) if bias else None
        if train_tau:
            self.log_tau = empty(kernels)
        else:
            self.register_buffer("fixed_tau", empty(kernels).data)
        self.train_tau = train_tau
        self.scale_gradients = scale_gradients
        self._begin_with(first_tau)
        self.reset_parameters()

    @property
    def tau(self) -> Tensor:
        """The length scales (kernels,)."""
        if not self.train_tau:
            return self.fixed_tau  # type: ignore[return-value]
        (log_tau,) = in_single(self.log_tau)
        return log_tau.exp()  # type: ignore[no-any-return]

    @property
    def weight(self) -> Tensor:
        """W (out_features, in_features), differentiable, for code that reads the weight of an nn.Linear.

        It is formed each time it is read, in O(kernels * out_features * in_features) time and as much memory as a dense
        weight takes; calling the layer may avoid both. Writes into it are lost: the parameters are a, b and mix.
        """
        tensors = in_single(self.a, self.b, self.tau, self.mix, self.phi, self.psi)
        a, b, tau, mix, phi, psi = map(scaled, tensors, self._factors.each)
        return matrix(Kernels(a, b, tau, mix, phi, psi, self.kernels))

    @weight.setter
    def weight(self, value: object) -> None:
        raise AttributeError(checks.weight_is_formed("laplex.nn.LaplexLinear", value))

    @property
    def _factors(self) -> Factors:
        """The factors by which the gradients of the parameters are multiplied."""
        return Factors(*self._factor_numbers) if self.scale_gradients else ONES

    def _begin_with(self, tau: float, size: float = 1.0) -> None:
        """Use this length scale as if the constructor had been given it: resets return to it, and factors follow it.

        ``size`` is the initial size of W, in units of a fresh layer's.
        """
        self._first_tau, self._first_size = tau, size
        sizes = self.out_features, self.in_features
        self._factor_numbers = tuple(scales.gradient_factors(*sizes, self.kernels, self.phi is not None, tau, size))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter, but not `weight`; torch assigns parameters through this, not through the setter."""
        if name == "weight":
            raise AttributeError(checks.weight_is_formed("laplex.nn.LaplexLinear", param))
        super().register_parameter(name, param)

    def reset_parameters(self) -> None:
        """Put anchors on interlaced grids, in random order; results are twice as large as those of a fresh nn.Linear.

        The kernels' weights have alternating signs and cancel for inputs with a mean, so that units stay alive in front
        of a ReLU. A single kernel has nothing to cancel with: all its entries, and its weight, are positive.

        tau becomes that of the constructor, or of the file that was loaded. So a layer made on the meta device is ready
        after ``to_empty`` and this call.
        """
        with torch.no_grad():
            if self.train_tau:
                self.log_tau.fill_(math.log(self._first_tau))
            else:
                self.fixed_tau.fill_(self._first_tau)  # type: ignore[operator]
        start.interlace(self)

    def forward(self, x: Tensor) -> Tensor:
        """The results y (..., out_features) for x (..., in_features)."""
        if isinstance(x, Tensor) and x.is_nested:
            return torch.nested.as_nested_tensor([self.forward(part) for part in x.unbind()], layout=x.layout)
        checks.features("laplex.nn.LaplexLinear", x, self.in_features)
        tensors = self.a, self.b, self.tau, self.mix, self.bias, self.phi, self.psi
        a, b, tau, mix, bias, phi, psi = in_single(*tensors)
        inputs = x, a, b, tau, mix, bias, phi, psi
        return self._planned(lambda plan: layer_product(*inputs, plan, self._factors), a, b)

    # --- from and to dense layers -------------------------------------------------------------------------------------

    def init_from(self, target: start.Target) -> Self:
        """Initialize from a dense weight, or from examples, instead of at random. The bias becomes 0.

        Kernel i gets its anchors from the i-th left and right singular vectors: rows that a direction tells apart start
        far from each other on the line, and rows that it does not tell apart start together. From a weight, which may
        be that of a hidden layer, anchors lie on even grids in the order of the vectors' entries, and signs alternate:
        a kernel with negative weight has its columns in the opposite order. From examples, for a head, anchors lie at
        the entries themselves, and all weights are positive.

        Args:
            target: a weight (out_features, in_features), or a pair of examples x (N, in_features) and their class
                labels y (N,), from which a linear discriminant's weight is found in closed form. A list of such pairs,
                or a ``DataLoader`` that yields them, counts as one pair.

        Returns:
            The layer.
        """
        start.start_from(self, target)
        return self

    @classmethod
    @renamed("laplex.nn.LaplexLinear.from_linear", rank="kernels")
    def from_linear(
        cls,
        layer: nn.Linear,
        kernels: int,
        *,
        importance: Tensor | None = None,
        sweeps: int = 80,
        progress: Progress | None = None,
    ) -> Self:
        """A layer fitted to a trained ``nn.Linear``, by anchors that jump to their best places and slide from there.

        With E = W - sum over r of mix_r K_r, it minimises trace(E C E^T), C the importance of the columns. The fraction
        of trace(W C W^T) that is left is ``fit_residual`` of the result. Compare it with ``svd_residual``, which is
        left by the best matrix of rank ``kernels``, with as many parameters. If that is smaller, the weight is nearly
        low-rank, and two dense layers represent it better.

        Args:
            layer: the dense layer. Its bias is kept.
            kernels: the number of kernels.
            importance: C. Best is the mean of x x^T over the layer's inputs, (in_features, in_features): then the error
                of the *results* is minimised. The mean of x_j^2 alone, (in_features,), is cheaper. None for ones.
            sweeps: how often all kernels are fitted in turn. More sweeps fit better, and take longer.
            progress: called with the number of sweeps done and the total; None shows a bar.
        """
        checks.check_linear("laplex.nn.LaplexLinear.from_linear", layer)
        like: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        new = cls(layer.in_features, layer.out_features, layer.bias is not None, kernels=kernels, **like)
        search.fit(new, layer.weight.detach(), importance=importance, sweeps=sweeps, progress=progress)
        if new.bias is not None:
            new.bias.data.copy_(layer.bias.detach())
        return new

    def to_dense(self) -> Tensor:
        """W (out_features, in_features), differentiable: the same as ``weight``."""
        return self.weight

    def to_linear(self) -> nn.Linear:
        """The dense layer with the same weight and bias."""
        like: dict[str, Any] = {"device": self.a.device, "dtype": self.a.dtype}
        dense = nn.Linear(self.in_features, self.out_features, self.bias is not None, **like)
        dense.weight.data.copy_(self.weight.detach())
        if self.bias is not None:
            dense.bias.data.copy_(self.bias.detach())
        return dense

    # --- old files, in which ``mix`` is called ``weight`` and ``kernels`` is called ``rank`` -------------------------

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load as every module does, including from old files."""
        old, new = prefix + "weight", prefix + "mix"
        if old in state_dict and new not in state_dict and state_dict[old].dim() == 1:
            state_dict[new] = state_dict.pop(old)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._begin_with(self._saved_tau(state_dict.get(prefix + "fixed_tau")), self._first_size)

    def _saved_tau(self, saved: Any) -> float:
        """The length scale of a saved layer; that of this layer if it is trained or cannot be read."""
        if type(saved) not in (Tensor, nn.Parameter) or saved.is_meta or saved.numel() != self.kernels:
            return self._first_tau
        tau = float(saved.detach().flatten()[0])
        known = math.isclose(tau, self._first_tau, rel_tol=1e-6)  # but for the rounding of the buffer
        return tau if 0 < tau < math.inf and not known else self._first_tau

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle as every module does, including from old files."""
        if "rank" in state:
            parameters = {"mix" if name == "weight" else name: value for name, value in state["_parameters"].items()}
            state = {**state, "kernels": state["rank"], "_parameters": parameters}
            del state["rank"]
        super().__setstate__(state)
        if "_factor_numbers" not in state:
            self._first_tau = state.get("_first_tau", 1.0)
            self._begin_with(self._saved_tau(state["_buffers"].get("fixed_tau")))

    def extra_repr(self) -> str:
        """What print shows."""
        parts = [f"in_features={self.in_features}", f"out_features={self.out_features}", f"kernels={self.kernels}"]
        parts += [f"bias={self.bias is not None}"]
        if self.phi is not None:
            parts.append("phase=True")
        if not self.scale_gradients:
            parts.append("scale_gradients=False")
        if self.train_tau:
            parts.append("train_tau=True")
        elif not self.a.is_meta and not math.isclose(
            float(self.tau[0]), scales.default_tau(self.in_features), rel_tol=1e-6
        ):
            parts.append(f"tau={float(self.tau[0]):.4g}")
        return ", ".join(parts)
