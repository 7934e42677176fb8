"""Attention by distances on a line against dot-product attention, with equally many parameters: accuracy and speed.

    python -m benchmarks.studies.attention                          all but the slowest task, small, on the CPU
    python -m benchmarks.studies.attention --quick --out FILE       the same in seconds, to see that it runs
    python -m benchmarks.studies.attention --device cuda --task regression       one task, at the sizes of a GPU
    python -m benchmarks.studies.attention --device cuda --task times
    python -m benchmarks.studies.attention --task regression recall --length 1024 --heads 4 --out \
        benchmarks/results/attention-cpu-long.json       longer sequences on the CPU, in ten minutes
    python -m benchmarks.studies.attention --task pixels --length 256 --steps 1500 --heads 4 --rates 3e-4 1e-3 3e-3 \
        --out benchmarks/results/attention-cpu-long.json       longer training

writes benchmarks/results/attention-DEVICE.json; a part that is measured again replaces the previous one. The tasks are
those of ``attention_tasks``. Every kind of attention is trained with all learning rates and numbers of heads, by AdamW,
with gradients clipped at 1 and the rate rising over a tenth of the steps and then falling to 0. The setting with the
best score on data used for nothing else is trained again from other seeds, and only these runs count. Times are
for forward and backward of one layer, by the length of the sequence.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import COMMITTED, conditions
from benchmarks.studies import wall
from benchmarks.studies.attention_tasks import EMBED, KINDS, TASKS, build, parameters
from laplex.nn import LaplaceAttention

RATES, HEADS, SEEDS = (1e-3, 3e-3, 1e-2, 3e-2), (4, 16), (1, 2, 3)
SIZES = {  # by device: rows and steps, and the length of the sequences of every task
    "cpu": {"rows": 8, "steps": 300, "regression": 256, "recall": 128, "pixels": 144},
    "cuda": {"rows": 32, "steps": 1000, "regression": 1024, "recall": 1024, "pixels": 1024},
    "quick": {"rows": 2, "steps": 3, "regression": 16, "recall": 16, "pixels": 16},
}
LENGTHS = {"cpu": [256, 1024, 4096], "cuda": [256, 1024, 4096, 16384, 65536], "quick": [16]}
STARTS = ("started alike", "started apart")  # the projections of queries and keys
HELD_OUT, CHOICE = 10**6, 10**7  # seeds of the data for scores, and for the choice of a setting


def train(task: str, setting: dict[str, Any], sizes: dict[str, int], device: str, seed: int) -> dict[str, Any]:
    """Train a model; returns its score on other data, and the time of a step."""
    torch.manual_seed(seed)
    drawn, n, steps = TASKS[task], sizes[task], sizes["steps"]
    model = build(task, setting["kind"], setting["heads"], n).to(device)
    if setting.get("start") == "started apart":
        draw_keys_again(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting["rate"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, setting["rate"], steps, pct_start=0.1)
    generator = torch.Generator(device).manual_seed(seed)
    begin = 0.0
    for step in range(steps):
        if step == min(10, steps - 1):  # after the first calls
            _wait(device)
            begin = time.perf_counter()
        batch = drawn.draw(sizes["rows"], n, generator)
        optimizer.zero_grad()
        drawn.loss(model(*batch.inputs), batch.wanted).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    _wait(device)
    elapsed = (time.perf_counter() - begin) / max(steps - 10, 1)
    choice = score(task, model, sizes, device, CHOICE)
    held_out = score(task, model, sizes, device, HELD_OUT)
    return {
        **setting, "seed": seed, "parameters": parameters(model), "choice": choice, "score": held_out,
        "ms_per_step": 1e3 * elapsed,
    }  # fmt: skip


@torch.no_grad()
def draw_keys_again(model: nn.Module) -> None:
    """Let keys start from a projection of their own."""
    for module in model.modules():
        if isinstance(module, LaplaceAttention):
            nn.init.normal_(module.k_proj.weight, std=module.kdim**-0.5)


@torch.no_grad()
def score(task: str, model: nn.Module, sizes: dict[str, int], device: str, seed: int) -> float:
    """The mean of 16 batches."""
    drawn, generator = TASKS[task], torch.Generator(device).manual_seed(seed)
    batches = [drawn.draw(sizes["rows"], sizes[task], generator) for _ in range(16)]
    return statistics.mean(float(drawn.score(model(*batch.inputs), batch.wanted)) for batch in batches)


def compare(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compare both kinds on a task: all settings from one seed, and the best of each from others."""
    sizes = SIZES["quick" if options.quick else options.device]
    sizes = sizes | {task: options.length or sizes[task], "steps": options.steps or sizes["steps"]}
    tried, runs = [], []
    for kind in KINDS:
        settings = [{"kind": kind, "heads": heads, "rate": rate} for heads in options.heads for rate in options.rates]
        ended = [_shown(train(task, setting, sizes, options.device, 0)) for setting in settings]
        tried += ended
        choices = [one["choice"] for one in ended]
        best = settings[choices.index((max if TASKS[task].larger_is_better else min)(choices))]
        runs += [_shown(train(task, best, sizes, options.device, seed)) for seed in options.seeds]
    shape = {"n": sizes[task], "rows": sizes["rows"], "steps": sizes["steps"], "measure": TASKS[task].measure}
    return {**shape, "larger_is_better": TASKS[task].larger_is_better, "tried": tried, "runs": runs}


