"""Arguments of products on disk: from where they may come, and what is refused."""

import json
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from disk_cases import MEMORY, TAU, arguments

import laplex
from laplex import _writing
from laplex.disk import _arrays, _workspace
from laplex.disk._arrays import stored

pytestmark = pytest.mark.usefixtures("one_thread", "quick_disk")
N, K = 800, 700


def quiet(done, total):
    pass


@pytest.fixture
def given():
    return dict(zip(("x", "a", "b"), arguments(N, K, m=2), strict=False))


def safetensors(path, tensors):
    """A file as the format describes it."""
    header, place = {"__metadata__": {"by": "a test"}}, 0
    for name, array in tensors.items():
        kind = {"float32": "F32", "float64": "F64", "float16": "F16"}[array.dtype.name]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values()))


def as_path(folder, name, array):
    np.save(folder / f"{name}.npy", array)
    return folder / f"{name}.npy"


def as_map(folder, name, array):
    return np.load(as_path(folder, name, array), mmap_mode="r")


def as_part_of_a_map(folder, name, array):
    wide = np.zeros((len(np.atleast_2d(array)) + 3, array.shape[-1]), array.dtype)
    wide[2:-1] = array
    part = as_map(folder, name, wide)[2:-1]
    return part if array.ndim > 1 else part[0]


def as_tensor_of_a_file(folder, name, array):
    np.concatenate([np.zeros(5, array.dtype), array.reshape(-1)]).tofile(folder / name)
    flat = torch.from_file(str(folder / name), shared=True, size=array.size + 5, dtype=torch.float32)
    return flat[5:].view(array.shape)


def as_safetensors(folder, name, array):
    safetensors(folder / f"{name}.safetensors", {"before": np.ones(3, np.float16), name: array})
    return folder / f"{name}.safetensors", name


FILES = (as_path, as_map, as_part_of_a_map, as_tensor_of_a_file, as_safetensors)
IN_MEMORY = {
    "array": lambda array: array,
    "strided": lambda array: np.stack([array, array], -1)[..., 0],
    "tensor": torch.from_numpy,
    "leaf": lambda array: torch.from_numpy(array).requires_grad_(),
}


@pytest.mark.parametrize("source", FILES)
def test_files_are_read_from_their_place(tmp_path, given, source):
    for name, array in given.items():
        side = stored(name, source(tmp_path, name, array))
        assert side.region is not None, "pages of a map would count as memory"
        assert side.shape == array.shape
        assert np.array_equal(side.read(100, 300, ahead=100), np.atleast_2d(array)[:, 100:300])
        side.close()


@pytest.mark.parametrize("source", FILES)
def test_files_give_the_same_bits(tmp_path, given, source):
    want = laplex.disk.linear(**given, tau=TAU, out=tmp_path / "y.npy", memory=MEMORY, progress=quiet)
    files = {name: source(tmp_path, name, array) for name, array in given.items()}
    y = laplex.disk.linear(**files, tau=TAU, out=tmp_path / "z.npy", memory=MEMORY, progress=quiet)
    assert isinstance(y, np.memmap)
    assert np.array_equal(y, want)


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_what_is_in_memory(given, kind):
    for name, array in given.items():
        side = stored(name, IN_MEMORY[kind](array))
        assert side.region is None
        assert np.array_equal(side.read(100, 300), np.atleast_2d(array)[:, 100:300])


def test_changes_of_a_map_are_seen(tmp_path, given):
    for mode, region in (("r+", True), ("c", False)):
        changed = np.load(as_path(tmp_path, "b", given["b"]), mmap_mode=mode)
        changed[5] = 3.5
        side = stored("b", changed)
        assert (side.region is not None) == region
        assert side.read(5, 6)[0, 0] == 3.5
        side.close()


def test_a_map_whose_file_was_replaced_is_read_as_it_is(tmp_path, given):
    path = as_path(tmp_path, "b", given["b"])
    array = np.load(path, mmap_mode="r")
    path.unlink()
    np.save(path, given["b"] + 1)
    side = stored("b", array)
    assert np.array_equal(side.read(0, K)[0], given["b"])


