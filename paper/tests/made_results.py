"""Made-up files of results for the tests of verdicts."""

import json

from paper.measuring import BOTH, FORWARD
from paper.sections import NAMES, outcomes

MACHINE = {"device": "cuda", "gpu": "a GPU", "torch": "2", "commit": "0", "cpu": "a CPU", "torch_threads": 1}


def write(folder, name, runs, device="cuda"):
    """A file of results: (settings, result) pairs."""
    records = [{"settings": one, "result": two, "machine": 0, "date": "2026-01-01"} for one, two in runs]
    content = {"experiment": name, "machines": [MACHINE | {"device": device}], "runs": records}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


def measured(**methods):
    """A result of `paper.measuring`: for each method either forward numbers, or numbers by way."""
    ways = {method: one if FORWARD in one or BOTH in one else {FORWARD: one} for method, one in methods.items()}
    return {"measured": ways, "left_out": {}}


def took(milliseconds, gigabytes=None):
    return {"seconds": milliseconds / 1e3, "peak_bytes": None if gigabytes is None else gigabytes * 1e9}


def verdict(name, *folders):
    """The outcome of one entry."""
    return outcomes(list(folders))[NAMES.index(name)]


def square(n, batch=1):
    return {"n": n, "k": n, "batch": batch, "seed": 0}
