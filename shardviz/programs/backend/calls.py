"""Reads the call of a function, and finds the arrays in its arguments.

The settings of `jax.jit` decide which arguments are static or donated. Arguments
without arrays, such as strings and functions, are static, too. Wrappers of other
libraries (`nnx.jit`, `eqx.filter_jit`) are kept and traced as the user calls them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
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
from shardviz.base.format import joined, listed, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import PyTree, UserFunction
from shardviz.programs.backend.arguments import (
    as_spec,
    is_array,
    is_number,
    is_spec,
    leaves_with_paths,
    parameter_names,
    path_name,
)
from shardviz.programs.backend.pmapped import Pmapped, read_pmap
from shardviz.programs.notes import ChangedInPlace
from shardviz.programs.program import function_name

# Results of earlier jax stages, which have no function to trace.
_STAGES = (
    jax.stages.Compiled,
    jax.stages.Lowered,
    jax.stages.Traced,
    jax.export.Exported,
)
_MESHES = (jax.sharding.Mesh, jax.sharding.AbstractMesh, MeshSpec)


@dataclass(frozen=True)
class Jitted:
    """A function, and the settings of the `jax.jit` or similar wrapper around it.

    Attributes:
        fn: the function inside `jax.jit`, or the function itself if it isn't wrapped.
        settings: the wrapper's settings.
        compiles: True if the function is wrapped.
        by_jax: True if the wrapper is jax's own.
        unreadable: name of a wrapper whose settings cannot be read, or `""`.
        bound: leading arguments from a partial or a bound method.
        keywords: keyword arguments from a partial.
        pmapped: settings of `jax.pmap`; None for other functions.
    """

    fn: UserFunction
    settings: JitSettings = field(default_factory=JitSettings)
    compiles: bool = False
    by_jax: bool = False
    unreadable: str = ""
    bound: tuple[PyTree, ...] = ()
    keywords: Mapping[str, PyTree] = field(default_factory=dict)
    pmapped: Pmapped | None = None

    def with_arguments(self, added: JitSettings) -> tuple[Jitted, tuple[str, ...]]:
        """Adds arguments of `jax.jit` to the ones that the function is jitted with.

        Args:
            added: the arguments to add; positions don't count bound arguments.

        Returns:
            The function with all arguments, and the names of the arguments that both
            set differently. For these, the function's own values stay.

        Raises:
            ProgramError: for a function under `jax.pmap`.
        """
        if self.pmapped is not None and added != JitSettings():
            raise ProgramError(
                "jax.pmap compiles this function, so arguments of jax.jit don't apply."
                " Give it to jax.jit instead of jax.pmap, or leave them out."
            )
        settings, differing = self.settings, []
        static = self._positions(added.static), added.static_names
        donate = self._positions(added.donate), added.donate_names
        if not settings.static and not settings.static_names:
            settings = replace(settings, static=static[0], static_names=static[1])
        elif any(static) and static != (settings.static, settings.static_names):
            differing.append("static arguments")
        if not settings.donate and not settings.donate_names:
            settings = replace(settings, donate=donate[0], donate_names=donate[1])
        elif any(donate) and donate != (settings.donate, settings.donate_names):
            differing.append("donation")
        return replace(self, settings=settings), tuple(differing)

    def _positions(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Counts the bound arguments in positions of the other arguments."""
        count = len(self.bound)
        return tuple(p if p < 0 else p + count for p in positions)


def unjitted(fn: UserFunction) -> Jitted:
    """Returns the function inside `jax.jit`, and its settings.

    Raises:
        ProgramError: for a traced, lowered, compiled or exported function.

    >>> jitted = unjitted(jax.jit(abs, donate_argnums=0))
    >>> jitted.fn is abs, jitted.settings.donate
    (True, (0,))
    """
    if isinstance(fn, _STAGES):
        raise ProgramError(
            f"A program needs a function that jax can trace; got a {type(fn).__name__},"
            " which is already bound to its arguments. Give the function itself or"
            " jax.jit of it; for an Exported, give its .call."
        )
    if is_of(fn, "shardviz", "Watch"):
        return unjitted(fn.jitted)  # type: ignore[attr-defined]
    if isinstance(fn, functools.partial) or is_of(fn, "equinox", "Partial"):
        return _with_bound(fn, fn.func, fn.args, fn.keywords)
    if inspect.ismethod(fn):
        return _with_bound(fn, fn.__func__, (fn.__self__,), {})
    if is_pmapped(fn):
        pmapped = read_pmap(fn)
        if pmapped is None:  # jax keeps its settings private
            return Jitted(fn, compiles=True, unreadable="jax.pmap")
        settings = JitSettings(
            out_shardings=pmapped.specs(pmapped.out_axes),
            donate=pmapped.donate,
            static=pmapped.static,
        )
        return Jitted(fn, settings, compiles=True, by_jax=True, pmapped=pmapped)
    # nnx.jit stores its jitted function in `jitted_fn`. Other attributes are
    # unreliable: functools.wraps copies the attributes of a jitted function to its
    # wrapper.
    by_jax = is_jitted(fn)
    inside = fn if by_jax else getattr(fn, "jitted_fn", None)
    if not is_jitted(inside):
        return Jitted(fn, compiles=is_of(fn, "equinox", "_JitWrapper"))
    settings = jit_settings(inside)
    if settings is None:
        return Jitted(fn, compiles=True, unreadable="jax.jit")
    if by_jax:
        return Jitted(fn.__wrapped__, settings, compiles=True, by_jax=True)  # type: ignore[attr-defined]

    # nnx.jit's shardings are for its internal states, so only positions are used.
    settings = replace(settings, in_shardings=None, out_shardings=None, options={})
    return Jitted(fn, settings, compiles=True)


