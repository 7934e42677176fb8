"""The paper "LAPLEX: The FFT of Learnable Laplace Kernels", compared with what this library measures. Not installed.

    python -m paper list                every entry: its source in the paper, its data, its device and its time
    python -m paper run NAME ...        measures entries, and writes a JSON file for each
    python -m paper report              one HTML page of all results, committed and fresh
    python -m paper experiment NAME     one of the experiments, on your own data

An entry is a table or figure of the paper, a claim of its text, or an addition of ours (source ``BEYOND``): one object
with what is claimed, when it counts as reproduced, what is measured, and how results are judged. ``sections`` has a
file per section of the paper:

    entry                     Entry, and what comes of one: Outcome, Figure, Plot, ...
    running                   Measurement (points of a JSON file) and Experiments, which an entry can measure
    results                   the one reader of results; which of several runs counts
    judging, judging_times    from results to verdicts
    measuring                 products of laplex and its rivals: errors, times, memory
    datasets                  what is in the folder of --data
    experiments, methods      experiments on data, and all that laplex is compared with
    commands, report          the command line; the HTML page

To add an entry, open the file of its section. Write the paper's numbers as constants; write a ``Measurement``, whose
name is that of its file, whose ``points`` are what to measure, and whose ``compute`` returns the result at one point,
or take one that is there; write ``judge(entry, archive)``, which returns ``outcome(...)`` with figures; add an
``Entry`` to ``ENTRIES``. `python -m paper run NAME --quick` shows that it works, and without --quick what comes of
it; the tests find it by themselves. To commit its results, move the JSON into benchmarks/results/reproduce, and run
`make tables`.
"""
