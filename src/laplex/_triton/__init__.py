"""The GPU wing: products and Gram matrices in Triton. ``backend`` is its door; nothing outside imports another module.

    backend      the table of what the wing can do, for ``laplex._backends``
    order/       the sorted order of both sides: ranked by counting, or sorted and merged
    scan/        products over tiles of that order: reduce every tile, carry between tiles, scan every tile
    short/       products with one long side: a table of sums at few sources, and staging by rows
    formed/      matrices, and sums of them, written once for torch to multiply by, and their gradients
    phase/       products with phases, both channels in one pass, and their gradients
    distance/    sums weighted by distance, for the gradient of tau
    layer/       a layer's step, forward and backward, in one piece
    gram/        Gram matrices and their gradients
    states/      Gaussian processes with few states: likelihoods and their gradients
    soft/        soft ranks, sorts and masks of rows, and their gradients
    points       what all programs share: places, entries, decays, faults
    running      running sums over the points or tiles that one program holds
    tuning       every number that trades time for time or memory
    precision    how float32 matrices may be multiplied
    program      how a program is declared, so that one is for all sizes
    launch       how a program is launched
    recording    how launches are recorded, and replay: how they are launched again
    warm_up      which programs there are, and compiling them ahead

In a room ``launch`` is host code: shapes, scratch memory, grids. Device code is in ``programs``, or in files named
after what they compute. A room uses those below it only: points and running, then order, then distance and short,
then scan, then phase and gram; formed and states use none but points, soft points and running, layer scan and formed.

A product on CUDA comes to ``scan.launch.scan``, which is ``scan_once`` with replay around it, and goes on to
``scan_tiles`` and ``launch``. It launches ``reduce_program``, for many tiles ``carry_program``, and ``scan_program``.
If numbers are wrong only from some size on, look at ``scan/carry``; at ties,
at ``scan/sums``; after anchors moved, at ``order/programs_refresh``; from the second call on, at ``replay``.
"""
