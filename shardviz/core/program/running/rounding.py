"""How far rounding alone moves the results of a function: the yardstick for results that differ.

The unsharded function is run again on arguments that are moved by one rounding step, up or down.
What that does to its results is what other sums in another order may do to them, too: much where
the function amplifies rounding, little where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

# Every operation rounds, not the arguments alone: results may lie this many times farther apart.
MARGIN = 4.0
# Beyond this part of the values, rounding cannot be told from a mistake.
_HOPELESS = 0.25
_DRAWS = 2
_NARROW = re.compile(r"[x<](bf16|f16|f8E\dM(\d)\w*|f4E\dM(\d)\w*)>")
_BITS = {"bf16": 7, "f16": 10}
# Of float32 products on chips that multiply it in fewer bits: bfloat16 passes, and TF32.
_PRODUCTS = {"tpu": 2.0**-7, "gpu": 2.0**-10, "cuda": 2.0**-10, "rocm": 2.0**-10}

Block = tuple[slice, ...]


@dataclass(frozen=True)
class Noise:
    """What one rounding step of the arguments does to one result.

    Attributes:
        worst: the largest change of an element.
        unlike: how many elements changed that have to be equal, or are finite in one run only.
        typical: the median change in each block that was asked for.
    """

    worst: float
    unlike: int
    typical: tuple[float, ...]

    @property
    def allowed(self) -> float:
        """How far results may lie apart for no other reason than rounding."""
        return MARGIN * self.worst

    def explains(self, worst: float, unlike: int, typical: Sequence[float], floor: float) -> bool:
        """Whether rounding explains a difference: its largest, and what is typical of each block.

        Args:
            worst: the largest difference.
            unlike: how many elements have to be equal and are not.
            typical: the median difference of each block.
            floor: what is always forgiven in a typical element.

        >>> Noise(0.01, 0, (0.001,)).explains(0.02, 0, [0.002], 0.0)
        True
        >>> Noise(0.01, 0, (0.001,)).explains(0.02, 0, [0.02], 0.0)
        False
        """
        blocks = zip(typical, self.typical, strict=True)
        return (
            worst <= self.allowed
            and unlike <= MARGIN * self.unlike
            and all(apart <= MARGIN * own + floor for apart, own in blocks)
        )

    def hopeless(self, scale: float) -> bool:
        """Whether rounding moves the values so far that a mistake could hide in it."""
        return self.unlike > 0 or self.allowed > _HOPELESS * scale


def step_of(text: str, platform: str) -> float:
    """What one operation of a lowered program rounds by: half a step of its narrowest floats.

    >>> step_of("tensor<8x8xbf16>, tensor<f32>", "cpu"), step_of("tensor<8xf8E4M3FN>", "cpu")
    (0.00390625, 0.0625)
    """
    steps = [_PRODUCTS.get(platform, 0.0)]
    for kind, eight, four in set(_NARROW.findall(text)):
        steps.append(2.0 ** -(_BITS.get(kind) or int(eight or four)))
    return max(steps) / 2


def moved_results(
    run: Callable[..., Sequence[jax.Array]], inputs: Sequence[jax.Array], step: float
) -> list[list[jax.Array]]:
    """The results of a function for arguments that are moved by a rounding step, twice.

    Args:
        run: the unsharded function, compiled.
        inputs: its arguments.
        step: the least relative step; an argument moves by that of its own type where it is larger.
    """
    found = []
    for draw in range(_DRAWS):
        moved = [_moved(value, step, 1000 * draw + i) for i, value in enumerate(inputs)]
        found.append(list(jax.block_until_ready(run(*moved))))
    return found


def _moved(value: jax.Array, step: float, seed: int) -> jax.Array:
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    own = float(jax.numpy.finfo(value.dtype).eps)
    host = np.asarray(value)
    signs = np.random.default_rng(seed).integers(0, 2, host.shape) * 2 - 1
    wide = np.promote_types(host.dtype, np.float32) if host.dtype.kind in "fc" else np.float32
    moved = host.astype(wide) * (1 + max(step, own) * signs).astype(np.float64)
    return jax.device_put(moved.astype(host.dtype), value.sharding)
