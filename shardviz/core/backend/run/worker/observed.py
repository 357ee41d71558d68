"""The order in which a program's effects happen as it runs.

The program runs rewritten: each operation that calls the host is replaced by one that
first records the call, with the device coordinates it comes from, and then does what it
did.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    events = _Events(program)
    try:
        chosen = decide(target, program.mesh.size)
        if chosen.worker:
            mesh = mesh_to_lower_on(program.mesh)
        else:
            mesh = device_mesh(program.mesh, chosen)
        traced = trace(program, mesh)
        leaves = value_leaves(program, values)
    except Exception:  # noqa: BLE001  the run below fails in the same way, and says so in words
        return Observed(program.name, (), _run(program, values, target))
    recording = jaxpr_as_fun(_recording(traced.stage.jaxpr, events, (), {}))
    plain = jaxpr_as_fun(traced.stage.jaxpr)
    options = {k: v for k, v in program.options.items() if k != "donate"}

    def recorded(*leaves: Any) -> tuple[Any, ...]:
        # The checks trace it once more, for one device: what happens there is not
        # recorded.
        on = TRACED_ON.get()
        unsharded = program.mesh.size > 1 and on is not None and on.size == 1
        return tuple((plain if unsharded else recording)(*leaves))

    name = program.name
    program = program.replace(fn=recorded, tree=None, options=options, name=name)
    report = _run(program, () if leaves is None else tuple(leaves), target)
    if report.error is None and report.outputs is not None:
        outputs = traced.out_tree.unflatten(jax.tree.leaves(report.outputs))
        report = report.replace(outputs=outputs)
    return Observed(name, tuple(events.found), report)


def _run(
    program: Program, values: Sequence[Any], target: Target | str | None
) -> Report:
    return run_program(program, *values, target=target, cache=ExecutableCache())


class _Events:
    """The events so far; callbacks come from many threads."""

    def __init__(self, program: Program) -> None:
        self.mesh = program.mesh
        self.found: list[Event] = []
        self._lock = threading.Lock()

    def note(self, event: Event, manual: Sequence[str], index: Sequence[Any]) -> None:
        """Records an event, with the coordinates on manual axes it came from."""
        device = event.device
        if manual:
            coordinates = dict(zip(manual, map(int, index), strict=True))
            device = self._device(coordinates)
        with self._lock:
            number = len(self.found)
            self.found.append(replace(event, number=number, device=device))

    def _device(self, coordinates: Mapping[str, int]) -> int | None:
        for axis, size in self.mesh.shape.items():
            # On axes left to the compiler, the coordinate is not known.
            if size > 1 and axis not in coordinates:
                return None
        position = tuple(coordinates.get(axis, 0) for axis in self.mesh.axis_names)
        return int(self.mesh.device_ids[position])


def _recording(
    jaxpr: Any, events: _Events, around: tuple[str, ...], manual: Mapping[str, int]
) -> Any:
    """The same program, which records every call of the host.

    Args:
        jaxpr: the program, or a part of it.
        events: where it records them.
        around: the loops and calls around that part.
        manual: the sizes of the manual mesh axes there.
    """

    def change(equation: Any) -> list[Any]:
        name = equation.primitive.name
        if name in _CALLS:
            return _recorded_call(equation, events, around, manual)
        axes = dict(manual)
        if name == "shard_map":
            params = equation.params
            sizes = dict(params["mesh"].shape)
            new = params.get("newly_manual_axes", params.get("manual_axes", sizes))
            axes |= {axis: size for axis, size in sizes.items() if axis in new}
        inside = nested_in(around, name)
        return [with_inner(equation, lambda j: _recording(j, events, inside, axes))]

    return rewritten(jaxpr, change)


def _recorded_call(
    equation: Any, events: _Events, around: tuple[str, ...], manual: Mapping[str, int]
) -> list[Any]:
    """The operations that replace a call: device coordinates, then the recorded call."""
    kind, params = equation.primitive.name, equation.params
    effects, callback = list(equation.effects), params.get("callback")
    ordered = any(is_ordered_effect(effect) for effect in effects)
    # Outside shard_map a callback is called once, on the first device of the mesh where
    # it does not name another one.
    elsewhere = params.get("partitioned") or params.get("sharding") is not None
    device = None if elsewhere else int(events.mesh.device_ids.flat[0])
    what = params.get("fmt")
    if what is None:
        what = getattr(callback_function(callback), "__name__", "callback")
    name = effect_name(effects[0]) if effects else kind
    nesting = " > ".join(around) or TOP_LEVEL
    event = Event(0, name, what, nesting, ordered, device, "")

    def record(*values: Any) -> Any:
        index, given = values[: len(manual)], values[len(manual) :]
        shorts = [shown(np.asarray(value).tolist(), 40) for value in given]
        events.note(replace(event, values=", ".join(shorts)), list(manual), index)
        return None if kind == "debug_print" else callback(*given)

    def replaced(*operands: Any) -> Any:
        values = (*(jax.lax.axis_index(axis) for axis in manual), *operands)
        if kind in ("debug_print", "debug_callback"):
            partitioned = {"partitioned": True} if params.get("partitioned") else {}
            jax.debug.callback(record, *values, ordered=ordered, **partitioned)
            return ()
        avals = params["result_avals"]
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        options = {"sharding": params.get("sharding")}
        if kind == "io_callback":
            return io_callback(record, shapes, *values, ordered=ordered, **options)
        return jax.pure_callback(record, shapes, *values, **options)

    avals = [v.aval for v in equation.invars]
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    made = jax.make_jaxpr(replaced, axis_env=list(manual.items()))(*structs)
    body = plain_jaxpr(made)
    # The operands and results of the body become those of the call.
    outer = dict(zip(map(id, body.invars), equation.invars, strict=True))
    outer |= dict(zip(map(id, body.outvars), equation.outvars, strict=True))
    operations = []
    for operation in body.eqns:
        operations.append(
            operation.replace(
                invars=[outer.get(id(v), v) for v in operation.invars],
                outvars=[outer.get(id(v), v) for v in operation.outvars],
                ctx=equation.ctx,
                source_info=equation.source_info,
            )
        )
    return operations
