"""Compile every Triton program for a GPU, on a machine that may have none.

The other tests run programs in Triton's interpreter, which accepts code that the compiler refuses.
tests/interpreted/test_triton_compiles.py runs this file without TRITON_INTERPRET: its parts
take about as long as one another, in processes of their own.
"""

import itertools
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from laplex._triton.distance import programs as triton_distance
from laplex._triton.formed import programs as triton_formed
from laplex._triton.formed import programs_multiply as triton_multiply
from laplex._triton.gram import programs_matrix as triton_gram
from laplex._triton.gram import programs_pull as triton_gram_pull
from laplex._triton.gram import programs_sums as triton_gram_sums
from laplex._triton.layer import programs as triton_layer
from laplex._triton.order import programs as triton_order
from laplex._triton.order import programs_refresh as triton_refresh
from laplex._triton.phase import programs as triton_phase
from laplex._triton.phase import programs_collect as triton_collect
from laplex._triton.phase import programs_spread as triton_spread
from laplex._triton.scan import carry as triton_carry
from laplex._triton.scan import direct as triton_direct
from laplex._triton.scan import programs as triton_merged
from laplex._triton.scan import programs_block as triton_block
from laplex._triton.scan import rows as triton_rows
from laplex._triton.short import programs as triton_short
from laplex._triton.soft import programs_mask as triton_soft_mask
from laplex._triton.soft import programs_rank as triton_soft_rank
from laplex._triton.soft import programs_sort as triton_soft_sort
from laplex._triton.soft import tiles as triton_soft
from laplex._triton.states import launch as triton_states
from laplex._triton.states import programs as triton_walk
from laplex._triton.states import programs_carry as triton_states_carry
from laplex._triton.states import programs_chain as triton_chain
from laplex._triton.states import programs_pull as triton_states_pull

TARGET = GPUTarget("cuda", 90, 32)

# The name of a program's parameter tells what it is: a pointer to one of these dtypes, or else an integer.
FLOAT64 = {
    *("tau", "scratch", "grouped", "others", "fault", "table", "sums", "direction", "pulled", "stretch"),
    *("gaps", "diag", "rates", "squares", "staged", "entries", "maps", "composed_maps", "from_groups", "totals"),
    *("quad_bar", "logdet_bar", "later", "gaps_bar", "diag_bar", "y_bar"),
    *("step_matrices", "p", "q", "states", "failures", "result"),
    *("parts", "faults", "mass", "sides", "weighted", "tau_bar", "k_wanted", "k_bar", "threshold"),
}
NUMBERS = {"scale", "mix_scale", "target_scale", "source_scale", "tau_scale", "weight_scale", "phase_scale"}  # floats
INT32 = {"entry", "ones_entry", "twos_entry", "run_entry", "place_of", "border", "starts"}
INT64 = {"order", "splits", "counts"}
FLOAT32 = {"target_faults"}
LIKE_ANCHORS = {
    *("target", "source", "position", "run_position", "values", "ones", "twos", "pull", "out"),
    *("phi", "psi", "source_bar", "psi_bar", "angle", "turn", "phi_bar", "t_bar", "s_bar", "ends"),
    *("mix", "mix_bar", "bias", "bias_bar", "line_sums"),
}
LIKE_X = {
    *("x", "merged_x", "merged_y", "even", "odd", "odd_or_weights", "g", "y"),
    *("matrix", "weight", "largest", "weight_bar", "factor", "stacked", "left", "right", "v", "other"),
    *("ordered_g", "ranks", "factors", "mask", "x_bar"),
}
# Strides that are 1: Triton compiles an argument of 1 as a constant.
ONE = {"x_col", "even_col", "odd_col", "w_col", "factor_col", "out_col"}

# Programs that must load or store 16 bytes in one access: what Triton knows of their arguments suffices for that.
VECTORS = {
    *("reduce_program", "scan_program", "refresh_program", "encode_program", "merge_program"),
    *("spread_program", "stage_program", "reduce_rows_program"),
}

WARPS = 2  # with sizes in proportion: a thread has about as many points as in a real launch
# Dtype of anchors, dtype of weights, PHASED, FIRST, IN_ORDER. Every pair of values of any two of them occurs.
GRAMS = (
    ("fp32", "fp32", False, True, False),
    ("fp64", "fp64", True, True, False),
    ("fp32", "fp64", False, True, True),
    ("fp64", "fp32", True, True, True),
    ("fp32", "fp32", True, False, False),
    ("fp64", "fp64", False, False, False),
)


