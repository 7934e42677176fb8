"""A process whose times or noise change after it was made: results follow, they never mix old and new."""

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
