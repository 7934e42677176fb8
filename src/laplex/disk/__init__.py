r"""Products whose sides do not fit into memory, from the disk of one machine.

    y = laplex.disk.linear("x.npy", "a.npy", "b.npy", tau=0.5, out="y.npy")

The mathematics
    Borders cut the line into buckets that fit into memory (``_borders``). A bucket sees the sources of all others as
    two more sources, at its borders: their sum, each decayed up to there (``_sums``). So each bucket is a product of
    its own. It is the scan of ``laplex._scan`` with a chunk for each bucket; ``laplex.distributed`` has one for each
    process.

The algorithm
    1. Read samples of a and b, and choose borders.
    2. Read a block by block, and write it in the order of buckets, with a label of a byte for each row (``_grouping``).
    3. Read b and x, write them in the order of buckets, and reduce every bucket's sources to two sums for each channel.
    4. For each bucket read its rows and columns, multiply in memory (``_multiply``), write the results (``_buckets``).
    5. For each block of rows read results and labels, and write the result in the caller's order (``_output``).

    No index is written: a block is sorted by bucket stably, so the labels alone give the way back. Everything is
    written in sequence. The parts of a bucket, one in each block, are not read so; each is a few hundred kilobytes.
    Where one side fits into memory, one pass over the other does (``_streams``).

Faults
    Each step consists of items that can be repeated, and a manifest says which are complete (``_workspace``).
"""

from laplex.disk._linear import linear

__all__ = ["linear"]
