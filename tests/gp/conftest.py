"""One thread for all tests, and the ways a likelihood or a factor is computed."""

import pytest

from laplex import _compiled
from laplex._states import chain, core_likelihood


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread):
    """Matrices are small here, and threads that wait for one another on a busy machine take ten times as long."""


@pytest.fixture(params=["core", "chain", "portable"])
def path(request, monkeypatch):
    """The likelihood of blocks in the compiled core, its chain of states, or plain torch."""
    if request.param != "portable" and _compiled.MISSING:
        pytest.fail(f"the tests need the compiled core: {_compiled.MISSING}")
    if request.param != "core":
        monkeypatch.setattr(core_likelihood, "core", None)
    if request.param == "portable":
        monkeypatch.setattr(chain, "module_for", lambda *tensors: None)
    return request.param


@pytest.fixture(params=["compiled", "portable"])
def chain_path(request, monkeypatch):
    """The same for what only the chain computes: factors, predictions, samples."""
    if request.param == "portable":
        monkeypatch.setattr(core_likelihood, "core", None)
        monkeypatch.setattr(chain, "module_for", lambda *tensors: None)
    elif _compiled.MISSING:
        pytest.fail(f"the tests need the compiled core: {_compiled.MISSING}")
    return request.param
