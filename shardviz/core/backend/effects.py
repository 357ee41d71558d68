"""predict(): the effects of a program before it runs, and on how many devices it may run."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.backend.arguments import program_arrays
from shardviz.core.backend.bridge import abstract_mesh, jax_dtype
from shardviz.core.backend.build_program import build_program
from shardviz.core.backend.calls import BoundCall, read_call
from shardviz.core.backend.checks import unsharded
from shardviz.core.backend.devices import MOST_SIMULATED
from shardviz.core.backend.jaxprs import (
    JaxprOperation,
    allowed_constructs,
    effect_sets,
    effect_word,
    in_our_words,
    is_ordered_effect,
    is_shardable,
    named_device_count,
    names_shardings,
    operations,
    refusal_on,
    results_from_host,
    single_device_effects,
    without_sets,
)
from shardviz.core.backend.mesh_context import apart
from shardviz.core.backend.targets import mesh_to_lower_on
from shardviz.core.backend.tracing import Traced, trace
from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.rules import Dialect
from shardviz.core.program.effects import Effects, EffectToken, EffectUse, HostCall, Refusal
from shardviz.core.program.program import Program, function_name

_MAIN = re.compile(r"func\.func public @main\((.*)\{$", re.MULTILINE)
_TOKEN = re.compile(r"!stablehlo\.token|tensor<0xi1>")
_SHARDING = re.compile(
    r'(?:sdy\.sharding = #sdy\.sharding<(.*?)>(?=[,}])|mhlo\.sharding = "(.*?)")'
)


def read_tokens(text: str) -> tuple[EffectToken, ...]:
    """The tokens that a lowered module takes and returns, and their shardings as it writes them.

    >>> main = "func.func public @main(%arg0: !stablehlo.token) -> (!stablehlo.token) {"
    >>> [str(t) for t in read_tokens(main)]
    ['token in 0: on every device', 'token out 0: on every device']
    """
    found = _MAIN.search(text)
    if found is None:
        return ()
    taken, _, returned = found[1].strip().partition(") -> ")
    return (*_tokens("in", taken.rstrip(")")), *_tokens("out", returned.strip("()")))


def takes_arrays(text: str) -> bool:
    """Whether a lowered module takes any argument but tokens: those that go unused are dropped.

    >>> takes_arrays("func.func public @main(%arg0: !stablehlo.token) -> (!stablehlo.token) {")
    False
    """
    found = _MAIN.search(text)
    taken = found[1].strip().partition(") -> ")[0] if found else ""
    return any("%arg" in p and not _TOKEN.search(p.partition("{")[0]) for p in _parts(taken))


def _tokens(direction: str, listed: str) -> list[EffectToken]:
    tokens = []
    for index, part in enumerate(_parts(listed)):
        if _TOKEN.search(part.partition("{")[0]):
            said = _SHARDING.search(part)
            tokens.append(EffectToken(direction, index, (said[1] or said[2]) if said else ""))
    return tokens


def _parts(listed: str) -> list[str]:
    """The text split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(listed):
        depth += (letter in "({[<") - (letter in ")}]>")
        if letter == "," and depth == 0:
            parts.append(listed[start:i])
            start = i + 1
    return [*parts, listed[start:]]


_HOST_CALLS = ("pure_callback",)
_RETURNING = ("pure_callback", "io_callback")
_REFS = ("RefEffect", "ReadEffect", "WriteEffect", "AccumEffect", "InternalMutableArrayEffect")


def predict(thing: Any, *args: Any, **keywords: Any) -> Effects:
    """The effects of a program or function, and on how many devices it may run.

    Args:
        thing: a Program, or a function.
        *args, **keywords: for a function, what it takes, as in `sv.program`.

    Raises:
        ProgramError: for what is neither, and for arguments that are no arrays.

    >>> import jax.numpy as jnp
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x, ordered=True)
    ...     return x
    >>> found = predict(log, jax.ShapeDtypeStruct((8,), jnp.float32))
    >>> found.runs_on(1)[0], found.runs_on(8)[0]
    (True, False)
    """
    if isinstance(thing, Program):
        if args or keywords:
            raise ProgramError(
                "A program brings its arguments; got"
                f" {len(args) + len(keywords)} more. Give sv.effects the program only."
            )
        return _of_program(thing)
    if not callable(thing):
        raise ProgramError(
            f"Effects are those of a program or a function; got {shown(thing)}. Give what"
            " sv.program made, or a function and what it takes."
        )
    call = read_call(thing, args, keywords)
    arrays, tree, mesh = program_arrays(call.arguments, call.fn, names=call.names)
    if mesh is None:
        return _of_function(call.fn, arrays, tree)
    program = build_program(thing, args, mesh, None, Dialect.LINEN, None, None, (), "", keywords)
    return _of_program(program)


