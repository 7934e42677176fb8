"""``laplex.density``: fits by EM, against EM written out with everything formed, and what users rely on."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

import laplex
from helpers import error
from laplex import density
from laplex.density import _em, _places
from laplex.density._anneal import annealed
from laplex.density._em import em_round, inflation
from laplex.density._shrinkage import shrinkage

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = (6, 5, 3)


def smooth(examples=200, dim=90, seed=0, dtype=torch.float64):
    """Examples of a smooth process over places that are shuffled: (examples, dim)."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(dim, generator=generator, dtype=torch.float64)
    covariance = torch.exp(-((places[:, None] - places) ** 2) / 0.02) + 0.02 * torch.eye(dim, dtype=torch.float64)
    z = torch.randn(examples, dim, generator=generator, dtype=torch.float64)
    return (z @ torch.linalg.cholesky(covariance).mT + 3.0).to(dtype)


def started(functions=2, rank=12, places="tree", **options):
    examples = density.Examples(smooth())
    return examples, density.start(examples, rank, functions=functions, places=places, **options)


def loadings(state):
    """B (n, qK): of y onto x, formed."""
    kernel = laplex.reference.kernel(state.a, state.knots, state.tau)
    return torch.cat([w[:, None] * kernel for w in state.weight], 1)


def dense_round(x, state, places=None):
    """One round with everything formed, as the head of ``_em`` states it; features may move to ``places`` (m,)."""
    count, (q, knots) = len(x), (len(state.weight), len(state.knots))
    prior, formed = state.root @ state.root.mT, loadings(state)
    inverse = formed.mT / state.noise
    posterior = torch.linalg.inv(torch.linalg.inv(prior) + inverse @ formed)
    means = x @ inverse.mT @ posterior
    moments = means.mT @ means / count + posterior
    wanted = (x.mT @ means / count).reshape(-1, q, knots)
    blocks = moments.reshape(q, knots, q, knots)
    candidates = (
        state.a[:, None] if places is None else torch.cat([state.a[:, None], places.expand(len(wanted), -1)], 1)
    )
    kernel = laplex.reference.kernel(candidates.reshape(-1), state.knots, state.tau).reshape(*candidates.shape, knots)
    t = torch.einsum("psk,pqk->psq", kernel, wanted)
    forms = torch.einsum("psk,ckdl,psl->pscd", kernel, blocks, kernel)
    weights = torch.linalg.solve(forms, t)
    gains = (weights * t).sum(-1)
    best = gains.argmax(1, keepdim=True)
    weight = weights.gather(1, best[..., None].expand(-1, -1, q))[:, 0].mT
    noise = x.square().mean(0) - gains.gather(1, best)[:, 0]
    return candidates.gather(1, best)[:, 0], weight, noise, moments


@pytest.mark.parametrize("functions", [1, 2, 3])
def test_a_round_without_jumps_is_dense_em(functions):
    examples, state = started(functions)
    for _ in range(2):
        after, likelihood = em_round(examples, state, jump=False)
        formed = loadings(state) @ state.root
        true = MultivariateNormal(examples.mean, formed @ formed.mT + state.noise.diag())
        assert likelihood == pytest.approx(float(true.log_prob(examples.values).mean()), rel=1e-10)
        places, weight, noise, moments = dense_round(examples.rows(slice(None)), state)
        assert torch.equal(after.a, places)
        assert error(after.weight, weight) <= 1e-4  # a ridge of 1e-6 keeps the forms definite
        assert error(after.noise, noise) <= 1e-8
        assert error(after.root @ after.root.mT, moments) <= 1e-9
        state = after


@pytest.mark.parametrize("functions", [1, 2])
def test_jumps_find_the_best_place(functions):
    examples, state = started(functions)
    state, _ = em_round(examples, state, jump=False)
    after, _ = em_round(examples, state)
    every = torch.linspace(0, 1, (len(state.knots) - 1) * _places.PLACES + 1, dtype=torch.float64)
    _, _, noise, _ = dense_round(examples.rows(slice(None)), state, every)
    explained, best = examples.variance - after.noise, examples.variance - noise
    assert float((explained / best).min()) >= 0.9  # coarse places first: a narrow peak may be missed
    assert float((explained / best).median()) >= 0.999


