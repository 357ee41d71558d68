"""read_call(): which parts of a call are arrays, and what a function is called with.

What `jax.jit` was given decides which parts are static and donated; everything else
that is no array is static, as strings and functions are. Wrappers of other libraries
(`nnx.jit`, `eqx.filter_jit`) stay as they are and are traced as the user calls them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.export
import numpy as np

from shardviz.base.backend.jax_compat import (
    JitSettings,
    is_jitted,
    is_pmapped,
    jit_settings,
)
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed, shown
from shardviz.base.mesh import MeshSpec
from shardviz.programs.backend.arguments import (
    is_array,
    is_number,
    leaves_with_paths,
    parameter_names,
    path_name,
)
from shardviz.programs.backend.pmapped import Pmapped, read_pmap
from shardviz.programs.notes import ChangedInPlace
from shardviz.programs.program import function_name

# What jax made for certain arguments has no function that could be traced.
_STAGES = (
    jax.stages.Compiled,
    jax.stages.Lowered,
    jax.stages.Traced,
    jax.export.Exported,
)
_MESHES = (jax.sharding.Mesh, jax.sharding.AbstractMesh, MeshSpec)


@dataclass(frozen=True)
class Jitted:
    """A function and what `jax.jit` or a wrapper like it was given with it.

    Attributes:
        fn: the function under `jax.jit`, or the function itself where there is none.
        settings: what was given.
        compiles: whether the function is under such a wrapper.
        by_jax: whether that is jax's own.
        unreadable: the wrapper that does not say what it was given, or `""`.
        bound: the arguments that a partial or a bound method puts in front.
        keywords: those that a partial gives by name.
        pmapped: what `jax.pmap` was given, where the function is under that.
    """

    fn: Callable[..., Any]
    settings: JitSettings = field(default_factory=JitSettings)
    compiles: bool = False
    by_jax: bool = False
    unreadable: str = ""
    bound: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    pmapped: Pmapped | None = None


def unjitted(fn: Callable[..., Any]) -> Jitted:
    """The function under `jax.jit`, and what it was jitted with.

    Raises:
        ProgramError: for what jax traced, lowered, compiled or exported already.

    >>> jitted = unjitted(jax.jit(abs, donate_argnums=0))
    >>> jitted.fn is abs, jitted.settings.donate
    (True, (0,))
    """
    if isinstance(fn, _STAGES):
        raise ProgramError(
            f"A program needs a function that jax can trace; got a {type(fn).__name__},"
            " which is made for arguments of its own. Give the function itself, or"
            " jax.jit of it; of an Exported its .call."
        )
    if isinstance(fn, functools.partial) or is_of(fn, "equinox", "Partial"):
        return _with_bound(fn, fn.func, fn.args, fn.keywords)
    if inspect.ismethod(fn):
        return _with_bound(fn, fn.__func__, (fn.__self__,), {})
    if is_pmapped(fn):
        pmapped = read_pmap(fn)
        if pmapped is None:  # private to jax, and it may change
            return Jitted(fn, compiles=True, unreadable="jax.pmap")
        settings = JitSettings(
            out_shardings=pmapped.specs(pmapped.out_axes),
            donate=pmapped.donate,
            static=pmapped.static,
        )
        return Jitted(fn, settings, compiles=True, by_jax=True, pmapped=pmapped)
    # nnx.jit keeps the function under jax.jit in `jitted_fn`. Otherwise not by
    # attributes: functools.wraps copies those of a jitted function to what is around.
    by_jax = is_jitted(fn)
    inside = fn if by_jax else getattr(fn, "jitted_fn", None)
    if not is_jitted(inside):
        return Jitted(fn, compiles=is_of(fn, "equinox", "_JitWrapper"))
    settings = jit_settings(inside)
    if settings is None:
        return Jitted(fn, compiles=True, unreadable="jax.jit")
    if by_jax:
        return Jitted(fn.__wrapped__, settings, compiles=True, by_jax=True)  # type: ignore[attr-defined]
    # Its shardings are for states and hold inside it, so only positions count here.
    settings = replace(settings, in_shardings=None, out_shardings=None, options={})
    return Jitted(fn, settings, compiles=True)


def is_of(value: Any, library: str, name: str) -> bool:
    """Whether a value is of a library's class, by name: the class is private there."""
    kind = type(value)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == library


