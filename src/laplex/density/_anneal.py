r"""Annealing: keeps a fit by EM from stopping at the order it started with.

Two things happen in the first half of a fit, between rounds. They may lower the likelihood, which the second half makes
up for many times over; a round itself never lowers it. A fit of only a few rounds is not annealed.

    tau falls     from many knots to a few. Features first find their region of the line, then their place in it. The
                  functions keep their values at the knots: K' y' = K y, with the knots' kernels at both length scales.
    levelling     a few times. After some rounds features crowd at places that suit many of them. They are spread
                  evenly again, in the order that they have reached, and the latent variables restart, independent.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from laplex.density._em import State, root_of
from laplex.density._places import evenly
from laplex.reference import kernel

FROM, TO = 16.0, 3.0  # tau at the first round and from the middle of the fit on, in units of the knots' spacing
LEVELS = (0.12, 0.24, 0.36, 0.48)  # when features are levelled, as fractions of the fit
FEWEST = 8  # rounds of a fit that is annealed: a shorter fit would end in the middle of annealing


@torch.no_grad()
def annealed(state: State, rounds: int) -> State:
    """The state with which the next round begins, in a fit of this many rounds; unchanged in the second half.

    It depends only on the state and ``rounds``, so that a fit can be resumed.
    """
    if rounds < FEWEST:
        return state
    step = float(state.knots[-1] - state.knots[0]) / (len(state.knots) - 1)
    left = rounds // 2 - state.round
    if state.round == 0:
        state = replace(state, tau=FROM * step)  # no functions exist yet that this could change
    elif left > 0:
        state = _with_tau(state, state.tau * (TO * step / state.tau) ** (1 / left))
    if state.round > 0 and state.round in {int(part * rounds) for part in LEVELS}:
        state = _levelled(state)
    return state


def _with_tau(state: State, tau: float) -> State:
    """The state with the same functions at the knots, and another length scale between them."""
    q, knots = len(state.weight), state.knots.double()
    change = torch.linalg.solve(kernel(knots, knots, tau), kernel(knots, knots, state.tau))
    blocks = state.root.reshape(q, len(knots), -1)
    root = (change @ blocks).reshape(state.root.shape)
    return replace(state, tau=tau, root=root_of(root @ root.mT))


def _levelled(state: State) -> State:
    """The state with features spread evenly over the line in order, and independent latent variables."""
    scale = state.root.square().sum(1).mean().sqrt()
    root = scale * torch.eye(len(state.root), dtype=state.root.dtype, device=state.root.device)
    return replace(state, a=evenly(state.a.argsort(stable=True)).to(state.a.dtype), root=root)
