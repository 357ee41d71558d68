"""TooLarge: the values that fill a device's memory when a program does not fit."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from shardviz.axis_rules.fit import Fit
from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec
from shardviz.compiled.memory import Buffer, MemoryTimeline

# Values below 1/100 of the peak are not listed. Backward buffers below 1/10,000 of the
# peak are ignored when we decide which forward values are saved.
_SMALL, _TINY = 100, 10_000


@dataclass(frozen=True)
class LargeValue:
    """Buffers from one source line, of equal size and shape, alive at the peak.

    Attributes:
        titles: operations that compute the buffers; names for arguments and results.
        count: number of buffers.
        bytes: size of each buffer on one device.
        shape: type and shape on one device.
        kind: the kind of the buffers, such as `"temporaries"`.
        source: the user's line, or `""`.
        is_saved: whether the forward pass keeps the value for the backward pass.
        loop: source line of the loop that computes the value; `""` outside loops.
        spec: the value's spec; None if unknown.

    >>> LargeValue(("tanh", "mul"), 2, 512, "f32[4,32]", "temporaries").total
    1024
    """

    titles: tuple[str, ...]
    count: int
    bytes: int
    shape: str
    kind: str
    source: str = ""
    is_saved: bool = False
    loop: str = ""
    spec: Spec | None = None

    @property
    def total(self) -> int:
        """The bytes of all these buffers on one device."""
        return self.count * self.bytes


@dataclass(frozen=True)
class TooLarge(Fact):
    """The values that fill a device's memory when a program does not fit.

    Attributes:
        program: the program's name.
        target: the target that is too small, as text.
        fit: bytes that the program needs on each device, and a device's capacity.
        kinds: bytes of `"arguments"`, `"outputs"` and `"temporaries"` on each device,
            largest first. Results that reuse the memory of donated arguments count
            once.
        values: the largest values at the peak, most bytes first.
        code: what to reduce first: `"arguments"` (arguments and results alone are too
            large), `"loops"` (values that loops save for the backward pass), `"layers"`
            (values saved for the backward pass outside loops), `"value"` (any other
            value) or `"unknown"` (the compiler did not write its buffers).

    >>> from shardviz.compiled.report import Memory, Report
    >>> memory = Memory(arguments=1 << 30, temporaries=9 << 30, capacity=8 << 30)
    >>> print(Report("step", "GPU H100", memory=memory).too_large)
    step does not fit GPU H100: 9 GiB of temporaries + 1 GiB of arguments; the chip has 8 GiB.
    """

    program: str
    target: str
    fit: Fit
    kinds: Mapping[str, int] = field(default_factory=dict, hash=False)
    values: tuple[LargeValue, ...] = ()
    code: str = "unknown"

    @classmethod
    def of(cls, program: str, target: str, fit: Fit, memory: Any) -> TooLarge:
        """Finds the values that fill a program's memory, from its `Memory`."""
        outputs = (memory.outputs or 0) - (memory.aliased or 0)
        kinds = {
            "arguments": memory.arguments or 0,
            "outputs": outputs,
            "temporaries": memory.temporaries or 0,
        }
        ordered = sorted(kinds.items(), key=lambda item: -item[1])
        present = {kind: size for kind, size in ordered if size > 0}
        values, code = (), "unknown"
        if memory.timeline is not None:
            values = largest_values(memory.timeline)
            code = _code(values, kinds, fit.capacity)
        elif fit.capacity and kinds["arguments"] + outputs > fit.capacity:
            code = "arguments"
        return cls(program, target, fit, present, values, code)

    @property
    def loops(self) -> tuple[str, ...]:
        """Source lines of the loops that save values for the backward pass."""
        lines = [value.loop for value in self.values if value.is_saved and value.loop]
        return tuple(dict.fromkeys(lines))


def _code(
    values: tuple[LargeValue, ...], kinds: Mapping[str, int], capacity: int | None
) -> str:
    if capacity and kinds["arguments"] + kinds["outputs"] > capacity:
        return "arguments"
    totals = {"loops": 0, "layers": 0, "value": 0}
    for value in values:
        if value.is_saved:
            totals["loops" if value.loop else "layers"] += value.total
        elif value.kind not in ("arguments", "outputs"):
            totals["value"] += value.total
    return max(totals, key=lambda code: totals[code])


