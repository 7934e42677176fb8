"""Steps of soft functions on the GPU, forward and backward: what they ask of torch, and that they are replayed."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from laplex import _backends, soft
from laplex._eager import watching
from laplex._triton import tuning

CALLS = {
    "rank": lambda x: soft.rank(x, tau=0.1),
    "rank down": lambda x: soft.rank(x, tau=0.1, descending=True),
    "sort": lambda x: soft.sort(x, tau=0.1).values,
    "sort down": lambda x: soft.sort(x, tau=0.1, descending=True).values,
    "topk": lambda x: soft.topk(x, x.shape[-1] // 3, tau=0.1).values,
    "the smallest": lambda x: soft.topk(x, x.shape[-1] // 3, tau=0.1, largest=False).values,
    "topk_mask": lambda x: soft.topk_mask(x, x.shape[-1] // 3, tau=0.1),
}
LAUNCHES = {"alone": 2, "tiles": 9}  # at most, forward and backward together; the sort by torch not counted
FREE = {  # allocations, views, and a number as a tensor, which is cached on a GPU
    *("empty_strided.default", "empty.memory_format", "alias.default", "full.default"),
}
SHAPES = {"one row": (40,), "rows": (3, 40), "a batch": (2, 3, 40)}


@pytest.fixture
def as_on_gpu(monkeypatch, replayed, operators):
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(_backends, "planner", lambda device: "triton")
    return operators


@pytest.fixture(params=LAUNCHES)
def way(request, monkeypatch):
    """Rows that are one tile and sorted by the program, or rows of tiles, near and wide ones apart."""
    alone = request.param == "alone"
    monkeypatch.setattr(tuning, "SOFT_TILE", 16)
    monkeypatch.setattr(tuning, "SOFT_ELEMENTS", 64 if alone else 16)
    for name in ("SOFT_SORTED", "SOFT_ALONE"):
        monkeypatch.setattr(tuning, name, 64 if alone else 0)
    monkeypatch.setattr(tuning, "SOFT_SPANS_APART", 1)
    return request.param


class Watch(TorchDispatchMode):
    """The names of torch's operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func).removeprefix("aten."))
        return func(*args, **(kwargs or {}))


def step(name, x, g):
    x = x.detach().requires_grad_()
    y = CALLS[name](x)
    return y.detach(), torch.autograd.grad(y, x, g[..., : y.shape[-1]].contiguous())[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CALLS)
def test_a_step_with_other_numbers_is_what_the_cpu_has(name, shape, dtype, way, as_on_gpu, monkeypatch):
    steps = [torch.randn(2, *SHAPES[shape], dtype=dtype) for _ in range(2)]
    ours = [step(name, *inputs) for inputs in steps]
    monkeypatch.setattr(_backends, "planner", _backends.planner_of_sides)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: False))
    for results, inputs in zip(ours, steps, strict=True):
        for one, other in zip(results, step(name, *inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6 * float(other.abs().max()))


@pytest.mark.parametrize("name", CALLS)
def test_a_step_allocates_sorts_and_launches(name, way, as_on_gpu, monkeypatch):
    """Nothing else: an operator of torch takes as long on the host as a launch here and its Python together."""
    x, launches = torch.randn(3, 40), 0
    g = torch.randn_like(step(name, x, -x)[0])
    assert len(as_on_gpu.by_form) == 2
    for replay in as_on_gpu.by_form.values():
        calls = [each for each in replay.steps if each.__name__ == "call"]  # of torch
        launches += len(replay.steps) - len(calls)
        replay.steps = calls  # the interpreter calls torch, too
    assert launches <= LAUNCHES[way]
    x = x.requires_grad_()
    monkeypatch.setattr(watching, "modes", 1)
    with Watch() as watch:
        y = CALLS[name](x)
        torch.autograd.grad(y, x, g)
    seen = [name for name in watch.names if name not in FREE]
    assert seen == (["sort.values_stable"] if way == "tiles" else [])