def _with_bound(
    fn: Callable[..., Any], inner: Any, args: tuple[Any, ...], keywords: Mapping
) -> Jitted:
    """What a partial or a bound method of a jitted function binds is an argument, too.

    jax.jit around a partial, or none at all, closes over what it binds.
    """
    jitted = unjitted(inner)
    if not jitted.compiles:
        return Jitted(fn, unreadable=jitted.unreadable)
    keywords = {**jitted.keywords, **keywords}
    return replace(jitted, bound=(*jitted.bound, *args), keywords=keywords)


@dataclass(frozen=True, eq=False)
class _Argument:
    """One argument of a call.

    Attributes:
        name: what the function calls it.
        value: the value in the call.
        keyword: whether it is given by name.
        bound: whether a partial or a bound method brings it.
        static: whether no part of it is an array.
        kinds: what each leaf of it is: `"array"`, `"number"` (of Python, which may be
            static) or `"other"` (no array).
        holds_nnx: whether it holds a module or variable of flax.nnx, and changes of
            that count; jax.jit drops them, as it traces copies.
    """

    name: str
    value: Any
    keyword: bool = False
    bound: bool = False
    static: bool = False
    kinds: tuple[str, ...] = ()
    holds_nnx: bool = False

    @property
    def plain(self) -> bool:
        """Whether the function can be called with it as it is."""
        special = self.static or self.keyword or self.bound
        return not special and set(self.kinds) <= {"array"}

    def arrays_of(self, value: Any) -> Any:
        """A value like that of the call with None in place of what is no array."""
        leaves, tree = jax.tree.flatten(value)
        if "other" not in self.kinds or tree != jax.tree.structure(self.value):
            return value
        for i, kind in enumerate(self.kinds):
            if kind == "other":
                leaves[i] = None
        return tree.unflatten(leaves)

    def filled(self, argument: Any, fixed: tuple[type, ...]) -> Any:
        """What the function gets, from what `arrays_of` gave.

        Args:
            argument: arrays, or what stands for them in a trace.
            fixed: the types of those numbers that stay as they are.
        """
        if set(self.kinds) <= {"array"}:
            return argument
        given = iter(jax.tree.leaves(argument))
        leaves, tree = jax.tree.flatten(self.value)
        for i, kind in enumerate(self.kinds):
            if kind != "other":
                array = next(given)
                if kind == "array" or not isinstance(leaves[i], fixed):
                    leaves[i] = array
        return tree.unflatten(leaves)


