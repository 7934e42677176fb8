"""The paper's tables and figures, one entry each: what it reports, what this library measures, and a verdict.

    laplex reproduce --list          every entry, with its source in the paper, its data, its device and its time
    laplex reproduce NAME ...        measures entries and writes a JSON file for each
    laplex report                    one page of all results, committed and fresh

``_outcome`` holds what an entry is and what came of it; everything else makes or shows outcomes.
"""