def jit_settings_of(fn: UserFunction, arguments: Mapping[str, object]) -> JitSettings:
    """Reads arguments of `jax.jit` for a function, as jax itself reads them.

    Args:
        fn: the function.
        arguments: `in_shardings`, `static_argnums` and others; None means not given.

    Raises:
        ProgramError: if jax refuses them.

    >>> jit_settings_of(lambda x, n: x, {"static_argnums": 1}).static_names
    ('n',)
    """
    passed: dict[str, Any] = {
        name: value for name, value in arguments.items() if value is not None
    }
    for name in ("in_shardings", "out_shardings"):
        if name in passed:
            passed[name] = jax.tree.map(_as_jax, passed[name], is_leaf=is_spec)
    if not passed:
        return JitSettings()
    try:
        settings = jit_settings(jax.jit(fn, **passed))
    except (TypeError, ValueError) as error:
        raise ProgramError(f"jax.jit refuses {joined(passed)}: {error}") from None
    if settings is None:
        raise ProgramError(
            f"This version of jax doesn't show how jax.jit reads {joined(passed)}. Give"
            " in_specs, out_specs and donate to sv.program."
        )
    return settings


def _as_jax(leaf: Any) -> Any:
    spec = as_spec(leaf) if isinstance(leaf, (str, Spec)) else None
    return leaf if spec is None else spec.to_jax()


def is_of(value: object, library: str, name: str) -> bool:
    """True if a value's class has this name and is defined in this library."""
    kind = type(value)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == library


def _with_bound(
    fn: UserFunction, inner: Any, args: tuple[PyTree, ...], keywords: Mapping
) -> Jitted:
    """Reads a partial or a bound method.

    If the function inside is jitted, its bound values become arguments of the call.
    Otherwise they are constants of the function.
    """
    jitted = unjitted(inner)
    if not jitted.compiles:
        return Jitted(fn, unreadable=jitted.unreadable)
    keywords = {**jitted.keywords, **keywords}
    return replace(jitted, bound=(*jitted.bound, *args), keywords=keywords)


@dataclass(frozen=True, eq=False)
class _Argument:
    """An argument of a call.

    Attributes:
        name: name of the parameter.
        value: the value in the call.
        keyword: True if it is passed by name.
        bound: True if it comes from a partial or a bound method.
        static: True if it holds no arrays.
        kinds: the kind of each leaf: `"array"`, `"number"` (a Python number, which may
            be static) or `"other"` (not an array).
        holds_nnx: True if it holds a flax.nnx module or variable whose changes are
            results. jax.jit drops such changes, because it traces copies.
    """

    name: str
    value: PyTree
    keyword: bool = False
    bound: bool = False
    static: bool = False
    kinds: tuple[str, ...] = ()
    holds_nnx: bool = False

    @property
    def plain(self) -> bool:
        """True if all leaves are arrays, passed by position and not bound."""
        special = self.static or self.keyword or self.bound
        return not special and set(self.kinds) <= {"array"}

    def arrays_of(self, value: PyTree) -> PyTree:
        """Returns a value of this argument, with None for leaves that aren't arrays."""
        leaves, tree = jax.tree.flatten(value)
        if "other" not in self.kinds or tree != jax.tree.structure(self.value):
            return value
        for i, kind in enumerate(self.kinds):
            if kind == "other":
                leaves[i] = None
        return tree.unflatten(leaves)

    def filled(self, argument: PyTree, fixed: tuple[type, ...]) -> PyTree:
        """Returns the argument that the function gets, from the result of `arrays_of`.

        Args:
            argument: the arrays, or tracers in their place.
            fixed: types of numbers that stay static.
        """
        if set(self.kinds) <= {"array"}:
            return argument
        arrays = iter(jax.tree.leaves(argument))
        leaves, tree = jax.tree.flatten(self.value)
        for i, kind in enumerate(self.kinds):
            if kind != "other":
                array = next(arrays)
                if kind == "array" or not isinstance(leaves[i], fixed):
                    leaves[i] = array
        return tree.unflatten(leaves)


