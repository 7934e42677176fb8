"""What a product over processes costs, in seconds, messages and bytes: measured here, fitted, and predicted for GPUs.

    python -m benchmarks.studies.cost_model            writes benchmarks/results/cost-model.json and cost-model.png
    python -m benchmarks.studies.cost_model --quick    few sizes, prints only
    python -m benchmarks.studies.cost_model --again    fits, predicts and draws again, from the committed times

A product of N = n + k anchors and m rows with a kept plan, by w processes on p = min(w, cores) cores, takes

    t = call + row m + (point + scan m) N / p                         the work, which is per core and not per process
        + message w (w - 1) / p + end m w (w - 1) / p                 every process receives the ends of all
        + order N m / p + move (1 - 1 / w) N m / p                    if the shards are not in the plan's order

with the nonnegative coefficients that best fit the logarithms of the times here. Four and eight processes share the two
cores: they show what messages cost, not how work spreads. The predictions for GPUs use only `call` from these: see
``predicted``.
"""

import argparse
import itertools
import json
import math
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure

import laplex
from benchmarks.report import COMMITTED, conditions
from benchmarks.studies.distributed import processes
from laplex import testing

OUT, PICTURE = COMMITTED / "cost-model.json", COMMITTED / "cost-model.png"
GPU = COMMITTED / "gpu-nvidia-h200.json"
TAU = 0.1
RANKS = (1, 2, 4, 8)
SIZES = (1 << 14, 1 << 17, 1 << 20)  # n = k
ROWS = (1, 8, 64)
MOST = 1 << 23  # numbers of x
REPEATS = 9
TERMS = ("call", "row", "point", "scan", "message", "end", "order", "move")
BYTES = {"end": 32, "move": 4}  # per row on one rank: four numbers of 8 bytes; per number of x or y
# Assumed, per GPU in one direction: fourth-generation NVLink has 900 GB/s in both together, NDR InfiniBand 400 Gb/s.
LINKS = {"NVLink": {"seconds": 10e-6, "bytes": 450e9}, "InfiniBand": {"seconds": 5e-6, "bytes": 50e9}}
GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
IN_A_NODE = 8  # GPUs connected by NVLink
CASES = {"n = k = 2^30, m = 1": (1 << 30, 1), "n = k = 2^24, m = 64": (1 << 24, 64)}
ORDERS = ("in order", "any order")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few sizes; nothing is written")
    parser.add_argument("--again", action="store_true", help="fits, predicts and draws from the committed times")
    options = parser.parse_args()
    if options.again:
        report = json.loads(OUT.read_text())
    else:
        times = measured(SIZES[0] if options.quick else SIZES[-1])
        report = {**conditions("cpu"), "tau": TAU, "unit": "s", "load": testing.load(), "measured": times}
    report["fitted"] = fitted(report["measured"], report["machine"]["cores"])
    report["assumed"] = {"links": LINKS, "GPUs in a node": IN_A_NODE}
    report["one GPU"] = one_gpu()
    report["predicted"] = predictions(report["one GPU"], report["fitted"]["seconds"]["call"])
    print(json.dumps({name: value for name, value in report.items() if name != "measured"}, indent=1))
    if not options.quick:
        OUT.write_text(json.dumps(report, indent=1) + "\n")
        draw(report).savefig(PICTURE, dpi=110)


# --- measured ---------------------------------------------------------------------------------------------------------


def measured(largest: int) -> list[dict[str, Any]]:
    """Times in seconds of products over 1 to 8 processes."""
    rows = []
    for ranks in RANKS:
        for name, seconds in processes(measure, ranks, largest).items():
            order, n, m = name.split(", ")
            rows.append({"processes": ranks, "order": order, "n": int(n), "m": int(m), "seconds": seconds})
    return rows


def measure(largest: int) -> dict[str, float]:
    """The least seconds of products in this group, for the slowest process, by order, n and m."""
    results = {}
    for n, m in itertools.product(SIZES, ROWS):
        if n <= largest and n * m <= MOST:
            for order in ORDERS:
                results[f"{order}, {n}, {m}"] = _seconds(order, n, m)
    return results


