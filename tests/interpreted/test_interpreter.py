"""tests/interpreter.py makes Triton's interpreter faster: what it computes at once is what the interpreter computes."""

import itertools
import operator

import numpy as np
import pytest
import torch

from laplex import _backends

if not _backends.interpreted() or _backends.NO_TRITON:
    pytest.skip("nothing is interpreted here", allow_module_level=True)

import triton
import triton.language as tl
from triton.language.semantic import IncompatibleTypeErrorImpl
from triton.runtime import interpreter as triton_interpreter

semantic = triton_interpreter.interpreter_semantic
usual = type(semantic)(semantic.builder)  # without what is put into the one that interprets
DTYPES = (tl.float16, tl.float32, tl.float64, tl.int32, tl.int64, tl.uint32, tl.int1)
SHAPES = ((), (4,), (2, 4), (2, 1))
NUMBERS = (0, 3, -2, 0.5, 0.1, -0.0, 1e-300, 1e300, float("inf"), float("nan"), 2**40, True)


def compared(function):
    """Numbers have a dtype of their own before they are compared."""
    return lambda one, other: function(*map(usual.to_tensor, (one, other)))


OPERATORS = {
    operator.add: lambda *both: usual.add(*both, False),
    operator.sub: lambda *both: usual.sub(*both, False),
    operator.mul: lambda *both: usual.mul(*both, False),
    operator.truediv: usual.truediv,
    operator.and_: usual.and_,
    operator.or_: usual.or_,
    operator.lt: compared(usual.less_than),
    operator.le: compared(usual.less_equal),
    operator.gt: compared(usual.greater_than),
    operator.ge: compared(usual.greater_equal),
    operator.eq: compared(usual.equal),
    operator.ne: compared(usual.not_equal),
}


@pytest.fixture(autouse=True, scope="module")
def prepared():
    """As within a launch."""
    triton_interpreter._patch_lang(tl.cdiv.fn)
    triton_interpreter._patch_lang(_larger.fn)
    with np.errstate(all="ignore"):
        yield


def drawn(dtype, shape):
    data = np.random.default_rng(len(shape)).normal(size=shape or 1) * 3
    handle = triton_interpreter.TensorHandle(data.astype(triton_interpreter._get_np_dtype(dtype)), dtype)
    return tl.tensor(handle, tl.block_type(dtype, list(shape)) if shape else dtype)


def outcome(function, *arguments):
    """What the result is to the kernel, its bits, or that there is none."""
    try:
        result = function(*arguments)
    except (TypeError, ValueError, OverflowError, IncompatibleTypeErrorImpl):
        return None
    data = result.handle.data
    return str(result.type), str(result.dtype), str(result.shape), result.numel.value, data.dtype, data.tobytes()


@pytest.mark.parametrize("function", OPERATORS, ids=lambda function: function.__name__)
def test_operators(function):
    tensors = list(itertools.starmap(drawn, itertools.product(DTYPES, SHAPES)))
    pairs = [*itertools.product(tensors, [*tensors, *NUMBERS]), *itertools.product(NUMBERS, tensors)]
    computed = 0
    for one, other in pairs:
        got, want = outcome(function, one, other), outcome(OPERATORS[function], one, other)
        assert got == want, (one, other)
        computed += got is not None
    for one in tensors:
        assert outcome(function, one, tl.constexpr(3)) == outcome(OPERATORS[function], one, 3)
    assert computed > 200


def test_pointers():
    numbers = torch.arange(64)
    pointer = triton_interpreter._implicit_cvt(numbers)
    for offset in (drawn(tl.int32, (4,)), drawn(tl.int64, (2, 4)), drawn(tl.int32, ()), 3):
        assert outcome(operator.add, pointer, offset) == outcome(OPERATORS[operator.add], pointer, offset)
        many = pointer + drawn(tl.int32, (2, 1))
        assert outcome(operator.add, many, offset) == outcome(OPERATORS[operator.add], many, offset)


def test_where():
    values = [*itertools.starmap(drawn, itertools.product(DTYPES, SHAPES)), *NUMBERS]
    for condition in (drawn(tl.int1, shape) for shape in SHAPES):
        for one, other in itertools.product(values, repeat=2):
            assert outcome(semantic.where, condition, one, other) == outcome(usual.where, condition, one, other)


def test_casts():
    for dtype, shape, to in itertools.product(DTYPES, SHAPES, DTYPES):
        value = drawn(dtype, shape)
        assert outcome(semantic.cast, value, to) == outcome(usual.cast, value, to)


@triton.jit
def _larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def _last_of(same, v, also, w):
    return same & also, tl.where(also, v + w, w)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_scans_and_reductions(axis, reverse):
    same, v, largest = drawn(tl.int1, (8, 4)), drawn(tl.int64, (8, 4)), drawn(tl.float32, (8, 4))
    same.handle.data[:] = np.arange(32).reshape(8, 4) % 5 > 0
    got = tl.associative_scan((same, v), axis, _last_of, reverse)
    want, state = np.empty((8, 4), np.int64), None
    along, flags = np.moveaxis(v.handle.data, axis, 0), np.moveaxis(same.handle.data, axis, 0)
    steps = range(len(along))
    for index in reversed(steps) if reverse else steps:
        state = along[index] if state is None else np.where(flags[index], state + along[index], along[index])
        np.moveaxis(want, axis, 0)[index] = state
    assert np.array_equal(got[1].handle.data, want)
    got = tl.associative_scan(largest, axis, _larger, reverse).handle.data
    turned = np.flip(largest.handle.data, axis) if reverse else largest.handle.data
    want = np.maximum.accumulate(turned, axis)
    assert np.array_equal(got, np.flip(want, axis) if reverse else want)
    got = tl.reduce((same, v), axis, _last_of)[1]
    assert np.array_equal(got.handle.data, np.moveaxis(scanned(same, v, axis), axis, 0)[-1])
    assert str(got.type) == f"<[{', '.join(repr(str(size)) for size in got.handle.data.shape)}], int64>"


def scanned(same, v, axis):
    return tl.associative_scan((same, v), axis, _last_of)[1].handle.data
