"""Decides whether two results differ by more than rounding.

A result on many devices is compared with that of the unsharded function, block by
block. If they differ by more than is usual for the dtype, the unsharded function runs
again on arguments that are moved by one rounding step, up or down: sums in another
order may change its results by about as much. `Comparison` measures, `verdict` judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np
from jax import Shard
from numpy.typing import DTypeLike

from shardviz.base.array_spec import dtype_name
from shardviz.compiled.checks import (
    Check,
    ElementsDiffer,
    Finding,
    HiddenBlock,
    OtherType,
    RoundingMoves,
    ValuesApart,
    ValuesEqual,
)

# The largest usual difference of two results, as a fraction of the largest value. Sums
# in another order differ by rounding; a wrong or missing sum differs by far more.
_TOLERANCE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 5e-3,
    "bfloat16": 3e-2,
}
_NARROW_TOLERANCE = 0.3  # of floats of 8 bits and fewer
# GPUs and TPUs multiply float32 in fewer bits by default (TF32, bfloat16 passes).
_COARSE = {"float32": 5e-3, "complex64": 5e-3}
# Every operation rounds, not only the arguments, so results may differ by this many
# times as much as those of moved arguments.
MARGIN = 4.0
_HIDDEN = 0.25  # of the median of a block: rounding changes most functions less
_INCONCLUSIVE = 0.25  # of the values: rounding that large looks like a mistake
_ZERO = 1e-7
_LEAST_DRAWS = 2
# An element that consists of rounding errors moves in only some of the draws, so a
# block of such elements may not move in the first few.
MOST_DRAWS = 16
_HOPELESS = 100.0
_NARROW = re.compile(r"[x<](bf16|f16|f8E\dM(\d)\w*|f4E\dM(\d)\w*)>")
_BITS = {"bf16": 7, "f16": 10}
# The rounding step of float32 products: in bfloat16 passes, and in TF32.
_PRODUCTS = {"tpu": 2.0**-7, "gpu": 2.0**-10, "cuda": 2.0**-10, "rocm": 2.0**-10}


def tolerance(dtypes: Iterable[DTypeLike], platform: str) -> float:
    """The largest usual difference, by the coarsest dtype of results and arguments.

    >>> tolerance(["float32"], "cpu"), tolerance(["float32", "bfloat16"], "cpu")
    (0.0001, 0.03)
    """
    worst = 0.0
    for name in map(dtype_name, dtypes):
        if _is_inexact(name):
            usual = _TOLERANCE.get(name, _NARROW_TOLERANCE)
            if platform != "cpu":
                usual = _COARSE.get(name, usual)
            worst = max(worst, usual)
    return worst


def _is_inexact(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True)
class BlockDifference:
    """How far one block, or all of a result, is from that part of a reference.

    Attributes:
        worst: the largest difference of an element that is finite in both.
        scale: the largest absolute value of the reference.
        unlike: how many elements must be equal and are not: integers, or elements that
            are finite in only one of the two.
        not_finite: how many are NaN or infinite in both.
        typical: the median difference.
        size: the median absolute value of the reference.
    """

    worst: float = 0.0
    scale: float = 0.0
    unlike: int = 0
    not_finite: int = 0
    typical: float = 0.0
    size: float = 0.0


@dataclass(frozen=True)
class Measured:
    """How far a result is from its reference, and how far rounding moves the reference.

    Attributes:
        blocks: the difference of each shard.
        exact: True if all elements must be equal, as integers must.
        allowed: the largest difference that is usual, relative to the largest value.
        noise: per shard, the largest move of each element in any draw; empty before the
            first draw.
        draws: how often the arguments were moved.
    """

    blocks: tuple[BlockDifference, ...]
    exact: bool
    allowed: float
    noise: tuple[BlockDifference, ...] = ()
    draws: int = 0

    @cached_property
    def total(self) -> BlockDifference:
        """The difference of all blocks together, without medians."""
        return _total(self.blocks)

    @cached_property
    def total_noise(self) -> BlockDifference:
        """The moves of all blocks together, without medians."""
        return _total(self.noise)

    @property
    def within_tolerance(self) -> bool:
        """True if the largest difference is usual for the dtype."""
        largest = self.allowed * self.total.scale
        return not self.total.unlike and self.total.worst <= largest

    @property
    def hides_a_block(self) -> bool:
        """True if a block differs by about as much as its values.

        Large values elsewhere may hide a wrong block of small ones.
        """
        return any(block.typical > _HIDDEN * block.size for block in self.blocks)

    @property
    def passes(self) -> bool:
        """True if the result is right, however far rounding moves it."""
        if self.exact:
            return not self.total.unlike
        return self.within_tolerance and not self.hides_a_block

    @property
    def cancels(self) -> bool:
        """True if everything cancels, and the difference is only rounding of that."""
        is_noise = MARGIN * self.total_noise.worst >= self.total.scale
        return is_noise and self.total.worst <= _ZERO

    @property
    def is_rounding(self) -> bool:
        """True if rounding moves the unsharded function about as far, in each block."""
        noise = self.total_noise
        median_size = float(np.median([block.size for block in self.blocks]))
        floor = self.allowed * (median_size + 1e-3 * self.total.scale)
        if not self.cancels and self.total.worst > MARGIN * noise.worst:
            return False
        if self.total.unlike > MARGIN * noise.unlike:
            return False
        for block, moves in zip(self.blocks, self.noise, strict=True):
            largest = MARGIN * moves.typical + floor
            if not self.cancels and block.typical > largest:
                return False
        return True

    @property
    def is_decided(self) -> bool:
        """True if more draws would change nothing, or can't be expected to."""
        if self.passes:
            return True
        if self.draws < _LEAST_DRAWS:
            return False
        if self.draws >= MOST_DRAWS or self.is_rounding:
            return True
        # Rounding that moves the results far less than they differ explains nothing.
        noise = self.total_noise
        far_apart = self.total.worst > _HOPELESS * noise.worst
        return far_apart and not noise.unlike and not self.total.unlike


