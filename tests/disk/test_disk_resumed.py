"""Products that are ended at any moment go on from there, and have the bits of one that was not."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from disk_cases import MEMORY, STRATEGIES, TAU, arguments

import laplex
from laplex.disk import _files, _linear, _output, _workspace

pytestmark = pytest.mark.usefixtures("one_thread", "quick_disk")
NAMES = ("x", "a", "b", "phi", "psi")
FILES = {f"{name}.bin" for name in (*NAMES, "y", "labels", "sums", "row_counts", "column_counts")}
FSYNC = os.fsync  # that of the system, which quick_disk replaces


class Interruption(BaseException):
    """As Ctrl-C, but no other handler knows it."""


def given_for(strategy, kind="one value and more"):
    sizes = (500, 400) if strategy == "buckets" else STRATEGIES[strategy]
    return dict(zip(NAMES, arguments(*sizes, kind, m=2, phases=True), strict=True))


@pytest.fixture
def multiply(tmp_path):
    def product(given, name="y.npy", **options):
        options = {"memory": MEMORY // 2, "progress": lambda done, total: None} | options
        return laplex.disk.linear(**given, tau=TAU, out=tmp_path / name, **options)

    return product


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_interrupted_after_every_item(multiply, tmp_path, strategy):
    given, items = given_for(strategy), []

    def note(done, total):
        items.append((done, total))
        raise Interruption

    for _ in range(1000):
        try:
            y = multiply(given, progress=note)
            break
        except Interruption:
            assert not (tmp_path / "y.npy").exists(), "no file is there before it is complete"
    assert len(items) >= 4
    assert items == [(done, len(items)) for done in range(1, len(items) + 1)], "no item is repeated"
    assert np.array_equal(y, multiply(given, "z.npy"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y.npy", "z.npy"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_interrupted_within_writes(multiply, monkeypatch, strategy):
    """The first, second, ... seventh write of a run ends half way, with nonsense beyond; then the next run begins."""
    given, write = given_for(strategy), _files.write_from
    want = np.array(multiply(given, "z.npy"))
    ends = itertools.cycle(range(1, 8))
    left = [0]

    def torn(file, values, offset):
        left[0] -= 1
        if left[0] > 0:
            write(file, values, offset)
            return
        nonsense = np.full(values.size, 7, values.dtype)
        nonsense[: values.size // 2] = values.reshape(-1)[: values.size // 2]
        write(file, nonsense, offset)
        raise Interruption

    for module in (_files, _output):
        monkeypatch.setattr(module, "write_from", torn)
    for _ in range(1000):
        left[0] = next(ends)
        try:
            y = multiply(given)
            break
        except Interruption:
            continue
    assert np.array_equal(y, want)


def test_interrupted_at_the_very_end(multiply, tmp_path, monkeypatch):
    """Between the last number and the new name, and between the name and the end of the workspace."""
    given = given_for("buckets")
    want = np.array(multiply(given, "z.npy"))
    for owner, name in ((_linear.Output, "finish"), (_workspace.Workspace, "remove")):
        with monkeypatch.context() as patched:

            def stop(self, *others):
                raise Interruption

            patched.setattr(owner, name, stop)
            with pytest.raises(Interruption):
                multiply(given)
    assert (tmp_path / "y.npy").exists()
    assert (tmp_path / "y.npy.work").exists()
    assert np.array_equal(multiply(given), want)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y.npy", "z.npy"]


def interrupted(multiply, given, after=3, **options):
    def stop(done, total):
        if done == after:
            raise Interruption

    with pytest.raises(Interruption):
        multiply(given, progress=stop, **options)


def test_a_workspace_of_another_product_is_refused(multiply):
    given = given_for("buckets")
    interrupted(multiply, given)
    changed = given["a"].copy()
    changed[-1] += 1
    for change, names in (
        ({"a": changed}, "digest of a"),
        ({"a": given["a"][:-1], "phi": given["phi"][:-1]}, "shape of a, digest of a, shape of phi, digest of phi"),
        ({"x": given["x"].astype(float)}, "dtype of x, digest of x"),
        ({"phi": None, "psi": None}, "phi, psi"),
    ):
        with pytest.raises(ValueError, match=f"is that of another product: {names} differs?; give another folder, or"):
            multiply(given | change)
    with pytest.raises(ValueError, match="is that of another product: memory differs;"):
        multiply(given, memory=MEMORY)
    multiply(given)


def test_one_changed_number_in_memory_makes_another_product(multiply):
    """Memory has no time of writing, so all of it is compared."""
    given = dict(zip(("x", "a", "b"), arguments(7, 40_000, m=2), strict=False))
    interrupted(multiply, given)
    for name, place in (("x", (1, 1500)), ("b", 1500)):
        changed = given[name].copy()
        changed[place] += 1
        with pytest.raises(ValueError, match=f"is that of another product: digest of {name} differs;"):
            multiply(given | {name: changed})
    strided = {name: np.stack([value, value], -1)[..., 0] for name, value in given.items()}
    multiply(strided)


def test_a_file_that_was_written_since_is_another(multiply, tmp_path):
    given = given_for("buckets")
    np.save(tmp_path / "a.npy", given["a"])
    interrupted(multiply, given | {"a": tmp_path / "a.npy"})
    os.utime(tmp_path / "a.npy", ns=(5, 5))
    with pytest.raises(ValueError, match="another product: file time of a differs;"):
        multiply(given | {"a": tmp_path / "a.npy"})


def shared_tensor(path, array):
    array.tofile(path)
    return torch.from_file(str(path), shared=True, size=array.size, dtype=torch.float32).view(array.shape)


def writes_through_maps_are_timed(folder):
    """Whether the system notes when synced pages of a map are written again: on disks, but not in memory (tmpfs)."""
    tensor, times = shared_tensor(folder / "timed", np.zeros(4, np.float32)), []
    for number in (1.0, 2.0):
        tensor[0] = number
        with (folder / "timed").open("rb") as file:
            FSYNC(file.fileno())
            times.append(os.fstat(file.fileno()).st_mtime_ns)
        time.sleep(0.05)
    (folder / "timed").unlink()
    return times[0] < times[1]


def test_a_number_written_through_a_shared_tensor_makes_another_product(multiply, tmp_path, monkeypatch):
    """Also where its page had been written to before, and the disk did not have it yet when the product began."""
    if not writes_through_maps_are_timed(tmp_path):
        pytest.skip("this file system does not note when pages of a map are written")
    monkeypatch.setattr(os, "fsync", FSYNC)
    given = dict(zip(("x", "a", "b"), arguments(7, 40_000, m=2), strict=False))
    x = shared_tensor(tmp_path / "x", given["x"])
    x[0, 0], x[1, 1500] = 1.0, 2.0
    interrupted(multiply, given | {"x": x})
    time.sleep(0.05)  # more than the clock of files resolves
    x[1, 1500] = 3.0  # none of the numbers that are compared
    with pytest.raises(ValueError, match="another product: file time of x differs;"):
        multiply(given | {"x": x})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut"])
def test_a_damaged_workspace_is_refused(multiply, tmp_path, strategy, damage):
    """Whatever file is damaged after whatever item: the call is refused, or its result is right all the same."""
    given, items, refused = given_for(strategy), [], set()
    want = np.array(multiply(given, "z.npy", progress=lambda done, total: items.append(done)))
    for done in items[:-1]:
        names = [None]
        while names:
            interrupted(multiply, given, after=done)
            files = sorted((tmp_path / "y.npy.work").glob("*.bin"))
            names = [path.name for path in files] if names == [None] else names
            if not names:
                break
            path = tmp_path / "y.npy.work" / names.pop()
            path.write_bytes(b"" if damage == "emptied" else path.read_bytes()[: path.stat().st_size // 2])
            if damage == "deleted":
                path.unlink()
            text = "is missing" if damage == "deleted" else "has .* bytes and should have at least .*"
            try:
                assert np.array_equal(multiply(given), want), (done, path.name)
            except ValueError as error:
                assert re.search(f"workspace.* is damaged: {path.name} {text}; delete the folder", str(error))  # noqa: PT017
                refused.add(path.name)
            shutil.rmtree(tmp_path / "y.npy.work", ignore_errors=True)
            (tmp_path / "y.npy").unlink(missing_ok=True)
    expected = {"by rows": set(), "by columns": {"sums.bin"}, "buckets": FILES}
    assert refused == expected[strategy]


def test_an_unfinished_result_that_is_gone(multiply, tmp_path):
    given = given_for("by rows")
    interrupted(multiply, given)
    (unfinished,) = tmp_path.glob(".y.npy.*.unfinished")
    unfinished.unlink()
    with pytest.raises(ValueError, match=r"the unfinished result .* is missing or was changed; delete the workspace"):
        multiply(given)


def test_a_manifest_that_was_half_written(multiply, tmp_path):
    (tmp_path / "y.npy.work").mkdir()
    (tmp_path / "y.npy.work" / ".manifest.json.123.tmp").write_text('{"format"')
    multiply(given_for("buckets"))
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments():
    """In a process without threads, which forks the products that it kills."""
    command = [sys.executable, Path(__file__).with_name("killed.py"), "5", "quick"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("killed 5 times")


MEASURE = """
import sys, numpy, torch, laplex

def resident(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) << 10

torch.set_num_threads(2)
laplex.linear(*torch.randn(3, 100_000))
before = resident("VmRSS:")
open("/proc/self/clear_refs", "w").write("5")  # the highest value so far is forgotten
arguments = (numpy.load(f"{sys.argv[1]}/{name}.npy", mmap_mode="r") for name in "xab")
laplex.disk.linear(*arguments, 0.3, out=sys.argv[1] + "/y.npy", memory=int(sys.argv[2]), progress=lambda *_: None)
print(resident("VmHWM:") - before)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
def test_the_memory_is_what_was_allowed(tmp_path):
    """Twelve million points are 72 MB of memory-mapped arguments, and would be half a gigabyte in one product."""
    for seed, name in enumerate("xab"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(seed).standard_normal(6_000_000, np.float32))
    memory = 100 << 20
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(memory)]
    taken = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert taken < memory
