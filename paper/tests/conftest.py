"""The commands of `python -m paper` as functions of their arguments."""

import functools

import pytest

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
