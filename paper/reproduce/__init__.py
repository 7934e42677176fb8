"""The paper's tables and figures, one entry each: what it reports, what this library measures, and a verdict.

    python -m paper list          every entry, with its source in the paper, its data, its device and its time
    python -m paper run NAME ...        measures entries and writes a JSON file for each
    python -m paper report                    one page of all results, committed and fresh

``_outcome`` holds what an entry is and what came of it; everything else makes or shows outcomes:

    _entries      the entries; every label of the paper that has results is in one
    _published    the paper's figures
    _problems, _rivals, _timing, _measure, _trials, _curves
                  problems, what is timed side by side, how, and the measurements of an entry
    _runs         runs the measurements of an entry, point by point, into its JSON
    _stored       reads results from folders
    _judging, _judge_...
                  figures, plots and verdicts
    _outcomes     all of them: ``outcomes(folders)``
"""

from paper.entry import VERDICTS
from paper.reproduce._entries import ENTRIES, LABELS_WITHOUT, NAMES, entry, labels
from paper.reproduce._outcomes import outcomes
from paper.results import committed

__all__ = ["ENTRIES", "LABELS_WITHOUT", "NAMES", "VERDICTS", "committed", "entry", "labels", "outcomes"]
