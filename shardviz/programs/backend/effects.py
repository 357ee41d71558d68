"""Predicts a program's side effects, and how many devices it can run on."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.stages import Lowered

from shardviz.axis_rules.dialects import Dialect
from shardviz.base.array_spec import ArraySpec
from shardviz.base.backend.jax_compat import REF_EFFECTS, effect_class
from shardviz.base.errors import ProgramError
from shardviz.base.typing import PyTree, UserFunction
from shardviz.programs.backend.arguments import mesh_of_shardings, program_arrays
from shardviz.programs.backend.bridge import abstract_mesh, jax_dtype
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.backend.calls import BoundCall, jit_settings_of, read_call
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

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

_PURE = "pure_callback"
T = TypeVar("T")


def predict(
    thing: Any,
    args: Sequence[PyTree] = (),
    keywords: Mapping[str, PyTree] | None = None,
    jit_arguments: Mapping[str, object] | None = None,
) -> Effects:
    """Predicts a program's side effects, and how many devices it can run on.

    Args:
        thing: a Program or a function.
        args, keywords: arguments of the function, as in `sv.program`.
        jit_arguments: arguments of `jax.jit`, such as `static_argnums`.

    Raises:
        ProgramError: if `thing` is neither, or an argument isn't an array.

    >>> import jax.numpy as jnp
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x, ordered=True)
    ...     return x
    >>> found = predict(log, [jax.ShapeDtypeStruct((8,), jnp.float32)])
    >>> found.runs_on(1)[0], found.runs_on(8)[0]
    (True, False)
    """
    keywords, jit_arguments = keywords or {}, jit_arguments or {}
    if isinstance(thing, Program):
        if args or keywords:
            raise ProgramError(
                f"A program already has its arguments; got {len(args) + len(keywords)}"
                " more. Give sv.effects only the program."
            )
        return _of_program(thing)
    added = jit_settings_of(thing, jit_arguments)
    call = read_call(thing, args, keywords, added)
    arrays, tree, mesh = program_arrays(call.arguments, call.fn, names=call.names)
    if mesh is None:
        mesh = mesh_of_shardings((added.in_shardings, added.out_shardings))
    if mesh is None:
        return _of_function(call.fn, arrays, tree)
    program = build_program(
        thing,
        args,
        mesh,
        None,
        Dialect.LINEN,
        keywords=keywords,
        jit_arguments=jit_arguments,
    )
    return _of_program(program)


def _of_program(program: Program) -> Effects:
    effects = Effects(program.name, mesh_size=program.mesh.size)
    if program.problems:
        return replace(effects, refused=Refusal("program", program.problems[0]))
    mesh = _mesh_to_trace_on(program)
    traced = _traced_or_refused(lambda: trace(program, mesh))
    if isinstance(traced, Refusal):
        return replace(effects, refused=traced)
    jaxpr = traced.stage.jaxpr
    effects = _read(effects, jaxpr)
    if isinstance(mesh, Mesh) and refusal_on(jaxpr.effects, mesh.size) is None:
        # jax cannot choose a sharding for results that only the host computes.
        from_host = results_from_host(jaxpr, (_PURE, "io_callback"))
        from_host = from_host and not names_shardings(jaxpr)
        host_results = program.out_specs is None and from_host
        return _lowered(effects, lambda: _lower(traced), host_results)
    # jax cannot lower the program on this mesh. Try one device, which may fail, too.
    single = unsharded(program)
    # The function may need several devices.
    with contextlib.suppress(Exception):
        alone = trace(single, _mesh_to_trace_on(single))
        return _lowered(effects, lambda: _lower(alone))
    return effects


def _of_function(fn: UserFunction, arrays: Sequence[ArraySpec], tree: Any) -> Effects:
    effects = Effects(function_name(fn.fn if isinstance(fn, BoundCall) else fn))

    @functools.wraps(fn)  # a new function, because jax caches traces by function
    def fresh(*args: Any) -> Any:
        return fn(*args)

    structs = [jax.ShapeDtypeStruct(a.shape, jax_dtype(a.dtype)) for a in arrays]
    args = structs
    if tree is not None:
        args = tree.unflatten(structs)
    stage = _traced_or_refused(lambda: jax.jit(fresh).trace(*args))
    if isinstance(stage, Refusal):
        return replace(effects, refused=stage)
    effects = replace(
        _read(effects, stage.jaxpr), fixed=named_device_count(stage.jaxpr)
    )
    if refusal_on(stage.jaxpr.effects, effects.fixed or 1):
        return effects
    return _lowered(effects, stage.lower)


def _traced_or_refused(tracing: Callable[[], T]) -> T | Refusal:
    """Returns the result of `tracing`, or a Refusal if it raises an exception."""
    try:
        return tracing()
    except Exception as error:  # noqa: BLE001  a user's function may raise anything
        return _refusal("trace", error)


def _refusal(stage: str, error: BaseException) -> Refusal:
    words = in_words(error)
    return Refusal(stage, words, refusal_cause(words))


def _read(effects: Effects, jaxpr: ClosedJaxpr) -> Effects:
    """Adds the effects of a jaxpr, and its `pure_callback`s, which aren't effects."""
    # Loops and calls repeat the effects of their inner jaxprs; count the innermost
    # only.
    innermost = [operation for operation in operations(jaxpr) if not operation.inner]
    # jax has a separate effect for each ref; merge them by class.
    by_class = {effect_class(effect): effect for effect in jaxpr.effects}
    uses = []
    for kind, effect in sorted(by_class.items(), key=lambda item: effect_name(item[1])):
        nesting = []
        for operation in innermost:
            kinds = {effect_class(e) for e in operation.equation.effects}
            # A ref created in the jaxpr has one effect there, and others for its reads
            # and writes.
            on_refs = kind in REF_EFFECTS and not kinds.isdisjoint(REF_EFFECTS)
            if kind in kinds or on_refs:
                nesting.append(operation.nesting)
        use = EffectUse(
            name=effect_name(effect),
            kind=kind,
            ordered=is_ordered_effect(effect),
            shardable=is_shardable(effect),
            nesting=tuple(dict.fromkeys(nesting)),
            calls=len(nesting),
            allowed=allowed_constructs(effect),
        )
        uses.append(use)
    around = [o.nesting for o in innermost if o.name == _PURE]
    calls: tuple[EffectUse, ...] = ()
    if around:
        nesting = tuple(dict.fromkeys(around))
        calls = (EffectUse(_PURE, "", nesting=nesting, calls=len(around)),)
    return replace(effects, uses=tuple(uses), host_calls=calls)