class BoundCall:
    """A function of the arrays in one call; the rest of the call is bound.

    The function takes the call's arguments that hold arrays: positional arguments
    first, then keyword arguments sorted by name. Leaves that aren't arrays are None in
    them.

    Attributes:
        fn: the function.
        names: names of the arguments.
        compiles: True if the function is wrapped in `jax.jit` or similar.
    """

    def __init__(
        self,
        fn: UserFunction,
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
        # A short form of the call, such as `step(x, mode='train', w)`.
        self.__name__ = f"{function_name(fn)}({', '.join(written)})"
        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(f"a{i}", kind) for i in range(len(names))]
        # jax reads argument names from the signature. Keywords are positional here.
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Returns the result, and new values of arguments changed in place, if any."""
        result, changed = self.call(arguments)
        return (result, changed) if changed else result

    def call(self, arguments: Sequence[PyTree]) -> tuple[PyTree, dict[str, Any]]:
        """Returns the result, and new values of arguments changed in place, by name."""
        arrays = iter(arguments)
        values, positional, named = [], [], {}
        variables: dict[int, Any] = {}  # by id of the variable in the original call
        for argument in self._arguments:
            value = argument.value
            if not argument.static:
                value = argument.filled(next(arrays), self._fixed)
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
        # A variable shared by several arguments is named after the first one.
        first = {id(leaf): name for name, leaf in reversed(before.items())}
        result = self.fn(*positional, **named)
        changed = {}
        for name, leaf in self._states(values).items():
            old = before.get(name)
            if old is not leaf and first.get(id(old), name) == name:
                changed[name] = leaf
        return result, changed

    def _states(self, values: Sequence[PyTree]) -> dict[str, Any]:
        """Returns the arrays in flax.nnx modules whose changes are results, by name."""
        leaves: dict[str, Any] = {}
        for argument, value in zip(self._arguments, values, strict=True):
            if argument.holds_nnx:
                for path, leaf, _ in leaves_with_paths(value)[0]:
                    leaves[path_name(argument.name, path)] = leaf
        return leaves

    @property
    def given(self) -> tuple[PyTree, ...]:
        """The arguments that hold arrays, with the values of the call."""
        arrays = []
        for argument in self._arguments:
            if not argument.static:
                arrays.append(argument.arrays_of(argument.value))
        return tuple(arrays)

    def with_static_numbers(
        self, types: tuple[type, ...]
    ) -> tuple[BoundCall, tuple[str, ...]]:
        """Returns the call with Python numbers of these types static, and their names.

        Under `jax.jit`, no numbers become static, because jax makes them arrays.
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
        """Returns a note if jax.jit would drop the function's changes, or `""`."""
        if self.compiles or not names:
            return ""
        roots = dict.fromkeys(
            name.partition(".")[0].partition("[")[0] for name in names
        )
        return str(ChangedInPlace(function_name(self.fn), tuple(roots)))

    def values(
        self, args: Sequence[PyTree], keywords: Mapping[str, PyTree]
    ) -> tuple[PyTree, ...]:
        """Extracts the arguments with arrays from a call like the original call.

        Args:
            args: all positional arguments, or only the arguments with arrays.
            keywords: arguments by name.

        Raises:
            ProgramError: if the number of arguments or a static argument differs.
        """
        expected = [a.name for a in self._arguments if not a.bound]
        names = [a.name for a in self._arguments if not a.keyword and not a.bound]
        if not keywords and (len(args) != len(names) or len(names) != len(expected)):
            return tuple(args)  # an error is raised later, when the values are read
        values = {**dict(zip(names, args, strict=False)), **keywords}
        if len(args) != len(names) or set(values) != set(expected):
            raise _other_call(expected, values)
        arrays = []
        for argument in self._arguments:
            value = argument.value if argument.bound else values[argument.name]
            if not argument.static:
                arrays.append(argument.arrays_of(value))
            # Compared by value, because configurations are often created for each call.
            elif value is not argument.value and value != argument.value:
                raise ProgramError(
                    f"{argument.name} is static: the program was made with"
                    f" {shown(argument.value)}, and the values have {shown(value)}. Make"
                    " another program for it."
                )
        return tuple(arrays)