def compile_program(program, anchors, x, **constants):
    """Compile a program for anchors and x of these dtypes; check that one with EARLY waits before it uses memory."""
    ones = ONE if constants.get("ROWS_AT_ONCE", 1) == 1 and not constants.get("X_LINES") else {"even_row", "odd_row"}
    constants |= dict.fromkeys(ones & set(program.arg_names), 1)
    constants |= dict.fromkeys({"EARLY"} & set(program.arg_names), True)
    pointers = dict.fromkeys(FLOAT64, "*fp64") | dict.fromkeys(INT32, "*i32") | dict.fromkeys(INT64, "*i64")
    pointers |= dict.fromkeys(FLOAT32, "*fp32")
    pointers |= dict.fromkeys(NUMBERS, "fp32")
    pointers |= dict.fromkeys(LIKE_ANCHORS, f"*{anchors}") | dict.fromkeys(LIKE_X, f"*{x}")
    integer = "i64" if constants.get("FAR") else "i32"
    names = list(enumerate(program.arg_names))
    signature = {name: "constexpr" if name in constants else pointers.get(name, integer) for _, name in names}
    fixed = {(place,): constants[name] for place, name in names if name in constants}
    known = {each.name for each in program.params if not each.do_not_specialize_on_alignment}
    known -= {each.name for each in program.params if each.do_not_specialize}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in names if name in known - set(constants)}
    compiled = triton.compile(
        ASTSource(program, signature, fixed, aligned), target=TARGET, options={"num_warps": WARPS}
    )
    mirrored = constants.get("SPANS") == "narrow" and constants["ODD"] and constants["FIRST"]  # which only gathers
    if program.__name__ in VECTORS and x == "fp32" and not mirrored:
        assert re.search(r"\b(ld|st)\.global\S*\.v[24]\.", compiled.asm["ptx"]), f"{program.__name__} has no vectors"
    if "EARLY" in constants:
        before, waited, _ = compiled.asm["ptx"].partition("griddepcontrol.wait")
        assert waited, f"{program.__name__} may start early, but does not wait for the previous launch"
        assert not re.search(r"\b(ld|st)\.global", before), f"{program.__name__} uses global memory before it waits"
    print("compiled", program.__name__, anchors, x, flush=True)


# Of narrow tiles alone: whether there are odd sums, whether they are pulled back, whether rows come first at ties.
NARROW = ((False, False, True), (True, False, True), (True, True, True), (True, True, False))
# Which of them with rows side by side, and which row by row: each in some way, whatever the dtypes.
NARROW_OF = {"fp32": (NARROW[::3], NARROW[1:3]), "fp64": (NARROW[1:3], NARROW[::3]), "bf16": (NARROW[::3], ())}
# Even sums, odd ones, their pullback, and tau's: all there are of float32, of others each with and without.
SPREAD = ((1, 0, 0, 0), (1, 1, 1, 1), (0, 0, 0, 1), (1, 1, 0, 0), (1, 1, 1, 0))


def narrow_sums(anchors, x, exact):
    for place, cases in enumerate(NARROW_OF[x]):
        for odd, pull, first in cases:
            both = {
                "EXACT": exact,
                "ODD": odd,
                "PULL": pull,
                "FIRST": first,
                "SPANS": "narrow",
                "TILES": 1,
                "CARRY": 1,
            }
            both |= {"ONE_BATCH": True, "FAR": False, "SPARSE": False, "UNSTAGED": False, "TILE": 256}
            side = {"IN_ORDER": False, "STAGED": "", "ONE_ROW": False, "ROWS_AT_ONCE": 4}
            alone = {"IN_ORDER": first, "STAGED": "" if first else "places", "ONE_ROW": False, "ROWS_AT_ONCE": 1}
            compile_program(triton_merged.scan_program, anchors, x, **both, **(alone if place else side))


def block_sums(anchors, x):
    """Each value of each flag."""
    for odd, pull, first, lines, doubles in ((0, 0, 1, 1, 1), (1, 0, 1, 0, 0), (1, 1, 0, 1, 0), (1, 1, 1, 0, 1)):
        flags = {"ODD": odd, "FIRST": first, "IN_ORDER": odd and not lines, "FAR": pull, "X_LINES": lines}
        flags |= {"SPLIT": lines, "TILE": 128 if lines else 32, "BLOCK": 32}
        compile_program(triton_block.reduce_blocks_program, anchors, x, **flags, CHECKED=pull, ROWS=16)
        flags |= {"PULL": pull, "EVEN_LINES": lines, "ODD_LINES": lines, "DOUBLES": doubles and x == "fp32", "ROWS": 32}
        compile_program(triton_block.scan_blocks_program, anchors, x, **flags)


