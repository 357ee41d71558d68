"""The order in which a program's effects happen as it runs.

The program runs rewritten: each operation that calls the host is replaced by one that
first records the call, with the device coordinates it comes from, and then does what it
did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.devices import mesh_to_lower_on
from shardviz.core.backend.jax_compat import callback_function
from shardviz.core.backend.run.inputs import value_leaves
from shardviz.core.backend.run.targets import decide, device_mesh
from shardviz.core.backend.run.worker.run import run_program
from shardviz.core.backend.tracing.effect_rules import effect_name, is_ordered_effect
from shardviz.core.backend.tracing.jaxprs import (
    TOP_LEVEL,
    nested_in,
    plain_jaxpr,
    rewritten,
    with_inner,
)
from shardviz.core.backend.tracing.trace import TRACED_ON, trace
from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.effects import Event, Observed
from shardviz.core.program.program import Program, Target
from shardviz.core.program.report import Report

_CALLS = ("debug_print", "debug_callback", "io_callback", "pure_callback")


def observed_order(
    program: Program, *values: Any, target: Target | str | None = None
) -> Observed:
    """Runs a program and records in which order its effects happened, on each device.

    Prints are recorded instead of printed; other callbacks are recorded and called.

    Args:
        program: what to run.
        *values: its arguments; made up where none are given.
        target: where to run it, as for `run_program`.

    Raises:
        ProgramError: for what is no Program. The error of a run that fails is in
            `.report`.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x.sum(), ordered=True)
    ...     return x
    >>> program = Program(log, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> [e.what for e in observed_order(program).events]
    ['{x}']
    """
    if not isinstance(program, Program):
        raise ProgramError(
            f"The order of effects is that of a program, made by sv.program; got {shown(program)}."
        )
    record = _Record(program)
    try:
        chosen = decide(target, program.mesh.size)
        mesh = (
            mesh_to_lower_on
            if chosen.worker
            else lambda mesh: device_mesh(mesh, chosen)
        )
        traced = trace(program, mesh(program.mesh))
        leaves = value_leaves(program, values)
    except Exception:  # noqa: BLE001  the run below fails in the same way, and says so in words
        return Observed(program.name, (), _run(program, values, target))
    jaxpr = _rewritten(traced.stage.jaxpr, record, _Position())
    options = {k: v for k, v in program.options.items() if k != "donate"}
    recording, plain = jaxpr_as_fun(jaxpr), jaxpr_as_fun(traced.stage.jaxpr)

    def recorded(*leaves: Any) -> tuple[Any, ...]:
        # The checks trace it once more, for one device: what happens there is not
        # recorded.
        on = TRACED_ON.get()
        unsharded = program.mesh.size > 1 and on is not None and on.size == 1
        return tuple((plain if unsharded else recording)(*leaves))

    program = program.replace(
        fn=recorded, tree=None, options=options, name=program.name
    )
    report = _run(program, () if leaves is None else tuple(leaves), target)
    if report.error is None and report.outputs is not None:
        outputs = traced.out_tree.unflatten(jax.tree.leaves(report.outputs))
        report = report.replace(outputs=outputs)
    return Observed(program.name, tuple(record.events), report)


def _run(
    program: Program, values: Sequence[Any], target: Target | str | None
) -> Report:
    return run_program(program, *values, target=target, cache=ExecutableCache())


@dataclass(frozen=True)
class _Position:
    """Where an operation is: the loops and calls around it, and its manual mesh axes."""

    around: tuple[str, ...] = ()
    manual: Mapping[str, int] = field(default_factory=dict)

    def inside(self, equation: Any) -> _Position:
        name = equation.primitive.name
        around = nested_in(self.around, name)
        if name != "shard_map":
            return _Position(around, self.manual)
        sizes = dict(equation.params["mesh"].shape)
        axes = equation.params.get(
            "newly_manual_axes", equation.params.get("manual_axes", sizes)
        )
        return _Position(
            around, {**self.manual, **{a: n for a, n in sizes.items() if a in axes}}
        )


class _Record:
    """The events so far. Callbacks come from many threads, so one lock guards the list."""

    def __init__(self, program: Program) -> None:
        self.mesh = program.mesh
        self.events: list[Event] = []
        self._lock = threading.Lock()

    def note(self, call: _Call, index: Sequence[Any], values: Sequence[Any]) -> None:
        """Records a call with the device coordinates it came from."""
        device, text = self._device(call, index), ", ".join(map(_short, values))
        with self._lock:
            number = len(self.events)
            self.events.append(
                Event(
                    number,
                    call.name,
                    call.what,
                    call.nesting,
                    call.ordered,
                    device,
                    text,
                )
            )

    def _device(self, call: _Call, index: Sequence[Any]) -> int | None:
        if not call.manual:
            # Outside shard_map a callback is called once, on the first device of the
            # mesh.
            return None if call.elsewhere else int(self.mesh.device_ids.flat[0])
        coordinates = dict(
            zip(call.manual, (int(np.asarray(i)) for i in index), strict=True)
        )
        if any(a not in coordinates and n > 1 for a, n in self.mesh.shape.items()):
            return None  # on axes left to the compiler, the coordinate is not known
        try:
            return int(
                self.mesh.device_ids[
                    tuple(coordinates.get(a, 0) for a in self.mesh.axis_names)
                ]
            )
        except IndexError:
            return None  # the function named a mesh of its own


@dataclass(frozen=True, eq=False)
class _Call:
    """One operation that calls the host."""

    equation: Any
    position: _Position

    @property
    def params(self) -> Mapping[str, Any]:
        return self.equation.params

    @property
    def kind(self) -> str:
        return self.equation.primitive.name

    @property
    def name(self) -> str:
        effects = list(self.equation.effects)
        return effect_name(effects[0]) if effects else self.kind

    @property
    def ordered(self) -> bool:
        return any(is_ordered_effect(e) for e in self.equation.effects)

    @property
    def nesting(self) -> str:
        return " > ".join(self.position.around) or TOP_LEVEL

    @property
    def manual(self) -> tuple[str, ...]:
        return tuple(self.position.manual)

    @property
    def elsewhere(self) -> bool:
        """Whether it is set to happen elsewhere than on the first device."""
        return (
            bool(self.params.get("partitioned"))
            or self.params.get("sharding") is not None
        )

    @property
    def what(self) -> str:
        if self.kind == "debug_print":
            return self.params["fmt"]
        return getattr(
            callback_function(self.params["callback"]), "__name__", "callback"
        )


def _short(value: Any) -> str:
    return shown(np.asarray(value).tolist(), 40)


def _rewritten(jaxpr: Any, record: _Record, position: _Position) -> Any:
    """The same program, which records every call of the host."""
    return rewritten(jaxpr, lambda equation: _equations(equation, record, position))


def _equations(equation: Any, record: _Record, position: _Position) -> list[Any]:
    if equation.primitive.name in _CALLS:
        return _recording(_Call(equation, position), record)
    inside = position.inside(equation)
    return [with_inner(equation, lambda jaxpr: _rewritten(jaxpr, record, inside))]


def _recording(call: _Call, record: _Record) -> list[Any]:
    """The operations that replace a call: the device coordinates, then the recorded
    call.
    """
    equation = call.equation
    structs = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars
    ]
    axes = list(call.position.manual.items())
    made = jax.make_jaxpr(_replacement(call, record), axis_env=axes)(*structs)
    body = plain_jaxpr(made)
    known = dict(zip(map(id, body.invars), equation.invars, strict=True))
    known |= dict(zip(map(id, body.outvars), equation.outvars, strict=True))
    swap = lambda found: [known.get(id(v), v) for v in found]  # noqa: E731
    context = {"ctx": equation.ctx, "source_info": equation.source_info}
    return [
        e.replace(invars=swap(e.invars), outvars=swap(e.outvars), **context)
        for e in body.eqns
    ]


def _replacement(call: _Call, record: _Record) -> Callable[..., Any]:
    count, params = len(call.manual), call.params

    def recorded(*values: Any) -> Any:
        record.note(call, values[:count], values[count:])
        return (
            None if call.kind == "debug_print" else params["callback"](*values[count:])
        )

    def replaced(*operands: Any) -> Any:
        values = (*(jax.lax.axis_index(a) for a in call.manual), *operands)
        if call.kind in ("debug_print", "debug_callback"):
            partitioned = {"partitioned": True} if params.get("partitioned") else {}
            jax.debug.callback(recorded, *values, ordered=call.ordered, **partitioned)
            return ()
        shapes = [
            jax.ShapeDtypeStruct(a.shape, a.dtype) for a in params["result_avals"]
        ]
        sharding = params.get("sharding")
        if call.kind == "io_callback":
            return io_callback(
                recorded, shapes, *values, ordered=call.ordered, sharding=sharding
            )
        return jax.pure_callback(recorded, shapes, *values, sharding=sharding)

    return replaced