def values_of(
    fn: UserFunction, args: Sequence[PyTree], keywords: Mapping[str, PyTree]
) -> tuple[PyTree, ...]:
    """Extracts a program's arguments from a call like the original call.

    Raises:
        ProgramError: if static arguments or keywords differ.

    >>> call = read_call(lambda x, mode: x, (1.0,), {"mode": "train"})
    >>> values_of(call.fn, (2.0,), {"mode": "train"})
    (2.0,)
    """
    if isinstance(fn, BoundCall):
        return fn.values(args, keywords)
    raise _other_call(parameter_names(fn, len(args)), keywords)


def values_in_call(fn: UserFunction, args: Sequence[PyTree]) -> tuple[PyTree, ...]:
    """Returns the values from a program's original call; `()` if any is abstract.

    Args:
        fn: the program's function.
        args: positional arguments of the call; ignored for a BoundCall, which stores
            them.

    >>> import jax.numpy as jnp
    >>> values_in_call(jnp.sin, (np.ones(3),))
    (array([1., 1., 1.]),)
    >>> values_in_call(jnp.sin, (jax.ShapeDtypeStruct((3,), "float32"),))
    ()
    """
    arguments = fn.given if isinstance(fn, BoundCall) else tuple(args)
    with_values = (jax.Array, np.ndarray, np.generic)
    for leaf in jax.tree.leaves(arguments):
        if not is_number(leaf) and not isinstance(leaf, with_values):
            return ()
    return arguments


def _other_call(expected: Sequence[str], names: Iterable[str]) -> ProgramError:
    return ProgramError(
        f"The program was made of a call with {listed(sorted(expected), 'and')}, and the"
        f" values are {listed(sorted(names), 'and')}. Give them in the same way."
    )


@dataclass(frozen=True)
class Call:
    """A call of a function, as read for a program.

    Attributes:
        fn: the function, or a BoundCall; takes `arguments`.
        arguments: the arguments that hold arrays.
        names: names of these arguments.
        positional: how many of these arguments are positional.
        positions: for each of the user's positional arguments, its index in
            `arguments`; None if it is static.
        jitted: the function inside `jax.jit`, and its settings.
        donate: indices of the arguments that `jax.jit` donates.
        meshes: meshes among the static arguments, ours or jax's.
        differing: settings of `jax.jit` in which `added` differs from the function's own.
        own_mesh: the mesh of a function under `jax.pmap`; otherwise None.
    """

    fn: UserFunction
    arguments: tuple[PyTree, ...]
    names: tuple[str, ...]
    positional: int
    positions: tuple[int | None, ...]
    jitted: Jitted
    donate: tuple[int, ...]
    meshes: tuple[Any, ...]
    differing: tuple[str, ...] = ()
    own_mesh: MeshSpec | None = None


def read_call(
    fn: UserFunction,
    args: Sequence[PyTree],
    keywords: Mapping[str, PyTree],
    added: JitSettings = JitSettings(),  # noqa: B008  frozen
) -> Call:
    """Reads which arguments of a call hold arrays.

    Args:
        fn: the function.
        args, keywords: its arguments.
        added: arguments of `jax.jit` for a function that may be jitted already.

    Raises:
        ProgramError: for arguments that `jax.jit` would refuse.

    >>> call = read_call(lambda x, mode, w: x, (1.0,), {"w": 2.0, "mode": "train"})
    >>> call.names, call.arguments
    (('x', 'w'), (1.0, 2.0))
    """
    jitted = unjitted(fn)
    if not callable(fn):
        raise ProgramError(f"A program needs a function to run; got {shown(fn)}.")
    jitted, differing = jitted.with_arguments(added)
    positional = (*jitted.bound, *args)
    # jax orders arrays by position, then by name.
    parsed = _arguments(jitted, positional, {**jitted.keywords, **keywords})
    # For each argument, its index among the arguments with arrays.
    indices: list[int | None] = []
    arguments, names, mapped, meshes = [], [], [], []
    for i, argument in enumerate(parsed):
        indices.append(None if argument.static else len(arguments))
        if not argument.static:
            arguments.append(argument.arrays_of(argument.value))
            names.append(argument.name)
            mapped.append(None if argument.keyword else i)
        elif isinstance(argument.value, _MESHES):
            meshes.append(argument.value)
    donated = {
        index for i in _donated(jitted, parsed) if (index := indices[i]) is not None
    }
    own_mesh = None
    if jitted.pmapped is not None:
        arguments, own_mesh = jitted.pmapped.laid_out(arguments, mapped)
    # If possible, keep the function itself, because jax's messages name it.
    if not all(argument.plain and not argument.holds_nnx for argument in parsed):
        fn = BoundCall(jitted.fn, parsed, jitted)
    else:
        fn = jitted.fn
    return Call(
        fn=fn,
        arguments=tuple(arguments),
        names=tuple(names),
        positional=len(mapped) - mapped.count(None),
        positions=tuple(indices[len(jitted.bound) : len(positional)]),
        jitted=jitted,
        donate=tuple(sorted(donated)),
        meshes=tuple(meshes),
        differing=differing,
        own_mesh=own_mesh,
    )


