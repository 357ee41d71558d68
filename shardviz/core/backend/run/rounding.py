"""Whether two results differ by more than rounding.

A result on many devices is compared with the one of the unsharded function, block by
block. Where they differ by more than is usual, the unsharded function is run again on
arguments that are moved by one rounding step, up or down. Sums in another order may
change its results as much: by a lot where the function amplifies rounding, by little
where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardviz.core.layout.array_spec import dtype_name
from shardviz.core.program.checks import Check, found

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
_HIDDEN = 0.25  # of the median of a block: more than rounding changes most functions
_ZERO = 1e-7  # the rounding that is left where everything cancels
# Every operation rounds, not the arguments alone: results may lie this many times
# farther apart than those of moved arguments.
MARGIN = 4.0
# Beyond this fraction of the values, rounding looks like a mistake.
_INCONCLUSIVE = 0.25
_DRAWS = 2
_NARROW = re.compile(r"[x<](bf16|f16|f8E\dM(\d)\w*|f4E\dM(\d)\w*)>")
_BITS = {"bf16": 7, "f16": 10}
# Of float32 products on chips that multiply it in fewer bits: bfloat16 passes, and
# TF32.
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


def values_check(
    name: str,
    array: jax.Array,
    reference: jax.Array,
    inputs: Sequence[Any],
    platform: str,
    moved: Callable[[], Sequence[jax.Array]] | None = None,
) -> Check:
    """A result on many devices against the same result on one, block by block.

    Args:
        name: the name of the output.
        array: the sharded result, without partial sums.
        reference: the result of the unsharded function.
        inputs: the dtypes of the arguments: results are no more exact than these.
        platform: the platform it ran on.
        moved: returns the same result for arguments moved by one rounding step; called
            only where the two differ by more than is usual.
    """
    about = f"{name}: values"
    if array.shape != reference.shape or array.dtype != reference.dtype:
        here = f"{array.dtype}{list(array.shape)}"
        there = f"{reference.dtype}{list(reference.shape)}"
        return Check(about, False, found("other type", here=here, there=there))
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        array, reference = jax.random.key_data(array), jax.random.key_data(reference)
        moved = None  # keys have no rounding
    blocks = _own_blocks(array)
    difference = Difference(np.asarray(reference))
    for index, data in blocks:
        difference.add(np.asarray(data), index)
    if not _is_inexact(dtype_name(array.dtype)):
        if not difference.unlike:
            return Check(about, True, found("equal"))
        return _unequal(about, difference, moved, reference, blocks)
    allowed = tolerance([array.dtype, *inputs], platform)
    # Where nothing says what rounding does, the least of it is allowed for.
    limit = allowed * difference.scale + (0.0 if moved else _ZERO)
    ok = difference.worst <= limit and not difference.unlike
    if moved is None or (ok and not difference.hidden):
        return _apart(about, ok, difference, allowed)
    noise = Noise.of(moved(), reference, [index for index, _ in blocks])
    return _judged(about, ok, difference, allowed, noise)


def _unequal(
    about: str,
    difference: Difference,
    moved: Callable[[], Sequence[jax.Array]] | None,
    reference: jax.Array,
    blocks: Sequence[tuple[Any, Any]],
) -> Check:
    """The check of integers or truth values that differ."""
    count = difference.unlike
    if moved is not None:
        # They may come from rounded numbers, as an argmax does.
        noise = Noise.of(moved(), reference, [index for index, _ in blocks])
        if noise.explains(0.0, count, difference.typical, 0.0):
            moves = {"moves": noise.worst, "moved_unlike": noise.unlike}
            finding = found("unequal", count=count, why="inconclusive", **moves)
            return Check(about, None, finding)
    return Check(about, False, found("unequal", count=count))


def _own_blocks(array: jax.Array) -> list[tuple[Any, Any]]:
    """Index and data of one shard of this process for every index."""
    blocks: dict[Any, tuple[Any, Any]] = {}
    for shard in array.addressable_shards:
        key = tuple((s.start, s.stop) for s in shard.index)
        blocks.setdefault(key, (shard.index, shard.data))
    return list(blocks.values())


def _apart(
    about: str,
    ok: bool | None,
    difference: Difference,
    allowed: float,
    why: str = "",
    **more: Any,
) -> Check:
    """The check of a difference of inexact numbers.

    Args:
        why: what decided, a code of `wording/run.py`; `""` for the tolerance.
        **more: fields of that code.
    """
    finding = found(
        "apart",
        worst=difference.worst,
        scale=difference.scale,
        allowed=allowed,
        unlike=difference.unlike,
        not_finite=difference.not_finite,
        why=why,
        **more,
    )
    return Check(about, ok, finding)


def _judged(
    about: str, ok: bool, difference: Difference, allowed: float, noise: Noise
) -> Check:
    """The check of an unusual difference, compared with what rounding does."""
    cancels = noise.allowed >= difference.scale and not difference.unlike
    if difference.worst <= _ZERO and cancels:
        return _apart(about, True, difference, allowed, "cancels")
    floor = allowed * (difference.typical_scale + 1e-3 * difference.scale)
    if not noise.explains(
        difference.worst, difference.unlike, difference.typical, floor
    ):
        if not ok:
            return _apart(about, False, difference, allowed)
        # The largest values agree, and hide a block of small ones.
        median = max(difference.typical)
        return _apart(about, False, difference, allowed, "hidden block", median=median)
    if ok:
        return _apart(about, True, difference, allowed)
    moves = {"moves": noise.worst, "moved_unlike": noise.unlike}
    if noise.inconclusive(difference.scale):
        return _apart(about, None, difference, allowed, "inconclusive", **moves)
    return _apart(about, True, difference, allowed, "rounding", **moves)


@dataclass(frozen=True)
class Noise:
    """What one rounding step of the arguments does to one result.

    Attributes:
        worst: the largest change of an element.
        unlike: how many elements changed that must be equal, or are finite in one run
            only.
        typical: the median change in each block.
    """

    worst: float
    unlike: int
    typical: tuple[float, ...]

    @classmethod
    def of(
        cls, moved: Sequence[jax.Array], reference: jax.Array, blocks: Sequence[Any]
    ) -> Noise:
        """The noise in some blocks of results for moved arguments."""
        differences = []
        for result in moved:
            difference, other = Difference(np.asarray(reference)), np.asarray(result)
            for index in blocks:
                difference.add(other[index], index)
            differences.append(difference)
        typical = np.zeros(len(blocks))
        for difference in differences:
            typical = np.maximum(typical, difference.typical)
        return cls(
            max(d.worst for d in differences),
            max(d.unlike for d in differences),
            tuple(typical),
        )

    @property
    def allowed(self) -> float:
        """How far results may be apart from rounding alone."""
        return MARGIN * self.worst

    def explains(
        self, worst: float, unlike: int, typical: Sequence[float], floor: float
    ) -> bool:
        """Whether rounding explains a difference.

        Args:
            worst: the largest difference.
            unlike: how many elements must be equal and are not.
            typical: the median difference of each block.
            floor: what is always allowed in a typical element.

        >>> Noise(0.01, 0, (0.001,)).explains(0.02, 0, [0.002], 0.0)
        True
        >>> Noise(0.01, 0, (0.001,)).explains(0.02, 0, [0.02], 0.0)
        False
        """
        if worst > self.allowed or unlike > MARGIN * self.unlike:
            return False
        blocks = zip(typical, self.typical, strict=True)
        return all(apart <= MARGIN * own + floor for apart, own in blocks)

    def inconclusive(self, scale: float) -> bool:
        """Whether rounding changes the values so much that it could hide a mistake."""
        return self.unlike > 0 or self.allowed > _INCONCLUSIVE * scale


def step_of(text: str, platform: str) -> float:
    """The relative rounding error of one operation of a lowered program.

    It is half a step of the narrowest floats in the text.

    >>> step_of("tensor<8x8xbf16>, tensor<f32>", "cpu")
    0.00390625
    >>> step_of("tensor<8xf8E4M3FN>", "cpu")
    0.0625
    """
    steps = [_PRODUCTS.get(platform, 0.0)]
    for kind, eight, four in set(_NARROW.findall(text)):
        steps.append(2.0 ** -(_BITS.get(kind) or int(eight or four)))
    return max(steps) / 2


def moved_results(
    run: Callable[..., Sequence[jax.Array]], inputs: Sequence[jax.Array], step: float
) -> list[list[jax.Array]]:
    """Two results of a function, each for arguments moved by one rounding step.

    Args:
        run: the unsharded function, compiled.
        inputs: its arguments.
        step: the least relative step; an argument moves by that of its dtype where that
            is larger.
    """
    results = []
    for draw in range(_DRAWS):
        moved = [_moved(value, step, 1000 * draw + i) for i, value in enumerate(inputs)]
        results.append(list(jax.block_until_ready(run(*moved))))
    return results


def _moved(value: jax.Array, step: float, seed: int) -> jax.Array:
    """An argument whose elements are moved by one step, up or down at random."""
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    own = float(jax.numpy.finfo(value.dtype).eps)
    host = np.asarray(value)
    signs = np.random.default_rng(seed).integers(0, 2, host.shape) * 2 - 1
    wide = np.float32
    if host.dtype.kind in "fc":
        wide = np.promote_types(host.dtype, np.float32)
    moved = host.astype(wide) * (1 + max(step, own) * signs).astype(np.float64)
    return jax.device_put(moved.astype(host.dtype), value.sharding)


class Difference:
    """How far blocks are apart from those of a reference.

    Attributes:
        worst: the largest difference of an element.
        scale: the largest absolute value of the reference.
        unlike: how many elements must be equal and are not.
        not_finite: how many are NaN or infinite in both.
        typical: the median difference in each block.
    """

    def __init__(self, reference: np.ndarray) -> None:
        self.reference = reference
        self.worst = self.scale = 0.0
        self.unlike = self.not_finite = 0
        self.typical: list[float] = []
        self._scales: list[float] = []  # the median absolute value in each block

    @property
    def typical_scale(self) -> float:
        """The median, over the blocks, of the median absolute value."""
        return float(np.median(self._scales)) if self._scales else 0.0

    @property
    def hidden(self) -> bool:
        """Whether larger values elsewhere may hide a wrong block of small ones."""
        pairs = zip(self.typical, self._scales, strict=True)
        return any(apart > _HIDDEN * size for apart, size in pairs)

    def add(self, block: np.ndarray, index: tuple[slice, ...]) -> None:
        """Compares one block with that part of the reference."""
        other = self.reference[index]
        if not _is_inexact(dtype_name(block.dtype)):
            self.unlike += int((block != other).sum())
            self.typical.append(0.0)
            self._scales.append(0.0)
            return
        wide = np.complex128 if block.dtype.kind == "c" else np.float64
        block, other = block.astype(wide), other.astype(wide)
        finite = np.isfinite(block) & np.isfinite(other)
        # Where one is not finite both must be the same: NaN with NaN, inf with inf.
        same = (block == other) | (np.isnan(block) & np.isnan(other))
        self.unlike += int((~finite & ~same).sum())
        self.not_finite += int((~finite & same).sum())
        apart, sizes = np.abs(block[finite] - other[finite]), np.abs(other[finite])
        self.worst = max(self.worst, float(apart.max(initial=0.0)))
        self.scale = max(self.scale, float(sizes.max(initial=0.0)))
        if apart.size:
            self.typical.append(float(np.median(apart)))
            self._scales.append(float(np.median(sizes)))
        else:
            self.typical.append(0.0)
            self._scales.append(0.0)
