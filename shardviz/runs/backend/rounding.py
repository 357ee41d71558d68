"""Decides whether two results differ by more than rounding.

A sharded result is compared with the result of the unsharded function, block by block.
If the two differ by more than the dtype's tolerance, the unsharded function runs again
on arguments that are perturbed by one rounding step, up or down. This perturbation
changes its results about as much as summing in another order. `Comparison` measures,
`verdict` judges.
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

# The largest usual difference of two results, as a fraction of the largest value.
# Summing in another order changes only rounding errors, which are far smaller than the
# effect of a wrong or missing sum.
_TOLERANCE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 5e-3,
    "bfloat16": 3e-2,
}
# The tolerance for floats of at most 8 bits.
_NARROW_TOLERANCE = 0.3

# By default, GPUs and TPUs multiply float32 with fewer bits (TF32, bfloat16).
_COARSE = {"float32": 5e-3, "complex64": 5e-3}
# Results may differ by this many times the effect of perturbed arguments, because every
# operation rounds.
MARGIN = 4.0
# As a fraction of a block's median size. Rounding usually changes less than that.
_HIDDEN = 0.25
# As a fraction of the largest value. Larger rounding could hide a mistake.
_INCONCLUSIVE = 0.25
_ZERO = 1e-7
_LEAST_DRAWS = 2
# An element that is pure rounding error changes in only some draws, so a block of such
# elements may not change in the first few.
MOST_DRAWS = 16
_HOPELESS = 100.0
_NARROW = re.compile(r"[x<](bf16|f16|f8E\dM(\d)\w*|f4E\dM(\d)\w*)>")
_BITS = {"bf16": 7, "f16": 10}
# The rounding step of float32 products: bfloat16 on TPUs, TF32 on GPUs.
_PRODUCTS = {"tpu": 2.0**-7, "gpu": 2.0**-10, "cuda": 2.0**-10, "rocm": 2.0**-10}


def tolerance(dtypes: Iterable[DTypeLike], platform: str) -> float:
    """Returns the relative tolerance for the coarsest dtype of results and arguments.

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
    """The difference between a block, or all blocks, of a result and its reference.

    Attributes:
        worst: the largest difference of elements that are finite in both.
        scale: the largest absolute value in the reference.
        unlike: number of elements that differ but must be equal: integers, and elements
            that are NaN or infinite in the result or the reference.
        not_finite: number of elements that are the same NaN or infinity in both.
        typical: the median difference.
        size: the median absolute value in the reference.
    """

    worst: float = 0.0
    scale: float = 0.0
    unlike: int = 0
    not_finite: int = 0
    typical: float = 0.0
    size: float = 0.0


@dataclass(frozen=True)
class Measured:
    """The differences of a result from its reference, and the effect of rounding.

    Attributes:
        blocks: the difference of each shard.
        exact: True if all elements must be equal, as for integers.
        allowed: the tolerance, relative to the largest value.
        noise: for each shard, how much the reference changes with perturbed arguments
            (largest change of each element in any draw); empty without draws.
        draws: number of runs with perturbed arguments.
    """

    blocks: tuple[BlockDifference, ...]
    exact: bool
    allowed: float
    noise: tuple[BlockDifference, ...] = ()
    draws: int = 0

    @cached_property
    def total(self) -> BlockDifference:
        """The difference over all blocks, without medians."""
        return _total(self.blocks)

    @cached_property
    def total_noise(self) -> BlockDifference:
        """The noise over all blocks, without medians."""
        return _total(self.noise)

    @property
    def within_tolerance(self) -> bool:
        """True if no difference exceeds the tolerance."""
        largest = self.allowed * self.total.scale
        return not self.total.unlike and self.total.worst <= largest

    @property
    def hides_a_block(self) -> bool:
        """True if a block's differences are about as large as its values.

        Large values in other blocks can hide a wrong block of small values.
        """
        return any(block.typical > _HIDDEN * block.size for block in self.blocks)

    @property
    def passes(self) -> bool:
        """True if the result is right even without allowing for noise."""
        if self.exact:
            return not self.total.unlike
        return self.within_tolerance and not self.hides_a_block

    @property
    def cancels(self) -> bool:
        """True if values cancel to about 0: both results are only rounding errors."""
        is_noise = MARGIN * self.total_noise.worst >= self.total.scale
        return is_noise and self.total.worst <= _ZERO

    @property
    def is_rounding(self) -> bool:
        """True if noise explains the difference in each block."""
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
        """True if further draws are not expected to change the verdict."""
        if self.passes:
            return True
        if self.draws < _LEAST_DRAWS:
            return False
        if self.draws >= MOST_DRAWS or self.is_rounding:
            return True
        # Noise can't explain differences that are far larger.
        noise = self.total_noise
        far_apart = self.total.worst > _HOPELESS * noise.worst
        return far_apart and not noise.unlike and not self.total.unlike


