"""Whether two results differ by more than rounding.

A result on many devices is compared with the one of the unsharded function, block by
block. Where they differ by more than is usual for the dtype, the unsharded function is
run again on arguments that are moved by one rounding step, up or down: sums in another
order may change its results by about as much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardviz.base.array_spec import dtype_name
from shardviz.compiled.checks import Check, Finding, found

# How far two results may be apart, as a fraction of the largest value. Sums in another
# order differ by rounding; a wrong or missing sum differs by far more than this.
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
# Every operation rounds, not the arguments alone: results may lie this many times
# farther apart than those of moved arguments.
MARGIN = 4.0
_HIDDEN = 0.25  # of the median of a block: more than rounding changes most functions
_INCONCLUSIVE = 0.25  # of the values: beyond it rounding looks like a mistake
_ZERO = 1e-7
_LEAST_DRAWS = 2
# An element that is only rounding moves in some draws and stays in others, so a block
# of such elements may look still in the first few.
MOST_DRAWS = 16
_HOPELESS = 100.0
_NARROW = re.compile(r"[x<](bf16|f16|f8E\dM(\d)\w*|f4E\dM(\d)\w*)>")
_BITS = {"bf16": 7, "f16": 10}
# Of float32 products: bfloat16 passes, and TF32.
_PRODUCTS = {"tpu": 2.0**-7, "gpu": 2.0**-10, "cuda": 2.0**-10, "rocm": 2.0**-10}


def tolerance(dtypes: Iterable[Any], platform: str) -> float:
    """How far apart results may be, by the coarsest of their and the arguments' dtypes.

    >>> tolerance(["float32"], "cpu"), tolerance(["float32", "bfloat16"], "cpu")
    (0.0001, 0.03)
    """
    worst = 0.0
    for name in map(dtype_name, dtypes):
        if _is_inexact(name):
            own = _TOLERANCE.get(name, _NARROW_TOLERANCE)
            worst = max(worst, own if platform == "cpu" else _COARSE.get(name, own))
    return worst


def _is_inexact(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True)
class _Apart:
    """How far one block, or all of a result, is from that part of a reference.

    Attributes:
        worst: the largest difference of an element.
        scale: the largest absolute value of the reference.
        unlike: how many elements must be equal and are not.
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


class Comparison:
    """One output of a run, compared with that of the unsharded function.

    `check` judges with what is known so far. If it isn't decided, `add` takes the same
    output for arguments that were moved by one rounding step, and `check` judges again.

    Args:
        name: the name of the output.
        array: the sharded result, without partial sums.
        reference: the result of the unsharded function.
        inputs: the dtypes of the arguments: results are no more exact than these.
        platform: the platform it ran on.
        made_up: whether shardviz made up the arguments.
    """

    def __init__(
        self,
        name: str,
        array: jax.Array,
        reference: jax.Array,
        inputs: Sequence[Any],
        platform: str,
        made_up: bool = False,
    ) -> None:
        self.about, self.made_up = f"{name}: values", made_up
        self.draws = 0
        self._final: Check | None = None
        if array.shape != reference.shape or array.dtype != reference.dtype:
            here = f"{array.dtype}{list(array.shape)}"
            there = f"{reference.dtype}{list(reference.shape)}"
            finding = found("other type", here=here, there=there)
            self._final = Check(self.about, False, finding)
            return
        # On the host, since jax can't index a dimension that is split over an Explicit
        # axis.
        self.expected = np.asarray(_words(reference))
        self.shards = _own_shards(_words(array))
        self.blocks = []
        for shard in self.shards:
            block = _apart(np.asarray(shard.data), self.expected[shard.index])
            self.blocks.append(block)
        self.total = _total(self.blocks)
        self.exact = not _is_inexact(dtype_name(self.expected.dtype))
        self.allowed = tolerance([array.dtype, *inputs], platform)
        self.within = not self.total.unlike and (
            self.total.worst <= self.allowed * self.total.scale
        )
        # Per shard, the largest move of each element in any draw; or, if elements must
        # be equal, whether it changed in any.
        self._moves: list[np.ndarray] = []
        if self.exact and not self.total.unlike:
            self._final = Check(self.about, True, found("equal"))
        # Large values elsewhere may hide a wrong block of small ones.
        elif self.within and not any(b.typical > _HIDDEN * b.size for b in self.blocks):
            self._final = Check(self.about, True, self._finding())

    @property
    def decided(self) -> bool:
        """Whether more draws would change nothing, or can't be expected to."""
        if self._final is not None:
            return True
        if self.draws < _LEAST_DRAWS:
            return False
        # Rounding that moves the results far less than they differ is no reason.
        noise = max((moves.max(initial=0) for moves in self._moves), default=0)
        hopeless = self.total.worst > _HOPELESS * noise and not self.total.unlike
        return self._is_rounding() or bool(hopeless) or self.draws >= MOST_DRAWS

    def add(self, moved: jax.Array) -> None:
        """Takes the output for arguments that were moved by one rounding step."""
        result = np.asarray(_words(moved))
        for number, shard in enumerate(self.shards):
            expected = self.expected[shard.index]
            moves = _moves(result[shard.index], expected)
            if self.draws:
                # In place: an output may be large, and there may be many draws.
                np.maximum(self._moves[number], moves, out=self._moves[number])
            else:
                self._moves.append(moves)
        self.draws += 1

    def check(self) -> Check:
        """The verdict on the draws so far: without any, a difference fails."""
        if self._final is not None:
            return self._final
        if not (self.draws and self._is_rounding()):
            fields: dict[str, Any] = {}
            if self.within:
                median = max(block.typical for block in self.blocks)
                fields = {"why": "hidden block", "median": median}
            return Check(self.about, False, self._finding(**fields))
        if self.within:
            return Check(self.about, True, self._finding())
        noise = self._noise_in_all()
        # If rounding changes the values this much, it could hide a mistake. Integers
        # may come from rounded numbers, as an argmax does.
        unclear = MARGIN * noise.worst > _INCONCLUSIVE * self.total.scale
        unclear = (unclear and not self._cancels()) or noise.unlike > 0
        finding = self._finding(
            why="inconclusive" if unclear else "rounding",
            moves=noise.worst,
            moved_unlike=noise.unlike,
            made_up=self.made_up,
        )
        return Check(self.about, None if unclear else True, finding)

    def _finding(self, **fields: Any) -> Finding:
        total = self.total
        if self.exact:
            return found("unequal", count=total.unlike, **fields)
        return found(
            "apart",
            worst=total.worst,
            scale=total.scale,
            unlike=total.unlike,
            not_finite=total.not_finite,
            allowed=self.allowed,
            **fields,
        )

    def _noise(self) -> list[_Apart]:
        """How far rounding moves each block."""
        noise = []
        for moves in self._moves:
            if moves.dtype == bool:
                noise.append(_Apart(unlike=int(moves.sum())))
                continue
            finite = moves[np.isfinite(moves)]
            median = float(np.median(finite)) if finite.size else 0.0
            unlike = moves.size - finite.size
            worst = float(finite.max(initial=0))
            noise.append(_Apart(worst, unlike=unlike, typical=median))
        return noise

    def _noise_in_all(self) -> _Apart:
        return _total(self._noise())

    def _cancels(self) -> bool:
        """Whether what is left where everything cancels is rounding, in any block."""
        noisy = MARGIN * self._noise_in_all().worst >= self.total.scale
        return noisy and self.total.worst <= _ZERO

    def _is_rounding(self) -> bool:
        """Whether rounding moves the unsharded function about as far, in each block."""
        noise, cancels = self._noise_in_all(), self._cancels()
        sizes = [block.size for block in self.blocks]
        floor = self.allowed * (float(np.median(sizes)) + 1e-3 * self.total.scale)
        if not cancels and self.total.worst > MARGIN * noise.worst:
            return False
        if self.total.unlike > MARGIN * noise.unlike:
            return False
        for block, moves in zip(self.blocks, self._noise(), strict=True):
            if not cancels and block.typical > MARGIN * moves.typical + floor:
                return False
        return True


