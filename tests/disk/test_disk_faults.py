"""Kills and full disks between a result and the manifest, and more calls than one: no wrong result, ever."""

import errno
import json

import numpy as np
import pytest
from disk_cases import MEMORY, TAU, WAYS, arguments

import laplex
from laplex.disk import _workspace

pytestmark = pytest.mark.usefixtures("one_thread", "quick_disk")


class Kill(BaseException):
    """As Ctrl-C, but no other handler knows it."""


@pytest.fixture
def multiply(tmp_path):
    def product(given, name="y.npy", **options):
        options = {"tau": TAU, "memory": MEMORY // 2, "progress": lambda done, total: None} | options
        return laplex.disk.linear(**given, out=tmp_path / name, **options)

    return product


def given_for(way):
    sizes = (500, 400) if way == "buckets" else WAYS[way]
    return dict(zip(("x", "a", "b"), arguments(*sizes, m=2), strict=False))


SUMMED = ("buckets", "by columns")  # the ways that have a running sum


@pytest.mark.parametrize("way", SUMMED)
@pytest.mark.parametrize("item", [1, 2, 3])
def test_a_full_disk_when_the_manifest_is_saved(multiply, monkeypatch, way, item):
    given = given_for(way)
    want = np.array(multiply(given, "z.npy"))
    write = _workspace.write_whole

    def full(path, text):
        state = json.loads(text)
        if (state["step"], state["done"]) == ("columns", item):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(_workspace, "write_whole", full)
        with pytest.raises(OSError, match="No space left"):
            multiply(given)
    assert np.array_equal(multiply(given), want)


@pytest.mark.parametrize("way", SUMMED)
@pytest.mark.parametrize("item", [1, 2, 3])
def test_a_kill_before_the_manifest_is_saved(multiply, monkeypatch, way, item):
    """The sums of the next item are written, and the manifest, which waits for the disk, does not yet know the last."""
    given = given_for(way)
    want = np.array(multiply(given, "z.npy"))
    save, write, sums = _workspace.Workspace._save, _workspace.Scratch.write, []

    def lost(self, text, lasting):
        state = json.loads(text)
        if (state["step"], state["done"]) != ("columns", item):
            save(self, text, lasting)

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
