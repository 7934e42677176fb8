"""The scan for many rows of x: pairs of points in place of running sums, which are repeated for every row.

``programs`` describes the phases, the scratch memory and ties. Here a tile of TILE points is cut into blocks of BLOCK
points. Within a block the matrix of exp(-|p_i - p_j| / tau) is computed once and multiplied with ROWS rows of x at a
time: BLOCK multiplications for a sum, and no exponential. What lies outside a block comes as two numbers for each row:

    reduce    ``reduce_blocks_program``: the totals of every tile, as ``reduce_program`` has them, and for every block
              the sums over the other blocks of its tile (``sums``)
    carry     ``carry_program``, as in ``programs``
    scan      ``scan_blocks_program``: the product of every block, plus the sums and the carries

Every pair has its own exponent, so wide tiles need no windows. Only a block that spans FAR_APART powers of two or more
has decays that underflow in float32, and may belong to a large x: it is multiplied once more, with the decays from
2^-FAR_APART on as multiples of that.

A state is a sum with the position it is referred to. For odd sums the state on the side of the ties has two parts: the
sources at that position (tied), and the others (strict). A target there reads the strict part; nothing is subtracted.

    sums      (2 or 3, h, blocks, lines)   float32: from the left, referred to the last position before the block; from
                                           the right, referred to the first position after it; both within the tile. If
                                           ODD, the third has the tied part of the right one if FIRST, else of the left
                                           one, and that one is strict.

Compile-time flags in addition to those of ``programs``
    X_LINES, EVEN_LINES, ODD_LINES    the rows of x, of the even sums, of the odd sums or weights are adjacent in
                                      memory, as ``scan.adjacent`` copies them: those of a point are one line
    DOUBLES   products are summed in float64, which some GPUs do as fast as in float32
    SPLIT     a tile has several blocks, so there are ``sums``
"""

import triton
import triton.language as tl

from laplex._triton.order.programs_refresh import order_fault
from laplex._triton.points import (
    INFINITY,
    LN_2,
    NARROW,
    TINY,
    WORD,
    decay_over,
    entry_of,
    fault_at_ends,
    follow,
    narrow_powers,
    rate_of,
)
from laplex._triton.program import program
from laplex._triton.scan.rows import lines_at, rows_in_memory

# From this power of two on decays are no normal float32 numbers. A bound on accuracy. Twice it is enough: 2^-252 of the
# largest float32 number is about the smallest normal one.
FAR_APART = tl.constexpr(126.0)
SMALLEST = tl.constexpr(2.0**-126)


@triton.jit
def points_of(entry, position, place, stop, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr):
    """For places before ``stop``: positions, is_target, is_source, index. Beyond it the last position, and neither."""
    inside = place < stop
    here = tl.minimum(place, stop - 1)
    is_row, index = entry_of(entry, here, padded, IN_ORDER)
    is_target = inside & (is_row if FIRST else ~is_row)
    return tl.load(position + here), is_target, inside & ~is_target, index


@triton.jit
def _weights(p, end, rate, span):
    """The float32 decays from positions to the ``end`` of their block, which is part of a tile of this span."""
    if span <= NARROW:
        decay, _up, _low, _high = narrow_powers(p, end, rate, span, False)
    else:
        decay = decay_over(tl.abs(p.to(tl.float64) - end), rate, False).to(tl.float32)
    return decay


