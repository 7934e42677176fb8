"""What is not a multiple or a sum of lazy matrices is refused in words that say what to do."""

import re

import numpy as np
import pytest
import torch

from laplex import LaplaceOperator, SumOperator

K, BATCH = LaplaceOperator(torch.randn(5), torch.randn(6)), LaplaceOperator(torch.randn(3, 5))
TENSOR = "for a diagonal use K.add_diagonal(d); for all entries use K.to_dense() if the matrix fits"
MESSAGES = {  # what is done, the kind of error, and what it says
    "K + tensor": (lambda: BATCH + torch.ones(5), TypeError,
                   "LaplaceOperator + x: `x` must be an operator, got a tensor of shape (5,); " + TENSOR),
    "tensor + K": (lambda: torch.ones(5) + K, TypeError, "x + LaplaceOperator: `x` must be an operator, got a tensor"),
    "K - tensor": (lambda: 2 * K - torch.ones(5, 6), TypeError, "SumOperator - x: `x` must be an operator"),
    "tensor - K": (lambda: torch.ones(5) - K, TypeError, "x - LaplaceOperator: `x` must be an operator"),
    "number + K": (lambda: 1 + K, TypeError, "x + LaplaceOperator: `x` must be an operator, got int; " + TENSOR),
    "0.0 + K": (lambda: 0.0 + K, TypeError, "x + LaplaceOperator: `x` must be an operator, got float"),
    "number - K": (lambda: 1 - K, TypeError, "x - LaplaceOperator: `x` must be an operator, got int"),
    "array + K": (lambda: np.ones(5) + K, TypeError, "x + LaplaceOperator: `x` must be an operator, got ndarray"),
    "shapes": (lambda: K + K.mT, ValueError, "the matrices must have one shape, got (5, 6) and (6, 5); expand the"),
    "dtypes": (lambda: K - K.to(torch.float64), TypeError,
               "LaplaceOperator - x: the matrices must have one dtype, got torch.float32 and torch.float64; "
               "use .to(torch.float32)"),
    "devices": (lambda: K + K.to("meta"), TypeError, "must have one device, got cpu and meta"),
    "K * K": (lambda: K * K, TypeError, "LaplaceOperator * s: `s` must be a number or a tensor, got LaplaceOperator; "
              "apply one matrix after the other, as in K @ (M @ x); the product entry by entry needs .to_dense()"),
    "K * list": (lambda: K * [1.0], TypeError, "`s` must be a real number or a torch.Tensor, got list"),
    "K * array": (lambda: np.ones(2) * K, TypeError, "`s` must be a real number or a torch.Tensor, got ndarray"),
    "K * complex": (lambda: 1j * K, TypeError, "`s` must be a real number or a torch.Tensor, got complex"),
    "K * bool": (lambda: True * K, TypeError, "`s` must be a real number or a torch.Tensor, got bool"),
    "K * integers": (lambda: K * torch.tensor(2), TypeError,
                     "`s` must be float32 or float64, got torch.int64; call .float()"),
    "K * complex tensor": (lambda: K * torch.tensor(1j), TypeError, "`s` must be float32 or float64, got"),
    "K * another device": (lambda: K * torch.tensor(1.0, device="meta"), ValueError,
                           "`s` must be on the device of the operator (cpu), got meta"),
    "K * matrix": (lambda: torch.ones(5, 6) * K, ValueError,
                   "LaplaceOperator * s: `s` must have one element, or broadcast to H = (), one number per matrix, got "
                   "shape (5, 6); to scale rows or columns multiply the result or the operand"),
    "K * larger batch": (lambda: torch.ones(2, 3) * BATCH, ValueError, "broadcast to H = (3,)"),
    "K / K": (lambda: K / K, TypeError, "LaplaceOperator / s: `s` must be a number or a tensor, got LaplaceOperator"),
    "K / 0": (lambda: K / 0, ValueError, "LaplaceOperator / s: `s` must not be 0, got 0"),
    "tensor / K": (lambda: torch.div(torch.ones(5), K), TypeError, "div is not defined for a LaplaceOperator; use .to"),
    "rectangular diagonal": (lambda: K.add_diagonal(1.0), ValueError,
                             "LaplaceOperator.add_diagonal: needs a square matrix, got shape (5, 6)"),
    "diagonal of a wrong size": (lambda: BATCH.add_diagonal(torch.ones(3)), ValueError,
                                 "`diag` must be a number or broadcast to (3, 5), got shape (3,)"),
    "a larger diagonal": (lambda: BATCH.gram().add_diagonal(torch.ones(2, 3, 5)), ValueError,
                          "GramOperator.add_diagonal: `diag` must be a number or broadcast to (3, 5)"),
    "diagonal of another kind": (lambda: BATCH.add_diagonal(None), TypeError,
                                 "`diag` must be a real number or a torch.Tensor, got NoneType"),
    "diagonal of times": (lambda: LaplaceOperator(torch.randn(4, 1)).add_diagonal(torch.ones(4)), ValueError,
                          "for one matrix of 4 anchors use a.squeeze(-1)"),
    "A @ x": (lambda: (2 * K) @ torch.ones(5), ValueError,
              "SumOperator @ x: the operator is (5, 6) and `x` must have size 6 where they meet, got shape (5,)"),
    "x @ A": (lambda: torch.ones(2, 6) @ (2 * K), ValueError,
              "x @ SumOperator: the operator is (5, 6) and `x` must have size 5 where they meet, got shape (2, 6)"),
    "A @ A": (lambda: (2 * K) @ (2 * K), TypeError, "SumOperator @ x: `x` must be a torch.Tensor, got SumOperator"),
    "x @ A of a list": (lambda: [1.0] @ (2 * K), TypeError, "x @ SumOperator: `x` must be a torch.Tensor, got list"),
    "T of a batch": (lambda: (2 * BATCH).T, ValueError,
                     "SumOperator.T: needs a single matrix, got batch shape (3,); use .mT"),
    "solve of a sum": (lambda: (BATCH + BATCH).solve(torch.ones(5)), NotImplementedError,
                       "SumOperator.solve: a sum of 2 matrices is multiplied, but not solved, in O(n); "
                       "laplex.gp.GaussianProcess solves sums of exponential kernels; or use .to_dense()"),
    "logdet of a sum": (lambda: torch.logdet(BATCH + BATCH), NotImplementedError, "SumOperator.logdet: a sum of 2"),
    "cholesky of a sum": (lambda: (BATCH + BATCH).cholesky(), NotImplementedError, "SumOperator.cholesky: a sum of 2"),
    "samples of a sum": (lambda: (BATCH + BATCH).sample(), NotImplementedError, "SumOperator.sample: a sum of 2"),
    "solve of a rectangle": (lambda: (2 * K).solve(torch.ones(5)), ValueError,
                             "SumOperator.solve: needs a symmetric matrix"),
    "negative scale": (lambda: (-BATCH).solve(torch.ones(5)), ValueError,
                       "SumOperator.solve: the scale of the matrix must be positive and finite, or it is not positive "
                       "definite, got -1.0"),
    "one negative scale": (lambda: (torch.tensor([1.0, 0.0, 2.0]) * BATCH).logdet(), ValueError, "got 0.0"),
    "negative diagonal": (lambda: (2 * BATCH).add_diagonal(-3.0).logdet(), ValueError,
                          "SumOperator.logdet: `diag` must be positive and finite throughout, got -3.0"),
    "Gram matrix alone": (lambda: (2 * BATCH.gram()).logdet(), TypeError, "SumOperator.logdet: `diag` must be given"),
    "another function": (lambda: torch.linalg.svd(2 * K), TypeError, "linalg_svd is not defined for a SumOperator"),
    "an option": (lambda: torch.linalg.cholesky(BATCH, upper=True), TypeError, "linalg_cholesky is not defined for"),
    "a right-hand side": (lambda: torch.linalg.solve(torch.eye(5), K), TypeError, "linalg_solve is not defined for"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name):
    act, kind, message = MESSAGES[name]
    with pytest.raises(kind, match=re.escape(message)):
        act()


EMPTY = object.__new__(LaplaceOperator)
STATES = {
    "fields": ({"operators": (K,)}, "its fields must be diag, operators, scales"),
    "no parts": ({"operators": (), "scales": (), "diag": None}, "tuples of one length"),
    "too few scales": ({"operators": (K, K), "scales": (1.0,), "diag": None}, "tuples of one length"),
    "other parts": ({"operators": (torch.ones(2, 2),), "scales": (1.0,), "diag": None}, "must hold operators"),
    "empty parts": ({"operators": (EMPTY,), "scales": (1.0,), "diag": None}, "must hold operators"),
    "shapes": ({"operators": (K, K.mT), "scales": (1.0, 1.0), "diag": None}, "must have one shape"),
    "scales": ({"operators": (K,), "scales": (torch.ones(4),), "diag": None}, "`s` must have one element"),
    "diagonal": ({"operators": (BATCH,), "scales": (1.0,), "diag": torch.ones(4)}, "`diag` must be a number or"),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_damaged_files(name):
    state, message = STATES[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        object.__new__(SumOperator).__setstate__(state)