def products(anchors, x):
    exact = x == "fp64"
    for odd, first in ((False, True), (True, True), (True, False)):
        flags = {"EXACT": exact, "ODD": odd, "FIRST": first}
        tiles = {**flags, "IN_ORDER": first and odd, "FAR": not first, "TILE": 256, "ONE_ROW": odd and first}
        staged = {"STAGED": "" if first else "places"}
        checked = {"CHECKED": odd and exact, "ONE_BATCH": odd, "ROWS_AT_ONCE": 1 if odd else 4}
        compile_program(triton_merged.reduce_program, anchors, x, **tiles, STAGED=not first, **checked)
        carry = {"CARRY": 1 if odd else 8, "ONE_BATCH": odd, "SPANS": "all" if exact else "wide" if odd else "narrow"}
        carry |= {"TILES": 8 if odd and not exact else 1, "SPARSE": odd}
        carry |= {"PULL": odd and not first, "UNSTAGED": not odd}
        compile_program(triton_merged.scan_program, anchors, x, **tiles, **staged, **carry, ROWS_AT_ONCE=1)
        if x == anchors:
            compile_program(triton_carry.group_program, anchors, x, **flags, GROUP=64)
            compile_program(triton_carry.carry_program, anchors, x, **flags, GROUP=64, OTHERS=128, BY_TILES=odd)
        if x == "fp32" or (x == "fp64" and odd != first):
            block = {"TARGETS": 16, "SOURCES": 64, "ROWS": 4}
            compile_program(triton_direct.direct_program, anchors, x, EXACT=exact, ODD=odd, DEGREE=int(first), **block)
    for even, odd, pull, to_tau in SPREAD if x == "fp32" else SPREAD[:3]:
        flags = {"EXACT": exact, "EVEN": even, "ODD": odd, "PULL": pull, "TO_TAU": to_tau}
        compile_program(triton_short.spread_program, anchors, x, **flags, TARGETS=32, ROWS=32)
    for odd, pull, first in ((False, True, False), (True, False, True)):
        tiles = {"EXACT": exact, "FIRST": first, "IN_ORDER": odd, "FAR": pull, "TILE": 256, "ROWS": 4}
        compile_program(triton_distance.distance_reduce_program, anchors, x, **tiles, CHECKED=odd)
        compile_program(triton_distance.distance_scan_program, anchors, x, **tiles, ODD=odd, PULL=pull)
    compile_program(triton_distance.distance_carry_program, anchors, x, EXACT=exact, GROUP=64)
    narrow_sums(anchors, x, exact)
    for lines in (False, True):
        compile_program(triton_rows.copy_program, anchors, x, X_LINES=lines, Y_LINES=not lines, WIDTH=64, ROWS=32)
    if not exact:
        block_sums(anchors, x)
    for to_tau in (False, True):
        compile_program(triton_short.table_program, anchors, x, EXACT=exact, TO_TAU=to_tau, SOURCES=256)
    compile_program(triton_short.unstage_program, anchors, x, WIDTH=512)
    compile_program(triton_short.stage_program, anchors, x, SOURCES=64, ROWS=32)
    tiles = {"EXACT": exact, "FIRST": True, "FAR": False, "TILE": 256, "POINTS": 32, "ROWS": 32}
    for odd, in_order in ((False, False), (True, True)):
        compile_program(triton_short.reduce_rows_program, anchors, x, **tiles, ODD=odd, IN_ORDER=in_order)


def others():
    for in_order, far in itertools.product((False, True), repeat=2):
        compile_program(triton_refresh.place_program, "fp32", "fp32", IN_ORDER=in_order, FAR=far, TILE=256)
        compile_program(
            triton_refresh.refresh_program, "fp32", "fp32", FIRST=True, IN_ORDER=in_order, FAR=far, TILE=256
        )
    compile_program(triton_merged.row_dot_program, "fp32", "fp32", WIDTH=512, ROWS=8)
    compile_program(triton_merged.block_sum_program, "fp32", "fp32", WIDTH=32, ROWS=64)
    compile_program(triton_order.side_by_side_program, "fp32", "fp32", WIDTH=1024)
    for anchors in ("fp32", "fp64"):
        compile_program(triton_order.rank_program, anchors, anchors, WIDTH=16, OTHERS=256, LANES=64)
        compile_program(triton_order.join_program, anchors, anchors, WIDTH=32, RUNS=16)
    compile_program(triton_order.encode_program, "fp32", "fp32", WIDTH=1024)
    compile_program(triton_order.split_program, "fp32", "fp32", TILE=1024, LANES=128)
    for words in (False, True):
        compile_program(triton_order.merge_program, "fp32", "fp32", WORDS=words, TILE=1024)


