"""``laplex.nn.parameter_groups``: anchors in a group of their own."""

import pytest
import torch
from torch import nn

from laplex.nn import LaplaceAttention, LaplexLinear, LaplexProjection, parameter_groups


def names(model, group):
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return {known[id(parameter)] for parameter in group["params"]}


def test_anchors_are_apart_and_are_not_decayed():
    layer = LaplexLinear(8, 6, kernels=2, phase=True, train_tau=True)
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Sequential(LaplexProjection(6, 3, trainable=True)))
    anchors, others = parameter_groups(model, 0.01, anchor_lr=0.1, weight_decay=0.05)
    assert {"1.a", "1.b", "1.phi", "1.psi", "1.log_tau", "2.0.a", "2.0.b"} <= names(model, anchors)
    assert {"0.weight", "0.bias", "1.mix", "1.bias"} <= names(model, others)
    assert names(model, anchors) | names(model, others) == {name for name, _ in model.named_parameters()}
    assert not names(model, anchors) & names(model, others)
    assert (anchors["lr"], anchors["weight_decay"]) == (0.1, 0.0)
    assert (others["lr"], others["weight_decay"]) == (0.01, 0.05)
    torch.optim.AdamW([anchors, others]).step()


def test_by_default_all_have_one_rate():
    assert {group["lr"] for group in parameter_groups(LaplexLinear(8, 6), 0.02)} == {0.02}


def test_a_layer_used_twice_is_counted_once():
    layer = LaplexLinear(6, 6)
    groups = parameter_groups(nn.Sequential(layer, layer), 0.02)
    assert sum(len(group["params"]) for group in groups) == len(list(layer.parameters()))


WRONG = {
    "no module": (([],), {"lr": 0.1}, TypeError, "`model` must be a torch.nn.Module, got list"),
    "no anchors": ((nn.Linear(2, 3),), {"lr": 0.1}, ValueError, "must have layers with trained anchors, got none in L"),
    "frozen": ((LaplexProjection(6, 3),), {"lr": 0.1}, ValueError, "must have layers with trained anchors"),
    "a rate": ((LaplexLinear(2, 3),), {"lr": -1.0}, ValueError, "`lr` must be a number that is not negative, got -1.0"),
    "a word": ((LaplexLinear(2, 3),), {"lr": 0.1, "anchor_lr": "fast"}, ValueError, "`anchor_lr` must be a number"),
    "decay": ((LaplexLinear(2, 3),), {"lr": 0.1, "weight_decay": float("nan")}, ValueError, "`weight_decay` must be"),
}


@pytest.mark.parametrize(("given", "named", "kind", "text"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(given, named, kind, text):
    with pytest.raises(kind, match=text):
        parameter_groups(*given, **named)


def test_the_length_scales_of_attention_do_not_decay():
    attention = LaplaceAttention(16, 4)
    anchors, others = parameter_groups(attention, lr=0.1, weight_decay=0.1)
    assert [id(parameter) for parameter in anchors["params"]] == [id(attention.log_tau)]
    assert anchors["weight_decay"] == 0
    assert len(others["params"]) == 8
