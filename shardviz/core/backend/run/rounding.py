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
# Every operation rounds, not the arguments alone: results may lie this many times
# farther apart than those of moved arguments.
MARGIN = 4.0
_HIDDEN = 0.25  # of the median of a block: more than rounding changes most functions
_INCONCLUSIVE = 0.25  # of the values: beyond it rounding looks like a mistake
_ZERO = 1e-7
_DRAWS = 2
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


def values_check(
    name: str,
    array: jax.Array,
    reference: jax.Array,
    inputs: Sequence[Any],
    platform: str,
    moved: Callable[[], Sequence[jax.Array]],
) -> Check:
    """A result on many devices against the same result on one.

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
    # On the host, since jax indexes no dimension that is split over an Explicit axis.
    expected, shards = np.asarray(_words(reference)), _own_shards(_words(array))
    blocks = [_apart(np.asarray(s.data), expected[s.index]) for s in shards]
    total = _total(blocks)
    exact = not _is_inexact(dtype_name(expected.dtype))
    if exact and not total.unlike:
        return Check(about, True, found("equal"))
    allowed = tolerance([array.dtype, *inputs], platform)
    within = not total.unlike and total.worst <= allowed * total.scale
    # Large values elsewhere may hide a wrong block of small ones.
    hidden = any(block.typical > _HIDDEN * block.size for block in blocks)
    fields: dict[str, Any] = {"count": total.unlike}
    code = "unequal"
    if not exact:
        code, fields = "apart", {**vars(total), "allowed": allowed}
        del fields["typical"], fields["size"]
        if within and not hidden:
            return Check(about, True, found(code, **fields))
    noise = []
    results = [np.asarray(_words(result)) for result in moved()]
    for shard in shards:
        draws = [
            _apart(result[shard.index], expected[shard.index]) for result in results
        ]
        worst = max(draw.worst for draw in draws)
        unlike = max(draw.unlike for draw in draws)
        typical = max(draw.typical for draw in draws)
        noise.append(_Apart(worst, unlike=unlike, typical=typical))
    noise_in_all = _total(noise)
    floor = allowed * (float(np.median([b.size for b in blocks])) + 1e-3 * total.scale)
    # What is left where everything cancels is rounding, whichever blocks it is in.
    noisy = MARGIN * noise_in_all.worst >= total.scale
    cancels = noisy and total.worst <= _ZERO
    rounding = cancels or total.worst <= MARGIN * noise_in_all.worst
    for block, own in zip(blocks, noise, strict=True):
        close = block.typical <= MARGIN * own.typical + floor
        rounding = rounding and (close or cancels)
    rounding = rounding and total.unlike <= MARGIN * noise_in_all.unlike
    if not rounding:
        if within:
            fields |= {"why": "hidden block", "median": max(b.typical for b in blocks)}
        return Check(about, False, found(code, **fields))
    if within:
        return Check(about, True, found(code, **fields))
    # Where rounding changes the values this much, it could hide a mistake. Integers
    # may come from rounded numbers, as an argmax does.
    unclear = MARGIN * noise_in_all.worst > _INCONCLUSIVE * total.scale
    unclear = (unclear and not cancels) or noise_in_all.unlike > 0
    fields["why"] = "inconclusive" if unclear else "rounding"
    fields |= {"moves": noise_in_all.worst, "moved_unlike": noise_in_all.unlike}
    return Check(about, None if unclear else True, found(code, **fields))


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
    # numpy does not compute with the narrow floats of ml_dtypes.
    wide = np.result_type(host.dtype, np.float32) if host.dtype.kind in "fc" else "f4"
    moved = host.astype(wide) * (1 + max(step, own) * signs).astype(np.float64)
    return jax.device_put(moved.astype(host.dtype), value.sharding)
