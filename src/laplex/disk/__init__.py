r"""Products whose rows or columns do not fit into memory, read from the disk of one machine.

    y = laplex.disk.linear("x.npy", "a.npy", "b.npy", tau=0.5, out="y.npy")

The mathematics
    Borders cut the line into buckets that fit into memory (``_borders``). A bucket sees the sources of all other
    buckets as two extra sources, at its borders: the sums of those sources, each decayed up to the border (``_sums``).
    So each bucket is a separate product. This is the scan of ``laplex._scan`` with one chunk per bucket;
    ``laplex.distributed`` has one chunk per process.

The algorithm
    1. Read samples of a and b, and choose borders.
    2. Read a block by block, and write it grouped by bucket, with a one-byte label for each row (``_grouping``).
    3. Read b and x, write them grouped by bucket, and reduce every bucket's sources to two sums for each channel.
    4. For each bucket, read its rows and columns, multiply in memory (``_multiply``), write the results (``_buckets``).
    5. For each block of rows, read results and labels, and write the result in the caller's order (``_output``).

    No index is written: the sort of a block by bucket is stable, so the labels alone restore the caller's order. All
    writes are sequential. Reads of a bucket are not: it has a part in each block, but each part is a few hundred
    kilobytes.
    If one side fits into memory, one pass over the other is enough (``_streams``).

Faults
    Each step consists of items that can be repeated, and a manifest says which are complete (``_workspace``).
"""

from laplex.disk._linear import linear

__all__ = ["linear"]
