"""Products from disk are those of the dense matrix in float64, whatever the strategy, the buckets and the anchors."""

import numpy as np
import pytest
import torch
from disk_cases import KINDS, MEMORY, STRATEGIES, TAU, arguments, largest_error

import laplex
from laplex.disk import _arrays, _borders, _files, _linear, _output, _problem, _workspace
from laplex.disk._borders import Borders

TOLERANCE = {np.float32: 5e-7, np.float64: 5e-15}
pytestmark = pytest.mark.usefixtures("one_thread", "quick_disk")


@pytest.fixture
def multiply(tmp_path):
    def product(x, a, b, phi=None, psi=None, **options):
        options = {"tau": TAU, "memory": MEMORY, "progress": lambda done, total: None} | options
        y = laplex.disk.linear(x, a, b, phi=phi, psi=psi, out=tmp_path / "y.npy", **options)
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(("y", "."))] == ["y.npy"]
        return y

    return product


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "phases"), [(None, False), (None, True), (3, False), (2, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_buckets(multiply, kind, m, phases, dtype):
    given = arguments(1500, 1200, kind, m=m, phases=phases, dtype=dtype)
    y = multiply(*given)
    assert y.dtype == dtype
    assert largest_error(y, given) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "phases"), [(None, False), (2, True)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(multiply, strategy, m, phases, dtype):
    given = arguments(*STRATEGIES[strategy], m=m, phases=phases, dtype=dtype)
    assert largest_error(multiply(*given), given) < TOLERANCE[dtype]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_phases_narrower_than_x(multiply, strategy):
    x, a, b, phi, psi = arguments(*STRATEGIES[strategy], m=2, phases=True, dtype=np.float64)
    given = (x, a, b, phi.astype(np.float32), psi.astype(np.float32))
    assert largest_error(multiply(*given), given) < TOLERANCE[np.float64]


@pytest.mark.parametrize(("n", "k"), [(0, 0), (0, 3000), (3000, 0), (1, 1), (1500, 1500)])
@pytest.mark.parametrize("m", [None, 0, 2])
def test_sizes(multiply, n, k, m):
    given = arguments(n, k, m=m)
    assert largest_error(multiply(*given), given) < 5e-7


@pytest.mark.parametrize("tau", [1e-30, 1e-3, 1e9])
def test_any_tau(multiply, tau):
    x, a, b, _, _ = arguments(1500, 1200, "tied", dtype=np.float64)
    want = laplex.linear(*map(torch.from_numpy, (x, a, b)), tau).numpy()
    assert np.allclose(multiply(x, a, b, tau=tau), want, rtol=1e-13, atol=1e-11)


def test_anchors_of_any_size(multiply):
    x, a, b, _, _ = arguments(1500, 1200, dtype=np.float64)
    a, b = a * 1e307, b * 1e307
    b[:700] = a[:700]
    want = laplex.linear(*map(torch.from_numpy, (x, a, b)), 1e305).numpy()
    assert np.allclose(multiply(x, a, b, tau=1e305), want, rtol=1e-12, atol=1e-12)


def test_numbers_of_x_wider_than_anchors(multiply):
    _, a, b, _, _ = arguments(1500, 1200)
    x = np.random.default_rng(1).standard_normal(1200)
    assert largest_error(multiply(x, a, b), (x, a, b)) < 5e-15


def test_several_leading_dimensions(multiply):
    x, a, b, _, _ = arguments(1500, 1200, m=6)
    assert np.array_equal(multiply(x.reshape(2, 3, -1), a, b), multiply(x, a, b).reshape(2, 3, -1))


def test_the_transpose_is_the_product_with_sides_swapped(multiply):
    x, a, b, phi, psi = arguments(1500, 1200, phases=True, dtype=np.float64)
    g = np.random.default_rng(1).standard_normal(1500)
    leaf = torch.from_numpy(x).requires_grad_()
    y = laplex.linear(leaf, *map(torch.from_numpy, (a, b)), TAU, phi=torch.from_numpy(phi), psi=torch.from_numpy(psi))
    (gradient,) = torch.autograd.grad(y, leaf, torch.from_numpy(g))
    assert np.allclose(multiply(g, b, a, psi, phi), gradient.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sides", [(0,), (0, 1)], ids=["rows", "both sides"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_buckets_that_the_sample_has_missed(multiply, monkeypatch, sides, dtype):
    """A sample of one value, which is rare, gives borders that do not cut the rest."""
    sizes = (3000, 100 if sides == (0,) else 3000)
    monkeypatch.setattr(_linear._streams, "fits", lambda problem: None)
    monkeypatch.setattr(
        _borders, "sample", lambda side, *others: _borders.Sample(np.full(20, 50, side.dtype), side.size)
    )
    given = arguments(*sizes, dtype=dtype)
    starts = []
    restart = _linear._buckets._restart
    monkeypatch.setattr(_linear._buckets, "_restart", lambda *all: starts.append(len(all[1])) or restart(*all))
    assert largest_error(multiply(*given), given) < TOLERANCE[dtype]
    assert len(starts) >= 2
    assert starts == sorted(set(starts))


def test_every_bucket_fits_into_memory(multiply, monkeypatch):
    sizes = []
    linear = _linear._buckets.multiply

    def counted(x, a, b, *others):
        sizes.append(len(a) + len(b))
        return linear(x, a, b, *others)

    monkeypatch.setattr(_linear._buckets, "multiply", counted)
    x, a, b, _, _ = arguments(6000, 5000, "one value and more")
    multiply(x, a, b)
    assert max(sizes) <= MEMORY // 2 // 56 + 2
    assert len(sizes) > 5


def test_equal_numbers_may_outgrow_the_memory(multiply, monkeypatch):
    monkeypatch.setattr(_linear._buckets, "multiply", None)  # not called: rows of one value differ in phases only
    given = arguments(2500, 2500, "equal", phases=True)
    assert largest_error(multiply(*given), given) < 5e-7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_are_those_of_a_search(dtype):
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.standard_normal(500), [0.0, 1e-40, -1e-40, 1e30, 3.0]]).astype(dtype)
    borders = np.unique(np.concatenate([values[::10], np.nextafter(values[::20], dtype(np.inf)), [-0.0]]).astype(dtype))
    tried = np.concatenate([values, borders, np.nextafter(borders, dtype(-np.inf)), [-0.0, np.finfo(dtype).max]])
    tried = tried.astype(dtype)
    labels = Borders(borders).labels(tried, "")
    assert np.array_equal(labels, np.searchsorted(borders, tried, side="right"))


def count_bytes(monkeypatch, name, modules):
    """Sizes of the arrays that a function of `_files` is called with from now on, in these modules."""
    sizes, function = [], getattr(_files, name)

    def counted(file, array, offset):
        sizes.append(array.nbytes)
        function(file, array, offset)

    for module in modules:
        monkeypatch.setattr(module, name, counted)
    return sizes


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("phases", [False, True])
def test_bytes_are_as_documented(multiply, tmp_path, monkeypatch, strategy, phases):
    monkeypatch.setattr(_linear.Stored, "identity", lambda self: {})
    reads = count_bytes(monkeypatch, "read_into", (_arrays, _files))
    writes = count_bytes(monkeypatch, "write_from", (_files, _output))
    n, k = (60_000, 50_000) if strategy == "buckets" else STRATEGIES[strategy]
    given = dict(zip(("x", "a", "b", "phi", "psi"), arguments(n, k, m=2, phases=phases), strict=True))
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        np.save(tmp_path / f"{name}.npy", value)
    paths = {name: tmp_path / f"{name}.npy" for name in given}
    multiply(**paths, memory=2_000_000 if strategy == "buckets" else MEMORY)
    inputs, result = sum(value.nbytes for value in given.values()), n * 2 * 4
    if strategy == "buckets":
        angles = 4 * (n + k) if phases else 0
        read, written = n * (2 * 4 + 1 + 2 * 4) + k * 2 * (4 + 2 * 4), n * (4 + 1 + 2 * 2 * 4) + k * (4 + 2 * 4)
        assert 0 <= sum(reads) - read - 2 * angles < 0.03 * read  # tables of counts and sums are small
        assert 0 <= sum(writes) - written - angles < 0.03 * written
    else:
        ends = 4 * min(n, 2 * _linear.ENDS)
        assert inputs <= sum(reads) <= inputs + ends + 16 * n * (strategy == "by columns")
        assert result <= sum(writes) <= result + 0.06 * inputs * (strategy == "by columns")


@pytest.mark.parametrize(("strategy", "m"), [("buckets", 16), ("by rows", 2), ("by columns", 2)])
@pytest.mark.parametrize("phases", [False, True])
def test_the_workspace_takes_the_room_that_was_asked_for(multiply, monkeypatch, strategy, m, phases):
    sizes, asked, commit, space = [0], [], _workspace.Workspace._commit, _linear.space

    def noted(workspace, *others):
        commit(workspace, *others)
        sizes.append(sum(path.stat().st_size for path in workspace.folder.glob("*.bin")))

    monkeypatch.setattr(_workspace.Workspace, "_commit", noted)
    monkeypatch.setattr(_linear, "space", lambda *all: asked.append(space(*all)) or asked[-1])
    n, k = (1500, 1500) if strategy == "buckets" else STRATEGIES[strategy]
    multiply(*arguments(n, k, m=m, phases=phases))
    assert 0.8 * asked[0][0] <= max(sizes) <= asked[0][0]


def test_memory_says_what_is_read_at_a_time(multiply, monkeypatch):
    blocks = []
    read = _linear.Stored.read

    def noted(side, first, last, **options):
        blocks.append(last - first)
        return read(side, first, last, **options)

    monkeypatch.setattr(_linear.Stored, "read", noted)
    monkeypatch.setattr(_linear.Stored, "identity", lambda self: {})
    x, a, b, _, _ = arguments(20_000, 20_000)
    multiply(x, a, b)
    assert max(blocks) * _problem.ORDER * 4 < MEMORY
    assert 3 * 20_000 <= sum(blocks) <= 3 * 20_000 + 2 * _borders.LEAST_PLACES * _borders.RUN + 2 * _linear.ENDS
