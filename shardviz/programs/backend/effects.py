"""The effects of a program, and on how many devices it may run, said before it runs."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.axis_rules.dialects import Dialect
from shardviz.base.array_spec import ArraySpec
from shardviz.base.backend.jax_compat import REF_EFFECTS, effect_class
from shardviz.base.errors import ProgramError
from shardviz.programs.backend.arguments import program_arrays
from shardviz.programs.backend.bridge import abstract_mesh, jax_dtype
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.backend.calls import BoundCall, read_call
from shardviz.programs.backend.devices import MOST_SIMULATED, mesh_to_lower_on
from shardviz.programs.backend.effect_rules import (
    allowed_constructs,
    effect_name,
    is_ordered_effect,
    is_shardable,
    refusal_cause,
    refusal_on,
)
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.jaxprs import (
    named_device_count,
    names_shardings,
    operations,
    results_from_host,
)
from shardviz.programs.backend.retraced import unsharded
from shardviz.programs.backend.trace import Traced, trace
from shardviz.programs.effects import Effects, EffectUse, Refusal
from shardviz.programs.program import Program, function_name

_PURE = "pure_callback"


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
    call = read_call(thing, args, keywords)
    arrays, tree, mesh = program_arrays(call.arguments, call.fn, names=call.names)
    if mesh is None:
        return _of_function(call.fn, arrays, tree)
    program = build_program(
        thing, args, mesh, None, Dialect.LINEN, None, None, (), "", keywords
    )
    return _of_program(program)


def _of_program(program: Program) -> Effects:
    known = Effects(program.name, mesh_size=program.mesh.size)
    if program.problems:
        return replace(known, refused=Refusal("program", program.problems[0]))
    mesh = _mesh_to_trace_on(program)
    traced = _traced_or_refused(lambda: trace(program, mesh))
    if isinstance(traced, Refusal):
        return replace(known, refused=traced)
    jaxpr = traced.stage.jaxpr
    known = _read(known, jaxpr)
    if isinstance(mesh, Mesh) and refusal_on(jaxpr.effects, mesh.size) is None:
        # Where jax has to choose the placement of results that only the host computes,
        # it cannot.
        from_host = results_from_host(jaxpr, (_PURE, "io_callback"))
        from_host = from_host and not names_shardings(jaxpr)
        host_results = program.out_specs is None and from_host
        return _lowered(known, lambda: _lower(traced), host_results)
    # jax cannot lower it on this mesh. It may refuse it on one device, too.
    single = unsharded(program)
    # A function may be made for many devices only.
    with contextlib.suppress(Exception):
        alone = trace(single, _mesh_to_trace_on(single))
        return _lowered(known, lambda: _lower(alone))
    return known


def _of_function(
    fn: Callable[..., Any], arrays: Sequence[ArraySpec], tree: Any
) -> Effects:
    known = Effects(function_name(fn.fn if isinstance(fn, BoundCall) else fn))

    @functools.wraps(fn)  # a new one every time: jax keeps what it traced by function
    def fresh(*args: Any) -> Any:
        return fn(*args)

    structs = [jax.ShapeDtypeStruct(a.shape, jax_dtype(a.dtype)) for a in arrays]
    args = structs
    if tree is not None:
        args = tree.unflatten(structs)
    stage = _traced_or_refused(lambda: jax.jit(fresh).trace(*args))
    if isinstance(stage, Refusal):
        return replace(known, refused=stage)
    known = replace(_read(known, stage.jaxpr), fixed=named_device_count(stage.jaxpr))
    if refusal_on(stage.jaxpr.effects, known.fixed or 1):
        return known
    return _lowered(known, stage.lower)


def _traced_or_refused(tracing: Callable[[], Any]) -> Any:
    """What `tracing` returns, or the Refusal of what it raises."""
    try:
        return tracing()
    except Exception as error:  # noqa: BLE001  a user's function may raise anything
        return _refusal("trace", error)


def _refusal(stage: str, error: BaseException) -> Refusal:
    words = in_words(error)
    return Refusal(stage, words, refusal_cause(words))


def _read(known: Effects, jaxpr: Any) -> Effects:
    """Adds the effects of a jaxpr, and its calls of the host that are no effects."""
    # A loop or call has the effects of what it calls: those are counted where they
    # happen.
    innermost = [one for one in operations(jaxpr) if not one.inner]
    # jax has one effect for each ref; they are counted as one kind.
    by_class = {effect_class(effect): effect for effect in jaxpr.effects}
    uses = []
    for kind, effect in sorted(by_class.items(), key=lambda item: effect_name(item[1])):
        nesting = []
        for operation in innermost:
            kinds = {effect_class(own) for own in operation.equation.effects}
            # A ref that is made inside has one effect itself and others for each read
            # and write.
            on_refs = kind in REF_EFFECTS and not kinds.isdisjoint(REF_EFFECTS)
            if kind in kinds or on_refs:
                nesting.append(operation.nesting)
        use = EffectUse(
            effect_name(effect),
            kind,
            is_ordered_effect(effect),
            is_shardable(effect),
            tuple(dict.fromkeys(nesting)),
            len(nesting),
            allowed_constructs(effect),
        )
        uses.append(use)
    around = [one.nesting for one in innermost if one.name == _PURE]
    calls: tuple[EffectUse, ...] = ()
    if around:
        nesting = tuple(dict.fromkeys(around))
        calls = (EffectUse(_PURE, "", nesting=nesting, calls=len(around)),)
    return replace(known, uses=tuple(uses), host_calls=calls)


def _lowered(
    known: Effects, lowering: Callable[[], Any], host_results: bool = False
) -> Effects:
    """Adds what is known once jax has lowered the program, or why it refuses to."""
    try:
        text = lowering().as_text()
    except Exception as error:  # noqa: BLE001  a lowering rule may raise anything
        return replace(known, refused=_refusal("lower", error))
    return replace(known, host_only=host_results and not takes_arrays(text))


def _lower(traced: Traced) -> Any:
    with traced.context():
        return traced.stage.lower(lowering_platforms=("cpu",))


def _mesh_to_trace_on(program: Program) -> Mesh | AbstractMesh:
    # jax lowers callbacks only where devices are named, and none of them need be there.
    if program.mesh.size <= MOST_SIMULATED:
        return mesh_to_lower_on(program.mesh)
    return abstract_mesh(program.mesh)


_MAIN = re.compile(r"func\.func public @main\((.*)\{$", re.MULTILINE)
# jax writes a token as an array without elements, too.
_ARRAY_ARGUMENT = re.compile(r"%arg\d+: (?!!stablehlo\.token|tensor<0xi1>)")


def takes_arrays(text: str) -> bool:
    """Whether a lowered module takes any argument except tokens.

    jax drops those that go unused.

    >>> takes_arrays("func.func public @main(%arg0: !stablehlo.token) {")
    False
    """
    main = _MAIN.search(text)
    return main is not None and _ARRAY_ARGUMENT.search(main[1]) is not None
