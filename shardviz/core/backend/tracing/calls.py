"""read_call(): which parts of a call are arrays, and what a function is called with
besides.

What `jax.jit` was given decides which parts are static and donated; everything else
that is no array is static, as strings and functions are. Wrappers of other libraries
(`nnx.jit`, `eqx.filter_jit`) stay as they are and are traced as the user calls them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.export

from shardviz.core.backend.jax_compat import is_jitted, is_pmapped, jit_settings
from shardviz.core.backend.tracing.arguments import (
    check_depth,
    is_array,
    leaves_with_paths,
    parameter_names,
    path_name,
)
from shardviz.core.backend.tracing.pmapped import Pmapped, read_pmap
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.notes import Note
from shardviz.core.program.program import function_name


@dataclass(frozen=True)
class Jitted:
    """A function and the options that `jax.jit` was given with it.

    Attributes:
        fn: the function under `jax.jit`, or the function itself where there is none.
        in_shardings: a pytree prefix of the arguments, or None.
        out_shardings: a pytree prefix of the results, or None.
        donate: the positions of donated arguments.
        options: compiler options.
        note: what could not be seen, in one sentence; or `""`.
        compiles: whether the function is under `jax.jit` or a wrapper like it.
        by_jax: whether that is `jax.jit` itself.
        static: the positions of static arguments.
        static_names: the names of static arguments.
        donate_names: the names of donated arguments.
        bound: the arguments that a partial or a bound method puts in front.
        keywords: those that a partial gives by name.
        pmapped: what `jax.pmap` was given, where the function is under that.
    """

    fn: Callable[..., Any]
    in_shardings: Any = None
    out_shardings: Any = None
    donate: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    compiles: bool = False
    by_jax: bool = False
    static: tuple[int, ...] = ()
    static_names: tuple[str, ...] = ()
    donate_names: tuple[str, ...] = ()
    bound: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    pmapped: Pmapped | None = None


def unjitted(fn: Callable[..., Any]) -> Jitted:
    """The function under `jax.jit`, and what it was jitted with.

    Raises:
        ProgramError: for a program that jax compiled already, which is no function any
            more.

    >>> found = unjitted(jax.jit(abs, donate_argnums=0))
    >>> found.fn is abs, found.donate
    (True, (0,))
    """
    if isinstance(fn, (jax.stages.Compiled, jax.stages.Lowered, jax.stages.Traced)):
        kind = type(fn).__name__
        raise ProgramError(
            f"A program needs a function that jax can trace; got a jax.stages.{kind}, which is"
            f" {kind.lower()} for its own arguments already. Give the function itself, or jax.jit"
            " of it."
        )
    if isinstance(fn, jax.export.Exported):
        raise ProgramError(
            f"A program needs a function; got a jax.export.Exported of {fn.fun_name}. Give its"
            " .call."
        )
    if isinstance(fn, functools.partial) or is_of(fn, "equinox", "Partial"):
        return _with_bound(fn, fn.func, fn.args, fn.keywords)
    if inspect.ismethod(fn):
        return _with_bound(fn, fn.__func__, (fn.__self__,), {})
    if is_pmapped(fn):
        return _pmapped(fn)
    # Not by attributes: functools.wraps copies those of a jitted function to what is
    # around it.
    if is_jitted(fn):
        return _jitted(fn)
    # nnx.jit keeps the function under jax.jit in `jitted_fn`. Its shardings are for
    # states and hold inside it, so only positions and names count here.
    inside = getattr(fn, "jitted_fn", None)
    if is_jitted(inside):
        settings = jit_settings(inside)
        if settings is None:
            return Jitted(fn, note=str(Note("jax.jit unreadable")), compiles=True)
        return Jitted(
            fn,
            donate=settings.donate,
            compiles=True,
            static=settings.static,
            static_names=settings.static_names,
            donate_names=settings.donate_names,
        )
    return Jitted(fn, compiles=is_of(fn, "equinox", "_JitWrapper"))


def _jitted(fn: Any) -> Jitted:
    settings = jit_settings(fn)
    if settings is None:
        return Jitted(fn, note=str(Note("jax.jit unreadable")), compiles=True)
    return Jitted(
        fn.__wrapped__,
        settings.in_shardings,
        settings.out_shardings,
        settings.donate,
        settings.options,
        compiles=True,
        by_jax=True,
        static=settings.static,
        static_names=settings.static_names,
        donate_names=settings.donate_names,
    )


def _pmapped(fn: Callable[..., Any]) -> Jitted:
    found = read_pmap(fn)
    if found is None:  # private to jax, and it may change
        return Jitted(fn, note=str(Note("jax.pmap unreadable")), compiles=True)
    return Jitted(
        fn,
        out_shardings=found.out_shardings(),
        donate=found.donate,
        compiles=True,
        by_jax=True,
        static=found.static,
        pmapped=found,
    )


def is_of(value: Any, library: str, name: str) -> bool:
    """Whether a value is of a library's class, by name: the class is private there."""
    kind = type(value)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == library