@dataclass(frozen=True)
class MemoryAdvice(Fact):
    """A code change for the user to make so that a program needs less memory.

    Attributes:
        large: the values that fill the memory.
    """

    large: TooLarge


def memory_advice(report: Any) -> tuple[MemoryAdvice, ...]:
    """Returns advice on a compiled program's memory that only the user can apply.

    Args:
        report: the Report of a compile. The program may be too large for its target.
    """
    fit = report.without_error.fit
    if fit is None:
        return ()
    large = TooLarge.of(report.program, report.target, fit, report.memory)
    if large.code == "layers":
        saved = sum(value.total for value in large.values if value.is_saved)
        return (MemoryAdvice(large),) if 2 * saved > fit.needed else ()
    if report.too_large is not None and large.code in ("arguments", "value"):
        return (MemoryAdvice(large),)
    return ()


def largest_values(timeline: MemoryTimeline) -> tuple[LargeValue, ...]:
    """Returns the values at the peak, grouped by line, shape and use.

    >>> up = Buffer("a", 64, "f32[16]", "temporaries", "jvp()/tanh", "f.py:3", "forward", end=3)
    >>> mul = Buffer("b", 8, "f32[2]", "temporaries", phase="backward", start=2, end=3)
    >>> [(v.titles, v.is_saved) for v in largest_values(MemoryTimeline((up, mul)))]
    [(('tanh',), True), (('b',), False)]
    """
    # The compiler may schedule tiny values of the backward pass anywhere.
    backward = _backward_positions(timeline, _TINY)
    begins = min(_backward_positions(timeline, _SMALL), default=len(timeline.times))
    groups: dict[tuple[object, ...], list[Buffer]] = {}
    saved: dict[int, bool] = {}
    for buffer in timeline.peak.buffers:
        # Values that XLA recomputes during the backward pass were not saved.
        is_again = ".remat" in buffer.name and buffer.start > begins
        is_saved = not is_again and _is_saved(buffer, backward)
        # One line may save several values of the same shape, as an activation does.
        title = buffer.title if buffer.kind in ("arguments", "outputs") else ""
        key = (
            *(buffer.shape, buffer.bytes, buffer.kind, buffer.source, is_saved),
            *(title, buffer.loop, str(buffer.spec)),
        )
        groups.setdefault(key, []).append(buffer)
        saved[id(buffer)] = is_saved
    values: list[LargeValue] = []
    for buffers in groups.values():
        example = buffers[0]
        # For temporaries, the operation is clearer than the plan's numbered name.
        titles = dict.fromkeys(b.op.rpartition("/")[2] or b.title for b in buffers)
        if example.kind in ("arguments", "outputs"):
            titles = dict.fromkeys(b.title for b in buffers)
        large = LargeValue(
            titles=tuple(titles),
            count=len(buffers),
            bytes=example.bytes,
            shape=example.shape,
            kind=example.kind,
            source=example.source,
            is_saved=saved[id(example)],
            loop=example.loop,
            spec=example.spec,
        )
        if large.total * _SMALL >= timeline.peak.bytes:
            values.append(large)
    return tuple(sorted(values, key=attrgetter("total"), reverse=True))


def _backward_positions(timeline: MemoryTimeline, parts: int) -> list[int]:
    """Returns the sorted positions at which the backward pass fills large buffers.

    Args:
        timeline: the timeline.
        parts: a buffer counts if it has at least 1/`parts` of the peak's bytes.
    """
    positions = []
    for buffer in timeline.buffers:
        if buffer.phase == "backward" and buffer.bytes * parts >= timeline.peak.bytes:
            positions.append(buffer.start)
    return sorted(positions)


def _is_saved(buffer: Buffer, backward: Sequence[int]) -> bool:
    """Whether a buffer holds a forward value until the backward pass has started.

    Args:
        buffer: the buffer.
        backward: sorted positions at which the backward pass fills buffers.
    """
    if buffer.kind not in ("temporaries", "collectives") or buffer.phase != "forward":
        return False
    later = bisect(backward, buffer.start)
    return later < len(backward) and backward[later] <= buffer.end
