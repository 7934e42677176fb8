"""Triton's interpreter without most of what it does again and again: its own results, in a fraction of the time.

What is left out is what it finds out again for every value (types, shapes, constants, what `triton.language` is while
it runs), and checks whose outcome nobody reads. Two tensors of one dtype, or a tensor and a number, go to numpy at
once; whatever else there is goes the interpreter's own way. tests/interpreted/test_interpreter.py compares both ways.
"""

import dataclasses
import functools
import inspect
import types

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

block_type, tensor = tl.core.block_type, tl.core.tensor
TensorHandle, builder, semantic = (
    interpreter.TensorHandle,
    interpreter.interpreter_builder,
    interpreter.interpreter_semantic,
)
FLOATS, INTEGERS = (tl.float32, tl.float64), (tl.int32, tl.int64)
NUMPY = {id(dtype): interpreter._get_np_dtype(dtype) for dtype in (*FLOATS, *INTEGERS, tl.int1)}  # dtypes are unique
LIMITS = {id(dtype): np.iinfo(NUMPY[id(dtype)]) for dtype in INTEGERS}


def speed_up():
    """The same results in about a fifth of the time."""
    _prepare_language_once()
    _remember_dtypes()
    _remember_types()
    _look_at_arguments_once()
    _check_no_overflows_in_vain()
    _warn_of_no_overflows()
    _scan_in_whole_arrays()
    _compute_at_once()


# --- what is found out once -------------------------------------------------------------------------------------------


def _prepare_language_once():
    """The interpreter puts its own functions into `triton.language` for every call of a function within a kernel, and
    takes them out again after the launch. Nobody else is here to use it: they stay.
    """
    prepare, prepared = interpreter._patch_lang, set()
    nothing = types.SimpleNamespace(restore=lambda: None)

    def prepare_once(function):
        module = id(function.__globals__)
        if module not in prepared:
            prepared.add(module)
            prepare(function)
        return nothing

    def put(owner, name, member, builder, scope):
        function = inspect.unwrap(member)  # which checks that it is told of the interpreter
        if "_semantic" not in inspect.signature(function).parameters:
            function = member

        def called(*args, **kwargs):
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        scope.set_attr(owner, name, called)

    interpreter._patch_lang, interpreter._patch_attr = prepare_once, put


def _remember_dtypes():
    """It makes a table of all dtypes for every value."""
    look_up = interpreter._get_np_dtype
    of_number = functools.cache(look_up)

    def numpy_dtype(dtype):
        scalar = dtype.scalar
        return look_up(scalar) if scalar.is_ptr() else of_number(scalar)

    interpreter._get_np_dtype = numpy_dtype


def _remember_types():
    """A type is made once for a dtype and a shape, and a shape's constants once for the shape."""
    blocks, initialize = {}, block_type.__init__
    constants = functools.cache(
        lambda shape: (tl.core.tuple([tl.constexpr(size) for size in shape]), tl.constexpr(int(np.prod(shape))))
    )

    def new(cls, element_ty, shape):
        key = id(element_ty), *(size.value if isinstance(size, tl.constexpr) else size for size in shape)
        block = blocks.get(key)
        if block is None:
            block = object.__new__(cls)
            initialize(block, element_ty, shape)
            blocks[key] = block
        return block

    def init_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = constants(tuple(type.shape.values) if type.is_block() else ())

    block_type.__new__, block_type.__init__ = new, lambda self, element_ty, shape: None
    tensor.__init__ = init_tensor
    tl.str_to_ty = functools.cache(tl.str_to_ty)  # pointers' types, too


def _look_at_arguments_once():
    """What arguments a kernel has, it asks at every launch."""
    known = functools.cache(inspect.getfullargspec)
    interpreter.inspect = types.SimpleNamespace(**vars(inspect) | {"getfullargspec": known})


