"""Public functions for programs: `sv.program`, `sv.effects`, `sv.mesh_context`."""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.rule_tables import dialect_of
from shardviz.axis_rules.rules import Rules
from shardviz.base.display import StageClock
from shardviz.base.errors import ProgramError, needed_by
from shardviz.base.format import joined, shown
from shardviz.base.mesh_context import MeshContext
from shardviz.base.public.adopt import as_mesh, optional
from shardviz.base.typing import (
    DialectLike,
    MeshLike,
    NamesFunction,
    PyTree,
    RulesLike,
    UserFunction,
)
from shardviz.programs.effects import Effects
from shardviz.programs.program import Program, function_name
from shardviz.programs.public.keywords import (
    FunctionWithKeywords,
    required_parameters,
    shares_keywords,
    takes_by_name,
)

# An argument of `sv.program`, and the arguments of `jax.jit` that mean the same.
_JIT_NAMES = {
    "in_specs": ("in_shardings",),
    "out_specs": ("out_shardings",),
    "donate": ("donate_argnums", "donate_argnames"),
}
_JIT_ENDINGS = ("_shardings", "_argnums", "_argnames")


@shares_keywords
def program(
    fn: UserFunction | FunctionWithKeywords,
    *arrays: PyTree,
    mesh: MeshLike | None = None,
    rules: RulesLike | None = None,
    dialect: DialectLike | None = None,
    in_specs: PyTree = None,
    out_specs: PyTree = None,
    donate: int | Sequence[int] = (),
    name: str = "",
    names: NamesFunction | None = None,
    args: Sequence[PyTree] | None = None,
    kwargs: Mapping[str, PyTree] | None = None,
    in_shardings: PyTree = None,
    out_shardings: PyTree = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    **keywords: Any,
) -> Program:
    """Binds a function to its arguments, a mesh, and the sharding of each argument.

    Args:
        fn: the function, as you would pass it to `jax.jit`, or the result of `jax.jit`.
            A jitted function's static arguments, shardings and donation are used unless
            `in_specs`, `out_specs` or `donate` override them. Methods, partials,
            `nnx.jit` and `eqx.filter_jit` are traced the way you call them.
        *arrays: the arguments, as in a call: arrays, `jax.ShapeDtypeStruct`s (with or
            without a sharding), ArraySpecs, numbers, or pytrees of these. Anything else,
            such as text, None or a function, is static. The metadata
            that flax keeps with a parameter (`nn.with_partitioning`, `nnx` metadata)
            names the parameter's logical axes.
        mesh: the mesh. It can be omitted if the sharding of an array has a mesh, if
            `jax.set_mesh` has set one, or if the function itself uses one. A mesh that
            is passed here overrides the mesh in context. Its axis types matter:
            `sv.mesh` makes Auto axes, `jax.make_mesh` Explicit ones.
        rules: axis rules for arrays with logical names.
        dialect: the library whose semantics the rules follow; by default the one that
            `sv.rules` got, otherwise `"linen"`.
        in_specs, out_specs: PartitionSpecs, or pytree prefixes of them as in `jax.jit`,
            for arrays without a sharding of their own. These specs take precedence over
            rules. If the spec of an output is None, the compiler chooses its sharding.
        donate: positions of the arguments whose memory the program may reuse.
        name: the name of the program, by default the name of the function.
        names: a function that is called as `names(path, array)`, with a path such as
            `"params.mlp.kernel"`, for each array without a sharding or logical names.
            It returns logical names, a PartitionSpec, or None.
        args, kwargs: the arguments of the function, instead of `*arrays` and
            `**keywords`. Every other keyword then belongs to `sv.program`, even if the
            function has a parameter of the same name.
        in_shardings, out_shardings: as in `jax.jit`. A bare PartitionSpec applies to
            the program's mesh. If `fn` is already jitted with other values of these or
            the next four arguments, its own values are used, and a note reports this.
        static_argnums, static_argnames, donate_argnums, donate_argnames: as in
            `jax.jit`.
        **keywords: keyword arguments of the function. If the function has a parameter
            named like an argument above (`rules`, `name`, ...), the keyword goes to the
            function; a jax mesh passed as `mesh` then goes to `sv.program` as well.

    Raises:
        ShardvizError: if the arguments don't fit together.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> x, w = sv.array("x", (8, 4)), sv.array("w", (4, 8))
    >>> matmul = sv.program(jnp.dot, x, w, mesh="data=4")
    >>> [a.name for a in matmul.arrays]
    ['x', 'w']
    """
    # `shares_keywords` passes the function together with its own keyword arguments.
    step = fn
    if not isinstance(fn, FunctionWithKeywords):
        step = FunctionWithKeywords(fn, {})
    grid, table = optional(as_mesh, mesh), optional(Rules.of, rules)
    own = {
        "in_specs": in_specs,
        "out_specs": out_specs,
        "donate": None if donate == () else donate,
    }
    jit_arguments = {
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    for our_name, jit_names in _JIT_NAMES.items():
        for jit_name in jit_names:
            if own[our_name] is not None and jit_arguments[jit_name] is not None:
                raise ProgramError(
                    f"{our_name} and {jit_name} mean the same. Give one of them."
                )
    with needed_by("sv.program"):
        from shardviz.programs.backend import build_program
    program = build_program.build_program(
        step.fn,
        arrays,
        grid,
        table,
        Dialect.of(dialect_of(table, dialect), paths=False),
        in_specs=in_specs,
        out_specs=out_specs,
        donate=donate,
        name=name,
        keywords={**keywords, **step.keywords},
        axis_names=names,
        jit_arguments=jit_arguments,
    )
    if step.notes:
        program = program.replace(notes=(*program.notes, *step.notes))
    if hasattr(sys, "ps1"):  # the session is interactive
        from shardviz.runs.backend.worker.early import start_worker

        start_worker(program.mesh.size)
    return program


def program_of(
    fn: Program | UserFunction,
    public: str,
    arrays: Sequence[PyTree],
    keywords: Mapping[str, Any],
    public_only: Mapping[str, object] | None = None,
) -> Program:
    """Returns `fn` if it is a Program; otherwise builds one from the arguments.

    Args:
        fn: a Program or a function.
        public: name of the public function.
        arrays, keywords: the other arguments of the call.
        public_only: keywords of the public function that `sv.program` doesn't have.

    Raises:
        ProgramError: if `fn` is neither a Program nor a function, if a Program comes
            with arguments, or if a keyword belongs to both `fn` and the public
            function.
    """
    if isinstance(fn, Program):
        if arrays or keywords:
            raise ProgramError(
                f"sv.{public} got a program and arguments; a program has its own. Give"
                f" the program alone, or the function: sv.{public}(fn, *args)."
            )
        return fn
    if not callable(fn):
        is_path = isinstance(fn, (str, os.PathLike))
        raise ProgramError(
            f"sv.{public} takes what sv.program(fn, ...) made, or a function and its"
            f" arguments: sv.{public}(fn, *args); got {shown(fn)}."
            + (" sv.report(path) reads a file, and has its .plan." if is_path else "")
        )
    if not arrays and not keywords and (missing := required_parameters(fn)):
        names = ", ".join(missing)
        raise ProgramError(
            f"{function_name(fn)} takes {joined(missing)}. Give arrays, or shapes such as"
            f" jax.ShapeDtypeStruct, for them: sv.{public}({function_name(fn)}, {names})."
        )
    if "args" not in keywords and "kwargs" not in keywords:
        for name, value in (public_only or {}).items():
            if value is not None and takes_by_name(fn, name, len(arrays)):
                raise ProgramError(
                    f"{function_name(fn)} has a parameter {name}, and so has"
                    f" sv.{public}. Tell the two apart: sv.{public}(fn, args=(...),"
                    f" kwargs={{{name!r}: ...}}, {name}=...)."
                )
    return program(fn, *arrays, **keywords)


def progress_clock(program: Program, stage: str = "") -> StageClock:
    """Returns the progress line of a plan, compile or run; only process 0 prints it."""
    with needed_by("sv.run"):
        from shardviz.base.backend import jax_compat
    if jax_compat.process_number() == 0:
        return StageClock(program.name, stage=stage)
    return StageClock(program.name, stream=io.StringIO())


def effects(fn: Program | UserFunction, *args: PyTree, **keywords: Any) -> Effects:
    """Predicts a program's side effects, and on how many devices the program can run.

    The function is traced and lowered with jax, but not compiled. Callbacks are not
    called.

    Args:
        fn: a Program or a function.
        *args: the arguments of a function, as in `sv.program`.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program` such as `mesh=`.

    Raises:
        ShardvizError: if jax is not installed, or if `fn` is neither a Program nor a
            function. If jax refuses the program, `.refused` has the reason.

    >>> import jax, shardviz as sv
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x, ordered=True)
    >>> sv.effects(log, jax.ShapeDtypeStruct((8,), "float32")).devices
    '1 device'
    """
    with needed_by("sv.effects"):
        from shardviz.programs.backend import effects
    # A function alone needs no mesh: its effects are predicted for any devices.
    jit_arguments: dict[str, object] = {}
    names = () if isinstance(fn, Program) else inspect.signature(program).parameters
    for name in set(keywords).intersection(names):
        if takes_by_name(fn, name, len(args)):
            continue
        if not name.endswith(_JIT_ENDINGS):
            return effects.predict(program_of(fn, "effects", args, keywords))
        jit_arguments[name] = keywords[name]
    for name in jit_arguments:
        del keywords[name]
    return effects.predict(fn, args, keywords, jit_arguments)


def mesh_context() -> MeshContext:
    """Shows which mesh is in context at the call, and which JAX APIs read that mesh.

    This function also works inside traced functions.

    Raises:
        ShardvizError: if jax is not installed.

    >>> import shardviz as sv
    >>> print(sv.mesh_context().explain())
    No mesh is in force, so give a mesh with every PartitionSpec.
    """
    with needed_by("sv.mesh_context"):
        from shardviz.programs.backend import mesh_context as contexts
    return contexts.mesh_context()
