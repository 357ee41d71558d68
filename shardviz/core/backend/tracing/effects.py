"""The effects of a program, and on how many devices it may run, said before it runs."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.backend.bridge import abstract_mesh, jax_dtype
from shardviz.core.backend.devices import MOST_SIMULATED, mesh_to_lower_on
from shardviz.core.backend.failures import in_words, raised_by_signal
from shardviz.core.backend.jax_compat import effect_class, effect_sets
from shardviz.core.backend.tracing.arguments import program_arrays
from shardviz.core.backend.tracing.build_program import build_program
from shardviz.core.backend.tracing.calls import BoundCall, read_call
from shardviz.core.backend.tracing.effect_rules import (
    allowed_constructs,
    effect_name,
    is_ordered_effect,
    is_shardable,
    refusal_cause,
    refusal_on,
    single_device_effects,
)
from shardviz.core.backend.tracing.jaxprs import (
    JaxprOperation,
    named_device_count,
    names_shardings,
    operations,
    results_from_host,
)
from shardviz.core.backend.tracing.retraced import unsharded
from shardviz.core.backend.tracing.trace import Traced, trace
from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.rules.rules import Dialect
from shardviz.core.program.effects import (
    REF_EFFECTS,
    Effects,
    EffectToken,
    EffectUse,
    HostCall,
    Refusal,
)
from shardviz.core.program.program import Program, function_name

_HOST_CALLS = ("pure_callback",)
_RETURNING = ("pure_callback", "io_callback")


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
    # Where jax must choose the placement of results that only the host computes, it
    # cannot.
    from_host = results_from_host(jaxpr, _RETURNING) and not names_shardings(jaxpr)
    host_results = program.out_specs is None and from_host
    count = program.mesh.size
    refused = refusal_on(single_device_effects(jaxpr.effects), count)
    if refused is None and isinstance(mesh, Mesh):
        return _with_tokens(known, lambda: _lower(traced), count, host_results)
    # jax cannot lower it on this mesh. Lowered for one device, it has the same tokens.
    single = unsharded(program)
    with contextlib.suppress(Exception):  # a function may be made for many devices only
        alone = trace(single, _mesh_to_trace_on(single))
        return _with_tokens(known, lambda: _lower(alone), 1, host_results)
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
    count = known.fixed or 1
    if refusal_on(single_device_effects(stage.jaxpr.effects), count):
        return known
    return _with_tokens(known, stage.lower, count)


def _traced_or_refused(tracing: Callable[[], Any]) -> Any:
    """What `tracing` returns, or the Refusal of what it raises."""
    try:
        return tracing()
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        # What a signal handler raises is meant for the process.
        if raised_by_signal(error):
            raise
        return _refusal("trace", error)


def _refusal(stage: str, error: BaseException) -> Refusal:
    words = in_words(error)
    return Refusal(stage, words, refusal_cause(words))


def _read(known: Effects, jaxpr: Any) -> Effects:
    # A loop or call has the effects of what it calls: those are counted where they
    # happen.
    innermost, calls = [], []
    for operation in operations(jaxpr):
        if not operation.inner:
            innermost.append(operation)
            if operation.name in _HOST_CALLS:
                calls.append(HostCall(operation.name, operation.nesting))
    # jax has one effect for each ref; they are counted as one kind.
    by_class = {effect_class(effect): effect for effect in jaxpr.effects}
    uses = []
    for effect in by_class.values():
        uses.append(_use(effect, innermost))
    return replace(
        known,
        uses=tuple(sorted(uses, key=lambda use: use.name)),
        host_calls=tuple(calls),
        rules_known=effect_sets() is not None,
    )


def _use(effect: Any, innermost: Iterable[JaxprOperation]) -> EffectUse:
    having = []
    for operation in innermost:
        if any(_alike(own, effect) for own in operation.equation.effects):
            having.append(operation)
    return EffectUse(
        effect_name(effect),
        effect_class(effect),
        is_ordered_effect(effect),
        is_shardable(effect),
        allowed_constructs(effect),
        tuple(dict.fromkeys(operation.nesting for operation in having)),
        len(having),
    )


def _alike(one: Any, other: Any) -> bool:
    kinds = {effect_class(one), effect_class(other)}
    # A ref that is made inside has one effect itself and others for each read and
    # write.
    return len(kinds) == 1 or kinds <= set(REF_EFFECTS)


def _with_tokens(
    known: Effects, lowering: Callable[[], Any], count: int, host_results: bool = False
) -> Effects:
    try:
        text = lowering().as_text()
    except Exception as error:  # noqa: BLE001  a lowering rule may raise anything
        return replace(known, refused=_refusal("lower", error))
    host_only = host_results and not takes_arrays(text)
    return replace(
        known, tokens=read_tokens(text), lowered_for=count, host_only=host_only
    )


def _lower(traced: Traced) -> Any:
    with traced.context():
        return traced.stage.lower(lowering_platforms=("cpu",))


def _mesh_to_trace_on(program: Program) -> Mesh | AbstractMesh:
    # jax lowers callbacks only where devices are named, and none of them need be there.
    if program.mesh.size <= MOST_SIMULATED:
        return mesh_to_lower_on(program.mesh)
    return abstract_mesh(program.mesh)


# What a lowered module says of its tokens.

_MAIN = re.compile(r"func\.func public @main\((.*)\{$", re.MULTILINE)
_TOKEN = re.compile(r"!stablehlo\.token|tensor<0xi1>")
_SHARDING = re.compile(
    r'(?:sdy\.sharding = #sdy\.sharding<(.*?)>(?=[,}])|mhlo\.sharding = "(.*?)")'
)


def read_tokens(text: str) -> tuple[EffectToken, ...]:
    """The tokens that a lowered module takes and returns, and their shardings as it
    writes them.

    >>> main = "func.func public @main(%arg0: !stablehlo.token) -> (!stablehlo.token) {"
    >>> [str(t) for t in read_tokens(main)]
    ['token in 0: on every device', 'token out 0: on every device']
    """
    taken, returned = _signature(text)
    return (*_tokens("in", taken.rstrip(")")), *_tokens("out", returned.strip("()")))


def _signature(text: str) -> tuple[str, str]:
    """The arguments and the results of a lowered module, as it writes them."""
    main = _MAIN.search(text)
    if main is None:
        return "", ""
    taken, _, returned = main[1].strip().partition(") -> ")
    return taken, returned


def takes_arrays(text: str) -> bool:
    """Whether a lowered module takes any argument but tokens: those that go unused are
    dropped.

    >>> takes_arrays("func.func public @main(%arg0: !stablehlo.token) -> (!stablehlo.token) {")
    False
    """
    taken, _ = _signature(text)
    for part in _parts(taken):
        if "%arg" in part and not _is_token(part):
            return True
    return False


def _is_token(part: str) -> bool:
    # Attributes, in braces, may name other types.
    return _TOKEN.search(part.partition("{")[0]) is not None


def _tokens(direction: str, listed: str) -> list[EffectToken]:
    tokens = []
    for index, part in enumerate(_parts(listed)):
        if _is_token(part):
            written, sharding = _SHARDING.search(part), ""
            if written is not None:
                sharding = written[1] or written[2]
            tokens.append(EffectToken(direction, index, sharding))
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