def _seconds(order: str, n: int, m: int) -> float:
    size, generator = dist.get_world_size(), torch.Generator().manual_seed(dist.get_rank())
    a, b = (torch.randn(n // size, generator=generator) for _ in range(2))
    x = torch.randn(m, n // size, generator=generator)
    plan = laplex.distributed.Plan(a, b)
    if order == "in order":
        a, b, x = plan.arrange_rows(a), plan.arrange_columns(b), plan.arrange_columns(x)
        plan = laplex.distributed.Plan(a, b)
    return _least(lambda: laplex.distributed.linear(x, a, b, TAU, plan=plan))


def _least(call: Any) -> float:
    call()
    least = math.inf
    for _ in range(REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        call()
        taken = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        least = min(least, float(taken))
    return float(f"{least:.4g}")


# --- fitted -----------------------------------------------------------------------------------------------------------


def terms(row: dict[str, Any], cores: int) -> list[float]:
    """What each coefficient is multiplied by, in the order of TERMS."""
    w, m, numbers = row["processes"], row["m"], 2 * row["n"] * row["m"]
    p = min(w, cores)
    apart = row["order"] == "any order"
    messages = w * (w - 1) / p
    return [
        1,
        m,
        numbers / m / p,
        numbers / p,
        messages,
        m * messages,
        apart * numbers / p,
        apart * (1 - 1 / w) * numbers / p,
    ]


def fitted(rows: list[dict[str, Any]], cores: int) -> dict[str, Any]:
    """The coefficients, none negative, and how well they reproduce the times."""
    matrix = np.array([terms(row, cores) for row in rows])
    seconds = np.array([row["seconds"] for row in rows])
    coefficients = positive(matrix, seconds)
    ratios = matrix @ coefficients / seconds
    return {
        "cores": cores,
        "seconds": {name: float(f"{value:.4g}") for name, value in zip(TERMS, coefficients, strict=True)},
        "fitted over measured": {
            _named(ranks): [
                round(float(np.quantile(chosen, part)), 3)
                for chosen in [ratios[[row["processes"] == ranks for row in rows]]]
                for part in (0.0, 0.5, 1.0)
            ]
            for ranks in RANKS
        },
    }


def _named(ranks: int) -> str:
    return f"{ranks} process" + ("es" if ranks > 1 else "")


def positive(matrix: Any, seconds: Any) -> Any:
    """Coefficients, none negative, whose sums are nearest to the times in their logarithms."""
    terms, wanted = torch.from_numpy(matrix), torch.from_numpy(seconds).log()
    start = [float((wanted.exp()[column > 0] / column[column > 0]).min()) / len(TERMS) for column in terms.T]
    logs = torch.tensor(start, dtype=torch.float64).log().requires_grad_()
    solver = torch.optim.LBFGS([logs], max_iter=2000, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        value = ((terms @ logs.exp()).log() - wanted).square().mean()
        value.backward()
        return value

    solver.step(loss)
    return logs.detach().exp().numpy()


# --- predicted --------------------------------------------------------------------------------------------------------


def one_gpu() -> dict[str, float]:
    """Seconds of a product on one GPU: fixed, and per number of x and y, with and without the gather."""
    results = json.loads(GPU.read_text())["results"]
    small = [_median(one) for one in results if one["row"] == "sweep-size" and one["size"]["n"] <= 1 << 13]
    large = {one["row"]: one for one in results if one["row"] in ("time-in-order", "time-huge-kept")}
    rates = {row: _median(one) / (2 * one["size"]["n"]) for row, one in large.items()}
    return {
        "a small product": sorted(small)[len(small) // 2],
        "a number, in order": rates["time-in-order"],
        "a number, any order": rates["time-huge-kept"],
    }


def _median(result: dict[str, Any]) -> float:
    return float(result["sides"]["laplex, plan kept"]["time"]["median"])


def predictions(gpu: dict[str, float], call: float) -> dict[str, Any]:
    """For every case and order, the time on each number of GPUs, and from which number the exchange takes longer."""
    cases: dict[str, Any] = {}
    for (case, (n, m)), order in itertools.product(CASES.items(), ORDERS):
        rows = [{"GPUs": w} | predicted(n, m, w, order, gpu, call) for w in GPUS]
        first = next((row["GPUs"] for row in rows if row["exchange"] > row["work"]), None)
        cases[f"{case}, {order}"] = {"rows": rows, "exchange takes longer than the work from": first}
    return cases


def predicted(n: int, m: int, w: int, order: str, gpu: dict[str, float], call: float) -> dict[str, float]:
    """Seconds, and messages and bytes that one GPU sends.

    The work is that of one GPU with 1 / w of the anchors, and for m rows m times that for one. The call is the host's
    time, as measured here, plus what a small product takes on a GPU. The ends are gathered in log2 w steps; those
    within a node go by NVLink and the others by InfiniBand, as do the bytes. Before that the arguments are compared,
    in as many steps. In any order, x and y go once through all-to-all, a message to every other GPU; those of
    different GPUs overlap, so that the latency is again that of one message for each of log2 w steps.
    """
    inside = min(w, IN_A_NODE)
    steps = {"NVLink": math.log2(inside), "InfiniBand": math.log2(w / inside)}
    peers = {"NVLink": inside - 1, "InfiniBand": w - inside}
    exchanges = 2 if order == "in order" else 4
    moved = 0.0 if order == "in order" else 2 * n / w * m * BYTES["move"] / w  # to every peer
    seconds = sum(
        exchanges * steps[name] * link["seconds"] + peers[name] * (BYTES["end"] * m + moved) / link["bytes"]
        for name, link in LINKS.items()
    )
    row = {
        "call": call + gpu["a small product"],
        "work": 2 * n * m / w * gpu[f"a number, {order}"],
        "exchange": seconds,
        "messages": exchanges * (w - 1),
        "bytes": (w - 1) * (BYTES["end"] * m + moved),
    }
    return {name: float(f"{value:.4g}") for name, value in row.items()}


# --- drawn ------------------------------------------------------------------------------------------------------------


def draw(report: dict[str, Any]) -> Figure:
    """Draw a panel for the fit, and one for each prediction."""
    figure = Figure(figsize=(12.0, 7.2), layout="constrained")
    panels = figure.subplots(2, 3)
    _draw_fit(panels[0, 0], report)
    panels[1, 0].axis("off")
    panels[1, 0].text(0.0, 0.95, _words(report), va="top", fontsize=9, linespacing=1.5)
    for panel, (name, prediction) in zip(panels[:, 1:].flat, report["predicted"].items(), strict=True):
        rows = prediction["rows"]
        gpus = [row["GPUs"] for row in rows]
        for part, color in {"work": "#1f5fbf", "exchange": "#c8382c", "call": "#555555"}.items():
            values = [1e3 * row[part] or math.nan for row in rows]
            panel.plot(gpus, values, color=color, marker="o", markersize=3, label=part)
        total = [1e3 * (row["call"] + row["work"] + row["exchange"]) for row in rows]
        panel.plot(gpus, total, color="black", linewidth=1, linestyle="--", label="together")
        panel.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="ms", title=name, ylim=(1e-3, 2e2))
        panel.set_xticks(gpus[::2], [str(one) for one in gpus[::2]])
        panel.minorticks_off()
        panel.axvspan(IN_A_NODE, gpus[-1], color="#000000", alpha=0.05, linewidth=0)
        panel.legend(fontsize=8, frameon=False)
    return figure


def _draw_fit(panel: Any, report: dict[str, Any]) -> None:
    """Plot fitted times over measured ones."""
    coefficients = np.array([report["fitted"]["seconds"][name] for name in TERMS])
    for ranks, color in zip(RANKS, ("#555555", "#1f5fbf", "#2a9d5c", "#e07b00"), strict=True):
        rows = [row for row in report["measured"] if row["processes"] == ranks]
        model = [1e3 * float(np.dot(terms(row, report["fitted"]["cores"]), coefficients)) for row in rows]
        panel.plot([1e3 * row["seconds"] for row in rows], model, "o", color=color, markersize=4, label=_named(ranks))
    reach = [1e3 * pick(row["seconds"] for row in report["measured"]) for pick in (min, max)]
    panel.plot(reach, reach, color="black", linewidth=0.8)
    panel.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="fitted, ms", title="gloo, two cores")
    panel.legend(fontsize=8, frameon=False)


def _words(report: dict[str, Any]) -> str:
    links = report["assumed"]["links"]
    said = [
        f"{name}: {1e6 * one['seconds']:g} us, {one['bytes'] / 1e9:g} GB/s a direction" for name, one in links.items()
    ]
    nodes = f"Shaded: more than one node of {report['assumed']['GPUs in a node']} GPUs."
    return "\n".join(["Predictions, not measured.", "Assumed:", *said, nodes, "Work: that of one H200, measured."])


if __name__ == "__main__":
    main()