@pytest.mark.parametrize("place", [K // 2, -2])
@pytest.mark.parametrize("maps", [_arrays.MAPS, Path("none")], ids=["by its name", "by its numbers"])
def test_a_map_whose_file_was_replaced_by_a_similar_one(tmp_path, monkeypatch, given, place, maps):
    """Ends are often alike: zeros, for example."""
    monkeypatch.setattr(_arrays, "MAPS", maps)
    path = as_path(tmp_path, "b", given["b"])
    array = np.load(path, mmap_mode="r")
    path.unlink()
    other = given["b"].copy()
    other[place] += 1
    np.save(path, other)
    side = stored("b", array)
    assert np.array_equal(side.read(0, K)[0], given["b"])


def test_a_map_is_read_from_its_file_also_where_the_system_has_no_list_of_maps(tmp_path, monkeypatch, given):
    monkeypatch.setattr(_arrays, "MAPS", Path("none"))
    side = stored("b", as_map(tmp_path, "b", given["b"]))
    assert side.region is not None
    side.close()


def test_the_imaginary_part_of_a_conjugate_is_an_argument(tmp_path, given):
    """torch stores it as it was, with a note that its sign is to be changed."""
    x = torch.complex(torch.zeros(2, K), -torch.from_numpy(given["x"])).conj().imag
    assert x.is_neg()
    want = laplex.disk.linear(**given, tau=TAU, out=tmp_path / "y.npy", progress=quiet)
    assert np.array_equal(laplex.disk.linear(**given | {"x": x}, tau=TAU, out=tmp_path / "z.npy", progress=quiet), want)


# --- errors -----------------------------------------------------------------------------------------------------------

SHAPE, KIND = ValueError, TypeError
WRONG = {
    "nothing": (KIND, {"a": [1.0]}, r"`a` must be the path of a .npy file, .* got list"),
    "no file": (
        SHAPE,
        {"a": "none.npy"},
        r"`a` must be a .npy file, got none.npy, which cannot be read \(No such file",
    ),
    "half": (KIND, {"x": torch.ones(K).half()}, r"`x` must be float32 or float64, got torch.float16; call .float\(\)"),
    "whole numbers": (KIND, {"b": np.arange(K)}, r"`b` must be float32 or float64 of this machine's .*, got int64"),
    "mask": (KIND, {"b": np.ma.masked_less(np.ones(K, "f4"), 0)}, r"`b` must not have a mask; use b.filled\(\)"),
    "byte order": (
        KIND,
        {"b": np.zeros(K, ">f4")},
        r"`b` must be float32 or float64 of this machine's byte order, got >f4",
    ),
    "device": (KIND, {"b": torch.ones(K, device="meta")}, r"`b` must be a dense tensor on the CPU, got .* on meta"),
    "scalar": (SHAPE, {"a": np.ones((), "f4")}, r"`a` must have at least one dimension, got a scalar"),
    "batch": (
        SHAPE,
        {"a": np.ones((2, 3), "f4")},
        r"`a` must have one dimension, got shape \(2, 3\); call once for each",
    ),
    "dtypes": (KIND, {"a": np.ones(3)}, r"`a` and `b` must have one dtype, got float64 and float32; cast"),
    "x": (
        SHAPE,
        {"x": np.ones(3, "f4")},
        r"`x` must have size k = 700 in its last dimension to match `b`, got shape \(3,\)",
    ),
    "strides": (SHAPE, {"x": np.ones((K, 2, 2), "f4").T}, r"`x` with more than two dimensions must be contiguous"),
    "one phase": (
        SHAPE,
        {"phi": np.ones(N, "f4")},
        r"`phi` and `psi` go together, got `phi` without `psi`; pass zeros",
    ),
    "phases": (
        SHAPE,
        {"phi": np.ones(3, "f4"), "psi": np.ones(K, "f4")},
        r"`phi` must have the shape of `a`, \(800,\), got \(3,\)",
    ),
    "tau": (SHAPE, {"tau": 0.0}, r"`tau` must be positive and finite, got 0.0"),
    "huge tau": (SHAPE, {"tau": 10**400}, r"`tau` must be positive and finite, got inf"),
    "tensor tau": (KIND, {"tau": torch.ones(())}, r"`tau` must be a positive number, got Tensor"),
    "memory": (SHAPE, {"memory": 1000}, r"`memory` must be at least \d+ bytes for 2 rows of x, got 1000"),
    "kind of memory": (KIND, {"memory": "1G"}, r"`memory` must be a whole number of bytes, got '1G'; use one"),
    "name of out": (SHAPE, {"out": "y.bin"}, r"`out` must be the path of a .npy file, got 'y.bin'"),
    "out is a folder": (
        SHAPE,
        {"out": "folder.npy"},
        r"`out` must be a file, got the folder .*folder.npy; give another",
    ),
    "out is nothing": (SHAPE, {"out": None}, r"`out` must be the path of a .npy file, got None"),
    "kind of workspace": (KIND, {"workspace": 3}, r"`workspace` must be the path of a folder, got int"),
    "workspace is a file": (
        SHAPE,
        {"workspace": "file.txt"},
        r"`workspace` must be a folder, got the file file.txt; give another path",
    ),
    "workspace within a file": (
        SHAPE,
        {"workspace": "file.txt/here"},
        r"`workspace` file.txt/here cannot be made \(Not a directory\); give another path",
    ),
    "progress": (KIND, {"progress": 3}, r"`progress` must be a function of \(done, total\) or None, got int"),
    "folder of out": (SHAPE, {"out": "no/y.npy"}, r"`out` must be in a folder that exists, got .*no/y.npy; make .*no"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(tmp_path, monkeypatch, given, case):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "file.txt").touch()
    kind, change, message = WRONG[case]
    with pytest.raises(kind, match=f"^laplex.disk.linear: {message}"):
        laplex.disk.linear(**({"out": "y.npy", "memory": MEMORY, "progress": quiet} | given | change))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt", "folder.npy"]


@pytest.mark.parametrize("size", [(N, K), (N, 5), (5, K)], ids=["buckets", "by rows", "by columns"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_anchors_that_are_not_finite(tmp_path, size, name):
    """They are found where they are read, which may be late; nothing is left of it."""
    given = dict(zip(("x", "a", "b"), arguments(*size), strict=False))
    given[name][-3] = np.nan
    with pytest.raises(ValueError, match=f"^laplex.disk.linear: `{name}` must be finite, got NaN or infinity"):
        laplex.disk.linear(**given, out=tmp_path / "y.npy", memory=MEMORY, progress=quiet)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_what_they_should_be(tmp_path, given):
    def refused(value, message):
        with pytest.raises((ValueError, TypeError), match=message):
            stored("a", value)

    path, text = as_path(tmp_path, "a", given["a"]), tmp_path / "text.safetensors"
    text.write_text("these are no numbers")
    refused(text, r"`a` must be a .npy file, got .*, which is not one .*; for a tensor of a safetensors file pass")
    refused((text, "a"), r"`a` must be a tensor of a .safetensors file, got .*, which is not a safetensors file")
    refused((tmp_path / "none", "a"), r"`a` must be a tensor .*, which cannot be read \(No such file")
    safetensors(text, {"b": given["b"], "c": given["b"].astype(np.float16)})
    refused((text, "a"), r"which has no tensor 'a'; it has b, c$")
    refused((text, "c"), r"`a` must be float32 or float64, got F16 in ")
    text.write_bytes(text.read_bytes()[:-2000])
    refused((text, "b"), r"which is cut short: \(700,\) of float32 do not fit into its size")
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, r"which is cut short: \(800,\) of float32")
    np.save(path, np.asfortranarray(given["x"]))
    refused(path, r"which is in Fortran order; save numpy.ascontiguousarray of it")


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": None},
        {"shape": [2.0]},
        {"shape": [-2, -2]},
        {"data_offsets": [-8, 8]},
        {"data_offsets": [0, 12]},  # numbers of the next tensor would be read
        {"data_offsets": [0, 20]},
        {"data_offsets": [0]},
        {"dtype": ["F32"]},
    ],
)
def test_a_damaged_header_of_safetensors(tmp_path, entry):
    path = tmp_path / "a.safetensors"
    text = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    with pytest.raises((ValueError, TypeError), match=r"^laplex.disk.linear: `a` must be .*(damaged|got \['F32)"):
        stored("a", (path, "a"))


@pytest.mark.parametrize("shape", ["(-4,)", "(True,)", "(4,"])
def test_a_damaged_header_of_npy(tmp_path, shape):
    path, text = tmp_path / "a.npy", f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64))
    with pytest.raises(ValueError, match=r"^laplex.disk.linear: `a` must be a .npy file, got .*(damaged|not one)"):
        stored("a", path)


