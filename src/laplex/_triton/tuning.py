"""Every number of the GPU programs that trades time for time or memory, with what it trades.

``python -m benchmarks.studies.crossover --gpu`` measures each next to smaller and larger values; its figures are
in ``benchmarks/results/crossover-gpu.json``. (Those of formed matrices and phases are not in it yet.) Bounds that guard
accuracy, but for MULTIPLY_TERMS, stand next to the programs that need them. Sizes of tiles are powers of two.
"""

from __future__ import annotations

# --- Which way a product takes ---------------------------------------------------------------------------------------
DENSE_BELOW = 1 << 20  # entries n k; fewer pairs are summed one by one, in one launch, sooner than sorted
SHORT_AXIS_RATIO = 16  # of the two sizes; from here on the longer side is not sorted, or is read row by row
TABLE_SOURCES = 4096  # sources; for so few the sums at every source are a table that all targets read
TABLE_FROM = 1 << 23  # sums m n; the table costs a sort and two launches, which fewer do not repay
ROWS_STAGED = 8  # rows of x; from this many on they are copied with adjacent rows before a long side is reduced

# --- The order -------------------------------------------------------------------------------------------------------
COUNTED_PAIRS = 1 << 26  # pairs of points; up to here each point is compared with all others, in one launch
COUNTED_IN_RUNS = 1 << 16  # points; up to here each is compared with its run and then searched for in the others
RUN = 2048  # points of a run: short runs compare less, many runs search more
RANK_TILE = 32, 512, 128  # points a program ranks, points it compares them with in a step, lanes it counts them in
RUN_TILE = 32, 256, 32  # the same for points within runs
JOIN_TILE = 32, 8  # points of a program, and runs it searches side by side: more hide latency, and take registers
MERGE_TILE = 1024  # points of a program that merges, encodes or copies
SORTED_AT_ONCE = 1 << 28  # points; a sort needs nine times the memory of its keys, so more are sorted in parts
PLACES_FROM = 1 << 23  # points; a plan that is kept then holds places, so that y is gathered and not scattered
PLACE_TILE = 512  # points of a program that finds places

# --- The scan in tiles -----------------------------------------------------------------------------------------------
TILE = 256  # points of a program: larger tiles mean fewer carries and more registers
LARGE_TILE = 512
LARGE_TILE_FROM = 1 << 25  # points in all, from which on tiles are large
ROW_TILES = 1 << 20  # points in all, from which on a single row of x is scanned in large tiles by two warps
SMALL_SCAN = 1 << 18  # points times rows; up to here two warps share a tile, because there are too few programs
SMALL_LARGE_TILE = 1 << 15  # points in all, from which on such a scan has large tiles
ROWS = 4  # rows of x of a program, which share exponentials and cost registers
ROWS_OF_SPARSE = 8  # the same where most tiles hold no target and are skipped
PROGRAMS_WANTED = 2048  # a program takes fewer rows while there are fewer programs than this
CARRIED_BY_TILES = 128  # tiles; up to here every tile adds up the others' sums itself and a launch is saved
CARRIED_AT_ONCE = 1024  # tiles that one program carries; more are carried in groups
GROUPS_BY_TILES = 8  # groups; up to here a group reads all tiles of the others, else sums of groups, one more launch
GATHERED_TWICE = 1 << 20  # bytes of x; a smaller x is gathered twice, a larger one written in merged order on the way
SPANS_TOGETHER = 1 << 13  # programs; more get two launches: narrow tiles need few registers, wide ones many
WIDE_TOGETHER = 64  # wide tiles that a program looks at, of which mostly none is wide
ROWS_ADJACENT = 4  # rows of x that lie adjacent in memory: 16 bytes of float32 are one access
TILE_ADJACENT = 256  # points of a program that takes adjacent rows
ADJACENT_FROM = 1 << 10  # programs of such tiles, from which on two transposing copies are repaid
COPY_TILE = 2048, 32  # numbers, and rows at most, of a program that copies with adjacent rows
# Pairs within blocks are multiplied in place of running sums for products of many rows and not very many points. There
# a tile may span many tau, as those of a layer with one kernel do, and running sums then take much longer.
ROWS_OF_BLOCKS = 32  # of x, at least
MOST_BLOCKED = 1 << 16  # points, at most: more are so close to each other that running sums are faster
BLOCKS_FROM = 1 << 18  # points times rows, at least
BLOCK = 32  # points of a block: larger ones multiply more, smaller ones have more sums to carry
BLOCK_TILE = 256  # points of a tile of blocks: larger tiles mean fewer carries and more registers
BLOCK_ROWS = 32, 64  # rows of x of a program that reduces tiles, and of one that multiplies blocks
BLOCK_PROGRAMS = 512  # tiles are smaller, and programs have fewer rows, while there are fewer programs
BLOCK_WARPS = 4, 4  # of a program that reduces tiles, and of one that multiplies blocks
LINES_FROM = 1 << 24  # bytes of x; from here on two transposing copies are repaid
DIRECT_TILE = 16, 64, 4  # targets, sources at a step and rows of x of a program that forms pairs