def verdict(measured: Measured, made_up: bool) -> tuple[bool | None, Finding]:
    """Decides whether a result is right, by the draws so far.

    Args:
        measured: how far it is from its reference. Without draws, a difference fails.
        made_up: whether shardviz made up the arguments.

    Returns:
        True, False, or None if rounding could hide a mistake; and the finding.
    """
    if measured.exact and measured.passes:
        return True, ValuesEqual()
    if measured.passes:
        return True, _finding(measured)
    if not measured.draws or not measured.is_rounding:
        reason = None
        if measured.within_tolerance:
            median = max(block.typical for block in measured.blocks)
            reason = HiddenBlock(median)
        return False, _finding(measured, reason)
    if measured.within_tolerance:
        return True, _finding(measured)
    noise = measured.total_noise
    # If rounding changes the values this much, it could hide a mistake. Integers may
    # come from rounded numbers, as those of an argmax do.
    too_noisy = MARGIN * noise.worst > _INCONCLUSIVE * measured.total.scale
    conclusive = not noise.unlike and (measured.cancels or not too_noisy)
    reason = RoundingMoves(noise.worst, noise.unlike, conclusive, made_up)
    return True if conclusive else None, _finding(measured, reason)


def _finding(
    measured: Measured, reason: HiddenBlock | RoundingMoves | None = None
) -> Finding:
    total = measured.total
    if measured.exact:
        # Elements that must be equal have no median difference.
        assert not isinstance(reason, HiddenBlock)
        return ElementsDiffer(total.unlike, reason)
    return ValuesApart(
        worst=total.worst,
        scale=total.scale,
        allowed=measured.allowed,
        unlike=total.unlike,
        not_finite=total.not_finite,
        reason=reason,
    )


class Comparison:
    """One output of a run, measured against that of the unsharded function.

    `check` judges by the draws so far. If that isn't decided, `add` takes the same
    output for arguments that were moved by one rounding step.

    Args:
        name: the name of the output.
        array: the sharded result, without partial sums.
        reference: the result of the unsharded function.
        inputs: the dtypes of the arguments: results are no more exact than these.
        platform: the platform it ran on.
        made_up: whether shardviz made up the arguments.

    Attributes:
        measured: how far the result is from the reference; None if their types differ.
    """

    def __init__(
        self,
        name: str,
        array: jax.Array,
        reference: jax.Array,
        inputs: Sequence[DTypeLike],
        platform: str,
        made_up: bool = False,
    ) -> None:
        self.name, self.made_up = name, made_up
        self.measured: Measured | None = None
        if array.shape != reference.shape or array.dtype != reference.dtype:
            self._types = OtherType(_type_text(array), _type_text(reference))
            return
        # On the host, since jax can't index a dimension that is split over an Explicit
        # axis.
        self._expected = np.asarray(_without_keys(reference))
        self._shards = _shards_by_index(_without_keys(array))
        # Per shard, the largest move of each element in any draw; for elements that
        # must be equal, whether it changed in any.
        self._moves: list[np.ndarray] = []
        blocks = []
        for shard in self._shards:
            expected = self._expected[shard.index]
            blocks.append(_difference(np.asarray(shard.data), expected))
        self.measured = Measured(
            tuple(blocks),
            exact=not _is_inexact(dtype_name(self._expected.dtype)),
            allowed=tolerance([array.dtype, *inputs], platform),
        )

    @property
    def decided(self) -> bool:
        """True if more draws would change nothing, or can't be expected to."""
        return self.measured is None or self.measured.is_decided

    def add(self, moved: jax.Array) -> None:
        """Adds a draw: the output for arguments that were moved by one rounding step."""
        if self.measured is None:
            return
        result = np.asarray(_without_keys(moved))
        for number, shard in enumerate(self._shards):
            moves = _moves(result[shard.index], self._expected[shard.index])
            if self.measured.draws:
                # In place: an output may be large, and there may be many draws.
                np.maximum(self._moves[number], moves, out=self._moves[number])
            else:
                self._moves.append(moves)
        noise = tuple(map(_noise, self._moves))
        draws = self.measured.draws + 1
        self.measured = replace(self.measured, noise=noise, draws=draws)

    def check(self) -> Check:
        """The verdict on the draws so far."""
        if self.measured is None:
            return Check("values", False, self._types, array=self.name)
        ok, finding = verdict(self.measured, self.made_up)
        return Check("values", ok, finding, array=self.name)