def _moves(block: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How far each element moved; infinitely if it is finite in one of the two only."""
    if not _is_inexact(dtype_name(block.dtype)):
        return block != expected
    wide = np.complex128 if block.dtype.kind == "c" else np.float64
    block, expected = block.astype(wide), expected.astype(wide)
    same = (block == expected) | (np.isnan(block) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        moves = np.abs(block - expected)
    # A result without dimensions makes a number here, and no array.
    moves = np.where(np.isfinite(moves), moves, np.inf)
    moves[same] = 0.0
    return moves


def _words(array: jax.Array) -> Any:
    """The array; of random keys their words."""
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(array)
    return array


def _own_shards(array: jax.Array) -> list[Any]:
    """One shard of this process for every index."""
    shards: dict[Any, Any] = {}
    for shard in array.addressable_shards:
        key = tuple((s.start, s.stop) for s in shard.index)
        shards.setdefault(key, shard)
    return list(shards.values())


def _apart(block: np.ndarray, other: Any) -> _Apart:
    other = np.asarray(other)
    block = np.asarray(block)
    if not _is_inexact(dtype_name(block.dtype)):
        return _Apart(unlike=int((block != other).sum()))
    wide = np.complex128 if block.dtype.kind == "c" else np.float64
    block, other = block.astype(wide), other.astype(wide)
    finite = np.isfinite(block) & np.isfinite(other)
    # Where one is not finite both must be the same: NaN with NaN, inf with inf.
    same = (block == other) | (np.isnan(block) & np.isnan(other))
    differences, sizes = np.abs(block[finite] - other[finite]), np.abs(other[finite])
    return _Apart(
        float(differences.max(initial=0.0)),
        float(sizes.max(initial=0.0)),
        int((~finite & ~same).sum()),
        int((~finite & same).sum()),
        float(np.median(differences)) if sizes.size else 0.0,
        float(np.median(sizes)) if sizes.size else 0.0,
    )


def _total(blocks: Sequence[_Apart]) -> _Apart:
    return _Apart(
        max((block.worst for block in blocks), default=0.0),
        max((block.scale for block in blocks), default=0.0),
        sum(block.unlike for block in blocks),
        sum(block.not_finite for block in blocks),
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
    """The results of a function for arguments that are moved by one rounding step.

    Args:
        run: the unsharded function, compiled.
        inputs: its arguments.
        step: the least relative step; an argument moves by that of its dtype if that
            is larger.
        draw: the number of the draw, which decides what moves up and what down.
    """
    moved = [_moved(value, step, 1000 * draw + i) for i, value in enumerate(inputs)]
    return list(jax.block_until_ready(run(*moved)))


def _moved(value: jax.Array, step: float, seed: int) -> jax.Array:
    """An argument whose elements are moved by one step, up or down at random."""
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    own = float(jax.numpy.finfo(value.dtype).eps)
    host = np.asarray(value)
    signs = np.random.default_rng(seed).integers(0, 2, host.shape) * 2 - 1
    # numpy does not compute with the narrow floats of ml_dtypes.
    wide = np.result_type(host.dtype, np.float32) if host.dtype.kind in "fc" else "f4"
    moved = host.astype(wide) * (1 + max(step, own) * signs).astype(np.float64)
    return jax.device_put(moved.astype(host.dtype), value.sharding)
