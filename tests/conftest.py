"""Seeds, poisoned memory, the backend and dtype fixtures, and `--error-for-skips`."""

import collections
import ctypes
import functools
import os
import sys
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported: without a GPU, on the CPU

from laplex._scan import cpp as cpp_scan
from laplex._scan import ops as _ops
from laplex._triton import launch as triton_launch
from laplex._triton.distance import launch as triton_tau
from laplex._triton.order import count as triton_count
from laplex._triton.order import launch as triton_plan
from laplex._triton.replay import Repeat, Repeats
from laplex._triton.scan import launch as triton_scan

if triton_scan.interpreted() and not triton_scan.MISSING:
    import interpreter

    interpreter.speed_up()

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
torch.set_num_threads(max(1, torch.get_num_threads() // WORKERS))  # two processes with two threads each wait for cores

pytest.register_assert_rewrite("helpers")  # so that a failure there shows its numbers
LONGEST = ("test_triton_compiles", "test_triton_operators", "test_solve_modes", "test_compile")  # of a single test
NOT_POISONED = ("laplex.bench", "laplex.baselines", "laplex.cli")


def pytest_addoption(parser):
    parser.addoption("--error-for-skips", action="store_true", help="a skipped test is a failure (for CI)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """`-n auto` is one process where there is a GPU: some of its tests want all of its memory."""
    return 0 if torch.cuda.is_available() else None


def pytest_collection_modifyitems(config, items):
    """Tests marked `gpu` are not there without one; `-m gpu` runs them alone. What takes longest begins first."""
    if not torch.cuda.is_available():
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_terminal_summary(terminalreporter):
    """The files that took longest, over all workers."""
    seconds, tests = collections.Counter(), collections.defaultdict(set)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] += report.duration
                tests[file].add(report.nodeid)
    if len(seconds) > 1:
        terminalreporter.section(f"slowest files of {len(seconds)}, {sum(seconds.values()):.0f} s in all")
        for file, taken in seconds.most_common(10):
            terminalreporter.line(f"{taken:7.1f} s {len(tests[file]):5d} tests  {file}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and item.config.getoption("--error-for-skips"):
        report.outcome, report.longrepr = "failed", f"skipped, which --error-for-skips forbids: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def poisoned_memory():
    """What the library allocates without filling starts as NaN (the lowest integer), so that a hole shows."""
    from torch._dynamo import trace_rules
    from torch.utils import _device

    trace_rules.get_torch_obj_rule_map()  # Dynamo knows functions by identity, those it finds now
    _device._device_constructors()  # and so does a default device
    patch = pytest.MonkeyPatch()
    patch.setattr(torch, "empty", _poisoned(torch.empty))
    patch.setattr(torch, "empty_like", _poisoned(torch.empty_like))
    patch.setattr(torch, "empty_strided", _poisoned(torch.empty_strided))
    patch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))
    _perturb_malloc(0x100)  # the scratch arrays of the compiled core: bytes 0xff, which are NaN too
    yield
    _perturb_malloc(0)
    patch.undo()


@pytest.fixture
def unpoisoned(monkeypatch):
    """For what traces the library: Dynamo does not see through the poison."""
    for owner, name in (
        (torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty")
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)


def _poisoned(allocate):
    @functools.wraps(allocate)
    def poisoned(*args, **kwargs):
        made = allocate(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("laplex") and not caller.startswith(NOT_POISONED):
            made.fill_(torch.nan if made.is_floating_point() else torch.iinfo(made.dtype).min)
        return made

    return poisoned


def _perturb_malloc(value):
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; others have none, or ignore it
        if mallopt is not None:
            mallopt(-6, value)  # M_PERTURB


@pytest.fixture(scope="session", params=["torch", "cpp", "dense"])
def backend(request):
    require(request.param)
    return request.param


@pytest.fixture(scope="session", params=["torch", "cpp"])
def scan_backend(request):
    """The backends that never form the matrix."""
    require(request.param)
    return request.param


@pytest.fixture(scope="session", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


def require(backend):
    if backend == "cpp" and cpp_scan.MISSING:
        pytest.fail(f"the tests need the compiled core (only test_imports does without): {cpp_scan.MISSING}")


@pytest.fixture
def tiles(monkeypatch):
    """Tiles of Triton's kernels so small that few points cross many; call it for others: points and rows of x of a
    tile, how many tiles are carried at once by a launch of their own (0: each carries for itself), whether x is put
    into the merged order on the way, and whether its rows are put side by side.
    """

    def of(points, rows=1, carried=0, staged=False, turned=False):
        triton_scan.schedule.cache_clear()
        monkeypatch.setattr(triton_scan, "tiling", lambda *sizes: (points, rows, max(1, points // 512)))
        monkeypatch.setattr(triton_scan, "CARRIED_BY_TILES", 0 if carried else 1024)
        monkeypatch.setattr(triton_scan, "CARRIED_AT_ONCE", carried)
        monkeypatch.setattr(triton_scan, "SPANS_TOGETHER", 2 if carried else 1 << 40)
        monkeypatch.setattr(triton_scan, "GATHERED_TWICE", -1 if staged else 1 << 40)
        monkeypatch.setattr(triton_scan, "TURNED_FROM", 0 if turned else 1 << 40)

    of(32)
    monkeypatch.setattr(triton_tau, "TILE", 32)
    monkeypatch.setattr(triton_tau, "CARRIED_AT_ONCE", 2)
    monkeypatch.setattr(triton_plan, "MERGE_TILE", 64)
    monkeypatch.setattr(triton_plan, "COUNTED_PAIRS", 64**2)  # so that some are counted in runs,
    monkeypatch.setattr(triton_plan, "COUNTED_IN_RUNS", 128)  # and some sorted
    monkeypatch.setattr(triton_count, "COUNTED_RUN", 32)
    monkeypatch.setattr(triton_count, "COUNTED_TILE", (32, 16, 8))
    monkeypatch.setattr(triton_count, "RUN_TILE", (32, 16, 8))
    monkeypatch.setattr(triton_count, "JOINED_TILE", (16, 1))
    yield of
    triton_scan.schedule.cache_clear()


@pytest.fixture
def replayed(monkeypatch):
    """Repeats run their launches under the interpreter, on the tensors they would have the addresses of."""

    def launch(kernel, grid, tensors, sizes, flags, warps):
        triton_launch.launch(kernel, grid, tensors, sizes, flags, warps)
        steps = triton_launch._record.steps
        if steps is not None:
            steps[-1] = steps[-1]._replace(compiled=SimpleNamespace(kernel=kernel))

    def launch_again(self, step):
        roles, kernel = [self.roles.get(tensor.data_ptr(), -1) for tensor in step.tensors], step.compiled.kernel

        def run(tensors, _at, _stream):
            them = [old if role < 0 else tensors[role] for role, old in zip(roles, step.tensors, strict=True)]
            kernel[step.grid](*them, *step.numbers)

        return run

    from laplex._triton.gram import matrix as triton_gram
    from laplex._triton.gram import sums as triton_gram_sums
    from laplex._triton.scan import turn as triton_turn
    from laplex._triton.short import launch as triton_long

    for module in (
        triton_scan,
        triton_plan,
        triton_count,
        triton_turn,
        triton_long,
        triton_tau,
        triton_gram_sums,
        triton_gram,
    ):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(Repeat, "_launch", launch_again)
    monkeypatch.setattr(Repeat, "wants_tensors", staticmethod(lambda record: True))  # as the interpreter does
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)


@pytest.fixture
def operators(monkeypatch):
    """What is kept of the operators on the GPU from here on; ``used`` counts."""
    repeats, again = Repeats(), Repeat.again

    def counted(self, inputs, at):
        repeats.used += 1
        return again(self, inputs, at)

    repeats.used = 0
    monkeypatch.setattr(Repeat, "again", counted)
    monkeypatch.setattr(_ops, "repeats", repeats)
    return repeats