# --- The matrix formed ---------------------------------------------------------------------------------------------
FORM_TILE = 32, 32  # targets and sources of a program
FORM_WARPS = 4, 2  # of a program that forms a tile: many while there are few programs
PULL_TILES = (8, 128), (32, 32)  # of a program that pulls back, which is one warp: no sum then crosses warps
PULL_PARTS = 1 << 24  # partial sums; this many may be kept for a matrix that has fewer numbers
FORM_MANY = 1 << 12  # programs
TARGETS_CHECKED = 1 << 15  # anchors in a sum; up to here programs look for faults themselves and a launch is saved
FAULT_TILE = 2048  # anchors at a step of a program that looks for faults
MULTIPLY_TILES = (32, 32), (64, 64)  # of a product with exact sums: small while there are few programs
MULTIPLY_MANY = 256  # programs with the large tile
MULTIPLY_DOUBLES = 1 << 28  # multiplications; from here on torch multiplies, in float64, on GPUs with units for that
MULTIPLY_TERMS = 16, 32  # of a float32 sum, a bound on accuracy; at a step of float64 units
MULTIPLY_WARPS = 4, 8  # of a program with the small tile, and of one with the large tile
FINISH_TILE = 64, 32  # anchors of a program that sums over tiles, and tiles at a step

# --- One long side ---------------------------------------------------------------------------------------------------
SPREAD_TILE = 128, 64  # targets of a program that reads the table, for few rows of x and for many
SPREAD_ROWS = 32  # rows of x that it reads at a step; more than half of them count as many
STAGE_TILE = 64  # sources of a program that copies x with adjacent rows
REDUCE_POINTS = 32  # points at a step of a program that reduces adjacent rows
UNSTAGE_TILE = 512  # targets of a program that gathers y out of the merged order

# --- Phases ----------------------------------------------------------------------------------------------------------
STACK_TILE = 128, 8  # points and rows at a step of a program that puts phases on rows, or takes them off
PHASED_SPREAD_TILE = 64, 16  # targets, and rows of x at a step, of a program that reads the table of both channels
PIECE = 256  # sources of an interval that one program sums: more mean fewer sums to add up, and fewer programs
COLLECT_TILE = 32, 32  # sources and rows at a step of that program
GATHER_TILE = 16, 64  # pieces and numbers at a step of a program that adds up an interval

# --- Sums weighted by distance, for tau ------------------------------------------------------------------------------
DISTANCE_TILE = 512  # points of a program
DISTANCE_ROWS = 4  # rows of x of a program
DISTANCE_CARRIED = 512  # tiles that one program carries at a step
DISTANCE_WARPS = 4

# --- Gram matrices ---------------------------------------------------------------------------------------------------
GRAM_TILES = ((1 << 19, 256), (1 << 24, 512), (1 << 62, 2048))  # points in all, and those of a tile below that
GRAM_CARRIED = 1024  # tiles that one program carries at a step
GRAM_ROWS = 8  # weights of a program, which share the points of a tile
GRAM_FAN = 64  # positions that a search compares with at a step
MATRIX_TILE = 16, 64  # rows and columns of M of a program
PULL_TARGETS = 1024  # targets whose table a program sums at a step
PULL_SOURCES = 128  # columns of a program that reads the table

# --- Gaussian processes with few states ------------------------------------------------------------------------------
STATE_CHUNK = 64  # points that a lane walks over: more take longer, fewer leave more maps to compose
STATE_LANES = 32, 1, 4  # lanes of a program, its warps, and how many steps of a walk are unrolled
STATE_UNROLLED = 3  # states; with more a step has enough to do, and takes long to compile
STATE_GROUP = 32  # maps that a lane composes: more take longer, fewer need more launches
STATE_STAGED = 1024  # points of a program that stages them
STATE_SUMMED = 1024  # chunks at a step of a program that sums over them

# --- Soft ranks, sorts and masks -------------------------------------------------------------------------------------
# benchmarks/studies/soft.py --gpu --sweep compares these with other values.
SOFT_SORTED = 1024  # numbers of a row; so few are sorted by the program that sums them, more by torch
SOFT_ALONE = 2048  # numbers of a row; so few are one tile, and need no carries
SOFT_TILE = 1024  # numbers of a tile of longer rows
SOFT_WARP = 128  # numbers of a warp: more share a scan, and need registers
SOFT_SPANS_APART = 512  # tiles; so many have a launch for near ones and one for wide ones, as SPANS_TOGETHER
SOFT_CARRIED = 1024  # tiles that one program carries at a step
SOFT_ELEMENTS = 2048  # numbers of a program that reads a threshold, at a step
SOFT_PARTS = 512  # programs of a row that pull a mask; each adds up what so many have summed

# --- Sums over rows --------------------------------------------------------------------------------------------------
DOT_TILE = 512, 8  # points and rows at a step of a program that sums products over rows
BLOCK_SUM_TILE = 2048, 64  # numbers and rows at a step of a program that sums over blocks of rows
SUM_ROWS_TILE = 32, 128  # columns, and rows at a step, of a program that sums the rows of a cotangent
SUMMED_ROWS = 1024  # above, torch sums
LAYER_TILE = 64, 32  # columns and rows at a step of a program that passes over a layer's results or their cotangent

# --- Launches and replays --------------------------------------------------------------------------------------------
EARLY_PROGRAMS = 2048  # a launch of so few begins before the last one ends; each program of more would wait by itself
COMPILED_KEPT = 4096  # compiled programs found without asking Triton
REPLAYS_KEPT = 64  # forms of calls
REPLAYED_OPERATORS = 1 << 24  # numbers in the inputs of an operator; for more Python's share of the time is small
REPLAYED_SORTS = 1 << 22  # points of a sort; likewise