def _lowered(
    effects: Effects, lowering: Callable[[], Lowered], host_results: bool = False
) -> Effects:
    """Lowers the program, and records whether only the host computes its results, or
    why jax refuses."""
    try:
        text = lowering().as_text()
    except Exception as error:  # noqa: BLE001  a lowering rule may raise anything
        return replace(effects, refused=_refusal("lower", error))
    return replace(effects, host_only=host_results and not takes_arrays(text))


def _lower(traced: Traced) -> Lowered:
    with traced.context():
        return traced.stage.lower(lowering_platforms=("cpu",))


def _mesh_to_trace_on(program: Program) -> Mesh | AbstractMesh:
    # jax lowers callbacks only for concrete devices, which need not be attached.
    if program.mesh.size <= MOST_SIMULATED:
        return mesh_to_lower_on(program.mesh)
    return abstract_mesh(program.mesh)


_MAIN = re.compile(r"func\.func public @main\((.*)\{$", re.MULTILINE)
# jax also writes tokens as arrays without elements.
_ARRAY_ARGUMENT = re.compile(r"%arg\d+: (?!!stablehlo\.token|tensor<0xi1>)")


def takes_arrays(text: str) -> bool:
    """True if a lowered module has an argument that isn't a token.

    Unused arguments don't count, because jax drops them.

    >>> takes_arrays("func.func public @main(%arg0: !stablehlo.token) {")
    False
    """
    main = _MAIN.search(text)
    return main is not None and _ARRAY_ARGUMENT.search(main[1]) is not None