def grams():
    for anchors, x, phased, first, in_order in GRAMS:
        kinds = {"EXACT": x == "fp64", "PHASED": phased}
        tiles = {**kinds, "FIRST": first, "IN_ORDER": in_order, "TILE": 256, "ROWS": 8}
        reduce = {"CHECKED": in_order, "FAR": not first}
        compile_program(triton_gram_sums.gram_reduce_program, anchors, x, **tiles, **reduce)
        compile_program(triton_gram_sums.gram_target_program, anchors, x, **tiles, FAN=64)
        if first:  # programs without FIRST: once is enough
            compile_program(triton_gram.assemble_program, anchors, x, **kinds, ROWS=8, COLS=64)
            compile_program(triton_gram.pull_program, "fp64", x, **kinds, ROWS=8, COLS=64)
            compile_program(triton_gram_sums.gram_carry_program, anchors, x, EXACT=kinds["EXACT"], GROUP=64)
            kinds["FIELDS"] = triton_gram_pull.FIELDS_TO_TAU if phased else triton_gram_pull.FIELDS
            compile_program(triton_gram_pull.gram_table_program, anchors, x, **kinds, GROUP=64)
            to = {"TO_WEIGHT": True, "TO_SOURCE": kinds["EXACT"], "TO_PSI": phased, "TO_TAU": phased}
            compile_program(triton_gram_pull.gram_source_program, anchors, x, **kinds, **to, SOURCES=128)


def formed():
    """Every pair of dtypes of anchors and x, and every flag."""
    tile = {"TARGETS": 32, "SOURCES": 32}
    dtypes = ("fp32", "fp32", True), ("fp32", "bf16", False), ("fp64", "fp32", True), ("fp32", "fp64", False)
    for anchors, x, phased in dtypes:
        exact = x == "fp64"
        to = {"ANCHORS": not exact, "TAU": phased, "WEIGHT": True, "PHASE": phased}
        kinds = {"EXACT": exact, "WEIGHTED": phased, "PHASED": phased, "KNOWN": exact}
        compile_program(triton_formed.form_program, anchors, x, **kinds, **tile)
        compile_program(triton_formed.pull_program, anchors, x, EXACT=exact, PHASED=phased, **to, **tile)
        compile_program(triton_formed.finish_program, anchors, x, **to, WEIGHTED=phased, WIDTH=128, CHUNK=8)
    compile_program(triton_formed.fault_program, "fp32", "fp32", WIDTH=2048)
    for left, right in ((True, True), (True, False), (False, False)):
        flags = {"LEFT_ADJACENT": left, "RIGHT_ADJACENT": right, "DOUBLES": left, "ROWS": 64, "COLS": 64, "TERMS": 16}
        compile_program(triton_multiply.multiply_program, "fp32", "fp32", **flags, BIAS=right)
    layers()


def layers():
    """Results that are fewer than inputs, and more of them."""
    for anchors, x, few in (("fp32", "fp32", True), ("fp64", "fp64", False), ("fp64", "fp32", False)):
        tile = {"WIDTH": 64, "ROWS": 32}
        compile_program(triton_layer.affine_program, anchors, x, BIAS=few, **tile)
        compile_program(triton_layer.sum_rows_program, anchors, x, **tile)
        compile_program(triton_layer.rows_program, anchors, x, MIX=few, PULL=True, BIAS=True, **tile)
        compile_program(triton_layer.rows_program, anchors, x, MIX=True, PULL=False, BIAS=False, **tile)
        compile_program(triton_layer.total_program, anchors, x, WEIGHT=not few, TAU=few, WIDTH=128, ROWS=16)


def phases():
    """Dtype of anchors, dtype of x, and flags of which each has either value."""
    for anchors, x, one, two in (("fp32", "fp32", 1, 1), ("fp64", "fp64", 1, 0), ("fp32", "bf16", 0, 1)):
        exact = x == "fp64"
        compile_program(triton_phase.stack_program, anchors, x, WIDTH=64, ROWS=8)
        flags = {"EVEN": one, "TURN": two, "PULL": two, "STRETCH": one}
        compile_program(triton_phase.unstack_program, anchors, x, **flags, WIDTH=64, ROWS=8)
        for even, pull in ((one, two), (1 - two, 1)):
            flags = {"EXACT": exact, "EVEN": even, "PULL": pull, "TARGETS": 32, "ROWS": 32}
            compile_program(triton_spread.phased_spread_program, anchors, x, **flags)
        side = {"TO_TAU": two, "LONG_FIRST": one}
        piece = {"PIECE": 256, "POINTS": 32, "ROWS": 16}
        compile_program(triton_collect.collect_program, anchors, x, EXACT=exact, IN_ORDER=1 - two, **side, **piece)
        compile_program(triton_collect.settle_program, anchors, x, EXACT=exact, **side, SHORT=256)
        compile_program(triton_collect.read_program, anchors, x, **side, WIDTH=64, ROWS=8)
    compile_program(triton_collect.gather_program, "fp32", "fp32", PIECES=8, WIDTH=64)


