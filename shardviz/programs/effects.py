"""Effects: the side effects of a program, and on how many devices it may run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardviz.base.display import Displayed, Fact, explanation
from shardviz.base.errors import ProgramError
from shardviz.base.format import shown


@dataclass(frozen=True)
class EffectUse:
    """One kind of effect of a program, or of calls of the host that are no effect.

    Attributes:
        name: the effect, such as `"io callback, ordered"`.
        kind: the name of jax's class; `""` for `"pure_callback"`, which is no effect:
            jax may drop, repeat or move it.
        ordered: True if it keeps the order of the program.
        shardable: True if a program with it may run on several devices.
        nesting: the loops and calls around its operations: `"top level"`, `"shard_map >
            cond"`.
        calls: how many operations of the program have it.
        allowed: where jax allows it: of `control flow`, `remat`, `custom derivatives`
            and `lowering`; None if unknown, and for calls that are no effects.

    >>> EffectUse("debug callback", "DebugEffect", False, True).ordered
    False
    """

    name: str
    kind: str
    ordered: bool = False
    shardable: bool = True
    nesting: tuple[str, ...] = ()
    calls: int = 0
    allowed: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Refusal(Fact):
    """Why a program may not run at all.

    Attributes:
        stage: `"program"`, `"trace"` or `"lower"`.
        said: jax's message, or the problem of the program.
        cause: `"not differentiable"`, `"ordered under vmap"`, `"branch under vmap"`;
            `""` for any other.

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
        may: True if it may.
        devices: how many devices.

    >>> verdict = OrderedOnOne(8, "debug callback, ordered")
    >>> verdict.may, str(verdict)[:52]
    (False, 'jax orders debug callbacks on one device only, and t')
    """

    may: ClassVar[bool] = True
    devices: int


@dataclass(frozen=True)
class NoEffects(RunsOn):
    """It may run: the program has no effects.

    >>> print(NoEffects(8))
    No side effects: safe on any number of devices.
    """


@dataclass(frozen=True)
class UnorderedEffects(RunsOn):
    """It may run: none of its effects is ordered."""


@dataclass(frozen=True)
class OneDeviceOrders(RunsOn):
    """It may run: a single device keeps the order of its effects.

    Attributes:
        effect: an ordered effect.
    """

    effect: str


@dataclass(frozen=True)
class OrderedOnMany(RunsOn):
    """It may run: jax can order its effects on several devices.

    Attributes:
        effect: an ordered effect.
    """

    effect: str


@dataclass(frozen=True)
class RefusedAnywhere(RunsOn):
    """It may not run: jax refuses the program on any number of devices.

    Attributes:
        refusal: why.
    """

    may = False
    refusal: Refusal


@dataclass(frozen=True)
class NamesOwnMesh(RunsOn):
    """It may not run: the function names a mesh with another number of devices.

    Attributes:
        named: how many devices that mesh has.

    >>> NamesOwnMesh(8, named=4).may
    False
    """

    may = False
    named: int


@dataclass(frozen=True)
class OrderedOnOne(RunsOn):
    """It may not run: jax orders one of its effects on a single device only.

    Attributes:
        effect: the effect.
    """

    may = False
    effect: str


@dataclass(frozen=True)
class HostResults(RunsOn):
    """It may not run: its results come from the host, and jax cannot place them."""

    may = False


@dataclass(frozen=True)
class DeviceCount(Fact):
    """On how many devices a program may run: `count`, or any number if it is None.

    >>> print(DeviceCount(0), DeviceCount(1), DeviceCount(None), sep="; ")
    none; 1 device; any number of devices
    """

    count: int | None


@dataclass(frozen=True, repr=False)
class Effects(Displayed):
    """The effects of a program, and on how many devices it may run, before it runs.

    Attributes:
        program: its name.
        uses: one EffectUse per kind of effect.
        host_calls: the same for calls of the host that are no effects.
        mesh_size: how many devices its mesh has; None without a mesh.
        fixed: how many devices the function itself names; None if it names none.
        host_only: True if its results come from the host only and it uses no argument.
            jax cannot place such results on a mesh of several devices.
        refused: why it may not run on any number of devices; None if it may.

    >>> use = EffectUse("debug callback, ordered", "OrderedDebugEffect", True, False)
    >>> found = Effects("f", (use,))
    >>> found.devices, found.runs_on(1)[0], found.runs_on(8)[0]
    ('1 device', True, False)
    """

    program: str
    uses: tuple[EffectUse, ...] = ()
    host_calls: tuple[EffectUse, ...] = ()
    mesh_size: int | None = None
    fixed: int | None = None
    host_only: bool = False
    refused: Refusal | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the effects, as `Report.effects` has them."""
        return tuple(use.name for use in self.uses)

    @property
    def tokens(self) -> int:
        """How many tokens the lowered program takes and returns: one per ordered kind.

        A token is a value without content that keeps calls in order.
        """
        return sum(use.ordered for use in self.uses)

    @property
    def devices(self) -> str:
        """On how many devices it may run: any number of devices, 1 device, or none."""
        count = self.fixed
        if self.host_only or any(not use.shardable for use in self.uses):
            # It needs one device, so it cannot run if the function names several.
            count = 1 if self.fixed in (None, 1) else 0
        return str(DeviceCount(0 if self.refused else count))

    def runs_on(self, devices: int) -> tuple[bool, str]:
        """Whether it may run on so many devices, and why, in one sentence or two.

        Raises:
            ProgramError: if `devices` is not a positive integer.
        """
        found = self.on(devices)
        return found.may, str(found)

    def on(self, devices: int) -> RunsOn:
        """Whether it may run on so many devices, and why.

        Raises:
            ProgramError: if `devices` is not a positive integer.

        >>> Effects("f").on(8)
        NoEffects(devices=8)
        """
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise ProgramError(
                f"A program runs on 1 device or more; got {shown(devices)}."
            )
        refused = self.refused
        # jax looks at the number of devices when it lowers, after it has traced.
        if refused is not None and refused.stage != "lower":
            return RefusedAnywhere(devices, refused)
        # jax compiles for the mesh that the function names, whatever its effects are.
        if self.fixed not in (None, devices):
            return NamesOwnMesh(devices, self.fixed)
        single = [use.name for use in self.uses if not use.shardable]
        if single and devices > 1:
            return OrderedOnOne(devices, single[0])
        if refused is not None:
            return RefusedAnywhere(devices, refused)
        if self.host_only and devices > 1:
            return HostResults(devices)
        ordered = [use.name for use in self.uses if use.ordered]
        if not ordered:
            return UnorderedEffects(devices) if self.uses else NoEffects(devices)
        if devices == 1:
            return OneDeviceOrders(devices, ordered[0])
        return OrderedOnMany(devices, ordered[0])

    def explain(self) -> str:
        """Everything in plain sentences, a line each."""
        return explanation(self)

    def __repr__(self) -> str:
        names = ", ".join(self.names) or "none"
        return f"Effects({self.program}: {names}; {self.devices})"