def _warn_of_no_overflows():
    """The kernels mean to make them."""
    launch = interpreter.GridExecutor.__call__

    def launch_silently(self, *args, **kwargs):
        with np.errstate(all="ignore"):
            return launch(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = launch_silently


def _check_no_overflows_in_vain():
    """Sums of integers are made once more in int64, for an assertion that is none unless the interpreter debugs."""
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


# --- scans ------------------------------------------------------------------------------------------------------------


def _scan_in_whole_arrays():
    """The interpreter combines element by element. These combine whole arrays in log2 n steps, in an order that a GPU
    may take as well.
    """
    numpy_of, reduce_elements = interpreter._get_np_dtype, interpreter.ReduceOps.generic_reduce

    def combined(operation, before, after, dtypes):
        results = operation.combine_fn.fn(*before, *after)
        results = results if isinstance(results, tuple) else (results,)
        return [np.broadcast_to(each.handle.data, before[0].handle.data.shape).astype(numpy_of(dtype), copy=False)
                for each, dtype in zip(results, dtypes, strict=True)]  # fmt: skip

    def scan(self, inputs):
        dtypes, data = [each.dtype for each in inputs], [each.handle.data for each in inputs]
        size, step = data[0].shape[self.axis], 1
        while step < size:
            before = [self.to_tensor(np.roll(each, step, self.axis), dtype) for each, dtype in zip(data, dtypes)]
            after = [self.to_tensor(each, dtype) for each, dtype in zip(data, dtypes)]
            first = (slice(None),) * self.axis + (slice(step),)
            done = [each.copy() for each in combined(self, before, after, dtypes)]
            for new, old in zip(done, data, strict=True):
                new[first] = old[first]
            data, step = done, 2 * step
        return [self.to_tensor(each, dtype) for each, dtype in zip(data, dtypes)]

    def reduce(self, inputs):
        if self.axis is None:
            return reduce_elements(self, inputs)
        dtypes, data = [each.dtype for each in inputs], [each.handle.data for each in inputs]
        while data[0].shape[self.axis] > 1:
            leading = (slice(None),) * self.axis
            before, after = (
                [self.to_tensor(each[(*leading, slice(first, None, 2))], dtype) for each, dtype in zip(data, dtypes)]
                for first in (0, 1)
            )
            data = combined(self, before, after, dtypes)
        data = data if self.keep_dims else [each.squeeze(self.axis) for each in data]
        return [self.to_tensor(each if each.shape else each.item(), dtype) for each, dtype in zip(data, dtypes)]

    interpreter.ScanOps.generic_scan, interpreter.ReduceOps.generic_reduce = scan, reduce


# --- numbers ----------------------------------------------------------------------------------------------------------


class Handle(TensorHandle):
    def __init__(self, data, dtype):
        self.data, self.dtype, self.attr = data, dtype, {}


@functools.cache
def _constant(value, _kind, dtype_id):
    return np.array([value], dtype=NUMPY[dtype_id]) if value else np.zeros(1, NUMPY[dtype_id])  # of -0.0, too


def _number(value, dtype):
    """What the interpreter makes of a number beside a tensor of a dtype; None for what it must see itself."""
    dtype_id = id(dtype)
    kind = type(value)
    if kind is tl.constexpr:
        value, kind = value.value, type(value.value)
    if kind is int and dtype_id in LIMITS:
        limits = LIMITS[dtype_id]
        return _constant(value, kind, dtype_id) if limits.min <= value <= limits.max else None
    if (kind is float or kind is int) and dtype in FLOATS and value == value:
        return _constant(value, kind, dtype_id)
    return None


@functools.cache
def _narrow(value):
    """Whether a number is one of float32, or an integer: what is compared has this dtype before."""
    return type(value) is int or (type(value) is float and float(np.float32(value)) == value)


def _together(one, other):
    """The type of two broadcast against one another; either may be no block."""
    if one is other or not other.is_block():
        return one
    return _broadcast(one, other) if one.is_block() else other


_known = {}


def _broadcast(one, other):
    key = id(one), id(other)  # they are kept
    block = _known.get(key)
    if block is None:
        block = _known[key] = block_type(
            one.element_ty, list(np.broadcast_shapes(one.shape.values, other.shape.values))
        )
    return block


def _retyped(type, dtype):
    """The same shape of another dtype."""
    return block_type(dtype, type.shape) if type.is_block() else dtype


def _compute_at_once():
    plain, integers = {id(dtype) for dtype in (*FLOATS, *INTEGERS)}, {id(dtype) for dtype in (*INTEGERS, tl.int1)}
    floats = {id(dtype) for dtype in FLOATS}
    for name, compute, dtypes in (
        ("add", np.add, plain),
        ("sub", np.subtract, plain),
        ("mul", np.multiply, plain),
        ("truediv", np.divide, floats),
        ("and", np.bitwise_and, integers),
        ("or", np.bitwise_or, integers),
    ):
        _put(f"__{name}__", compute, dtypes)
        _put(f"__r{name}__", lambda own, other, compute=compute: compute(other, own), dtypes)
    for name, compute in (
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
        ("eq", np.equal),
        ("ne", np.not_equal),
    ):
        _put(f"__{name}__", compute, plain, tl.int1)
    tensor.__hash__ = None
    _put_where()
    _put_cast()


def _put(name, compute, dtypes, result=None):
    """An operator, for those dtypes."""
    usual, pointers = getattr(tensor, name), name == "__add__"
    both = [pair for pair in (FLOATS, INTEGERS) if id(pair[0]) in dtypes]
    wider = {(id(one), id(other)): wide for narrow, wide in both for one, other in ((narrow, wide), (wide, narrow))}

    def operate(self, other):
        dtype, type_ = self.dtype, self.type
        if id(dtype) in dtypes:
            if isinstance(other, tensor):
                others, other_type = other.handle.data, other.type
                if other.dtype is not dtype:
                    dtype = wider.get((id(dtype), id(other.dtype)))
                    if dtype is None:
                        return usual(self, other, _semantic=semantic)
                    type_, other_type = _retyped(type_, dtype), _retyped(other_type, dtype)
                type_ = _together(type_, other_type)
            else:
                others = None if result is not None and not _narrow(other) else _number(other, dtype)
                if others is None:
                    return usual(self, other, _semantic=semantic)
            if result is not None:
                dtype, type_ = result, _retyped(type_, result)
            return tensor(Handle(compute(self.handle.data, others), dtype), type_)
        if pointers and dtype.is_ptr() and isinstance(other, tensor) and id(other.dtype) in LIMITS:
            width, handle = np.uint64(max(1, dtype.element_ty.primitive_bitwidth // 8)), self.handle
            data = handle.data + width * other.handle.data.astype(np.uint64)
            return tensor(Handle(data, handle.dtype), _together(type_, _retyped(other.type, dtype)))
        return usual(self, other, _semantic=semantic)

    setattr(tensor, name, operate)


def _put_where():
    usual = semantic.where

    def where(condition, x, y):
        known = x if isinstance(x, tensor) else y
        dtype = known.dtype if isinstance(known, tensor) else None
        if condition.dtype is not tl.int1 or id(dtype) not in NUMPY:
            return usual(condition, x, y)
        type_, data = _retyped(condition.type, dtype), []
        for each in (x, y):
            if isinstance(each, tensor):
                if each.dtype is not dtype:
                    return usual(condition, x, y)
                data.append(each.handle.data)
                type_ = _together(type_, each.type)
            else:
                data.append(_number(each, dtype))
                if data[-1] is None:
                    return usual(condition, x, y)
        return tensor(Handle(np.where(condition.handle.data, *data), dtype), type_)

    semantic.where = where


def _put_cast():
    usual, from_, to = semantic.cast, set(NUMPY), set(NUMPY) - {id(tl.int1)}

    def cast(input, dst_ty, fp_downcast_rounding=None):
        dtype, own = dst_ty.scalar, input.dtype
        if own is dtype:
            return input
        if id(own) in from_ and id(dtype) in to and fp_downcast_rounding is None:
            return tensor(Handle(input.handle.data.astype(NUMPY[id(dtype)]), dtype), _retyped(input.type, dtype))
        return usual(input, dst_ty, fp_downcast_rounding)

    semantic.cast = cast
