"""What may be a topology: how one is typed, and which shapes chips are built in."""

from __future__ import annotations

import math
import re
from typing import Any

from shardviz.core.errors import TargetError, plural, shown, suggestion
from shardviz.core.layout.checks import check_size
from shardviz.core.layout.chip import Chip
from shardviz.core.layout.chips import find_chip

MAX_CHIPS = 1 << 18  # over all slices
EXAMPLES = (
    "tpu:v5e:4x4",
    "tpu:v5p:8x8x16",
    "tpu:v6e:16x16",
    "tpu:v4:2x2x4",
    "tpu:7x:4x4x4",
    "tpu:v5e:4x4*2",
    "gpu:h100:2x8",
)
_HOW = "Write it as tpu:v5e:4x4, tpu:v5p:4x4x8, tpu:v5e:4x4*2 for two slices, or gpu:h100:2x8."
_TEXT = re.compile(
    r"(?P<platform>[^:]+):(?P<chip>[^:]+):(?P<shape>[^:*]+)(?:\*(?P<slices>[^:*]+))?"
)
Shape = tuple[int, ...]


def read_topology(text: Any) -> tuple[Chip, Shape, int]:
    """Chip, shape and number of slices of what a person typed; nothing is evaluated.

    Raises:
        TargetError: with what could not be read, and how it is written.

    >>> chip, shape, slices = read_topology("tpu:v5e:4x4*2")
    >>> chip.name, shape, slices
    ('v5e', (4, 4), 2)
    """
    if not isinstance(text, str) or len(text) > 100:
        raise TargetError(f"A topology is short text; got {shown(text)}. {_HOW}")
    match = _TEXT.fullmatch(text)
    if match is None:
        raise TargetError(f"Cannot read {shown(text)} as a topology. {_HOW}")
    platform = match["platform"].strip().lower()
    if platform not in ("tpu", "gpu"):
        hint = suggestion(platform, ("tpu", "gpu"))
        raise TargetError(f"A topology is of a tpu or a gpu, not {shown(platform)}.{hint} {_HOW}")
    chip = find_chip(match["chip"].strip(), platform)
    shape = tuple(_number(part, text) for part in re.split("[xX×]", match["shape"]))
    return chip, shape, _number(match["slices"] or "1", text)


def _number(text: str, whole: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text.strip()):
        raise TargetError(
            f"Cannot read {shown(text.strip())} in {shown(whole)} as a whole number. {_HOW}"
        )
    return int(text)


def checked_shape(chip: Chip, shape: Any, slices: Any) -> tuple[Shape, int]:
    """The shape and number of slices, if chips of this kind are built so.

    A slice loses trailing axes of one chip that its torus has not; one of a 3-D torus written
    with two axes is one layer.

    Raises:
        TargetError: otherwise, with the nearest shape that is.
    """
    if not isinstance(chip, Chip) or not isinstance(shape, (tuple, list)):
        raise TargetError(f"A topology is made of a Chip and a tuple of sizes. {_HOW}")
    sizes = tuple(check_size(n, "A size of a topology", TargetError) for n in shape)
    slices = check_size(slices, "The number of slices", TargetError)
    if min((*sizes, slices)) < 1:
        raise TargetError(f"The sizes of a topology start at 1; got {_times(sizes)}. {_HOW}")
    if chip.platform == "gpu":
        _check_cluster(chip, sizes, slices)
    else:
        sizes = _fitted_slice(chip, sizes)
        _check_host(chip, sizes)
        _check_pod(chip, sizes)
    if math.prod(sizes) * slices > MAX_CHIPS:
        raise TargetError(
            f"At most {MAX_CHIPS:,} chips are described; got"
            f" {shown(math.prod(sizes) * slices)}. Take fewer slices or a smaller shape."
        )
    return sizes, slices


def _times(sizes: Shape) -> str:
    return "x".join(shown(n, 20) for n in sizes)


def _check_cluster(chip: Chip, shape: Shape, slices: int) -> None:
    name, most = f"gpu:{chip.name}", math.prod(chip.host_shape)
    if len(shape) != 2:
        raise TargetError(
            f"A cluster of GPUs is written HOSTSxGPUS; got {plural(len(shape), 'size')}."
            f" Write {name}:2x{most}."
        )
    if slices != 1:
        raise TargetError(
            f"GPUs have no slices: one network joins all hosts. Write {name}:"
            f"{shape[0] * slices}x{shape[1]} for {plural(shape[0] * slices, 'host')}."
        )
    if shape[1] > most:
        hosts = -(-math.prod(shape) // most)
        raise TargetError(
            f"NVLink joins at most {most} GPUs of {chip.title} on one host; got {shape[1]:,}."
            f" Write more hosts: {name}:{hosts}x{most}."
        )


def _fitted_slice(chip: Chip, shape: Shape) -> Shape:
    given = shape
    while len(shape) > chip.axes and shape[-1] == 1:
        shape = shape[:-1]
    if chip.axes == 3 and len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != chip.axes:
        raise TargetError(
            f"A slice of {chip.title} has {chip.axes} axes; got {_times(given)}."
            f" Write it as tpu:{chip.name}:{_times((4,) * chip.axes)}."
        )
    return shape


def _check_host(chip: Chip, shape: Shape) -> None:
    if math.prod(shape) == 1 or not any(n % 2 for n in shape[:2]):
        return
    even = tuple(n + n % 2 if i < 2 else n for i, n in enumerate(shape))
    raise TargetError(
        f"A host holds 2x2 chips, so the first two axes of a slice are even; got"
        f" {_times(shape)}. The next larger slice is tpu:{chip.name}:{_times(even)}."
    )


def _check_pod(chip: Chip, shape: Shape) -> None:
    most = chip.pod_chips
    too_long = chip.axes == 2 and any(n > full for n, full in zip(shape, chip.pod, strict=True))
    if most is None or (math.prod(shape) <= most and not too_long):
        return
    whole = chip.pod or (16, 16, 32)
    pod = f", {_times(chip.pod)}" if chip.pod else ""
    raise TargetError(
        f"The largest machine of {chip.title} has {most:,} chips{pod}; got {_times(shape)}."
        f" The network joins several slices: tpu:{chip.name}:{_times(whole)}*2."
    )
