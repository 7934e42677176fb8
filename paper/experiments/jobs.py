"""Processes side by side, which stop together.

A job that fails stops the others, and its error reaches the user. So does an interruption (Ctrl-C), and the end of the
process that started them, however that ends. What is shared, tensors above all, is not copied: torch passes tensors
between processes by reference, on a GPU and on the CPU.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing

from paper.experiments.record import Experiment

PATIENCE = 10.0  # seconds in which a job may finish what it is writing; then it is killed
LONGEST = 4000  # characters of a job's error, from its end

Work = Callable[[int, int], object]  # of the number of the job, from 0, and the number of jobs


class JobError(RuntimeError):
    """A job failed; the message says why."""


def measure_all(
    experiment: Experiment[Any, Any],
    measure: Callable[[Experiment[Any, Any], Any], Any],
    candidates: Sequence[Any],
    count: int = 1,
) -> list[Any]:
    """The results of all candidates, with a line on stderr for each that is new.

    Args:
        experiment: runs that its record has are not repeated; those that an earlier command left in parts are gathered.
        measure: what makes a candidate's result, which has a ``line`` to print.
        candidates: what is measured.
        count: processes that share the work. Each writes its runs into a part of the record.
    """
    experiment.record.absorb()
    count = min(count, len(candidates))
    if count > 1:
        try:
            side_by_side(partial(_measure_share, experiment, measure, candidates), count)
        finally:
            experiment.record.absorb()
    return _measure_share(experiment, measure, candidates, 0, 1)


def _measure_share(
    experiment: Experiment[Any, Any],
    measure: Callable[[Experiment[Any, Any], Any], Any],
    candidates: Sequence[Any],
    job: int,
    count: int,
) -> list[Any]:
    """What one of ``count`` jobs measures."""
    if count > 1:
        experiment = replace(experiment, record=experiment.record.part(job))
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
        work: a function that can be pickled. It is called in a fresh interpreter.
        count: how many processes. They share the threads of this one.
    """
    # A forked process could not use CUDA, nor the threads of torch.
    context: Any = torch.multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // count)
    processes, receivers = [], []
    try:
        with _uninterrupted():
            for job in range(count):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_job, args=(work, job, count, threads, sender), daemon=True)
                process.start()
                sender.close()  # else the end of the job would not be the end of the pipe
                processes.append(process)
                receivers.append(receiver)
        _wait(processes, receivers)
    finally:
        _stop(processes)
        if torch.cuda.is_initialized():
            torch.cuda.ipc_collect()  # else torch warns at exit of tensors that the jobs had not given back


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C is ignored inside, and by all processes that are started inside: the first process stops the others."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _wait(processes: list[Any], receivers: list[Connection]) -> None:
    """Until all have ended; JobError as soon as one has failed."""
    running = dict(enumerate(processes))
    while running:
        ended = wait([process.sentinel for process in running.values()])
        for job in [job for job, process in running.items() if process.sentinel in ended]:
            process = running.pop(job)
            process.join()
            if process.exitcode != 0:
                why = _message(receivers[job]) or (
                    f"it ended with the status {process.exitcode} and without a message; if memory ran out, use fewer "
                    "jobs"
                )
                raise JobError(
                    f"job {job + 1} of {len(processes)} failed, so all were stopped; finished runs are kept: {why}"
                )


def _message(receiver: Connection) -> str | None:
    """What a job that has ended wrote, if anything."""
    try:
        return str(receiver.recv())
    except EOFError:
        return None


def _stop(processes: list[Any]) -> None:
    """End those that still run, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


# --- In the process of a job -----------------------------------------------------------------------------------------


def _job(work: Work, job: int, count: int, threads: int, sender: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an exception, so that unfinished files are removed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        work(job, count)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        # Nobody reads the pipe before the job has ended, so the text must fit into it.
        sender.send(traceback.format_exc()[-LONGEST:])
        sys.exit(1)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
