"""What a release states in several files is the same everywhere, and what it names is there."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.search(r"^## \[(\d[^\]]*)\] - (\S+)$", changelog, re.MULTILINE)
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == PROJECT["version"] == released[1]
    assert re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)[1] == released[2]


def test_every_package_of_an_extra_is_pinned():
    pinned = {
        _plain(line.split("==")[0])
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    for name, packages in PROJECT["optional-dependencies"].items():
        for package in packages:
            assert _plain(re.match(r"[\w.-]+", package)[0]) in pinned, f"{package} of laplex[{name}]"


def _plain(name):
    return name.lower().replace("_", "-")
