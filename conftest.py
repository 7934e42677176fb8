"""Seeds, poisoned memory, the backend and dtype fixtures, and `--error-for-skips`."""

import collections
import ctypes
import functools
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported: without a GPU, on the CPU

import made_pictures
from laplex import _backends, _compiled, _route

if _backends.interpreted() and not _backends.NO_TRITON:
    import interpreter

    interpreter.speed_up()

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
torch.set_num_threads(max(1, torch.get_num_threads() // WORKERS))  # two processes with two threads each wait for cores

pytest.register_assert_rewrite("helpers")  # so that a failure there shows its numbers
LONGEST = ("test_triton_compiles", "test_triton_operators", "test_solve_modes", "test_compile")  # of a single test
NOT_POISONED = ("laplex.cli",)


def pytest_addoption(parser):
    parser.addoption("--error-for-skips", action="store_true", help="a skipped test is a failure (for CI)")
    parser.addoption("--part", default="1/1", metavar="I/N", help="run every N-th test, from the I-th on")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """`-n auto` is one process where there is a GPU: some of its tests want all of its memory."""
    return 0 if torch.cuda.is_available() else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items):
    """Tests marked `gpu` are not there without one; `-m gpu` runs them alone. What takes longest begins first.

    What uses the browser is marked so, and runs by `-m browser` only.
    """
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("browser")
    if not torch.cuda.is_available():
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    first, step = map(int, config.getoption("--part").split("/"))
    items[:] = items[first - 1 :: step]


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


@pytest.fixture(autouse=True)
def routes():
    """A test that changes what backends can do finds no route of a test before it."""
    _route.forget()


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
        tensor = allocate(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("laplex") and not caller.startswith(NOT_POISONED):
            with _disable_current_modes():  # a recording would take note of it
                tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min)
        return tensor

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
    if backend == "cpp" and _compiled.MISSING:
        pytest.fail(f"the tests need the compiled core (only test_imports does without): {_compiled.MISSING}")


@pytest.fixture
def tiles(monkeypatch):
    """Tiles of Triton's programs so small that few points cross many; call it for others: points and rows of x of a
    tile, how many tiles are carried at once by a launch of their own (0: each carries for itself), whether x is put
    into the merged order on the way, whether it is copied with adjacent rows, and how many blocks a tile has, if any.
    """
    from laplex._triton import tuning
    from laplex._triton.scan import block, schedule

    def set_tiles(points, rows=1, carried=0, staged=False, adjacent=False, blocks=0):
        schedule.schedule.cache_clear()
        block.block_schedule.cache_clear()
        monkeypatch.setattr(block, "block_tiling", lambda *sizes: (points * blocks, points, 16, rows))
        monkeypatch.setattr(tuning, "BLOCKS_FROM", 0 if blocks else 1 << 60)
        monkeypatch.setattr(tuning, "ROWS_OF_BLOCKS", 1)
        monkeypatch.setattr(tuning, "LINES_FROM", 0 if adjacent else 1 << 60)
        monkeypatch.setattr(schedule, "tiling", lambda *sizes: (points, rows, max(1, points // 512)))
        monkeypatch.setattr(tuning, "CARRIED_BY_TILES", 0 if carried else 1024)
        monkeypatch.setattr(tuning, "CARRIED_AT_ONCE", carried or 1024)
        monkeypatch.setattr(tuning, "SPANS_TOGETHER", 2 if carried else 1 << 40)
        monkeypatch.setattr(tuning, "GATHERED_TWICE", -1 if staged else 1 << 40)
        monkeypatch.setattr(tuning, "ADJACENT_FROM", 0 if adjacent else 1 << 40)

    set_tiles(32)
    small = {
        "PROGRAMS_WANTED": 0,  # tiles without a target are skipped
        "DISTANCE_TILE": 32,
        "DISTANCE_CARRIED": 2,
        "MERGE_TILE": 64,
        "COUNTED_PAIRS": 64**2,  # so that some points are counted in runs,
        "COUNTED_IN_RUNS": 128,  # and some sorted
        "RUN": 32,
        "RANK_TILE": (32, 16, 8),
        "RUN_TILE": (32, 16, 8),
        "JOIN_TILE": (16, 1),
    }
    for name, value in small.items():
        monkeypatch.setattr(tuning, name, value)
    yield set_tiles
    schedule.schedule.cache_clear()
    block.block_schedule.cache_clear()


@pytest.fixture
def replayed(monkeypatch):
    """Replays run their launches under the interpreter, on the tensors they would have the addresses of."""
    from laplex._triton import launch as launches
    from laplex._triton.repetition import Replay

    def launch(program, grid, tensors, sizes, flags, warps):
        with _disable_current_modes():  # the interpreter itself calls torch
            launches.launch(program, grid, tensors, sizes, flags, warps)
        recorder = launches.state.recorder
        if recorder is not None and not recorder.paused:
            recorder.steps[-1] = recorder.steps[-1]._replace(compiled=SimpleNamespace(program=program))

    def launch_again(self, step):
        roles, program = [self._role(tensor) for tensor in step.tensors], step.compiled.program

        def run(_tensors, addresses, _stream):
            operands = [tensor_at(addresses[role], old) for role, old in zip(roles, step.tensors, strict=True)]
            program[step.grid](*operands, *step.numbers)

        return run

    for name in LAUNCHING:
        monkeypatch.setattr(f"laplex._triton.{name}.launch", launch)
    monkeypatch.setattr(Replay, "_launch", launch_again)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)


def tensor_at(address, like):
    """The numbers at an address, as a tensor of the form of another."""
    if like.numel() == 0:
        return like
    last = sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    memory = (ctypes.c_byte * ((last + 1) * like.itemsize)).from_address(address)
    return torch.from_numpy(np.frombuffer(memory, np.uint8)).view(like.dtype).as_strided(like.shape, like.stride())


LAUNCHING = (  # modules of the GPU wing that launch programs
    "order.launch", "scan.launch", "scan.adjacent", "scan.steps", "scan.dense", "short.launch", "distance.launch",
    "formed.launch", "formed.multiply", "layer.formed", "layer.scanned", "gram.launch", "phase.stacks",
    "phase.spread", "phase.collect", "soft.launch", "states.launch", "states.carry",
)  # fmt: skip


@pytest.fixture
def operators(monkeypatch):
    """What is kept of the GPU's operators from here on; ``used`` counts replays."""
    from laplex._triton import replay
    from laplex._triton.repetition import Replay

    replays, again = replay.Replays(), Replay.__call__

    def counted(self, inputs, addresses):
        replays.used += 1
        return again(self, inputs, addresses)

    replays.used = 0
    monkeypatch.setattr(Replay, "__call__", counted)
    monkeypatch.setattr(replay, "operators", replays)
    return replays


# --- for layers and experiments ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_thread():
    """Threads wait for one another in matrices as small as those of tests, for seconds if the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- commands of densities --------------------------------------------------------------------------------------------


@pytest.fixture
def laplex(monkeypatch, capsys):
    """The command `laplex` as a function of its arguments."""
    return made_pictures.commands(monkeypatch, capsys)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of fifty small images."""
    return made_pictures.write(tmp_path_factory.mktemp("data") / "images.npy", 50)


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    """The folder of a fit by both stages that nothing interrupted."""
    import made_fits

    return made_fits.fit_both(data, tmp_path_factory.mktemp("uninterrupted") / "fit")


@pytest.fixture
def undrawn(monkeypatch):
    """The pictures of a fit as empty files: to draw them takes longer than the fit."""
    from laplex.cli import fit_plots
    from laplex.density import pictures

    for owner, names in ((pictures, ["grid"]), (fit_plots, ["places", "spectrum", "likelihoods"])):
        for name in names:
            monkeypatch.setattr(owner, name, lambda path, *_, **options: path.write_bytes(b""))


# --- the page of `python -m paper report` ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A real browser; tests are skipped where there is none."""
    import chromium

    with chromium.started(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser, path):
    """The page that the test file writes to ``path``, opened; at the end nothing may have been complained about."""
    browser.complaints()
    browser.show(path)
    yield browser
    assert browser.complaints() == []