def _type_text(array: jax.Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _noise(moves: np.ndarray) -> BlockDifference:
    """How far rounding moves one block."""
    if moves.dtype == bool:
        return BlockDifference(unlike=int(moves.sum()))
    finite = moves[np.isfinite(moves)]
    median = float(np.median(finite)) if finite.size else 0.0
    return BlockDifference(
        worst=float(finite.max(initial=0)),
        unlike=moves.size - finite.size,
        typical=median,
    )


def _moves(block: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How far each element moved; infinity if it is finite in only one of the two."""
    if not _is_inexact(dtype_name(block.dtype)):
        return block != expected
    wide = np.complex128 if block.dtype.kind == "c" else np.float64
    block, expected = block.astype(wide), expected.astype(wide)
    are_equal = (block == expected) | (np.isnan(block) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        moves = np.abs(block - expected)
    # For a result without dimensions, abs returns a number instead of an array.
    moves = np.where(np.isfinite(moves), moves, np.inf)
    moves[are_equal] = 0.0
    return moves


def _without_keys(array: jax.Array) -> jax.Array:
    """The array itself; for random keys, the integers they consist of."""
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(array)
    return array


def _shards_by_index(array: jax.Array) -> list[Shard]:
    """One shard of this process for every index that it holds."""
    shards: dict[tuple[tuple[int, int], ...], Shard] = {}
    for shard in array.addressable_shards:
        key = tuple((s.start, s.stop) for s in shard.index)
        shards.setdefault(key, shard)
    return list(shards.values())


def _difference(block: np.ndarray, expected: np.ndarray) -> BlockDifference:
    block, expected = np.asarray(block), np.asarray(expected)
    if not _is_inexact(dtype_name(block.dtype)):
        return BlockDifference(unlike=int((block != expected).sum()))
    wide = np.complex128 if block.dtype.kind == "c" else np.float64
    block, expected = block.astype(wide), expected.astype(wide)
    finite = np.isfinite(block) & np.isfinite(expected)
    # If one is not finite, both must be the same: NaN with NaN, inf with inf.
    are_equal = (block == expected) | (np.isnan(block) & np.isnan(expected))
    differences = np.abs(block[finite] - expected[finite])
    sizes = np.abs(expected[finite])
    return BlockDifference(
        worst=float(differences.max(initial=0.0)),
        scale=float(sizes.max(initial=0.0)),
        unlike=int((~finite & ~are_equal).sum()),
        not_finite=int((~finite & are_equal).sum()),
        typical=float(np.median(differences)) if sizes.size else 0.0,
        size=float(np.median(sizes)) if sizes.size else 0.0,
    )


def _total(blocks: Sequence[BlockDifference]) -> BlockDifference:
    return BlockDifference(
        worst=max((block.worst for block in blocks), default=0.0),
        scale=max((block.scale for block in blocks), default=0.0),
        unlike=sum(block.unlike for block in blocks),
        not_finite=sum(block.not_finite for block in blocks),
    )


def step_of(text: str, platform: str) -> float:
    """The relative rounding error of one operation of a lowered program.

    It is half a step of the narrowest floats in the text.

    >>> step_of("tensor<8x8xbf16>, tensor<f32>", "cpu")
    0.00390625
    """
    steps = [_PRODUCTS.get(platform, 0.0)]
    for kind, eight, four in set(_NARROW.findall(text)):
        steps.append(2.0 ** -(_BITS.get(kind) or int(eight or four)))
    return max(steps) / 2


def moved_result(
    run: Callable[..., Sequence[jax.Array]],
    inputs: Sequence[jax.Array],
    step: float,
    draw: int,
) -> list[jax.Array]:
    """Runs a function on arguments that are moved by one rounding step.

    Args:
        run: the unsharded function, compiled.
        inputs: its arguments.
        step: the least relative step; an argument moves by that of its dtype if that
            is larger.
        draw: the number of the draw: the seed that decides which elements move up.
    """
    moved = [_moved(value, step, 1000 * draw + i) for i, value in enumerate(inputs)]
    return list(jax.block_until_ready(run(*moved)))


def _moved(value: jax.Array, step: float, seed: int) -> jax.Array:
    """An argument whose elements are moved by one step, up or down at random."""
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    eps = float(jax.numpy.finfo(value.dtype).eps)
    host = np.asarray(value)
    signs = np.random.default_rng(seed).integers(0, 2, host.shape) * 2 - 1
    # numpy does not compute with the narrow floats of ml_dtypes.
    wide = np.result_type(host.dtype, np.float32) if host.dtype.kind in "fc" else "f4"
    moved = host.astype(wide) * (1 + max(step, eps) * signs).astype(np.float64)
    return jax.device_put(moved.astype(host.dtype), value.sharding)
