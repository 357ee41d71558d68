"""Effects: what is predicted of a program's effects, and the order in which they happened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown
from shardviz.core.program.report import Report


@dataclass(frozen=True)
class Event:
    """One time that an effect happened.

    Attributes:
        number: its position among the events as the host saw them, from 0.
        name: the effect in words, or `"pure_callback"` for a host call that is no effect.
        what: the text that was printed from, or the name of the function that was called.
        nesting: the loops and calls around it, such as `"top level"` or `"shard_map > scan"`.
        ordered: whether jax keeps its order.
        device: the id of the device it happened for; None where that is not known.
        values: its arguments, as short text.

    >>> print(Event(0, "debug callback", "{x}", "scan", False, 3, "1.0"))
    device 3: debug callback '{x}' (scan) of 1.0
    """

    number: int
    name: str
    what: str
    nesting: str
    ordered: bool
    device: int | None
    values: str

    def __str__(self) -> str:
        who = "some device" if self.device is None else f"device {self.device}"
        of = f" of {self.values}" if self.values else ""
        return f"{who}: {self.name} {self.what!r} ({self.nesting}){of}"


@dataclass(frozen=True, repr=False)
class Observed(Displayed):
    """The order in which a program's effects happened in one run, up to the barrier.

    Attributes:
        program: its name.
        events: the events, in the order in which the host saw them.
        report: the Report of the run, with its error where it failed.

    >>> from shardviz.core.program.report import Report
    >>> first = Event(0, "debug callback", "{x}", "top level", False, 0, "1.0")
    >>> Observed("f", (first,), Report("f", "CPU × 1")).per_device().keys()
    dict_keys([0])
    """

    program: str
    events: tuple[Event, ...]
    report: Report = field(compare=False)

    def per_device(self) -> dict[int | None, tuple[Event, ...]]:
        """The events of every device in order, by its id; None for those of no certain device."""
        ids = sorted({e.device for e in self.events}, key=lambda i: -1 if i is None else i)
        return {i: tuple(e for e in self.events if e.device == i) for i in ids}

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per event, ready for JSON."""
        return [asdict(event) for event in self.events]

    def explain(self) -> str:
        """The events as lines of text, and which of their order jax promises."""
        lines = [f"{self.program}: {plural(len(self.events), 'event')} up to the barrier"]
        if self.report.error is not None:
            lines.append(f"✗ {self.report.error}")
        digits = len(str(len(self.events)))
        lines += [
            f"{e.number + 1:>{digits}}  {e}; {'ordered' if e.ordered else 'unordered'}"
            for e in self.events
        ]
        if any(not e.ordered for e in self.events):
            lines.append("Unordered events may come in another order the next time.")
        if any(e.ordered for e in self.events):
            lines.append(
                "Ordered events of one device come in the order of the program, every time;"
                " between devices no order holds."
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Observed({self.program}: {plural(len(self.events), 'event')})"


@dataclass(frozen=True)
class EffectUse:
    """One effect of a program.

    Attributes:
        name: the effect in words, such as `"io callback, ordered"`.
        kind: the name of jax's class.
        ordered: whether it keeps the order of the program.
        shardable: whether a program with it may run on several devices.
        allowed: where jax allows it: of `control flow`, `remat`, `custom derivatives` and
            `lowering`; None where jax does not say.
        nesting: the loops and calls around its operations: `"top level"`, `"shard_map > cond"`.
        calls: how many operations of the program have it.
        note: one sentence on what to expect of it.

    >>> EffectUse("debug callback", "DebugEffect", False, True).ordered
    False
    """

    name: str
    kind: str
    ordered: bool
    shardable: bool
    allowed: tuple[str, ...] | None = None
    nesting: tuple[str, ...] = ()
    calls: int = 0
    note: str = ""


@dataclass(frozen=True)
class EffectToken:
    """One token of a lowered module.

    Attributes:
        direction: `"in"` or `"out"`.
        index: which argument or result it is.
        sharding: its sharding as the module writes it; `""` where it writes none, and every device
            holds it.

    >>> print(EffectToken("in", 0))
    token in 0: on every device
    """

    direction: str
    index: int
    sharding: str = ""

    def __str__(self) -> str:
        return f"token {self.direction} {self.index}: {self.sharding or 'on every device'}"


@dataclass(frozen=True)
class HostCall:
    """A call of the host that is no effect: jax may drop it, repeat it or move it.

    Attributes:
        operation: jax's name of the operation, such as `"pure_callback"`.
        nesting: the loops and calls around it, as for an Event.

    >>> HostCall("pure_callback", "scan").nesting
    'scan'
    """

    operation: str
    nesting: str


@dataclass(frozen=True)
class Refusal:
    """Why a program may not run at all.

    Attributes:
        stage: `"program"`, `"trace"` or `"lower"`.
        message: what jax said first, and what it means.

    >>> print(Refusal("trace", "ValueError: IO callbacks do not support JVP."))
    refused at tracing, because ValueError: IO callbacks do not support JVP.
    """

    stage: str
    message: str

    def __str__(self) -> str:
        at = {"program": "before tracing", "trace": "at tracing", "lower": "at lowering"}
        return f"refused {at.get(self.stage, self.stage)}, because {self.message}"


_HOST_ONLY = (
    "Its results come from the host only, since it uses none of its arguments, and jax cannot say"
    " how such results are placed on several devices. Use an argument, or give out_specs."
)


@dataclass(frozen=True, repr=False)
class Effects(Displayed):
    """The effects of a program, and on how many devices it may run, said before it runs.

    Attributes:
        program: its name.
        uses: one EffectUse per kind of effect.
        host_calls: calls of the host that are no effects.
        tokens: the tokens that the lowered module takes and returns; None where it was not lowered.
        lowered_for: how many devices it was lowered for, to read the tokens.
        mesh_size: how many devices its mesh has; None where no mesh was given.
        fixed: how many devices the function itself names; None where it names none.
        host_only: whether its results come from the host only, no argument being used: jax cannot
            say how these are placed on a mesh of several devices.
        refused: why it may not run on any number of devices; None where it may.
        note: what could not be found out; `""` where everything could.

    >>> use = EffectUse("debug callback, ordered", "OrderedDebugEffect", True, False)
    >>> found = Effects("f", (use,))
    >>> found.devices, found.runs_on(1)[0], found.runs_on(8)[0]
    ('1 device', True, False)
    """

    program: str
    uses: tuple[EffectUse, ...] = ()
    host_calls: tuple[HostCall, ...] = ()
    tokens: tuple[EffectToken, ...] | None = None
    lowered_for: int = 1
    mesh_size: int | None = None
    fixed: int | None = None
    host_only: bool = False
    refused: Refusal | None = None
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The effects in words, as `Report.effects` has them."""
        return tuple(use.name for use in self.uses)

    @property
    def devices(self) -> str:
        """On how many devices it may run: `"any number of devices"`, `"1 device"`, `"none"`."""
        single = self.host_only or any(not use.shardable for use in self.uses)
        if self.refused or (single and self.fixed not in (None, 1)):
            return "none"
        if self.fixed is not None:
            return plural(self.fixed, "device")
        return "1 device" if single else "any number of devices"

    def runs_on(self, devices: int) -> tuple[bool, str]:
        """Whether it may run on so many devices, and why, in one sentence or two.

        Raises:
            ProgramError: for what is no number of devices.
        """
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise ProgramError(f"A program runs on 1 device or more; got {shown(devices)}.")
        count = plural(devices, "device")
        if self.refused and self.refused.stage != "lower":
            return False, f"It is {self.refused}"
        if self.fixed not in (None, devices):
            own = plural(self.fixed, "device")
            return False, f"The function names a mesh of {own} itself and cannot run on {count}."
        single = [use.name for use in self.uses if not use.shardable]
        if single and devices > 1:
            return False, single_device_words(single[0], devices)
        if self.refused:
            return False, f"It is {self.refused}"
        if self.host_only and devices > 1:
            return False, _HOST_ONLY
        return True, f"It may run on {count}: {self._reason(devices)}"

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per effect and host call, ready for JSON."""
        dropped = "No effect: jax may drop it, repeat it or move it."
        calls = [
            EffectUse(c.operation, "", False, True, ("everywhere",), (c.nesting,), 1, dropped)
            for c in self.host_calls
        ]
        return [_row(use) for use in (*self.uses, *calls)]

    def explain(self) -> str:
        """Everything in plain sentences, a line each."""
        lines = [f"{self.program}: {plural(len(self.uses), 'effect')}; runs on {self.devices}"]
        if self.refused:
            lines.append(f"✗ {self.refused}")
        for use in self.uses:
            lines += _use_lines(use)
        lines += [
            f"{call.operation} ({call.nesting}): no effect; jax may drop it, repeat it or move it."
            for call in self.host_calls
        ]
        if self.tokens is not None:
            taken = [t for t in self.tokens if t.direction == "in"]
            back = len(self.tokens) - len(taken)
            lines.append(
                f"Lowered for {plural(self.lowered_for, 'device')}, it takes"
                f" {plural(len(taken), 'token')} and returns {back}."
            )
            lines += [f"  {token}" for token in self.tokens]
        if self.mesh_size is not None and not self.refused:
            lines.append(self.runs_on(self.mesh_size)[1])
        return "\n".join([*lines, self.note] if self.note else lines)

    def _reason(self, devices: int) -> str:
        ordered = [use.name.partition(",")[0] for use in self.uses if use.ordered]
        if not self.uses:
            return "it has no effects."
        if not ordered:
            return "none of its effects is ordered."
        if devices == 1:
            return "one device keeps the order."
        return f"jax can order {ordered[0]}s on many devices."

    def __repr__(self) -> str:
        return f"Effects({self.program}: {', '.join(self.names) or 'none'}; {self.devices})"


def _row(use: EffectUse) -> dict[str, Any]:
    row = {**asdict(use), "nesting": list(use.nesting)}
    allowed = row.pop("allowed")
    return {**row, "where": "not known" if allowed is None else ", ".join(allowed) or "nowhere"}


def single_device_words(name: str, devices: int) -> str:
    """Why an ordered effect that is not shardable keeps a program from so many devices.

    Args:
        name: the effect, in words.
        devices: how many devices.
    """
    return (
        f"jax orders {name.partition(',')[0]}s on one device only, and the mesh has {devices:,}."
        " Take ordered=True away, or use jax.experimental.io_callback(..., ordered=True), which it"
        " can order on many."
    )


def _use_lines(use: EffectUse) -> list[str]:
    how = "ordered" if use.ordered else "unordered"
    where = f" ({'; '.join(use.nesting)})" if use.nesting else ""
    lines = [f"{use.name}, {use.kind}: {how}; {plural(use.calls, 'operation')}{where}"]
    if use.allowed is not None:
        lines.append(f"  allowed in: {', '.join(use.allowed) or 'nothing'}")
    return [*lines, f"  {use.note}"] if use.note else lines
