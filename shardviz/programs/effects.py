"""Effects: a program's side effects, and the number of devices it can run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardviz.base.display import Displayed, Fact, explanation
from shardviz.base.errors import ProgramError
from shardviz.base.format import shown


@dataclass(frozen=True)
class EffectUse:
    """A kind of side effect in a program, or its calls of `pure_callback`.

    Attributes:
        name: name of the effect, such as `"io callback, ordered"`.
        kind: name of jax's effect class; `""` for `"pure_callback"`, which isn't an
            effect in jax: calls may be dropped, repeated or moved.
        ordered: True if the effect happens in program order.
        shardable: True if a program with this effect can run on several devices.
        nesting: the loops and calls around the operations with this effect, such as
            `"top level"` or `"shard_map > cond"`.
        calls: number of operations with this effect.
        allowed: the constructs in which jax allows it, out of `control flow`, `remat`,
            `custom derivatives` and `lowering`; None if unknown, and for
            `"pure_callback"`.

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
    """Why a program cannot run on any number of devices.

    Attributes:
        stage: the stage that fails: `"program"`, `"trace"` or `"lower"`.
        said: jax's message; for the stage `"program"`, shardviz's own.
        cause: `"not differentiable"`, `"ordered under vmap"` or `"branch under vmap"`;
            `""` for other causes.

    >>> print(Refusal("trace", "ValueError: IO callbacks do not support JVP."))
    refused at tracing, because ValueError: IO callbacks do not support JVP.
    """

    stage: str
    said: str
    cause: str = ""


@dataclass(frozen=True)
class RunsOn(Fact):
    """Whether a program can run on a given number of devices, and why.

    Attributes:
        may: True if the program can run.
        devices: the number of devices.

    >>> verdict = OrderedOnOne(8, "debug callback, ordered")
    >>> verdict.may, str(verdict)[:52]
    (False, 'jax orders debug callbacks on one device only, and t')
    """

    may: ClassVar[bool] = True
    devices: int


@dataclass(frozen=True)
class NoEffects(RunsOn):
    """The program can run, because it has no effects.

    >>> print(NoEffects(8))
    No side effects: safe on any number of devices.
    """


@dataclass(frozen=True)
class UnorderedEffects(RunsOn):
    """The program can run, because none of its effects is ordered."""


@dataclass(frozen=True)
class OneDeviceOrders(RunsOn):
    """The program can run, because a single device keeps its effects in order.

    Attributes:
        effect: name of an ordered effect.
    """

    effect: str


@dataclass(frozen=True)
class OrderedOnMany(RunsOn):
    """The program can run, because jax can order its effects across devices.

    Attributes:
        effect: name of an ordered effect.
    """

    effect: str


@dataclass(frozen=True)
class RefusedAnywhere(RunsOn):
    """The program cannot run: jax refuses it on any number of devices.

    Attributes:
        refusal: why jax refuses it.
    """

    may = False
    refusal: Refusal


@dataclass(frozen=True)
class NamesOwnMesh(RunsOn):
    """The program cannot run: its function names a mesh of another size.

    Attributes:
        named: number of devices in the mesh that the function names.

    >>> NamesOwnMesh(8, named=4).may
    False
    """

    may = False
    named: int


@dataclass(frozen=True)
class OrderedOnOne(RunsOn):
    """The program cannot run: it has an effect that jax orders on one device only.

    Attributes:
        effect: name of that effect.
    """

    may = False
    effect: str


@dataclass(frozen=True)
class HostResults(RunsOn):
    """The program cannot run: jax cannot place results that only the host computes."""

    may = False


@dataclass(frozen=True)
class DeviceCount(Fact):
    """How many devices a program can run on: `count`, or any number for None.

    >>> print(DeviceCount(0), DeviceCount(1), DeviceCount(None), sep="; ")
    none; 1 device; any number of devices
    """

    count: int | None


@dataclass(frozen=True, repr=False)
class Effects(Displayed):
    """A program's side effects, and the number of devices it can run on.

    shardviz predicts both before the program runs.

    Attributes:
        program: name of the program.
        uses: one EffectUse per kind of effect.
        host_calls: one EffectUse for all `pure_callback` calls; `()` without calls.
        mesh_size: number of devices in the program's mesh; None without a mesh.
        fixed: number of devices in the mesh that the function itself names; None if it
            names none.
        host_only: True if all results come from host callbacks and no argument is used.
            jax cannot place such results on a mesh of several devices.
        refused: why the program cannot run anywhere; None if it can.

    >>> from shardviz.programs.effects import EffectUse
    >>> from shardviz.types import Effects
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
        """The effect names, in the form of `Report.effects`."""
        return tuple(use.name for use in self.uses)

    @property
    def tokens(self) -> int:
        """Number of tokens the lowered program takes and returns: one per ordered kind.

        A token is a value without data that keeps calls in order.
        """
        return sum(use.ordered for use in self.uses)

    @property
    def devices(self) -> str:
        """How many devices the program can run on, such as `"1 device"` or `"none"`."""
        count = self.fixed
        if self.host_only or any(not use.shardable for use in self.uses):
            # Such effects need a single device. If the function names several devices, it
            # cannot run.
            count = 1 if self.fixed in (None, 1) else 0
        return str(DeviceCount(0 if self.refused else count))

    def runs_on(self, devices: int) -> tuple[bool, str]:
        """Returns whether the program can run on this many devices, and why, as text.

        Raises:
            ProgramError: if `devices` is not a positive integer.
        """
        found = self.on(devices)
        return found.may, str(found)

    def on(self, devices: int) -> RunsOn:
        """Returns whether the program can run on this many devices, and why.

        Raises:
            ProgramError: if `devices` is not a positive integer.

        >>> from shardviz.types import Effects
        >>> Effects("f").on(8)
        NoEffects(devices=8)
        """
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise ProgramError(
                f"A program runs on 1 device or more; got {shown(devices)}."
            )
        refused = self.refused
        # jax checks the number of devices at lowering, so a trace error comes first.
        if refused is not None and refused.stage != "lower":
            return RefusedAnywhere(devices, refused)
        # jax compiles for the mesh that the function names, so the size must match.
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
        """Explains all effects in plain sentences, one per line."""
        return explanation(self)

    def __repr__(self) -> str:
        names = ", ".join(self.names) or "none"
        return f"Effects({self.program}: {names}; {self.devices})"