def _of_program(program: Program) -> Effects:
    known = Effects(program.name, mesh_size=program.mesh.size)
    if program.problems:
        return replace(known, refused=Refusal("program", program.problems[0]))
    mesh = _mesh_to_trace_on(program)
    try:
        traced = trace(program, mesh)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's function may raise anything
        return replace(known, refused=Refusal("trace", in_our_words(error)))
    known = _read(known, traced.stage.jaxpr)
    host_results = program.out_specs is None and _from_host_only(traced.stage.jaxpr)
    count = program.mesh.size
    refused = refusal_on(single_device_effects(traced.stage.jaxpr.effects), count)
    if refused is None and isinstance(mesh, Mesh):
        return _with_tokens(known, lambda: _lower(traced), count, host_results)
    # jax cannot lower it on this mesh. Lowered for one device, it has the same tokens.
    single = unsharded(program)
    with contextlib.suppress(Exception):  # a function may be made for many devices only
        one = _mesh_to_trace_on(single)
        alone = trace(single, one)
        return _with_tokens(known, lambda: _lower(alone), 1, host_results)
    return known


def _of_function(fn: Callable[..., Any], arrays: Sequence[ArraySpec], tree: Any) -> Effects:
    known = Effects(function_name(fn.fn if isinstance(fn, BoundCall) else fn))

    @functools.wraps(fn)  # a new one every time: jax keeps what it traced by function
    def fresh(*args: Any) -> Any:
        return fn(*args)

    structs = [jax.ShapeDtypeStruct(a.shape, jax_dtype(a.dtype)) for a in arrays]
    args = structs if tree is None else tree.unflatten(structs)
    try:
        with apart():
            stage = jax.jit(fresh).trace(*args)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's function may raise anything
        return replace(known, refused=Refusal("trace", in_our_words(error)))
    known = replace(_read(known, stage.jaxpr), fixed=named_device_count(stage.jaxpr))
    count = known.fixed or 1
    if refusal_on(single_device_effects(stage.jaxpr.effects), count):
        return known
    with apart():
        return _with_tokens(known, stage.lower, count)


def _read(known: Effects, jaxpr: Any) -> Effects:
    # A loop or call has the effects of what it calls: those are counted where they happen.
    found = [operation for operation in operations(jaxpr) if not operation.inner]
    by_kind: dict[str, list[Any]] = {}
    for effect in jaxpr.effects:
        by_kind.setdefault(type(effect).__name__, []).append(effect)
    uses = [_use(effects[0], found) for effects in by_kind.values()]
    calls = tuple(HostCall(o.name, o.nesting) for o in found if o.name in _HOST_CALLS)
    uses.sort(key=lambda use: use.name)
    return replace(known, uses=tuple(uses), host_calls=calls, note=without_sets())


def _use(effect: Any, found: Iterable[JaxprOperation]) -> EffectUse:
    kind = type(effect).__name__
    having = [o for o in found if any(_same(e, effect) for e in o.equation.effects)]
    return EffectUse(
        effect_word(effect),
        kind,
        ordered := is_ordered_effect(effect),
        shardable := is_shardable(effect),
        None if effect_sets() is None else allowed_constructs(effect),
        tuple(dict.fromkeys(o.nesting for o in having)),
        len(having),
        _note(kind, ordered, shardable),
    )


def _same(one: Any, effect: Any) -> bool:
    names = {type(one).__name__, type(effect).__name__}
    # A ref that is made inside has one effect itself and others for each read and write.
    return len(names) == 1 or names <= set(_REFS)


def _note(kind: str, ordered: bool, shardable: bool) -> str:
    if kind in _REFS:
        return "jax turns reads and writes of refs into plain values before it lowers."
    if not ordered:
        return "It may happen in any order, and is done for certain only after a barrier."
    if not shardable:
        return "It happens in the order of the program, on one device only."
    return (
        "It happens in the order of the program: once for all devices, or once on each inside"
        " shard_map, and there no order holds between devices."
    )


def _from_host_only(jaxpr: Any) -> bool:
    return results_from_host(jaxpr, _RETURNING) and not names_shardings(jaxpr)


def _with_tokens(
    known: Effects, lowering: Callable[[], Any], count: int, host_results: bool = False
) -> Effects:
    try:
        text = lowering().as_text()
    except Exception as error:  # noqa: BLE001  a lowering rule may raise anything
        return replace(known, refused=Refusal("lower", in_our_words(error)))
    host_only = host_results and not takes_arrays(text)
    return replace(known, tokens=read_tokens(text), lowered_for=count, host_only=host_only)


def _lower(traced: Traced) -> Any:
    with traced.context():
        return traced.stage.lower(lowering_platforms=("cpu",))


def _mesh_to_trace_on(program: Program) -> Mesh | AbstractMesh:
    mesh = program.mesh
    # jax lowers callbacks only where devices are named, and none of them need be there.
    return mesh_to_lower_on(mesh) if mesh.size <= MOST_SIMULATED else abstract_mesh(mesh)
