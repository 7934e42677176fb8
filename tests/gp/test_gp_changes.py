"""A process whose times or noise change after it was made: results follow, they never mix old and new."""

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