@triton.jit
def _block_totals(v, decay, is_tied, BLOCKS: tl.constexpr):
    """(blocks, rows), float64: the decayed sums of every block, first without and then only of tied points."""
    strict = tl.where(is_tied, 0.0, decay)[:, None] * v
    tied = tl.where(is_tied[:, None], v, 0.0)
    shape: tl.constexpr = [BLOCKS, v.shape[0] // BLOCKS, v.shape[1]]
    return (
        tl.sum(tl.reshape(strict, shape), 1).to(tl.float64),
        tl.sum(tl.reshape(tied, shape), 1).to(tl.float64),
    )


@triton.jit
def _sums_over_blocks(strict, tied, ends, state_ends, counts, rate):
    """The strict and tied sums at ``state_ends`` (states,), over the blocks (states, blocks) that count.

    ``ends`` (blocks,) are the positions to which the totals of the blocks, (blocks, rows), are referred.
    """
    gap = tl.abs(state_ends[:, None] - ends[None, :])
    decay = tl.where(counts, decay_over(tl.where(counts, gap, 0.0), rate, False), 0.0)
    moved = tl.where(gap > 0, decay, 0.0)
    strict_sums = tl.sum(decay[:, :, None] * strict[None, :, :] + moved[:, :, None] * tied[None, :, :], 1)
    return strict_sums, tl.sum((decay - moved)[:, :, None] * tied[None, :, :], 1)


@program(numbers="m", callers=("x", "tau"))
def reduce_blocks_program(
    x, tau, entry, position, scratch, sums, m, merged, padded, tiles, rate_at, lines, x_batch, x_row, x_col,
    ODD: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, CHECKED: tl.constexpr, FAR: tl.constexpr,
    X_LINES: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The first phase: a tile's ends and totals, and the sums over the other blocks of the tile, for ROWS rows."""
    if EARLY:
        follow()
    BLOCKS: tl.constexpr = TILE // BLOCK
    tile, row_block, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    batches = tl.num_programs(2).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    start = (tile.to(tl.int64) if FAR else tile) * TILE
    stop = tl.minimum(start + TILE, merged)
    place = start + tl.arange(0, TILE)
    p, is_target, is_source, index = points_of(entry, position, place, stop, padded, FIRST, IN_ORDER)
    first, last = tl.load(position + start).to(tl.float64), tl.load(position + stop - 1).to(tl.float64)
    rate = rate_of(tl.load(tau + batch))
    fault = fault_at_ends(position, merged, rate)
    if CHECKED:
        fault += order_fault(
            position, entry, place[None, :], p[None, :], is_target[None, :], merged, padded, FIRST, IN_ORDER
        )
    if tile == 0:
        tl.store(scratch + rate_at + batch, rate)
    tl.store(scratch + batch * 2 * tiles + tile, first + fault)
    tl.store(scratch + (batch * 2 + 1) * tiles + tile, last + fault)
    row = row_block * ROWS + tl.arange(0, ROWS)
    at_x = lines_at(x + batch * x_batch, index, row, x_row, x_col, X_LINES)
    mask = is_source[:, None] & (row < rows_in_memory(m, X_LINES))[None, :]
    v = tl.load(at_x, mask=mask, other=0.0).to(tl.float32)
    block = tl.arange(0, BLOCKS)
    begin = start + block * BLOCK
    block_first = tl.load(position + tl.minimum(begin, stop - 1)).to(tl.float64)
    block_last = tl.load(position + tl.minimum(begin + BLOCK, stop) - 1).to(tl.float64)
    first_here = tl.load(position + tl.minimum(place // BLOCK * BLOCK, stop - 1)).to(tl.float64)
    last_here = tl.load(position + tl.minimum(place // BLOCK * BLOCK + BLOCK, stop) - 1).to(tl.float64)
    span = (last - first) * rate
    ties_right, ties_left = (p == first_here) & (ODD and FIRST), (p == last_here) & (ODD and not FIRST)
    right, right_tied = _block_totals(v, _weights(p, first_here, rate, span), ties_right, BLOCKS)
    left, left_tied = _block_totals(v, _weights(p, last_here, rate, span), ties_left, BLOCKS)
    exists = (begin < stop)[None, :]
    one = tl.zeros([1], tl.float64)
    tile_right, tile_right_tied = _sums_over_blocks(right, right_tied, block_first, one + first, exists, rate)
    tile_left, tile_left_tied = _sums_over_blocks(left, left_tied, block_last, one + last, exists, rate)
    channel = batches * m * tiles
    here = (row < m)[None, :]
    totals = scratch + batches * 2 * tiles + (batch * m + row[None, :]) * tiles + tile
    tl.store(totals, tile_right + tile_right_tied, mask=here)
    tl.store(totals + channel, tile_left + tile_left_tied, mask=here)
    if ODD:
        tl.store(totals + 2 * channel, tile_right_tied if FIRST else tile_left_tied, mask=here)
    if SPLIT:
        before = tl.load(position + tl.minimum(tl.maximum(begin - 1, start), stop - 1)).to(tl.float64)
        after = tl.load(position + tl.minimum(begin + BLOCK, stop - 1)).to(tl.float64)
        is_left, is_right = block[None, :] < block[:, None], (block[None, :] > block[:, None]) & exists
        from_left, from_left_tied = _sums_over_blocks(left, left_tied, block_last, before, is_left, rate)
        from_right, from_right_tied = _sums_over_blocks(right, right_tied, block_first, after, is_right, rate)
        blocks = tl.cdiv(merged, BLOCK)
        part = batches * blocks * lines
        at_sums = sums + (batch * blocks + (begin // BLOCK).to(tl.int64)[:, None]) * lines + row[None, :]
        both = (begin < stop)[:, None] & here
        tl.store(at_sums, from_left, mask=both)
        tl.store(at_sums + part, from_right, mask=both)
        if ODD:
            tl.store(at_sums + 2 * part, from_right_tied if FIRST else from_left_tied, mask=both)


@triton.jit
def states_of_block(
    totals, channel, at_sums, part, here, near, far, gaps, rate,
    ODD: tl.constexpr, FIRST: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The states left and right of a block, (rows,) float32 each, and the strict one on the side of the ties.

    The sums are referred to ``near``, the positions next to the block, the carries to ``far``, those next to its tile.
    The states are carried on over ``gaps`` to the ends of the block, but the strict one, which is only for points at
    the position next to it. Without ODD it has no meaning.
    """
    before, after = near
    p_left, p_right = far
    carries = totals + (3 if ODD else 2) * channel
    right = tl.load(carries + 2 * channel, mask=here, other=0.0)
    left = tl.load(carries + 3 * channel, mask=here, other=0.0)
    strict = right if FIRST else left
    if ODD:
        strict -= tl.load(carries + 4 * channel, mask=here, other=0.0)  # contained in it as the same float64 number
    if SPLIT:
        left *= decay_over(tl.where(p_left > -INFINITY, before - p_left, 0.0), rate, False)
        right *= decay_over(tl.where(p_right < INFINITY, p_right - after, 0.0), rate, False)
        own_left = tl.load(at_sums, mask=here, other=0.0).to(tl.float64)
        own_right = tl.load(at_sums + part, mask=here, other=0.0).to(tl.float64)
        if ODD:
            own_tied = tl.load(at_sums + 2 * part, mask=here, other=0.0).to(tl.float64)
            if FIRST:
                strict = tl.where(p_right == after, strict, right) + own_right
                own_right += own_tied
            else:
                strict = tl.where(p_left == before, strict, left) + own_left
                own_left += own_tied
        left, right = left + own_left, right + own_right
    left *= decay_over(gaps[0], rate, False)
    right *= decay_over(gaps[1], rate, False)
    return left.to(tl.float32), right.to(tl.float32), strict.to(tl.float32)


@triton.jit
def pair_decays(p, q, rate, span, DISTANT: tl.constexpr):
    """2^-e of e = |p - q| * rate, float32, where e < FAR_APART, else 0. No e is larger than ``span``.

    DISTANT: multiples of 2^-FAR_APART, where FAR_APART <= e < 2 FAR_APART, else 0. An exponent is float64, and split as
    in ``powers_of_two``, unless TINY allows float32.
    """
    if (not DISTANT) and (span <= TINY) & (rate > 1e-30) & (rate < 1e30):
        decay = tl.exp2(-(tl.abs(p - q) * rate.to(p.dtype)).to(tl.float32))
    else:
        exponent = tl.abs(p.to(tl.float64) - q.to(tl.float64)) * rate - (FAR_APART if DISTANT else 0.0)
        counts = (exponent >= 0) & (exponent < FAR_APART)
        exponent = tl.where(counts, exponent, 0.0)
        rounded = tl.floor(exponent)
        power = tl.exp2((rounded - exponent).to(tl.float32)).to(tl.int32, bitcast=True) - (rounded.to(tl.int32) << 23)
        decay = tl.where(counts, power.to(tl.float32, bitcast=True), 0.0)
    return decay


@triton.jit
def multiply(matrix, v, DOUBLES: tl.constexpr):
    """The product of float32 matrices, as float32."""
    if DOUBLES:
        return tl.dot(matrix.to(tl.float64), v.to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    else:
        return tl.dot(matrix, v, input_precision="ieee")


@triton.jit
def block_sums(
    p, v, states, outside, ends, rate, span,
    ODD: tl.constexpr, FIRST: tl.constexpr, DOUBLES: tl.constexpr, DISTANT: tl.constexpr,
):  # fmt: skip
    """Even and odd sums (points, rows) of a block, from its v and its states. The odd ones mean nothing unless ODD.

    ``states`` are left and right, referred to the block's ``ends``, and the strict one, referred to the nearest
    position ``outside`` on its side.
    """
    left, right, strict = states
    q = tl.trans(p[:, None])
    decay = pair_decays(p[:, None], q, rate, span, DISTANT)
    from_left = pair_decays(p, ends[0], rate, span, DISTANT)[:, None] * left[None, :]
    from_right = pair_decays(p, ends[1], rate, span, DISTANT)[:, None] * right[None, :]
    even = multiply(decay, v, DOUBLES) + (from_left + from_right)
    odd = even
    if ODD:
        at_tie, strict = (p == outside)[:, None], strict[None, :] * (0.0 if DISTANT else 1.0)
        if FIRST:
            from_right = tl.where(at_tie, strict, from_right)
        else:
            from_left = tl.where(at_tie, strict, from_left)
        signed = tl.where(q > p[:, None], decay, tl.where(q < p[:, None], -decay, 0.0))
        odd = multiply(signed, v, DOUBLES) + (from_right - from_left)
    return even, odd


@program(numbers="m", callers=("x", "odd_or_weights", "even"))
def scan_blocks_program(
    x, odd_or_weights, entry, position, scratch, sums, even, pull, m, n, merged, padded, tiles, rate_at, lines,
    x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
    ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, FAR: tl.constexpr,
    X_LINES: tl.constexpr, EVEN_LINES: tl.constexpr, ODD_LINES: tl.constexpr, SPLIT: tl.constexpr,
    DOUBLES: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The third phase: the sums at a block's targets, for ROWS rows of x, as ``scan_program`` has them."""
    if EARLY:
        follow()
    block, row_block, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    batches, blocks = tl.num_programs(2).to(tl.int64), tl.num_programs(0)
    tile = block // (TILE // BLOCK)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    rate = tl.load(scratch + rate_at + batch)
    start = (block.to(tl.int64) if FAR else block) * BLOCK
    stop = tl.minimum(start + BLOCK, merged)
    p, is_target, is_source, index = points_of(
        entry, position, start + tl.arange(0, BLOCK), stop, padded, FIRST, IN_ORDER
    )
    first, last = tl.load(position + start), tl.load(position + stop - 1)
    before = tl.load(position + start - 1, mask=start > 0, other=-INFINITY)
    after = tl.load(position + stop, mask=stop < merged, other=INFINITY)
    ends = scratch + batch * 2 * tiles + tile
    p_left = tl.load(ends + tiles - 1, mask=tile > 0, other=-INFINITY)
    p_right = tl.load(ends + 1, mask=tile + 1 < tiles, other=INFINITY)
    gaps = first.to(tl.float64) - before.to(tl.float64), after.to(tl.float64) - last.to(tl.float64)
    span = (last.to(tl.float64) - first.to(tl.float64)) * rate
    row = row_block * ROWS + tl.arange(0, ROWS)
    mask = is_source[:, None] & (row < rows_in_memory(m, X_LINES))[None, :]
    v = tl.load(lines_at(x + batch * x_batch, index, row, x_row, x_col, X_LINES), mask=mask, other=0.0).to(tl.float32)
    totals = scratch + batches * 2 * tiles + (batch * m + row) * tiles + tile
    at_sums = sums + (batch * blocks + block) * lines + row
    states = states_of_block(
        totals, batches * m * tiles, at_sums, batches * blocks * lines, row < m, (before, after), (p_left, p_right),
        gaps, rate, ODD, FIRST, SPLIT,
    )  # fmt: skip
    outside = after if FIRST else before
    evens, odds = block_sums(p, v, states, outside, (first, last), rate, span, ODD, FIRST, DOUBLES, False)
    if span >= FAR_APART:
        more = block_sums(p, v, states, outside, (first, last), rate, span, ODD, FIRST, DOUBLES, True)
        evens += more[0] * SMALLEST
        odds += more[1] * SMALLEST
    other = lines_at(odd_or_weights + batch * odd_batch, index, row, odd_row, odd_col, ODD_LINES)
    mask = is_target[:, None] & (row < rows_in_memory(m, ODD_LINES))[None, :]
    if PULL:
        products = tl.load(other, mask=mask, other=0.0).to(tl.float64) * odds.to(tl.float64)
        pulled = tl.sum(tl.where((row < m)[None, :], products, 0.0), 1)
        pull += (batch * tl.num_programs(1) + row_block) * n
        tl.store(pull + index, pulled * (rate * LN_2), mask=is_target)
    elif ODD:
        tl.store(other, odds, mask=mask)
    mask = is_target[:, None] & (row < rows_in_memory(m, EVEN_LINES))[None, :]
    tl.store(lines_at(even + batch * even_batch, index, row, even_row, even_col, EVEN_LINES), evens, mask=mask)