def test_the_result_is_not_written_over_an_argument(tmp_path, given):
    path = as_path(tmp_path, "a", given["a"])
    with pytest.raises(ValueError, match=r"`out` must be another file than `a`, got .* for both"):
        laplex.disk.linear(given["x"], path, given["b"], out=path, progress=quiet)


@pytest.mark.parametrize("workspace", ["work", ".", "y.npy", "work/sub/.."])
def test_the_result_is_not_written_into_the_workspace(tmp_path, monkeypatch, given, workspace):
    """Which is deleted, and must not have other files when the product goes on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work" / "sub").mkdir(parents=True)
    out = "work/y.npy" if workspace.startswith("work") else "y.npy"
    with pytest.raises(ValueError, match=r"`out` must be outside of `workspace`, got .*y.npy in .*; give another"):
        laplex.disk.linear(**given, out=out, workspace=workspace, progress=quiet)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["sub", "work"]


def test_room_is_asked_for_first(tmp_path, monkeypatch, given):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"`workspace` needs 20.6 kB on the disk of .*, which has 1 kB left; make room"):
        laplex.disk.linear(**given, out=tmp_path / "y.npy", memory=MEMORY, progress=quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_workspace_of_others_is_refused(tmp_path, given):
    folder = tmp_path / "work"
    folder.mkdir()

    def refused(message, **change):
        with pytest.raises(ValueError, match=message):
            laplex.disk.linear(
                **({"out": tmp_path / "y.npy", "memory": MEMORY} | given | change), workspace=folder, progress=quiet
            )

    lock = _writing.locked(folder, wait=False)
    refused(r"`workspace` .* is in use by another process; wait for it, or give another folder")
    _workspace.os.close(lock)
    (folder / "letter.txt").write_text("dear reader")
    refused(r"`workspace` .* must be empty or a workspace, got a folder with other files")
    assert (folder / "letter.txt").exists()
    for text in ('{"name": "a web app"}', "[]", "no JSON", "\xe4", '{"format": 1}', '{"format": 3, "identity": 5}'):
        (folder / "manifest.json").write_text(text, "latin-1")
        refused(r"`workspace` .* must be empty or a workspace, got a folder with other files")
        assert (folder / "manifest.json").read_text("latin-1") == text