@pytest.mark.parametrize("jump", [True, False])
@pytest.mark.parametrize("functions", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_round_lowers_the_likelihood(dtype, functions, jump):
    examples = density.Examples(smooth(dtype=dtype))
    state, before = density.start(examples, 24, functions=functions), -math.inf
    for _ in range(30):
        state, likelihood = em_round(examples, state, jump=jump)
        assert likelihood >= before - (1e-5 if dtype == torch.float32 else 1e-8) * abs(likelihood)
        before = likelihood


def test_degenerate_latents_stay_definite():
    """Far more knots than the data have directions, and examples that are almost copies of one another."""
    examples = density.Examples(smooth(examples=5, dim=40).repeat(3, 1) + 1e-9)
    state = density.start(examples, 60, functions=2)
    for _ in range(15):
        state, likelihood = em_round(examples, state)
        assert math.isfinite(likelihood)


def test_fit_of_permuted_features_is_the_permuted_fit():
    x, order = smooth(), torch.randperm(90, generator=torch.Generator().manual_seed(1))
    places = torch.rand(90, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    fits = []
    for values, start in ((x, places), (x[:, order], places[order])):
        examples = density.Examples(values)
        state = density.start(examples, 12, functions=1, places=start)
        for _ in range(5):
            state, likelihood = em_round(examples, state)
        fits.append((state, likelihood))
    (one, first), (two, second) = fits
    assert first == pytest.approx(second, rel=1e-9)
    assert error(one.a[order], two.a) <= 1e-9
    assert error(one.noise[order], two.noise) <= 1e-7


def test_fit_beats_every_start_without_jumps_and_knows_its_model():
    examples, progress = density.Examples(smooth(400)), []
    fitted = density.fit(examples, 20, rounds=20, progress=lambda done, total: progress.append((done, total)))
    still = density.fit(examples, 20, rounds=20, places="random", jump=False, progress=lambda done, total: None)
    assert progress[-1] == (20, 20)
    assert len(fitted.history) == 20
    likelihood = fitted.model.log_prob(examples.values).mean().detach()
    assert likelihood >= fitted.history[-1].log_likelihood
    assert likelihood > density.evaluate(still.model, examples).log_likelihood + 20
    assert density.evaluate(fitted.model, examples).log_likelihood == pytest.approx(float(likelihood), rel=1e-9)
    assert sum(p.numel() for p in fitted.model.parameters()) == 90 * 4 + 20 * 21 // 2 + 10 + 1


def test_evaluation():
    examples = density.Examples(smooth(50))
    model = density.fit(examples, 8, rounds=3, progress=lambda done, total: None).model
    evaluation = density.evaluate(model, examples)
    likelihoods = model.log_prob(examples.values).detach()
    rmse = (model.reconstruct(examples.values) - examples.values).square().mean().sqrt()
    mean = likelihoods.mean()
    wanted = mean, likelihoods.std() / math.sqrt(50), -mean / 90 / math.log(2), rmse
    assert evaluation == pytest.approx([float(one) for one in wanted], rel=1e-9)
    assert density.evaluate(model, density.Examples(examples.values.float())).rmse == pytest.approx(
        evaluation.rmse, rel=1e-4
    )
    with pytest.raises(ValueError, match="`examples` must have the 90 features of the density, got 3; resize them"):
        density.evaluate(model, density.Examples(torch.rand(4, 3)))


def test_bits_of_bytes_count_steps_of_1_in_255():
    values = torch.randint(0, 256, (60, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    examples = density.Examples(values)
    model = density.fit(examples, 8, rounds=5, progress=lambda done, total: None).model
    evaluation = density.evaluate(model, examples)
    assert error(examples.mean, values.double().mean(0) / 255) <= 1e-6
    nats = evaluation.log_likelihood / 30
    assert evaluation.bits_per_dim == pytest.approx(math.log2(255) - nats / math.log(2))
    assert 7.0 < evaluation.bits_per_dim < 9.0  # uniform bytes take 8 bits; a Gaussian comes near that


# --- starts -----------------------------------------------------------------------------------------------------------


def test_hilbert_curve_steps_to_neighbours():
    height = width = 8
    examples = density.Examples(torch.rand(3, height * width * 3))
    order = density.start(examples, 8, places="curve", shape=(height, width, 3)).a.argsort()
    pixel = order.reshape(-1, 3) // 3
    assert (pixel == pixel[:, :1]).all()  # the channels of a pixel stay together
    x, y = pixel[:, 0] % width, pixel[:, 0] // width
    assert ((x.diff().abs() + y.diff().abs()) == 1).all()


@pytest.mark.parametrize(("height", "width"), [(3, 9), (9, 3), (6, 10), (1, 5)])
def test_hilbert_curve_of_any_shape_visits_every_pixel_and_seldom_jumps(height, width):
    examples = density.Examples(torch.rand(3, height * width))
    order = density.start(examples, 4, places="curve", shape=(height, width, 1)).a.argsort()
    assert order.sort().values.tolist() == list(range(height * width))
    steps = (order % width).diff().abs() + (order // width).diff().abs()
    assert float((steps == 1).float().mean()) >= 0.75


@pytest.mark.parametrize("places", ["tree", "curve", "raster", "random"])
def test_starts(places):
    examples = density.Examples(smooth(dim=90))
    state = density.start(examples, 12, places=places, shape=SHAPE)
    again = density.start(examples, 12, places=places, shape=SHAPE)
    assert torch.equal(state.a, again.a)
    assert torch.equal(state.weight, again.weight)
    assert state.a.min() >= 0
    assert state.a.max() <= 1
    assert len(state.a.unique()) == 90
    assert (places == "raster") == torch.equal(state.a.argsort(), torch.arange(90))


ERRORS = {
    "rank": (
        {"rank": 7},
        "`rank` must be a multiple of `functions`, and at least twice as large, got 7 and 2; use rank=6",
    ),
    "rank_of_one_knot": ({"rank": 2}, "got 2 and 2; use rank=4"),
    "functions": ({"functions": 0}, "`functions` must be at least 1, got 0"),
    "name": (
        {"places": "spiral"},
        r"`places` must be one of tree, curve, raster, random, or a tensor, got 'spiral'",
    ),
    "array": ({"places": np.zeros(90)}, r"`places` must be one of .*, or a tensor, got array"),
    "shape": (
        {"places": "curve"},
        r"`shape` must be \(height, width, channels\) of 90 features for \"curve\", got None",
    ),
    "places": (
        {"places": torch.zeros(3)},
        r"`places` must be \(90,\), from 0 to 1, got \(3,\), from 0 to 0; scale them",
    ),
    "outside": (
        {"places": torch.full((90,), 2.0)},
        r"`places` must be \(90,\), from 0 to 1, got \(90,\), from 2 to 2; scale them",
    ),
}


@pytest.mark.parametrize(("options", "message"), ERRORS.values(), ids=ERRORS)
def test_bad_starts(options, message):
    examples = density.Examples(smooth())
    with pytest.raises(ValueError, match=message):
        density.start(examples, **{"rank": 12} | options)


def test_examples_that_are_alike():
    with pytest.raises(ValueError, match="`examples` must differ from one another, got 4 that are equal"):
        density.start(density.Examples(torch.ones(4, 9)), 4)


def test_one_example_is_too_few():
    with pytest.raises(ValueError, match="`examples` must be at least two that differ, got 1; give more of them"):
        density.start(density.Examples(torch.rand(1, 9)), 4)


def test_noise_has_a_floor():
    """A feature that the others determine would get no noise, and its likelihood no bound."""
    x = smooth(300, 20)
    x = torch.cat([x, x[:, :5], torch.full((300, 1), 2.0, dtype=torch.float64)], 1)
    examples = density.Examples(x)
    state = density.start(examples, 24, functions=1)
    for _ in range(20):
        state, _ = em_round(examples, state)
    assert float((state.noise / examples.variance.mean()).min()) >= 1e-4 * (1 - 1e-9)
    assert float((state.noise[:25] / examples.variance[:25]).min()) >= 1e-4 * (1 - 1e-9)


EXAMPLES = {
    "shape": (
        torch.rand(2, 3, 4),
        {},
        ValueError,
        r"`values` must be \(N, n\), .* got shape \(2, 3, 4\); use .flatten",
    ),
    "empty": (torch.rand(0, 4), {}, ValueError, r"got shape \(0, 4\)"),
    "mean_list": (torch.ones(2, 3), {"mean": [0, 0, 0]}, TypeError, "`mean` must be a torch.Tensor, got list"),
    "whole": (torch.ones(2, 3).long(), {}, TypeError, "`values` must be floating point or uint8, got torch.int64"),
    "nan": (
        torch.tensor([[1.0, float("nan")]]),
        {},
        ValueError,
        "1 of 2 features have NaN or infinity in some example",
    ),
    "large": (torch.tensor([[1e30], [2e30]]), {}, ValueError, "`values` must have squares that torch.float32 holds"),
    "nan_mean": (
        torch.rand(4, 1),
        {"mean": torch.tensor([math.nan])},
        ValueError,
        "`mean` must be finite, .* in 1 feat",
    ),
    "mean": (torch.rand(4, 3), {"mean": torch.rand(2)}, ValueError, r"`mean` must be \(3,\), .* got \(2,\)"),
}


@pytest.mark.parametrize(("values", "options", "kind", "message"), EXAMPLES.values(), ids=EXAMPLES)
def test_bad_examples(values, options, kind, message):
    with pytest.raises(kind, match=message):
        density.Examples(values, **options)


@pytest.mark.parametrize("call", [density.fit, density.start, density.Trainer])
def test_bare_tensors_are_refused(call):
    arguments = (density.LaplexGaussian(3, 2), torch.rand(4, 3)) if call is density.Trainer else (torch.rand(4, 3), 4)
    with pytest.raises(TypeError, match=r"`examples` must be a laplex.density.Examples, got Tensor; use"):
        call(*arguments)
    with pytest.raises(TypeError, match=r"laplex.density.evaluate: `examples` must be a laplex.density.Examples"):
        density.evaluate(density.LaplexGaussian(3, 2), torch.rand(4, 3))


def test_a_round_that_is_not_finite_says_so():
    examples, state = started()
    state.weight = state.weight * float("nan")
    with pytest.raises(FloatingPointError, match="the likelihood before round 0 is nan"):
        em_round(examples, state)


def test_parts_of_examples_and_features_change_nothing(monkeypatch):
    examples, state = started()
    want, likelihood = em_round(examples, state)
    monkeypatch.setattr("laplex.density._examples.BLOCK", 1000)
    monkeypatch.setattr(_em, "FEATURES_AT_ONCE", 17)
    monkeypatch.setitem(_em.SCORED_AT_ONCE, "cpu", 40)
    got, again = em_round(examples, state)
    assert likelihood == pytest.approx(again, rel=1e-12)
    assert error(got.noise, want.noise) <= 1e-9


# --- few examples, and annealing --------------------------------------------------------------------------------------


def test_shrinkage_helps_where_examples_are_few():
    train, held_out = smooth(25), smooth(500)[25:]  # of one process
    examples = density.Examples(train)
    other = density.Examples(held_out, mean=examples.mean)
    likelihoods = []
    for part in (0.0, shrinkage(60, 25)):
        state = density.start(examples, 60)
        for _ in range(15):
            state, _ = em_round(examples, state, shrinkage=part)
        likelihoods.append(density.evaluate(state.model(examples.mean), other).log_likelihood)
    assert likelihoods[1] > likelihoods[0] + 10


def test_inflated_noise_helps_where_examples_are_few():
    train, held_out = smooth(25), smooth(500)[25:]  # of one process
    examples = density.Examples(train)
    other = density.Examples(held_out, mean=examples.mean)
    likelihoods = []
    for factor in (1.0, inflation(30, 2, 25)):
        state = density.start(examples, 60)
        for _ in range(15):
            state, _ = em_round(examples, state, shrinkage=0.05, inflation=factor)
        likelihoods.append(density.evaluate(state.model(examples.mean), other).log_likelihood)
    assert likelihoods[1] > likelihoods[0] + 5


def test_rounds_are_those_of_a_fit_and_resume_from_any_of_them():
    examples, state = started(rank=8)
    model, history = density.fit(examples, 8, rounds=10, progress=lambda done, total: None)
    first = density.EM(examples, state, 4, schedule=10)
    rounds = list(first)
    later = density.EM(examples, first.state, 10)
    assert later.entered is None
    rounds += list(later)
    assert [one._replace(seconds=0) for one in rounds] == [one._replace(seconds=0) for one in history]
    assert [one.round for one in rounds if one.levelled] == [1, 2, 3, 4]
    assert all(torch.equal(one, other) for one, other in zip(later.model().parameters(), model.parameters()))
    assert first.entered.round == 3
    assert later.entered.round == 9


@pytest.mark.parametrize(("old", "new"), [("start", "places"), ("told", "progress")])
def test_old_names_of_arguments_are_answered_with_the_new_ones(old, new):
    with pytest.raises(TypeError, match=f"laplex.density.fit: `{old}` is now called `{new}`, got {old}=; use {new}="):
        density.fit(started()[0], 8, **{old: "tree"})


@pytest.mark.parametrize("name", ["rounds", "schedule"])
def test_numbers_of_rounds_below_zero_are_refused(name):
    with pytest.raises(ValueError, match=f"laplex.density.EM: `{name}` must be at least 0, got -1"):
        density.EM(*started(), **{name: -1})


def test_a_state_that_does_not_belong_to_the_examples_is_refused():
    examples, state = started()
    with pytest.raises(TypeError, match=r"EM: `state` must be a laplex.density.State, got PlacedGaussian; use"):
        density.EM(examples, state.model(examples.mean))
    fewer = density.Examples(smooth()[:, 1:])
    with pytest.raises(ValueError, match=rf"`state` must have the {fewer.dim} features .* got {fewer.dim + 1}; use"):
        density.EM(fewer, state)


def test_inflation_multiplies_the_noise_up_to_the_variance():
    examples, state = started()
    plain, _ = em_round(examples, state)
    inflated, _ = em_round(examples, state, inflation=1.5)
    assert error(inflated.noise, torch.minimum(1.5 * plain.noise, examples.variance)) <= 1e-12
    assert inflation(500, 2, 10**6) == pytest.approx(1, abs=1e-4)
    assert inflation(1, 2, 30) == pytest.approx((30 / 27) ** 2)
    assert inflation(500, 2, 2) > 1e4  # the variance bounds it


def test_tau_falls_in_the_first_half_and_the_rest_of_a_fit_is_plain():
    examples, state = started()
    lengths, rounds = [], 20
    for _ in range(rounds):
        before = state
        state = annealed(state, rounds)
        if state.round >= rounds / 2:
            assert state is before
        lengths.append(state.tau)
        state, _ = em_round(examples, state)
    assert all(one >= other for one, other in itertools.pairwise(lengths))
    assert lengths[0] > 4 * lengths[-1]
    assert lengths[10] == lengths[-1]


@pytest.mark.parametrize("rounds", range(1, 12))
def test_short_fits_end_as_they_should(rounds):
    examples = density.Examples(smooth())
    model, history = density.fit(examples, 12, rounds=rounds, progress=lambda done, total: None)
    still = density.fit(examples, 12, rounds=rounds, jump=False, progress=lambda done, total: None).model
    likelihood, other = (density.evaluate(one, examples).log_likelihood for one in (model, still))
    assert len(history) == rounds
    assert [one.seconds for one in history] == sorted(one.seconds for one in history)
    assert likelihood > other - 1e-6


def test_another_tau_keeps_the_functions_at_the_knots():
    examples, state = started()
    for _ in range(3):
        state, _ = em_round(examples, state)
    after = annealed(state, 100)
    assert after.tau != state.tau
    spreads = [laplex.reference.kernel(one.knots, one.knots, one.tau) for one in (state, after)]
    blocks = [one.root.reshape(2, 6, 12) for one in (state, after)]
    old, new = ((spread @ block).reshape(12, 12) for spread, block in zip(spreads, blocks))
    assert error(new @ new.mT, old @ old.mT) <= 1e-9


def test_levelled_features_are_spread_evenly_in_their_order():
    examples, state = started()
    state, _ = em_round(examples, state)
    state.round = 24  # of 200
    after = annealed(state, 200)
    assert torch.equal(after.a.argsort(), state.a.argsort(stable=True))
    assert error(after.root, after.root[0, 0] * torch.eye(12, dtype=torch.float64)) <= 1e-15
    assert error(after.a.sort().values, (torch.arange(90, dtype=torch.float64) + 0.5) / 90) <= 1e-12
