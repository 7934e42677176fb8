"""Kills and full disks between a result and the manifest, and more calls than one: no wrong result, ever."""

import errno
import json
import re
import shutil
from io import FileIO
from types import SimpleNamespace

import numpy as np
import pytest
from disk_cases import MEMORY, STRATEGIES, TAU, arguments, largest_error, truth

import laplex
from laplex._writing import locked
from laplex.disk import _borders, _files, _linear, _workspace

pytestmark = pytest.mark.usefixtures("one_thread", "quick_disk")


class Kill(BaseException):
    """As Ctrl-C, but no other handler knows it."""


@pytest.fixture
def multiply(tmp_path):
    def product(given, name="y.npy", **options):
        options = {"tau": TAU, "memory": MEMORY // 2, "progress": lambda done, total: None} | options
        return laplex.disk.linear(**given, out=tmp_path / name, **options)

    return product


def given_for(strategy):
    sizes = (500, 400) if strategy == "buckets" else STRATEGIES[strategy]
    return dict(zip(("x", "a", "b"), arguments(*sizes, m=2), strict=False))


def test_a_full_disk_when_numbers_are_written(multiply, monkeypatch):
    """The error names the file and says what to do, and has the number that programs ask for."""
    given = given_for("buckets")
    want = np.array(multiply(given, "z.npy"))

    class Full(FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(_files, "FileIO", Full)
        with pytest.raises(OSError, match=r"\.bin cannot be written \(No space left on device\); .* repeat") as caught:
            multiply(given)
    assert caught.value.errno == errno.ENOSPC
    assert np.array_equal(multiply(given), want)


SUMMED = ("buckets", "by columns")  # the strategies that have a running sum


@pytest.mark.parametrize("strategy", SUMMED)
@pytest.mark.parametrize("item", [1, 2, 3])
def test_a_full_disk_when_the_manifest_is_saved(multiply, monkeypatch, strategy, item):
    given = given_for(strategy)
    want = np.array(multiply(given, "z.npy"))
    write = _workspace.write_whole

    def full(path, text):
        state = json.loads(text)
        if (state["step"], state["done"]) == ("columns", item):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(_workspace, "write_whole", full)
        with pytest.raises(OSError, match=r"manifest.json cannot be written \(No space left .* repeat") as caught:
            multiply(given)
    assert caught.value.errno == errno.ENOSPC
    assert np.array_equal(multiply(given), want)


@pytest.mark.parametrize("strategy", SUMMED)
@pytest.mark.parametrize("item", [1, 2, 3])
def test_a_kill_before_the_manifest_is_saved(multiply, monkeypatch, strategy, item):
    """The sums of the next item are written, and the manifest, which waits for the disk, does not yet know the last."""
    given = given_for(strategy)
    want = np.array(multiply(given, "z.npy"))
    save, write, sums = _workspace.Workspace._save, _workspace.Scratch.write, []

    def lost(self, text, files):
        state = json.loads(text)
        if (state["step"], state["done"]) != ("columns", item):
            save(self, text, files)

    def killed(self, values, place):
        write(self, values, place)
        if self.path.name == "sums.bin":
            sums.append(place)
            if len(sums) == item + 1:
                raise Kill

    with monkeypatch.context() as patched:
        patched.setattr(_workspace.Workspace, "_save", lost)
        patched.setattr(_workspace.Scratch, "write", killed)
        with pytest.raises(Kill):
            multiply(given)
    assert np.array_equal(multiply(given), want)


# --- more calls than one ----------------------------------------------------------------------------------------------


def interrupted(multiply, given, step, **options):
    """Raise when the first item of a step is complete."""
    begun = []

    def stop(done, total):
        begun.append(done)
        if len(begun) > step:
            raise Kill

    with pytest.raises(Kill):
        multiply(given, progress=stop, **options)


def test_two_products_with_one_name(multiply, tmp_path):
    """Each has a workspace; the result of one has nothing of the other."""
    given = given_for("by rows")
    other = given | {"x": given["x"] + 1}
    want = np.array(multiply(given, "z.npy"))
    interrupted(multiply, given, 2, workspace=tmp_path / "first")
    interrupted(multiply, other, 1, workspace=tmp_path / "second")
    assert np.array_equal(multiply(given, workspace=tmp_path / "first"), want)
    assert not np.array_equal(multiply(other, workspace=tmp_path / "second"), want)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y.npy", "z.npy"]


def test_one_product_twice_at_a_time(multiply, tmp_path):
    given = given_for("by rows")

    def again(done, total):
        with pytest.raises(ValueError, match=r"`out` .*y.npy is being written by another process; wait for it, or"):
            multiply(given, workspace=tmp_path / "second")

    want = np.array(multiply(given, "z.npy"))
    assert np.array_equal(multiply(given, workspace=tmp_path / "first", progress=again), want)
    assert np.array_equal(multiply(given, workspace=tmp_path / "second"), want)


def killed_before_the_workspace_is_removed(multiply, monkeypatch, given):
    def kill(self):
        raise Kill

    with monkeypatch.context() as patched:
        patched.setattr(_workspace.Workspace, "remove", kill)
        with pytest.raises(Kill):
            multiply(given)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", ["deleted", "replaced", "copied"])
def test_a_complete_result_that_is_gone_is_computed_again(multiply, monkeypatch, tmp_path, strategy, change):
    given, path = given_for(strategy), tmp_path / "y.npy"
    killed_before_the_workspace_is_removed(multiply, monkeypatch, given)
    want = np.load(path)
    if change == "deleted":
        path.unlink()
    elif change == "replaced":
        multiply(given | {"x": given["x"] + 1}, workspace=tmp_path / "other")
    else:
        path.unlink()
        np.save(path, want + 1)
    assert np.array_equal(multiply(given), want)
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


def test_a_complete_result_is_not_computed_again(multiply, monkeypatch, tmp_path):
    given = given_for("by rows")
    killed_before_the_workspace_is_removed(multiply, monkeypatch, given)
    done = []
    multiply(given, progress=lambda *each: done.append(each))
    assert done == []
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


# --- in the last step -------------------------------------------------------------------------------------------------


def test_starting_over_says_what_is_left(multiply, tmp_path):
    """The unfinished result of another product is named with the folder that is to be deleted."""
    given, work = given_for("by rows"), tmp_path / "y.npy.work"
    interrupted(multiply, given, 2)
    (unfinished,) = tmp_path.glob(".y.npy.*.unfinished")
    deleted = re.escape(f"delete it, and {unfinished}, to start over")
    with pytest.raises(ValueError, match=f"another product: tau differs; give another folder, or {deleted}$"):
        multiply(given, tau=2 * TAU)
    state = json.loads((work / "manifest.json").read_text())
    (work / "manifest.json").write_text(json.dumps(state | {"format": 1}))
    with pytest.raises(ValueError, match=f"another product: the version of laplex differs; .*{deleted}$"):
        multiply(given)


def test_the_last_step_asks_for_no_room_of_earlier_ones(multiply, monkeypatch, tmp_path):
    given, total = dict(zip(("x", "a", "b"), arguments(*STRATEGIES["buckets"]), strict=False)), []
    want = np.array(multiply(given, "z.npy", progress=lambda done, items: total.append(items)))
    interrupted(multiply, given, total[0] - 2)
    assert json.loads((tmp_path / "y.npy.work" / "manifest.json").read_text())["step"] == "output"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=want.nbytes + 128))
    assert np.array_equal(multiply(given), want)