class BoundCall:
    """A function with those parts of one call that are no arrays; it takes the others.

    Its arguments are those of the call that hold arrays, one by one, keywords last and
    by name in order. In place of what is no array they hold None.

    Attributes:
        fn: the function.
        names: what the function calls its arguments.
        compiles: whether the function compiles by itself, as under `jax.jit`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: Sequence[_Argument],
        jitted: Jitted,
        fixed: tuple[type, ...] = (),
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn, self.compiles = fn, jitted.compiles
        self._arguments, self._jitted, self._fixed = tuple(arguments), jitted, fixed
        names, written = [], []
        for argument in arguments:
            value = ""
            if argument.static:
                value = f"={shown(argument.value, 20)}"
            else:
                names.append(argument.name)
            if not argument.bound:
                written.append(argument.name + value)
        self.names = tuple(names)
        # A call in short: `step(x, mode='train', w)`.
        self.__name__ = f"{function_name(fn)}({', '.join(written)})"
        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(f"a{i}", kind) for i in range(len(names))]
        # jax reads the names of arguments off it; keywords have positions here.
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *arguments: Any) -> Any:
        """The result; with the new values of what was changed in place, if any was."""
        result, changed = self.call(arguments)
        return (result, changed) if changed else result

    def call(self, arguments: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """The result, and by name the new values of what was changed in place."""
        given = iter(arguments)
        values, positional, named = [], [], {}
        variables: dict[int, Any] = {}  # by the id of that in the call
        for argument in self._arguments:
            value = argument.value
            if not argument.static:
                value = argument.filled(next(given), self._fixed)
            if argument.holds_nnx:
                nodes, tree = jax.tree.flatten(value, is_leaf=_is_variable)
                for i, node in enumerate(_nodes(argument.value)):
                    if _is_variable(node):
                        nodes[i] = variables.setdefault(id(node), nodes[i])
                value = tree.unflatten(nodes)
            values.append(value)
            if argument.keyword:
                named[argument.name] = value
            else:
                positional.append(value)
        before = self._states(values)
        # Of a variable that several arguments hold, the first name counts.
        first = {id(leaf): name for name, leaf in reversed(before.items())}
        result = self.fn(*positional, **named)
        changed = {}
        for name, leaf in self._states(values).items():
            old = before.get(name)
            if old is not leaf and first.get(id(old), name) == name:
                changed[name] = leaf
        return result, changed

    def _states(self, values: Sequence[Any]) -> dict[str, Any]:
        """The arrays of all flax.nnx modules by name, where changes of them count."""
        leaves: dict[str, Any] = {}
        for argument, value in zip(self._arguments, values, strict=True):
            if argument.holds_nnx:
                for path, leaf, _ in leaves_with_paths(value)[0]:
                    leaves[path_name(argument.name, path)] = leaf
        return leaves

    @property
    def given(self) -> tuple[Any, ...]:
        """The arguments with arrays, as the call has them."""
        given = []
        for argument in self._arguments:
            if not argument.static:
                given.append(argument.arrays_of(argument.value))
        return tuple(given)

    def with_static_numbers(
        self, types: tuple[type, ...]
    ) -> tuple[BoundCall, tuple[str, ...]]:
        """The same call with Python numbers of these types as they are; their names.

        No names under `jax.jit`, which would take them as arrays.
        """
        names = []
        for argument in self._arguments:
            leaves = jax.tree.leaves(argument.value)
            for leaf, kind in zip(leaves, argument.kinds, strict=False):
                if kind == "number" and isinstance(leaf, types) and not self.compiles:
                    names.append(argument.name)
        fixed = BoundCall(self.fn, self._arguments, self._jitted, types)
        return fixed, tuple(dict.fromkeys(names))

    def change_note(self, names: Sequence[str]) -> str:
        """A note where jax.jit would drop what the function changed, or `""`."""
        if self.compiles or not names:
            return ""
        roots = dict.fromkeys(
            name.partition(".")[0].partition("[")[0] for name in names
        )
        return str(ChangedInPlace(function_name(self.fn), tuple(roots)))

    def values(
        self, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """The arguments with arrays, out of a call like that of the program.

        Args:
            args: all positional arguments, or the arguments with arrays alone.
            keywords: the arguments by name.

        Raises:
            ProgramError: for another number of arguments, and for other static ones.
        """
        wanted = [a.name for a in self._arguments if not a.bound]
        names = [a.name for a in self._arguments if not a.keyword and not a.bound]
        if not keywords and (len(args) != len(names) or len(names) != len(wanted)):
            return tuple(args)  # what is wrong is said where the values are read
        given = {**dict(zip(names, args, strict=False)), **keywords}
        if len(args) != len(names) or set(given) != set(wanted):
            raise _other_call(wanted, given)
        arrays = []
        for argument in self._arguments:
            value = argument.value if argument.bound else given[argument.name]
            if not argument.static:
                arrays.append(argument.arrays_of(value))
            # By value, since configurations are often made anew for each call.
            elif value is not argument.value and value != argument.value:
                raise ProgramError(
                    f"{argument.name} is static: the program was made with"
                    f" {shown(argument.value)}, and the values have {shown(value)}. Make"
                    " another program for it."
                )
        return tuple(arrays)


def values_of(
    fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The values for a program, out of a call like the one that it was made of.

    Raises:
        ProgramError: for static arguments other than those that the program was made
            with, and for keywords that it was not made with.

    >>> call = read_call(lambda x, mode: x, (1.0,), {"mode": "train"})
    >>> values_of(call.fn, (2.0,), {"mode": "train"})
    (2.0,)
    """
    if isinstance(fn, BoundCall):
        return fn.values(args, keywords)
    raise _other_call(parameter_names(fn, len(args)), keywords)


