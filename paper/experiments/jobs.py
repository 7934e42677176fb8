"""Processes side by side, which stop together.

A job that fails stops the others, and its error reaches the user. So does an interruption (Ctrl-C), and the end of the
process that started them, however that ends. What is shared, tensors above all, is not copied: torch passes tensors
between processes by reference, on a GPU and on the CPU.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException, spawn

from paper.experiments.record import Experiment

PATIENCE = 10.0  # seconds in which a job may finish what it is writing; then it is killed

Measure = Callable[[Experiment[Any, Any], Any], Any]  # makes the result of a candidate, which has a ``line`` to print
Work = Callable[[int, int], object]  # of the number of the job, from 0, and the number of jobs


class JobError(RuntimeError):
    """A job failed; the message says why."""


def measure_all(
    experiment: Experiment[Any, Any], measure: Measure, candidates: Sequence[Any], count: int = 1
) -> list[Any]:
    """The results of all candidates, with a line on stderr for each that is new.

    Args:
        experiment: runs that its record has are not repeated.
        measure, candidates: how to measure, and what.
        count: processes that share the work, and the record.
    """
    count = min(count, len(candidates))
    if count > 1:
        experiment.record.refresh()
        try:
            side_by_side(partial(_measure_share, experiment, measure, candidates), count)
        finally:
            experiment.record.refresh()
    return _measure_share(experiment, measure, candidates, 0, 1)


def _measure_share(
    experiment: Experiment[Any, Any], measure: Measure, candidates: Sequence[Any], job: int, count: int
) -> list[Any]:
    """What one of ``count`` jobs measures."""
    if count > 1:
        experiment.record.describe_machine()
    results = []
    for number, candidate in list(enumerate(candidates, 1))[job::count]:
        before = len(experiment.record)
        results.append(measure(experiment, candidate))
        if len(experiment.record) > before:
            print(f"[{number}/{len(candidates)}] {results[-1].line}", file=sys.stderr, flush=True)
    return results


def side_by_side(work: Work, count: int) -> None:
    """Run ``work(job, count)`` in ``count`` processes, and return when all are finished.

    Args:
        work: a function that can be pickled. It is called in a fresh interpreter: a fork could not use CUDA.
        count: how many processes. They share the threads of this one.
    """
    threads = max(1, torch.get_num_threads() // count)
    context: Any = spawn(_job, (work, count, threads), count, join=False, daemon=True)
    try:
        while not context.join():
            pass
    except ProcessException as error:
        if isinstance(error, ProcessExitedException):
            why = f"it ended with the status {error.exit_code} and without a message; if memory ran out, use fewer jobs"
        else:
            why = error.msg.strip()
        job = f"job {error.error_index + 1} of {count}"
        raise JobError(f"{job} failed, so all were stopped; finished runs are kept: {why}") from None
    finally:
        _stop(context.processes)
        if torch.cuda.is_initialized():
            torch.cuda.ipc_collect()  # else torch warns at exit of tensors that the jobs had not given back


def _stop(processes: list[Any]) -> None:
    """End those that still run, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _job(job: int, work: Work, count: int, threads: int) -> None:
    """What runs in the process of a job. Its signals raise, so that unfinished files are removed.

    torch sends SIGINT to the job when the first process ends, however that ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    torch.set_num_threads(threads)
    work(job, count)
