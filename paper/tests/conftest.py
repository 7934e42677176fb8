"""The commands of `python -m paper` as functions of their arguments, and features with a known answer."""

import functools

import pytest

from made_features import write_features
from paper.__main__ import main


@pytest.fixture
def paper_command(capsys):
    """`python -m paper`: exit status, output and errors."""

    def run(*arguments):
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def command(paper_command):
    """`python -m paper experiment`."""
    return functools.partial(paper_command, "experiment")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Features with a known answer."""
    return write_features(tmp_path_factory.mktemp("data") / "made.npz")