def values_in_call(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """The values in the call that a program was made of; none where one is missing.

    Args:
        fn: the function of the program.
        args: the positional arguments of the call, which are all that a function that
            is no BoundCall has.

    >>> import jax.numpy as jnp
    >>> values_in_call(jnp.sin, (np.ones(3),))
    (array([1., 1., 1.]),)
    >>> values_in_call(jnp.sin, (jax.ShapeDtypeStruct((3,), "float32"),))
    ()
    """
    arguments = fn.given if isinstance(fn, BoundCall) else tuple(args)
    held = (jax.Array, np.ndarray, np.generic)
    for leaf in jax.tree.leaves(arguments):
        if not is_number(leaf) and not isinstance(leaf, held):
            return ()
    return arguments


def _other_call(wanted: Sequence[str], given: Mapping[str, Any]) -> ProgramError:
    return ProgramError(
        f"The program was made of a call with {listed(sorted(wanted), 'and')}, and the"
        f" values are {listed(sorted(given), 'and')}. Give them in the same way."
    )


@dataclass(frozen=True)
class Call:
    """A call of a function, read for a program.

    Attributes:
        fn: the function, or a BoundCall; takes `arguments`.
        arguments: the arguments that hold arrays.
        names: what the function calls them.
        positional: how many of `arguments` are given by position.
        positions: where each positional argument that the user gave is among
            `arguments`; None for a static one.
        jitted: what the function was jitted with.
        donate: which of `arguments` `jax.jit` donates.
        meshes: the meshes, ours or jax's, among the static arguments.
        own_mesh: the mesh that a function under `jax.pmap` has for itself.
    """

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    positional: int
    positions: tuple[int | None, ...]
    jitted: Jitted
    donate: tuple[int, ...]
    meshes: tuple[Any, ...]
    own_mesh: MeshSpec | None = None


def read_call(
    fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Call:
    """Which arguments of a call hold arrays, and what the others are.

    Raises:
        ProgramError: for what `jax.jit` would not take either.

    >>> call = read_call(lambda x, mode, w: x, (1.0,), {"w": 2.0, "mode": "train"})
    >>> call.names, call.arguments
    (('x', 'w'), (1.0, 2.0))
    """
    jitted = unjitted(fn)
    if not callable(fn):
        raise ProgramError(f"A program needs a function to run; got {shown(fn)}.")
    positional = (*jitted.bound, *args)
    # In the order of jax, which counts arrays so: by position, then by name.
    given = _arguments(jitted, positional, {**jitted.keywords, **keywords})
    # Of each argument, its place among those with arrays.
    places: list[int | None] = []
    arguments, names, mapped, meshes = [], [], [], []
    for i, argument in enumerate(given):
        places.append(None if argument.static else len(arguments))
        if not argument.static:
            arguments.append(argument.arrays_of(argument.value))
            names.append(argument.name)
            mapped.append(None if argument.keyword else i)
        elif isinstance(argument.value, _MESHES):
            meshes.append(argument.value)
    donated = {places[i] for i in _donated(jitted, given)} - {None}
    own_mesh = None
    if jitted.pmapped is not None:
        arguments, own_mesh = jitted.pmapped.laid_out(arguments, mapped)
    # The function itself where it can take the arrays: jax's messages name it.
    if not all(argument.plain and not argument.holds_nnx for argument in given):
        fn = BoundCall(jitted.fn, given, jitted)
    else:
        fn = jitted.fn
    return Call(
        fn,
        tuple(arguments),
        tuple(names),
        len(mapped) - mapped.count(None),
        tuple(places[len(jitted.bound) : len(positional)]),
        jitted,
        tuple(sorted(donated)),  # type: ignore[type-var]
        tuple(meshes),
        own_mesh,
    )


def _arguments(
    jitted: Jitted, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> list[_Argument]:
    """The arguments of a call: by position, then by name in order."""
    count, settings = len(positional), jitted.settings
    names = parameter_names(jitted.fn, count)
    # jax counts negative positions from the end of what was given.
    static = {s % count for s in settings.static if -count <= s < count}
    given = []
    for i, value in enumerate(positional):
        bound = i < len(jitted.bound)
        given.append(_Argument(names[i], value, False, bound, i in static))
    for name in sorted(keywords):
        bound, is_static = name in jitted.keywords, name in settings.static_names
        given.append(_Argument(name, keywords[name], True, bound, is_static))
    return _shared([_with_kinds(argument, jitted) for argument in given])


def _shared(given: list[_Argument]) -> list[_Argument]:
    """Of a variable that is there twice, as in a model and its optimizer, nnx.jit takes
    one."""
    seen: set[int] = set()
    for number, argument in enumerate(given):
        kinds: list[str] = []
        for node in _nodes(argument.value) if argument.holds_nnx else ():
            count = len(jax.tree.leaves(node))
            own = argument.kinds[len(kinds) :][:count]
            kinds += own if id(node) not in seen else ["other"] * count
            if _is_variable(node):
                seen.add(id(node))
        if kinds:
            given[number] = replace(argument, kinds=tuple(kinds))
    return given


def _nodes(value: Any) -> list[Any]:
    """The leaves of a tree, with a variable of flax.nnx as one."""
    return jax.tree.leaves(value, is_leaf=_is_variable)


def _is_variable(node: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.Variable)


def _donated(jitted: Jitted, given: Sequence[_Argument]) -> list[int]:
    """Which arguments of a call `jax.jit` or `eqx.filter_jit` donates."""
    positional = [i for i, argument in enumerate(given) if not argument.keyword]
    donated = []
    for position in jitted.settings.donate:
        # jax ignores a position that the call does not reach.
        if -len(positional) <= position < len(positional):
            donated.append(positional[position])
    for i, argument in enumerate(given):
        if argument.keyword and argument.name in jitted.settings.donate_names:
            donated.append(i)
        # eqx.filter_jit(donate=...) keeps its choice in these two.
        choice = "donate_rest" if i else "donate_first"
        if getattr(jitted.fn, choice, None) is True:
            donated.append(i)
    return donated


def _with_kinds(argument: _Argument, jitted: Jitted) -> _Argument:
    """An argument with what it holds, found out where it is not static."""
    if argument.static:
        return argument
    leaves = jax.tree.leaves(argument.value)
    # To equinox Python numbers are static.
    equinox = type(jitted.fn).__module__.startswith("equinox.")
    equinox = equinox or _holds(argument.value, "equinox", ("Module",))
    kinds = []
    for leaf in leaves:
        if isinstance(leaf, jax.Ref):
            raise ProgramError(
                f"{argument.name} is a jax.Ref, which the function changes in place. Give"
                " the array, and make the Ref inside of the function: jax.new_ref(x)."
            )
        number = is_number(leaf)
        if (equinox and number) or not (number or is_array(leaf)):
            kinds.append("other")
        else:
            # Under jax.jit numbers are arrays, whatever Python does with them.
            kinds.append("number" if number and not jitted.by_jax else "array")
    if jitted.by_jax and "other" in kinds:
        raise ProgramError(
            f"{argument.name} holds {shown(leaves[kinds.index('other')])}, which is no"
            " array, and jax.jit takes arrays alone. Name the argument in"
            " static_argnames of jax.jit, or give sv.program the function without"
            " jax.jit."
        )
    if leaves and set(kinds) == {"other"}:
        return replace(argument, static=True)
    nnx = _holds(argument.value, "flax.nnx", ("Pytree", "Object", "Variable"))
    holds_nnx = nnx and not jitted.by_jax
    return replace(argument, kinds=tuple(kinds), holds_nnx=holds_nnx)


def _holds(value: Any, module: str, names: Sequence[str]) -> bool:
    """Whether a tree holds an object of a library, judged only where that is loaded."""
    library = sys.modules.get(module)
    if library is None:
        return False
    kinds = tuple(vars(library)[n] for n in names if n in vars(library))
    nodes = jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, kinds))
    return any(isinstance(node, kinds) for node in nodes)
