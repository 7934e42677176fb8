"""A process whose times or noise change after it was made: results follow, they never mix old and new."""

import copy
import pickle

import pytest
import torch

from laplex import gp


def fresh(t, y, diag=0.1):
    return gp.GaussianProcess(gp.Matern32(1.0), t, diag=diag).log_likelihood(y)


def test_times_that_are_moved_are_sorted_again():
    torch.manual_seed(0)
    y = torch.randn(50).double()
    for trained in (False, True):
        t = torch.rand(50).double().requires_grad_(trained)
        process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
        process.log_likelihood(y)
        with torch.no_grad():
            t.copy_(torch.rand(50))
        torch.testing.assert_close(process.log_likelihood(y), fresh(t, y))
        torch.testing.assert_close(
            process.predict(y), gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).predict(y), rtol=1e-9, atol=1e-9
        )


def test_noise_that_is_changed_or_replaced():
    torch.manual_seed(0)
    t, y, diag = torch.rand(50).double(), torch.randn(50).double(), torch.full((50,), 0.1).double()
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=diag)
    process.log_likelihood(y)
    diag.fill_(0.3)
    torch.testing.assert_close(process.log_likelihood(y), fresh(t, y, 0.3))
    process.diag = torch.full((50,), 0.7).double()
    torch.testing.assert_close(process.log_likelihood(y), fresh(t, y, 0.7))


def test_sums_of_lists():
    t = torch.rand(5).double()
    one, two = gp.Matern32(1.0), gp.SHO(1.0)
    torch.testing.assert_close(sum([one, two])(t), one(t) + two(t))


def test_a_noise_that_is_set_is_checked():
    t, y = torch.linspace(0, 1, 5).double(), torch.ones(5).double()
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    process.diag = 0.3
    assert torch.equal(process.log_likelihood(y), fresh(t, y, diag=0.3))
    with pytest.raises(ValueError, match="`diag`"):
        process.diag = torch.ones(4)


def test_a_parameter_that_moved_out_of_its_range():
    quality = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    process = gp.GaussianProcess(gp.Rotation(3.0, quality, 0.1, 0.5), torch.linspace(0, 1, 5).double(), diag=0.1)
    with torch.no_grad():
        quality.fill_(-0.2)
    assert not process.log_likelihood(torch.ones(5)).isfinite()


class Counted(gp.CARMA):
    """A kernel that is not made of blocks, and counts how often its components are asked for."""

    asked = 0

    def components(self):
        self.asked += 1
        return super().components()


def test_components_are_asked_for_once_as_numbers_and_once_as_tensors():
    kernel = Counted(torch.tensor([1.0, 2.0]), torch.tensor([1.0]))
    fresh_process = gp.GaussianProcess(kernel, torch.linspace(0, 1, 5).double(), diag=0.1)
    fresh_process.log_likelihood(torch.ones(5))
    assert kernel.asked == 2


# --- Writes that torch does not count ---------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [False, True])
def test_times_that_a_fused_optimizer_moves(view):
    torch.manual_seed(0)
    t = torch.nn.Parameter(5 * torch.rand(6, dtype=torch.float64))
    y = torch.sin(t.detach())
    process = gp.GaussianProcess(gp.Matern32(1.0), t[:] if view else t, diag=0.1)
    optimizer = torch.optim.Adam([t], lr=0.5, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss = -gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).log_likelihood(y)
        assert process.log_likelihood(y) == -loss
        torch.testing.assert_close(process.predict(y), gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).predict(y))
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda process: pickle.loads(pickle.dumps(process))])
def test_copies_of_a_process_whose_times_and_noise_were_moved(copied):
    torch.manual_seed(0)
    y = torch.randn(8).double()
    for trained in (False, True):
        t, diag = 5 * torch.rand(8).double(), torch.rand(8).double()
        with torch.no_grad():
            t.mul_(1.5)  # so that the numbers of writes of the original and of its copy agree in the end
            diag.add_(0.1)
        process = gp.GaussianProcess(gp.Matern32(1.0), t.requires_grad_(trained), diag=diag)
        process.predict(y)
        with torch.no_grad():
            t.copy_(5 * torch.rand(8))
            diag.add_(0.3)
        torch.testing.assert_close(copied(process).log_likelihood(y), fresh(t, y, diag))
        torch.testing.assert_close(copied(process).predict(y), process.predict(y))


# --- What was conditioned stays ---------------------------------------------------------------------------------------


def number(value):
    return torch.tensor(value, dtype=torch.float64)


STABLE = number([[-1.0, 0.0], [0.3, -2.0]]), torch.eye(2).double(), number([1.0, 0.5])
KERNELS = {  # a kernel, and the name of a tensor in it
    "Matern32": (lambda: gp.Matern32(number(1.0)), "scale"),
    "Celerite": (lambda: gp.Celerite(1.0, 0.1, number(0.5), 2.0), "c"),
    "StateSpace": (lambda: gp.StateSpace(STABLE[0].clone(), *STABLE[1:]), "feedback"),
    "CARMA": (lambda: gp.CARMA(number([2.0, 3.0]), number([1.0])), "alpha"),
    "Linear": (lambda: gp.Linear(number(1.0), number(1.0)), "center"),
    "Bands": (lambda: gp.Bands(gp.Matern32(1.0), number([1.0, 0.5])), "value"),
    "Matern32, exposures": (lambda: gp.Matern32(number(1.0)), "scale"),
    "StateSpace, exposures": (lambda: gp.StateSpace(STABLE[0].clone(), *STABLE[1:]), "feedback"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_conditional_stays_as_it_was(name):
    """Kernel, times, noise and observations are written to after they were worked in."""
    torch.manual_seed(0)
    kernel, parameter = KERNELS[name][0](), KERNELS[name][1]
    t, new = torch.linspace(0, 5, 10).double(), number([2.3, 6.0])
    y, diag, exposure = torch.sin(t), torch.full((10,), 0.01).double(), torch.full((10,), 0.1).double()
    bands = {"band": torch.arange(10) % 2} if name == "Bands" else {}
    asked = {"band": torch.tensor([0, 1])} if name == "Bands" else {}
    exposed = {"exposure": exposure} if "exposures" in name else {}
    process = gp.GaussianProcess(kernel, t, diag=diag, mean=torch.cos, **bands, **exposed)
    given = process.condition(y)

    def results():
        values = [given.mean(new, **asked), given.variance(new, **asked), given.mean(), given.variance()]
        if not exposed:
            values += [
                given.sample(t=new, **asked, generator=torch.Generator().manual_seed(0)),
                given.covariance(new, **asked),
            ]
        return values

    before = results()
    for tensor in (getattr(kernel, parameter), y, diag, exposure, t):
        tensor.mul_(1.3)
    for one, other in zip(before, results(), strict=True):
        assert torch.equal(one, other)
