"""On a CUDA device: training steps of layers as CUDA graphs, compared with eager steps while anchors move."""

import copy

import pytest
import torch
from torch import nn

from laplex.nn import LaplexLinear

pytestmark = pytest.mark.gpu

STACKS = {
    "formed": lambda: [LaplexLinear(300, 500, kernels=4), nn.GELU(), LaplexLinear(500, 200, kernels=4)],
    "scanned": lambda: [LaplexLinear(9000, 7000), nn.GELU(), LaplexLinear(7000, 64)],
    "phased, tau": lambda: [LaplexLinear(300, 400, kernels=2, phase=True, train_tau=True)],
}
stacks = pytest.mark.parametrize("make", STACKS.values(), ids=STACKS)


def model_and_input(make, rows=16):
    torch.manual_seed(0)
    model = nn.Sequential(*make()).cuda()
    return model, torch.randn(rows, model[0].in_features, device="cuda")


def train(model, x, steps=4):
    """The parameters after a few steps of gradient descent, and the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return [loss.detach(), *[parameter.detach() for parameter in model.parameters()]]


@stacks
def test_graphed_callables_train_as_eager_layers_do(make):
    model, x = model_and_input(make)
    eager = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (x.clone().requires_grad_(),))
    got, want = train(graphed, x), train(eager, x)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def captured_training(model, x, steps):
    """The same as a graph of the whole step, the optimizer included."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3, device="cuda"), capturable=True)
    loss = torch.zeros((), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        value = model(x).square().mean()
        value.backward()
        optimizer.step()
        loss.copy_(value.detach())

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(steps - 2):
        graph.replay()
    return [loss, *[parameter.detach() for parameter in model.parameters()]]


@stacks
def test_a_whole_captured_step_trains_as_eager_steps_do(make):
    model, x = model_and_input(make)
    eager = copy.deepcopy(model)
    got = captured_training(model, x, steps=6)
    optimizer = torch.optim.AdamW(eager.parameters(), lr=torch.tensor(1e-3, device="cuda"), capturable=True)
    for _ in range(6):
        optimizer.zero_grad()
        loss = eager(x).square().mean()
        loss.backward()
        optimizer.step()
    want = [loss.detach(), *[parameter.detach() for parameter in eager.parameters()]]
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize("make", [lambda: LaplexLinear(300, 500, kernels=4), lambda: nn.Linear(300, 500)])
def test_a_capture_after_another_module_was_compiled_for_graphs(make):
    x = torch.randn(16, 300, device="cuda")
    other = torch.compile(nn.Linear(300, 200, device="cuda"), mode="reduce-overhead")
    for _ in range(4):
        other.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        other(x).square().mean().backward()
    torch._dynamo.reset()
    layer = make().cuda()
    graph_loss = captured_training(layer, x, steps=4)[0]
    assert bool(graph_loss.isfinite())


@pytest.mark.parametrize("half", [False, True])
@stacks
def test_a_layer_is_compiled_as_one_graph(make, half):
    model, x = model_and_input(make)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        got, want = (train(one, x, steps=1) for one in (copy.deepcopy(compiled), copy.deepcopy(model)))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2 if half else 1e-5, atol=1e-2 if half else 1e-6)
