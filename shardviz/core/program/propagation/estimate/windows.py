"""The windows of an operation that slides one over its first operand, or steps through it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shardviz.core.program.propagation.estimate.limits import Window
from shardviz.core.program.propagation.texts import Texts

_NUMBER = re.compile(r"-?\d+")
_DIMENSIONS = re.compile(r"<\[([^\]]*)\]x\[([^\]]*)\]->")
_SPLAT = re.compile(r"dense<(-?\d+)>")


def windows_of(op: Any, texts: Texts) -> dict[int, Window]:
    """Dimension of the first operand to window; a dimension without one is left out."""
    name = op.name
    if name == "stablehlo.slice":
        starts, strides = _numbers(op, "start_indices", texts), _numbers(op, "strides", texts)
        return {
            n: Window(stride=step, low=-start)
            for n, (start, step) in enumerate(zip(starts, strides, strict=True))
        }
    if name == "stablehlo.pad":
        lows = _numbers(op, "edge_padding_low", texts)
        between = _numbers(op, "interior_padding", texts)
        return {
            n: Window(low=low, spread=gap + 1)
            for n, (low, gap) in enumerate(zip(lows, between, strict=True))
        }
    if name == "stablehlo.reduce_window":
        sizes = _numbers(op, "window_dimensions", texts)
        return _sliding(op, range(len(sizes)), sizes, "base", texts)
    if name == "stablehlo.convolution":
        return _of_convolution(op, texts)
    return {}


def _of_convolution(op: Any, texts: Texts) -> dict[int, Window]:
    found = _DIMENSIONS.search(texts.attribute(op, "dimension_numbers"))
    kernel = texts.tensor(op.operands[1])
    if found is None or kernel is None:
        return {}
    image, weights = ([d.strip() for d in part.split(",")] for part in found.groups())
    space = sorted((d for d in image if d.isdecimal()), key=int)
    sizes = [kernel[0][weights.index(d)] for d in space]
    return _sliding(op, [image.index(d) for d in space], sizes, "lhs", texts)


def _sliding(
    op: Any, dims: Sequence[int], sizes: Sequence[int], base: str, texts: Texts
) -> dict[int, Window]:
    """The windows over some dimensions; `base` is what the operand's dilation is called."""
    ones = [1] * len(sizes)
    strides = _numbers(op, "window_strides", texts) or ones
    spreads = _numbers(op, f"{base}_dilation{'s' * (base == 'base')}", texts) or ones
    gaps = _numbers(op, "rhs_dilation" if base == "lhs" else "window_dilations", texts) or ones
    lows = _numbers(op, "padding", texts, 2 * len(sizes))[::2] or [0] * len(sizes)
    parts = zip(dims, sizes, strides, lows, spreads, gaps, strict=True)
    return {
        dim: Window((size - 1) * gap + 1, stride, low, spread)
        for dim, size, stride, low, spread, gap in parts
    }


def _numbers(op: Any, name: str, texts: Texts, count: int = 0) -> list[int]:
    """The numbers of `array<i64: 1, 2>`, or of `dense<[[1, 2], [0, 0]]> : tensor<2x2xi64>`."""
    text = texts.attribute(op, name)
    if text.startswith("dense"):
        if splat := _SPLAT.match(text):
            return [int(splat[1])] * count
        return [int(n) for n in _NUMBER.findall(text.partition(">")[0])]
    return [int(n) for n in _NUMBER.findall(text.partition(":")[2])]
