"""Effects: what is predicted of a program's effects, and the order in which they
happened.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from shardviz.core.display import Displayed, Fact, explanation
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown
from shardviz.core.program.report import Report


@dataclass(frozen=True)
class Event(Fact):
    """One time that an effect happened.

    Attributes:
        number: its position among the events as the host saw them, from 0.
        name: the effect, or `"pure_callback"` for a host call that is no effect.
        what: the text that was printed from, or the name of the function that was
            called.
        nesting: the loops and calls around it: `"top level"` or `"shard_map > scan"`.
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
        """The events of every device in order, by its id; None: of no certain device."""
        found: dict[int | None, list[Event]] = {}
        # Those of no certain device first.
        for device in sorted(
            {-1 if e.device is None else e.device for e in self.events}
        ):
            found[None if device == -1 else device] = []
        for event in self.events:
            found[event.device].append(event)
        return {device: tuple(events) for device, events in found.items()}

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per event, ready for JSON."""
        return [asdict(event) for event in self.events]

    def explain(self) -> str:
        """The events as lines of text, and which of their order jax promises."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Observed({self.program}: {plural(len(self.events), 'event')})"


@dataclass(frozen=True)
class EffectUse:
    """One effect of a program.

    Attributes:
        name: the effect, such as `"io callback, ordered"`.
        kind: the name of jax's class.
        ordered: whether it keeps the order of the program.
        shardable: whether a program with it may run on several devices.
        allowed: where jax allows it: of `control flow`, `remat`, `custom derivatives`
            and `lowering`; None where jax does not say.
        nesting: the loops and calls around its operations: `"top level"`, `"shard_map >
            cond"`.
        calls: how many operations of the program have it.

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

    @property
    def on_refs(self) -> bool:
        """Whether it is a read or write of a `jax.Ref`."""
        return self.kind in REF_EFFECTS


#: jax's classes of effects on a `jax.Ref`.
REF_EFFECTS = (
    "RefEffect",
    "ReadEffect",
    "WriteEffect",
    "AccumEffect",
    "InternalMutableArrayEffect",
)


@dataclass(frozen=True)
class EffectToken(Fact):
    """One token of a lowered module.

    Attributes:
        direction: `"in"` or `"out"`.
        index: which argument or result it is.
        sharding: its sharding as the module writes it; `""` where it writes none, and
            every device holds it.

    >>> print(EffectToken("in", 0))
    token in 0: on every device
    """

    direction: str
    index: int
    sharding: str = ""


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
class Refusal(Fact):
    """Why a program may not run at all.

    Attributes:
        stage: `"program"`, `"trace"` or `"lower"`.
        said: what jax said, or what is wrong with the program.
        cause: `"not allowed there"`, `"not differentiable"`, `"ordered under vmap"`,
            `"branch under vmap"`, `"part of the mesh"`, `"not lowered"`, `"ref
            inside"`; `""` where none of these is known.

    >>> print(Refusal("trace", "ValueError: IO callbacks do not support JVP."))
    refused at tracing, because ValueError: IO callbacks do not support JVP.
    """

    stage: str
    said: str
    cause: str = ""


@dataclass(frozen=True)
class RunsOn(Fact):
    """Whether a program may run on a number of devices, and why.

    Attributes:
        code: it may: `"no effects"`, `"unordered"`, `"one device"`, `"orderable"`; it
            may not: `"refused"`, `"own mesh"`, `"single device"`, `"host only"`.
        devices: how many.
        effect: the ordered effect that it is about.
        own: how many devices the function names itself.
        refusal: why it is refused on any number.

    >>> RunsOn("own mesh", 8, own=4).may
    False
    """

    code: str
    devices: int
    effect: str = ""
    own: int | None = None
    refusal: Refusal | None = None

    @property
    def may(self) -> bool:
        """Whether it may run."""
        return self.code in ("no effects", "unordered", "one device", "orderable")


@dataclass(frozen=True)
class DeviceCount(Fact):
    """On how many devices a program may run: on `count`; on any number where that is
    None.

    >>> print(DeviceCount(0), DeviceCount(1), DeviceCount(None), sep="; ")
    none; 1 device; any number of devices
    """

    count: int | None


@dataclass(frozen=True, repr=False)
class Effects(Displayed):
    """The effects of a program, and on how many devices it may run, said before it
    runs.

    Attributes:
        program: its name.
        uses: one EffectUse per kind of effect.
        host_calls: calls of the host that are no effects.
        tokens: the tokens that the lowered module takes and returns; None where it was
            not lowered.
        lowered_for: how many devices it was lowered for, to read the tokens.
        mesh_size: how many devices its mesh has; None where no mesh was given.
        fixed: how many devices the function itself names; None where it names none.
        host_only: whether its results come from the host only, no argument being used:
            jax cannot say how these are placed on a mesh of several devices.
        refused: why it may not run on any number of devices; None where it may.
        rules_known: whether jax said where it allows effects and which it orders.

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
    rules_known: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the effects, as `Report.effects` has them."""
        return tuple(use.name for use in self.uses)

    @property
    def devices(self) -> str:
        """On how many devices it may run: any number of devices, 1 device, or none."""
        # What must be on one device cannot be where the function names several.
        single = self.host_only or any(not use.shardable for use in self.uses)
        if self.refused or (single and self.fixed not in (None, 1)):
            return str(DeviceCount(0))
        if single:
            return str(DeviceCount(1))
        return str(DeviceCount(self.fixed))

    def runs_on(self, devices: int) -> tuple[bool, str]:
        """Whether it may run on so many devices, and why, in one sentence or two.

        Raises:
            ProgramError: for what is no number of devices.
        """
        found = self.on(devices)
        return found.may, str(found)

    def on(self, devices: int) -> RunsOn:
        """Whether it may run on so many devices, and why.

        Raises:
            ProgramError: for what is no number of devices.

        >>> Effects("f").on(8).code
        'no effects'
        """
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise ProgramError(
                f"A program runs on 1 device or more; got {shown(devices)}."
            )
        refused = RunsOn("refused", devices, refusal=self.refused)
        # jax looks at the number of devices when it lowers, after it has traced.
        if self.refused and self.refused.stage != "lower":
            return refused
        # What it names itself comes before what its effects would allow.
        if self.fixed not in (None, devices):
            return RunsOn("own mesh", devices, own=self.fixed)
        single = [use.name for use in self.uses if not use.shardable]
        if single and devices > 1:
            return RunsOn("single device", devices, single[0])
        if self.refused:
            return refused
        if self.host_only and devices > 1:
            return RunsOn("host only", devices)
        if not self.uses:
            return RunsOn("no effects", devices)
        ordered = [use.name for use in self.uses if use.ordered]
        if not ordered:
            return RunsOn("unordered", devices)
        if devices == 1:
            return RunsOn("one device", devices, ordered[0])
        return RunsOn("orderable", devices, ordered[0])

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per effect and host call, ready for JSON."""
        rows = []
        for use in self.uses:
            row = asdict(use)
            row["nesting"] = list(use.nesting)
            row["allowed"] = None if use.allowed is None else list(use.allowed)
            rows.append(row)
        # Calls of the host that are no effects have the columns of one, so that a
        # table has one head.
        for call in self.host_calls:
            row = asdict(EffectUse(call.operation, "", False, True, calls=1))
            rows.append({**row, "nesting": [call.nesting]})
        return rows

    def explain(self) -> str:
        """Everything in plain sentences, a line each."""
        return explanation(self)

    def __repr__(self) -> str:
        names = ", ".join(self.names) or "none"
        return f"Effects({self.program}: {names}; {self.devices})"
