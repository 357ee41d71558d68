"""Public functions for programs: `sv.program`, `sv.effects`, `sv.mesh_context`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardviz.axis_rules.rules import Dialect, Rules
from shardviz.base.errors import ProgramError, needed_by
from shardviz.base.format import shown
from shardviz.base.mesh_context import MeshContext
from shardviz.base.public.adopt import as_mesh, optional
from shardviz.programs.effects import Effects
from shardviz.programs.program import Program, function_name
from shardviz.programs.public.keywords import (
    FunctionWithKeywords,
    shares_keywords,
    takes_by_name,
)

if TYPE_CHECKING:
    pass


@shares_keywords
def program(
    fn: Any,
    *arrays: Any,
    mesh: Any = None,
    rules: Any = None,
    dialect: Any = "linen",
    in_specs: Any = None,
    out_specs: Any = None,
    donate: Any = (),
    name: str = "",
    names: Callable[[str, Any], Any] | None = None,
    args: Any = None,
    kwargs: Any = None,
    **keywords: Any,
) -> Program:
    """A function with the arrays it takes, and how they are to be split.

    Args:
        fn: the function, as you would give it to `jax.jit`, or `jax.jit` of it: then
            its static arguments count, and its shardings and donation where the
            arguments below do not say otherwise. Methods, partials, `nnx.jit` and
            `eqx.filter_jit` are traced as you call them.
        *arrays: its arguments, as you would call it: arrays, `jax.ShapeDtypeStruct`s
            (with or without a sharding), ArraySpecs, numbers, or pytrees of these. What
            is no array, such as text, None or a function, is static. Flax's metadata of
            a parameter (`nn.with_partitioning`, `nnx` metadata) counts as logical axes.
        mesh: the mesh; may be left out if an array's sharding has one, `jax.set_mesh`
            has set one, or the function names one itself. A mesh given here takes the
            place of the one in context. Its axis types count: `sv.mesh` makes Auto
            axes, `jax.make_mesh` Explicit ones.
        rules: axis rules, for arrays with logical names.
        dialect: who reads the rules.
        in_specs, out_specs: PartitionSpecs, or pytree prefixes of them as `jax.jit`
            takes them, where arrays and rules do not say. None for an output leaves it
            to the compiler.
        donate: positions of arguments whose memory the program may reuse.
        name: what to call it; the function's name by default.
        names: called as `names(path, array)` for each array that says nothing of how it
            is split, such as `"params.mlp.kernel"`; it returns logical names, a
            PartitionSpec, or None.
        args, kwargs: the function's arguments, in place of `*arrays` and `**keywords`:
            then every other keyword is meant for `sv.program`, whatever the function
            calls its parameters.
        **keywords: further arguments of the function, by name. Where it has a parameter
            that is called as one of those above (`rules`, `name` …), that keyword is
            the function's. A `mesh` of jax is both the function's and the program's.

    Raises:
        ShardvizError: where the parts do not fit together.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> matmul = program(jnp.dot, sv.array("x", (8, 4)), sv.array("w", (4, 8)), mesh="data=4")
    >>> [a.name for a in matmul.arrays]
    ['x', 'w']
    """
    # `shares_keywords` hands the function over with the keywords that are its own.
    step = fn
    if not isinstance(fn, FunctionWithKeywords):
        step = FunctionWithKeywords(fn, {})
    grid, table = optional(as_mesh, mesh), optional(Rules.of, rules)
    with needed_by("sv.program"):
        from shardviz.programs.backend import build_program
    made = build_program.build_program(
        step.fn,
        arrays,
        grid,
        table,
        Dialect.of(dialect, paths=False),
        in_specs,
        out_specs,
        donate,
        name,
        {**keywords, **step.keywords},
        names,
    )
    if step.notes:
        made = made.replace(notes=(*made.notes, *step.notes))
    return made


def program_of(
    thing: Any,
    public: str,
    arrays: Sequence[Any],
    keywords: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
) -> Program:
    """The program that was given, or that is made of a function and its call.

    Args:
        thing: a Program, or a function.
        public: the name of the public function.
        arrays, keywords: what was given beside it.
        own: those keywords of the public function that `sv.program` does not have.

    Raises:
        ProgramError: for anything else, for a Program with arguments, and for a keyword
            that may be the function's or the public function's.
    """
    if isinstance(thing, Program):
        if arrays or keywords:
            raise ProgramError(
                f"sv.{public} got a program and arguments; a program has its own. Give"
                f" the program alone, or the function: sv.{public}(fn, *args)."
            )
        return thing
    if not callable(thing):
        raise ProgramError(
            f"sv.{public} takes what sv.program(fn, ...) made, or a function and its"
            f" arguments: sv.{public}(fn, *args); got {shown(thing)}."
        )
    if "args" not in keywords and "kwargs" not in keywords:
        for name, value in (own or {}).items():
            if value is not None and takes_by_name(thing, name, len(arrays)):
                raise ProgramError(
                    f"{function_name(thing)} has a parameter {name}, and so has"
                    f" sv.{public}. Tell the two apart: sv.{public}(fn, args=(...),"
                    f" kwargs={{{name!r}: ...}}, {name}=...)."
                )
    return program(thing, *arrays, **keywords)


def effects(thing: Any, *args: Any, **keywords: Any) -> Effects:
    """The effects of a program, and on how many devices it may run, before it runs.

    The function is traced and lowered, as jax would; nothing is compiled and no
    callback is called.

    Args:
        thing: what `sv.program` made, or a function.
        *args: for a function, what it takes, as in `sv.program`.
        **keywords: for a function, what it takes by name.

    Raises:
        ShardvizError: for what is neither, or where jax is not installed. What jax
            refuses is in `.refused`.

    >>> import jax
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x, ordered=True)
    >>> effects(log, jax.ShapeDtypeStruct((8,), "float32")).devices
    '1 device'
    """
    with needed_by("sv.effects"):
        from shardviz.programs.backend import effects
    return effects.predict(thing, *args, **keywords)


def mesh_context() -> MeshContext:
    """Which mesh is in force where this is called, and which API of JAX sees which.

    Works inside traced functions too, and changes nothing.

    Raises:
        ShardvizError: where jax is not installed.

    >>> print(mesh_context().explain())
    No mesh is in force: every PartitionSpec needs a mesh beside it.
    """
    # Only jax knows what is in force, so it is imported here and not above.
    with needed_by("sv.mesh_context"):
        from shardviz.programs.backend import mesh_context as contexts
    return contexts.mesh_context()