def _arguments(
    jitted: Jitted, positional: Sequence[PyTree], keywords: Mapping[str, PyTree]
) -> list[_Argument]:
    """Returns the arguments of a call: positional, then keywords sorted by name."""
    count, settings = len(positional), jitted.settings
    names = parameter_names(jitted.fn, count)
    # Negative positions count from the end, as in jax.
    static = {s % count for s in settings.static if -count <= s < count}
    arguments = []
    for i, value in enumerate(positional):
        bound = i < len(jitted.bound)
        arguments.append(_Argument(names[i], value, False, bound, i in static))
    for name in sorted(keywords):
        bound, is_static = name in jitted.keywords, name in settings.static_names
        arguments.append(_Argument(name, keywords[name], True, bound, is_static))
    return _shared([_with_kinds(argument, jitted) for argument in arguments])


def _shared(arguments: list[_Argument]) -> list[_Argument]:
    """Counts a variable as one array, even if several arguments share it.

    nnx.jit also does this, for example for parameters shared by model and optimizer.
    """
    visited: set[int] = set()
    for number, argument in enumerate(arguments):
        kinds: list[str] = []
        for node in _nodes(argument.value) if argument.holds_nnx else ():
            count = len(jax.tree.leaves(node))
            node_kinds = argument.kinds[len(kinds) :][:count]
            kinds += node_kinds if id(node) not in visited else ["other"] * count
            if _is_variable(node):
                visited.add(id(node))
        if kinds:
            arguments[number] = replace(argument, kinds=tuple(kinds))
    return arguments


def _nodes(value: Any) -> list[Any]:
    """Returns the leaves of a tree; a flax.nnx variable is one leaf."""
    return jax.tree.leaves(value, is_leaf=_is_variable)


def _is_variable(node: object) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.Variable)


def _donated(jitted: Jitted, arguments: Sequence[_Argument]) -> list[int]:
    """Returns the indices of arguments that `jax.jit` or `eqx.filter_jit` donates."""
    positional = [i for i, argument in enumerate(arguments) if not argument.keyword]
    donated = []
    for position in jitted.settings.donate:
        # jax ignores positions beyond the call's arguments.
        if -len(positional) <= position < len(positional):
            donated.append(positional[position])
    for i, argument in enumerate(arguments):
        if argument.keyword and argument.name in jitted.settings.donate_names:
            donated.append(i)
        # eqx.filter_jit(donate=...) sets these two attributes.
        choice = "donate_rest" if i else "donate_first"
        if getattr(jitted.fn, choice, None) is True:
            donated.append(i)
    return donated


def _with_kinds(argument: _Argument, jitted: Jitted) -> _Argument:
    """Fills in `kinds` and `holds_nnx` of an argument, unless it is static."""
    if argument.static:
        return argument
    leaves = jax.tree.leaves(argument.value)
    # equinox treats Python numbers as static.
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
            # Under jax.jit, numbers are arrays.
            kinds.append("number" if number and not jitted.by_jax else "array")
    if jitted.by_jax and "other" in kinds:
        raise ProgramError(
            f"{argument.name} holds {shown(leaves[kinds.index('other')])}, which is not"
            " an array, and jax.jit takes only arrays. Name the argument in"
            " static_argnames of jax.jit, or give sv.program the function without"
            " jax.jit."
        )
    if leaves and set(kinds) == {"other"}:
        return replace(argument, static=True)
    nnx = _holds(argument.value, "flax.nnx", ("Pytree", "Object", "Variable"))
    holds_nnx = nnx and not jitted.by_jax
    return replace(argument, kinds=tuple(kinds), holds_nnx=holds_nnx)


def _holds(value: Any, module: str, names: Sequence[str]) -> bool:
    """True if a tree holds an object of these classes; never imports the module."""
    library = sys.modules.get(module)
    if library is None:
        return False
    kinds = tuple(vars(library)[n] for n in names if n in vars(library))
    nodes = jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, kinds))
    return any(isinstance(node, kinds) for node in nodes)
