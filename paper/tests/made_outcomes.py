"""Outcomes of every verdict, made up, for the page of `python -m paper report`; none is a result of anything."""

import base64
import struct
import zlib
from pathlib import Path

from paper.entry import Entry, Figure, Outcome, Picture, Plot, Series, TextTable

HOSTILE = """</script><script>alert("1")</script> & 'quotes' <img src=x onerror=alert(1)>"""
MACHINE = {"device": "cuda", "cpu": "Some CPU", "gpu": "Some GPU 200", "torch": "2.11.0", "date": "2026-11-16T10:00:00"}


def png(side: int = 24) -> bytes:
    """A small picture of a ramp, written by hand so that no package is needed."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + bytes(255 * (index + row) // (2 * side) for index in range(side)) for row in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def no_judge(entry, archive):
    return None


def entry(name: str, title: str, section: str, data: str = "") -> Entry:
    claim, criterion = f"The paper says that {title} works.", "Reproduced within 10 %; exceeded if better by more."
    return Entry(name, title, section, "Figure 3", claim, criterion, {"cpu": 1.0}, (), no_judge, data)


def sizes_plot() -> Plot:
    """Powers of two over a time axis, both logarithmic, with lines of the paper."""
    x = [float(2**power) for power in range(10, 23, 2)]
    lines = [
        Series("laplex", x, [1e-3 * 1.6**index for index in range(7)]),
        Series("FFT", x, [2e-3 * 1.7**index for index in range(7)]),
        Series("dense", x, [1e-2, 0.16, 2.56, None, None, None, None]),
        Series("LAPLEX (paper)", x, [2e-3 * 1.6**index for index in range(7)], from_paper=True),
    ]
    return Plot("Time of a product", "n", "ms", lines, "log2", "log10")


def accuracy_plot() -> Plot:
    """Linear axes."""
    ours, theirs = Series("ours", [4, 8, 16], [85.3, 89.4, 91.7]), Series("paper", [4, 8, 16], [84.0, 89.9, 91.0], True)
    return Plot("Accuracy of heads", "kernels r", "test accuracy, %", [ours, theirs])


def outcomes(folder: Path) -> list[Outcome]:
    """One of each verdict, and one whose every text is hostile."""
    folder.joinpath("ramp.png").write_bytes(png())
    faster = Figure("n = 2^20, forward", 3.2, 1.6, "ms", "lower", "exceeded", "a note")
    close = Figure("r = 8", 89.9, 89.4, "%", "higher", "reproduced")
    worse = Figure("error", 1e-8, 4.2e-7, "relative error", "lower", "not reproduced")
    unknown = Figure("n = 2^24", None, None, "ms", "lower", "not run")
    hostile = Entry("hostile", HOSTILE, "Heads", HOSTILE, HOSTILE, HOSTILE, {}, (), no_judge, HOSTILE)
    lines = [Series(HOSTILE, [1.0, 2.0], [1.0, float("nan")])]
    return [
        Outcome(
            entry("sizes", "Time over sizes", "Operator"),
            "exceeded",
            "Ours takes 1.6 ms where the paper's takes 3.2 ms.",
            [faster, unknown],
            [sizes_plot()],
            machines=[MACHINE],
            files=["benchmarks/results/made.json"],
        ),
        Outcome(
            entry("heads", "Accuracy of heads", "Heads"),
            "reproduced",
            "All within 1 point.",
            [close],
            [accuracy_plot(), sizes_plot()],
            [TextTable("Further", ["head", *(f"column {index}" for index in range(12))], [["dense", *("95.2",) * 12]])],
            machines=[{"cpu": "Some CPU", "device": "cpu", "torch": "2.13.0"}],
        ),
        Outcome(
            entry("error", "Rounding error", "Accuracy"),
            "not reproduced",
            "Ours is 42 times larger.",
            [worse],
            pictures=[Picture(folder / "ramp.png", "A ramp"), Picture(folder / "gone.png", "Gone")],
        ),
        Outcome(entry("images", "Samples of faces", "Densities", "CelebA"), "not run", "CelebA is not here."),
        Outcome(
            hostile,
            "not reproduced",
            HOSTILE,
            [Figure(HOSTILE, 1.0, 0.0, HOSTILE, "higher", "not reproduced", HOSTILE)],
            [Plot(HOSTILE, HOSTILE, HOSTILE, lines)],
            [TextTable(HOSTILE, [HOSTILE], [[HOSTILE]])],
            machines=[{"cpu": HOSTILE, HOSTILE: HOSTILE}],
            files=[HOSTILE],
        ),
    ]


def picture_text() -> str:
    """The picture as it stands in the page."""
    return base64.b64encode(png()).decode()
