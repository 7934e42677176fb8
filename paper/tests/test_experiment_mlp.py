"""`python -m paper experiment heads --head mlp`: heads of two layers."""

import json

import pytest
import torch
from torch import nn

from made_features import CLASSES, WIDTH
from paper.experiments.data import features
from paper.experiments.head_methods import HEAD_METHODS, HeadMethod, Heads
from paper.methods.heads import LAYERS, METHODS, count

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = ("--quick", "--device", "cpu", "--name", "tiny")


@pytest.mark.parametrize("method", LAYERS)
def test_two_layers_of_a_method_with_a_tanh_between_them(method, file):
    data = features(file)
    head = Heads(data, WIDTH).make(HeadMethod(method), 3, 0)
    first, activation, last = head
    assert type(first) is type(last)
    assert isinstance(activation, nn.Tanh)
    numbers = sum(parameter.numel() for parameter in head.parameters())
    assert numbers == count(method, WIDTH, CLASSES, 3, hidden=WIDTH).trained
    x = data.train[0][:7]
    torch.testing.assert_close(head(x), last(first(x).tanh()))
    assert head(x).shape == (7, CLASSES)


def test_heads_of_two_layers_have_their_own_results(file, tmp_path, command):
    arguments = ("heads", "--data", file, "--out", tmp_path, "--ranks", 2, "--head", "mlp", *QUICK)
    status, _, errors = command(*arguments)
    assert status == 0, errors
    deep = [variant for variant in HEAD_METHODS if variant.deep]
    assert [variant.method for variant in deep] == list(LAYERS)
    for variant in HEAD_METHODS:
        line = f"skipped: {variant}: there is no head of two layers of this kind\n"
        assert (line in errors) == (variant not in deep)
    page = (tmp_path / "heads-tiny-tuned-quick-mlp.md").read_text()
    assert page.startswith("# Heads on tiny, two layers, recipe tuned")
    assert all((f"| {method} |" in page) == (method in LAYERS) for method in METHODS)
    trained = count("laplex", WIDTH, CLASSES, 2, hidden=WIDTH).trained
    assert f"| laplex | random | 2 | 2 | {trained} | {trained} |" in page
    runs = json.loads((tmp_path / "heads-tiny-tuned-quick-mlp.json").read_text())["runs"]
    assert {run["settings"]["head"] for run in runs} == {"mlp"}


def test_two_layers_learn(file, tmp_path, command):
    options = ("--head", "mlp", "--methods", "low-rank", "--ranks", 4, "--seeds", 1, "--device", "cpu")
    assert command("heads", "--data", file, "--out", tmp_path, *options, "--name", "tiny")[0] == 0
    runs = json.loads((tmp_path / "heads-tiny-tuned-mlp.json").read_text())["runs"]
    assert max(run["result"]["test"] for run in runs) > 0.8