# --- buckets ----------------------------------------------------------------------------------------------------------


def test_more_buckets_than_labels_of_a_byte_have(multiply, monkeypatch):
    """The sample gave few borders, and there are too many anchors between them."""
    monkeypatch.setattr(_linear._streams, "fits", lambda problem: None)
    given = dict(zip(("x", "a", "b"), arguments(12000, 100), strict=False))
    monkeypatch.setattr(
        _borders, "sample", lambda side, *others: _borders.Sample(np.arange(5, dtype=side.dtype), side.size)
    )
    kinds, labels = [], _borders.Borders.labels
    monkeypatch.setattr(
        _borders.Borders, "labels", lambda self, *all: kinds.append(self.label_dtype) or labels(self, *all)
    )
    assert largest_error(multiply(given, memory=7500), tuple(given[name] for name in ("x", "a", "b"))) < 5e-7
    assert set(kinds) == {np.dtype(np.uint8), np.dtype(np.uint16)}


def test_a_file_that_ends_too_early(tmp_path):
    file = _files.Scratch(tmp_path / "y.bin", np.float32)
    with pytest.raises(OSError, match=r"^laplex.disk.linear: /.*y.bin ends at byte 0, where numbers were expected"):
        file.read(np.zeros(3, np.float32), 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("phases", [False, True])
def test_more_of_the_largest_number_than_fit_into_memory(multiply, dtype, sign, phases):
    """No number is beyond it, so its bucket is the last one, which has no border on the right."""
    x, a, b, phi, psi = arguments(1200, 1200, m=2, phases=phases, dtype=dtype)
    largest = sign * np.finfo(dtype).max
    a[:500], b[200:800] = largest, largest
    tau = float(np.finfo(dtype).max) / 2
    given = (x, a, b, phi, psi)
    y = multiply(dict(zip(("x", "a", "b", "phi", "psi"), given, strict=True)), tau=tau)
    want, sizes = truth(*given, tau=tau)
    assert (abs(y - want) / sizes).max() < (5e-7 if dtype is np.float32 else 5e-15)


# --- names of files ---------------------------------------------------------------------------------------------------


def test_a_link_is_written_through(multiply, tmp_path):
    given = given_for("by rows")
    (tmp_path / "far").mkdir()
    (tmp_path / "y.npy").symlink_to(tmp_path / "far" / "result.npy")
    y = multiply(given)
    assert (tmp_path / "y.npy").is_symlink()
    assert np.array_equal(np.load(tmp_path / "far" / "result.npy"), y)
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["result.npy"]


def test_a_workspace_that_cannot_be_deleted(multiply, tmp_path):
    """A link, or one with files of others: the result is complete, and theirs is left alone."""
    given, folder = given_for("by rows"), tmp_path / "real"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    want = np.array(multiply(given, workspace=tmp_path / "link"))
    assert list(folder.iterdir()) == []

    def intrude(done, total):
        (folder / "letter.txt").touch()

    assert np.array_equal(multiply(given, workspace=folder, progress=intrude), want)
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]


def test_another_spelling_of_a_path_is_the_same(multiply, tmp_path):
    given, total = given_for("by rows"), []
    multiply(given, progress=lambda done, items: total.append(items))
    (tmp_path / "sub").mkdir()
    interrupted(multiply, given, 2)
    left = []
    multiply(given, "sub/../y.npy", progress=lambda done, total: left.append(total - done))
    assert left == list(range(total[0] - 4, -1, -1)), "three items were complete"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sub", "y.npy"]


def test_the_folder_is_locked_until_it_is_gone(multiply, monkeypatch, tmp_path):
    locks, rmdir = [], _workspace.Path.rmdir

    def look(folder):
        with pytest.raises(BlockingIOError):
            locked(folder, wait=False)
        locks.append(folder.name)
        rmdir(folder)

    monkeypatch.setattr(_workspace.Path, "rmdir", look)
    multiply(given_for("by rows"))
    assert locks == ["y.npy.work"]