def states():
    """Kernels of one to three states, and a sum; every flag has either value."""
    for kinds in ((1,), (2,), (3,), (1, 2)):
        blocks = triton_states.layout_of(kinds)._asdict()
        layout, walk = {name: blocks[name] for name in ("LAYOUT", "BLOCKS", "SIZE")}, {"CHUNK": 64, "LANES": 64}
        given = {"ORDERED": kinds == (1,), "COUNTED": kinds == (2,)}
        compile_program(triton_walk.stage_program, "fp64", "fp64", **layout, **given, CHUNK=64, LANES=8)
        for start, maps, sums in ((1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1)):
            flags = {"START": start, "MAPS": maps, "SUMS": sums, "UNROLL": 4}
            compile_program(triton_walk.walk_program, "fp64", "fp64", **blocks, **flags, **walk)
        size = {"SIZE": sum(kinds), "GROUP": 32, "LANES": 64}
        for one in (False, True):
            compile_program(triton_states_carry.compose_program, "fp64", "fp64", **size, BACK=one)
            compile_program(triton_states_carry.spread_program, "fp64", "fp64", **size, TOP=one, ADD=not one)
            compile_program(triton_states_carry.gather_program, "fp64", "fp64", **size, TOP=one)
        compile_program(triton_states_pull.pull_program, "fp64", "fp64", **blocks, **given, **walk)
    for size, one, two in ((1, False, True), (2, True, False), (3, True, True), (2, False, False)):
        chain = {"SIZE": size, "MAPS": one, **walk}
        compile_program(triton_chain.factor_program, "fp64", "fp64", **chain, START=one and two)
        compile_program(triton_chain.scan_program, "fp64", "fp64", **chain, MATRICES=two, REVERSE=size == 2)
    compile_program(triton_states_carry.total_program, "fp64", "fp64", WIDTH=512)


def soft():
    """Rows that are one tile, sorted there or by torch; and rows of many tiles."""
    kinds = ("fp32", 1, 1, "all"), ("fp32", 0, 0, "near"), ("fp32", 0, 0, "wide"), ("fp64", 1, 0, "wide")
    for number, alone, sort, spans in kinds:
        exact, types = number == "fp64", (number, number)
        tiles, once = {"EXACT": exact, "TILE": 128}, {"ALONE": alone, "DESCENDING": sort, "SPANS": spans}
        compile_program(triton_soft_rank.reduce_ranks_program, *types, **tiles, PULL=alone)
        compile_program(triton_soft_sort.reduce_sort_program, *types, **tiles, PULL=alone, DESCENDING=sort)
        compile_program(triton_soft_rank.ranks_program, *types, **tiles, **once, SORT=sort)
        compile_program(triton_soft_rank.pull_ranks_program, *types, **tiles, **once)
        compile_program(triton_soft_sort.values_program, *types, **tiles, **once, SORT=sort)
        compile_program(triton_soft_sort.pull_sort_program, *types, **tiles, **once)
        compile_program(triton_soft_mask.mask_row_program, *types, **tiles, SORT=sort)
        compile_program(triton_soft_mask.threshold_program, *types, **tiles, GROUP=64)
        compile_program(triton_soft_mask.mask_program, *types, **tiles)
        compile_program(triton_soft_mask.reduce_mask_program, *types, **tiles)
        compile_program(triton_soft_mask.pull_mask_program, *types, **tiles, ALONE=alone, PARTS=32)
        compile_program(triton_soft.carry_soft_program, *types, DEGREE=sort, SECOND=alone, TIES=sort, GROUP=64)


PARTS = {
    "soft": soft,
    "formed": formed,
    "float32": lambda: products("fp32", "fp32"),
    "float64": lambda: products("fp64", "fp64"),
    "bfloat16_and_orders": lambda: (products("fp32", "bf16"), others()),
    "grams": grams,
    "phases": phases,
    "states": states,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