def verdict(measured: Measured, made_up: bool) -> tuple[bool | None, Finding]:
    """Decides from the draws so far whether a result is right.

    Args:
        measured: the result's differences. Without draws, a large difference fails.
        made_up: whether shardviz generated the arguments.

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
    # If rounding changes values this much, it could hide a mistake. This includes
    # integers computed from rounded numbers, such as those of an argmax.
    too_noisy = MARGIN * noise.worst > _INCONCLUSIVE * measured.total.scale
    conclusive = not noise.unlike and (measured.cancels or not too_noisy)
    reason = RoundingMoves(noise.worst, noise.unlike, conclusive, made_up)
    return True if conclusive else None, _finding(measured, reason)


def _finding(
    measured: Measured, reason: HiddenBlock | RoundingMoves | None = None
) -> Finding:
    total = measured.total
    if measured.exact:
        # `exact` results have no median difference.
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
    """Compares one output of a run with the output of the unsharded function.

    `check` returns the verdict so far. Until `decided`, call `add` with the unsharded
    output for arguments that are perturbed by one rounding step.

    Args:
        name: the name of the output.
        array: the sharded result; must not be unreduced.
        reference: the result of the unsharded function.
        inputs: dtypes of the arguments, which limit the precision of the result.
        platform: the platform of the run.
        made_up: whether shardviz generated the arguments.

    Attributes:
        measured: differences from the reference; None if shapes or dtypes differ.
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
        # Compare on the host, because jax can't index a dimension that is sharded over
        # an Explicit axis.
        self._expected = np.asarray(_without_keys(reference))
        self._shards = _shards_by_index(_without_keys(array))
        # For each shard, the largest change of each element in any draw. For elements
        # that must be equal, such as integers: whether they changed in any draw.
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
        """True if further draws are not expected to change the verdict."""
        return self.measured is None or self.measured.is_decided

    def add(self, moved: jax.Array) -> None:
        """Adds a draw: the unsharded output for perturbed arguments."""
        if self.measured is None:
            return
        result = np.asarray(_without_keys(moved))
        for number, shard in enumerate(self._shards):
            moves = _moves(result[shard.index], self._expected[shard.index])
            if self.measured.draws:
                # Update in place, because outputs can be large.
                np.maximum(self._moves[number], moves, out=self._moves[number])
            else:
                self._moves.append(moves)
        noise = tuple(map(_noise, self._moves))
        draws = self.measured.draws + 1
        self.measured = replace(self.measured, noise=noise, draws=draws)

    def check(self) -> Check:
        """Returns the verdict on the draws so far."""
        if self.measured is None:
            return Check("values", False, self._types, array=self.name)
        ok, finding = verdict(self.measured, self.made_up)
        return Check("values", ok, finding, array=self.name)


def is_repeated(again: jax.Array, result: jax.Array) -> bool:
    """Whether two calls of one function returned the same values."""
    arrays = (np.asarray(_without_keys(array)) for array in (again, result))
    return not _moves(*arrays).any()


def _type_text(array: jax.Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _noise(moves: np.ndarray) -> BlockDifference:
    """Summarizes the changes of one block's elements."""
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
    """Returns each element's change; infinity if it is finite in only one array."""
    if not _is_inexact(dtype_name(block.dtype)):
        return block != expected
    wide = np.complex128 if block.dtype.kind == "c" else np.float64
    block, expected = block.astype(wide), expected.astype(wide)
    are_equal = (block == expected) | (np.isnan(block) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        moves = np.abs(block - expected)
    # For a scalar, np.abs returns a number instead of an array.
    moves = np.where(np.isfinite(moves), moves, np.inf)
    moves[are_equal] = 0.0
    return moves


def _without_keys(array: jax.Array) -> jax.Array:
    """Returns the array itself; for PRNG keys, their key data."""
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(array)
    return array


def _shards_by_index(array: jax.Array) -> list[Shard]:
    """Returns one of this process's shards for each distinct index."""
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
    # Elements that are not finite must be equal; NaN counts as equal to NaN.
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
    """Returns the relative rounding error of an operation in a lowered program.

    This is half a step of the narrowest floats in the text.

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
    """Runs a function on arguments that are perturbed by one rounding step.

    Args:
        run: the compiled unsharded function.
        inputs: the arguments, before perturbation.
        step: the minimum relative step; if the step of an argument's dtype is larger,
            that step is used.
        draw: number of the draw, which seeds the choice between up and down.
    """
    moved = [_moved(value, step, 1000 * draw + i) for i, value in enumerate(inputs)]
    return list(jax.block_until_ready(run(*moved)))


def _moved(value: jax.Array, step: float, seed: int) -> jax.Array:
    """Moves each element of an argument up or down by one step, at random."""
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    eps = float(jax.numpy.finfo(value.dtype).eps)
    host = np.asarray(value)
    signs = np.random.default_rng(seed).integers(0, 2, host.shape) * 2 - 1
    # numpy can't compute with the narrow floats of ml_dtypes.
    wide = np.result_type(host.dtype, np.float32) if host.dtype.kind in "fc" else "f4"
    moved = host.astype(wide) * (1 + max(step, eps) * signs).astype(np.float64)
    return jax.device_put(moved.astype(host.dtype), value.sharding)