def compare_starts(options: argparse.Namespace) -> dict[str, Any]:
    """Compare regression by distances with keys that start from the queries' projection, and from one of their own."""
    sizes, task = SIZES["quick" if options.quick else options.device], "regression"
    setting = {"kind": "distances", "heads": 4, "rate": 3e-3}
    runs = [
        _shown(train(task, {**setting, "start": start}, sizes, options.device, seed))
        for start in STARTS
        for seed in options.seeds
    ]
    return {"n": sizes[task], "steps": sizes["steps"], "measure": TASKS[task].measure, "runs": runs}


def layer_times(options: argparse.Namespace) -> dict[str, Any]:
    """Time forward and backward of a layer with 4 heads on one sequence, in float32 and under bfloat16 autocast."""
    rows = []
    for n in LENGTHS["quick" if options.quick else options.device]:
        for half in (False, True):
            for kind, attention in KINDS.items():
                torch.manual_seed(0)
                layer, x = attention(EMBED, 4).to(options.device), torch.randn(1, n, EMBED, device=options.device)
                x.requires_grad_()

                def step(layer: nn.Module = layer, x: torch.Tensor = x, half: bool = half) -> None:
                    with torch.autocast(options.device, torch.bfloat16, enabled=half):
                        layer(x, x, x).sum().backward()

                seconds = 0.01 if options.quick else 1.0
                row = {"kind": kind, "n": n, "dtype": "bfloat16" if half else "float32"}
                rows.append(_shown({**row, "ms": wall(step, seconds, options.device)}))
    return {"results": rows}


OTHERS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"start": compare_starts, "times": layer_times}
PARTS = [*TASKS, *OTHERS]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    print(
        " ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=PARTS, nargs="+")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--heads", type=int, nargs="+", default=HEADS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--length", type=int, help="of the sequences of all tasks")
    parser.add_argument("--steps", type=int, help="of every training")
    parser.add_argument("--quick", action="store_true", help="a few steps of tiny sequences")
    parser.add_argument("--out", type=Path, help="the file to write")
    options = parser.parse_args()
    out = options.out or COMMITTED / f"attention-{options.device}.json"
    report = json.loads(out.read_text()) if out.exists() else {"parts": {}}
    now = conditions(options.device)  # the commit at the start, in case files are edited meanwhile
    slow = {"pixels"} if options.device == "cpu" and not options.quick else set()
    for part in options.task or [part for part in PARTS if part not in slow]:
        measured = OTHERS[part](options) if part in OTHERS else compare(part, options)
        report["parts"][part] = {"conditions": now, **measured}
        out.write_text(json.dumps(report, indent=1) + "\n")  # after every part, so that no measurement is lost


if __name__ == "__main__":
    main()