def _with_bound(
    fn: Callable[..., Any],
    inner: Any,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Jitted:
    """What a partial or a bound method of a jitted function binds is an argument, too.

    jax.jit around a partial, or none at all, closes over what it binds.
    """
    found = unjitted(inner)
    if not found.compiles:
        return Jitted(fn, note=found.note)
    return replace(
        found, bound=(*found.bound, *args), keywords={**found.keywords, **keywords}
    )


class BoundCall:
    """A function with those parts of one call that are no arrays; it takes the others.

    Its arguments are those of the call that hold arrays, one by one, keywords last and
    by name in order. In place of what is no array they hold None.

    Attributes:
        fn: the function.
        names: what the function calls its arguments.
        refs: the positions, among the arrays, of those that are a `jax.Ref` in the
            call.
        changes: whether arguments that the function changes in place count as results.
        compiles: whether the function compiles by itself, as under `jax.jit`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        slots: Sequence[_Slot],
        changes: bool,
        compiles: bool,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.__name__ = _described(fn, slots)
        self.fn, self.changes, self._slots, self.compiles = (
            fn,
            changes,
            tuple(slots),
            compiles,
        )
        taken = [slot for slot in slots if not slot.static]
        self.names = tuple(slot.name for slot in taken)
        self.refs = tuple(_ref_positions(taken))
        kind = inspect.Parameter.POSITIONAL_ONLY
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(f"a{i}", kind) for i in range(len(taken))]
        )

    def __call__(self, *arguments: Any) -> Any:
        """The result; with the values of what was changed in place, where anything was."""
        result, changed = self.call(arguments)
        return (result, changed) if changed else result

    def call(self, arguments: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """The result, and the new values of what the function changed in place, by
        name.

        Args:
            arguments: what takes the places of the arguments with arrays.
        """
        given = iter(arguments)
        refs: dict[str, Any] = {}
        slots, positional, named = [], [], {}
        for slot in self._slots:
            value = slot.value if slot.static else slot.filled(next(given), refs)
            slots.append((slot, value))
            if slot.keyword:
                named[slot.name] = value
            else:
                positional.append(value)
        before = self._leaves(slots)
        result = self.fn(*positional, **named)
        changed = {name: jax.freeze(ref) for name, ref in refs.items()}
        for name, leaf in self._leaves(slots).items():
            if before.get(name) is not leaf:
                changed[name] = leaf
        return result, changed

    def _leaves(self, slots: Sequence[tuple[_Slot, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not self.changes:
            return found
        for slot, value in slots:
            if slot.holds_nnx:
                for path, leaf, _ in leaves_with_paths(value)[0]:
                    found[path_name(slot.name, path)] = leaf
        return found

    def with_static_numbers(
        self, kinds: tuple[type, ...]
    ) -> tuple[BoundCall, list[str]] | None:
        """The same call with its Python numbers of some types as they are, and their
        names.

        None where it has none, and under `jax.jit`, which would take them as arrays.
        """
        fixed, names = [], []
        for slot in self._slots:
            numbers = [i for i, v in slot.numbers.items() if isinstance(v, kinds)]
            names += [slot.name] if numbers else []
            fixed.append(replace(slot, fixed=tuple(numbers)))
        if not names or self.compiles:
            return None
        return BoundCall(self.fn, fixed, self.changes, self.compiles), names

    def change_note(self, names: Sequence[str]) -> str:
        """A note where jax.jit would drop what the function changed, or `""`."""
        refs = {slot.name for slot in self._slots if slot.refs}
        roots = []
        for name in names:
            root = name.partition(".")[0].partition("[")[0]
            if name not in refs and root not in roots:
                roots.append(root)
        if self.compiles or not roots:
            return ""
        return str(Note("changed in place", (function_name(self.fn), *roots)))

    def arguments(
        self, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """The arguments with arrays, out of a call like the one that the program was
        made of.

        Args:
            args: all positional arguments, or the arguments with arrays alone.
            keywords: the arguments by name.

        Raises:
            ProgramError: for another number of arguments, and for other static ones.
        """
        positional = [s for s in self._slots if not s.keyword and not s.bound]
        if not keywords and len(args) == len(self.names) != len(positional):
            return tuple(args)
        given = dict(zip((s.name for s in positional), args, strict=False)) | dict(
            keywords
        )
        wanted = {s.name for s in self._slots if not s.bound}
        if len(args) != len(positional) or set(given) != wanted:
            if keywords:
                raise ProgramError(
                    f"The program was made of a call with {listed(sorted(wanted), 'and')}, and the"
                    f" values are {listed(sorted(given), 'and')}. Give them in the same way."
                )
            return tuple(
                args
            )  # what is wrong with it is said where the values are read
        found = []
        for slot in self._slots:
            value = slot.value if slot.bound else given[slot.name]
            if slot.static:
                _check_static(slot, value)
            else:
                found.append(slot.arrays_of(value))
        return tuple(found)


def values_of(
    fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The values for the arguments of a program, out of a call like the one it was made
    of.

    Raises:
        ProgramError: for static arguments other than those that the program was made
            with, and for keywords that it was not made with.

    >>> call = read_call(lambda x, mode: x, (1.0,), {"mode": "train"})
    >>> values_of(call.fn, (2.0,), {"mode": "train"})
    (2.0,)
    """
    if isinstance(fn, BoundCall):
        return fn.arguments(args, keywords)
    raise ProgramError(
        f"The program was made of a call without keywords, and the values have"
        f" {listed(list(keywords), 'and')}. Give them in the same way."
    )


def _check_static(slot: _Slot, value: Any) -> None:
    if value is not slot.value and value != slot.value:
        raise ProgramError(
            f"{slot.name} is static: the program was made with {shown(slot.value)}, and the values"
            f" have {shown(value)}. Make another program for it."
        )


def _described(fn: Any, slots: Sequence[_Slot]) -> str:
    """A call in short: `step(x, mode='train', w)`."""
    parts = [
        f"{slot.name}={shown(slot.value, 20)}" if slot.static else slot.name
        for slot in slots
        if not slot.bound
    ]
    return f"{function_name(fn)}({', '.join(parts)})"


def _ref_positions(slots: Sequence[_Slot]) -> Iterable[int]:
    begun = 0
    for slot in slots:
        yield from (begun + position for position in slot.refs)
        begun += slot.count


@dataclass(frozen=True, eq=False)
class _Slot:
    """One argument of a call.

    Attributes:
        name: what the function calls it.
        value: the value in the call.
        keyword: whether it is given by name.
        bound: whether a partial or a bound method brings it.
        static: whether no part of it is an array.
        tree: its structure with all that is no array; None where everything is.
        others: what is no array, by its position among the leaves of `tree`.
        count: how many arrays it holds.
        refs: which of them are a `jax.Ref`.
        numbers: the Python numbers among them.
        fixed: which of these the function gets as they are.
        holds_nnx: whether it holds a module or variable of flax.nnx.
    """

    name: str
    value: Any
    keyword: bool = False
    bound: bool = False
    static: bool = False
    tree: Any = None
    others: Mapping[int, Any] = field(default_factory=dict)
    count: int = 0
    refs: tuple[int, ...] = ()
    numbers: Mapping[int, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    holds_nnx: bool = False

    @property
    def plain(self) -> bool:
        """Whether the function can be called with it as it is."""
        special = self.static or self.others or self.refs or self.numbers
        return not (special or self.keyword or self.bound)

    @property
    def argument(self) -> Any:
        """The value with None in place of what is no array."""
        return self.arrays_of(self.value)

    def arrays_of(self, value: Any) -> Any:
        """A value of the same structure with None in place of what is no array."""
        if not self.others:
            return value
        leaves, tree = jax.tree.flatten(value)
        if tree != self.tree:
            return value
        return tree.unflatten(
            [None if i in self.others else v for i, v in enumerate(leaves)]
        )

    def filled(self, argument: Any, refs: dict[str, Any]) -> Any:
        """The value that the function gets, from one without what is no array.

        Args:
            argument: what takes the place of `argument`.
            refs: takes every `jax.Ref` that is made, by name.
        """
        if not (self.others or self.refs or self.fixed):
            return argument
        arrays = jax.tree.leaves(argument)
        for position in self.fixed:
            arrays[position] = self.numbers[position]
        for position in self.refs:
            arrays[position] = ref = jax.new_ref(arrays[position])
            refs[self.name if self.count == 1 else f"{self.name}[{position}]"] = ref
        tree = jax.tree.structure(argument) if self.tree is None else self.tree
        given, others = iter(arrays), self.others
        leaves = [
            others[i] if i in others else next(given) for i in range(tree.num_leaves)
        ]
        return tree.unflatten(leaves)


@dataclass(frozen=True)
class Call:
    """A call of a function, read for a program.

    Attributes:
        fn: the function, or a BoundCall; takes `arguments`.
        arguments: the arguments that hold arrays.
        names: what the function calls them.
        positions: where each positional argument that the user gave is among
            `arguments`; None for a static one.
        jitted: what the function was jitted with.
        donate: which of `arguments` `jax.jit` donates.
        meshes: the jax meshes among the static arguments.
        own_mesh: the mesh that the function has for itself, as one under `jax.pmap`
            does.
    """

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    positions: tuple[int | None, ...]
    jitted: Jitted
    donate: tuple[int, ...]
    meshes: tuple[Any, ...]
    own_mesh: MeshSpec | None = None

    @property
    def positional(self) -> int:
        """How many of `arguments` are given by position."""
        slots = self.fn._slots if isinstance(self.fn, BoundCall) else ()
        return len(self.arguments) - sum(s.keyword and not s.static for s in slots)


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
    check_depth((positional, keywords))
    keywords = {**jitted.keywords, **keywords}
    slots = _slots(jitted, positional, keywords)
    taken = [slot for slot in slots if not slot.static]
    arguments = tuple(slot.argument for slot in taken)
    # By identity: two arguments may be equal.
    index = {id(slot): i for i, slot in enumerate(taken)}
    mesh = None
    if jitted.pmapped is not None:
        position = {id(slot): i for i, slot in enumerate(slots) if not slot.keyword}
        positions = [position.get(id(slot)) for slot in taken]
        names = [slot.name for slot in taken]
        arguments, mesh = jitted.pmapped.laid_out(arguments, names, positions)
    changes = any(slot.holds_nnx for slot in slots) and not jitted.by_jax
    fn = jitted.fn
    if changes or any(not slot.plain for slot in slots):
        fn = BoundCall(fn, slots, changes, jitted.compiles)
    meshes = []
    for slot in slots:
        if slot.static and isinstance(slot.value, _MESHES):
            meshes.append(slot.value)
    donated = {index.get(id(slot)) for slot in _donated(jitted, slots)} - {None}
    given = slots[len(jitted.bound) : len(positional)]
    return Call(
        fn,
        arguments,
        tuple(slot.name for slot in taken),
        tuple(index.get(id(slot)) for slot in given),
        jitted,
        tuple(sorted(i for i in donated if i is not None)),
        tuple(meshes),
        mesh,
    )


def _slots(
    jitted: Jitted, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> list[_Slot]:
    """The arguments of a call: by position, then by name in order."""
    count = len(positional)
    names = parameter_names(jitted.fn, count)
    static = {s % count for s in jitted.static if -count <= s < count}
    slots = []
    for i, value in enumerate(positional):
        bound = i < len(jitted.bound)
        slots.append(_slot(names[i], value, jitted, static=i in static, bound=bound))
    for name in sorted(keywords):
        slot = _slot(
            name,
            keywords[name],
            jitted,
            static=name in jitted.static_names,
            bound=name in jitted.keywords,
            keyword=True,
        )
        slots.append(slot)
    return slots


def _donated(jitted: Jitted, slots: Sequence[_Slot]) -> list[_Slot]:
    """The arguments that `jax.jit` or `eqx.filter_jit` donates."""
    positional = [slot for slot in slots if not slot.keyword]
    donated = []
    for position in jitted.donate:
        if -len(positional) <= position < len(positional):
            donated.append(positional[position])
    for slot in slots:
        if slot.keyword and slot.name in jitted.donate_names:
            donated.append(slot)
    # eqx.filter_jit(donate=...) keeps its choice in these two.
    if getattr(jitted.fn, "donate_first", None) is True:
        donated += slots[:1]
    if getattr(jitted.fn, "donate_rest", None) is True:
        donated += slots[1:]
    return donated


_MESHES = (jax.sharding.Mesh, jax.sharding.AbstractMesh, MeshSpec)


def _slot(
    name: str,
    value: Any,
    jitted: Jitted,
    *,
    static: bool,
    bound: bool,
    keyword: bool = False,
) -> _Slot:
    if static:
        return _Slot(name, value, keyword, bound, static=True)
    leaves, tree = jax.tree.flatten(value)
    numbers = _static_numbers(jitted.fn, value)
    others = {i: v for i, v in enumerate(leaves) if not _is_dynamic(v, numbers)}
    if others and jitted.by_jax:
        raise ProgramError(
            f"{name} holds {shown(next(iter(others.values())))}, which is no array, and jax.jit"
            f" takes arrays alone. Name the argument in static_argnames of jax.jit, or give"
            " sv.program the function without jax.jit."
        )
    if len(others) == len(leaves) > 0:
        return _Slot(name, value, keyword, bound, static=True)
    arrays = [v for i, v in enumerate(leaves) if i not in others]
    refs, python_numbers = [], {}
    for i, array in enumerate(arrays):
        if is_ref(array):
            refs.append(i)
        if _is_number(array) and not jitted.by_jax:
            python_numbers[i] = array
    return _Slot(
        name,
        value,
        keyword,
        bound,
        tree=tree if others else None,
        others=others,
        count=len(arrays),
        refs=tuple(refs),
        numbers=python_numbers,
        holds_nnx=_holds(value, "flax.nnx", ("Pytree", "Object", "Variable")),
    )


def _is_dynamic(leaf: Any, static_numbers: bool) -> bool:
    return not static_numbers if _is_number(leaf) else is_array(leaf)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "dtype")


def is_ref(leaf: Any) -> bool:
    """Whether it is a `jax.Ref`, which a function changes in place."""
    ref = getattr(jax, "Ref", None)
    return ref is not None and isinstance(leaf, ref)


def _static_numbers(fn: Any, value: Any) -> bool:
    """Whether Python numbers in an argument are static: equinox has them so."""
    return type(fn).__module__.startswith("equinox.") or _holds(
        value, "equinox", ("Module",)
    )


def _holds(value: Any, module: str, names: Sequence[str]) -> bool:
    """Whether a tree holds an object of a library, judged only where that is loaded."""
    library = sys.modules.get(module)
    if library is None:
        return False
    kinds = tuple(vars(library)[n] for n in names if n in vars(library))
    nodes = jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, kinds))
    return any(isinstance(node, kinds) for node in nodes)
