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

from shardviz.core.backend.jax_compat import (
    JitSettings,
    is_jitted,
    is_pmapped,
    jit_settings,
)
from shardviz.core.backend.tracing.arguments import (
    check_depth,
    is_array,
    is_number,
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
    if isinstance(fn, (jax.stages.Compiled, jax.stages.Lowered, jax.stages.Traced)):
        kind = type(fn).__name__
        raise ProgramError(
            f"A program needs a function that jax can trace; got a jax.stages.{kind},"
            f" which is {kind.lower()} for its own arguments already. Give the function"
            " itself, or jax.jit of it."
        )
    if isinstance(fn, jax.export.Exported):
        raise ProgramError(
            f"A program needs a function; got a jax.export.Exported of {fn.fun_name}."
            " Give its .call."
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
            out_shardings=pmapped.out_shardings(),
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
class _Slot:
    """One argument of a call.

    Attributes:
        name: what the function calls it.
        value: the value in the call.
        keyword: whether it is given by name.
        bound: whether a partial or a bound method brings it.
        static: whether no part of it is an array.
        tree: its structure with all that is no array.
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

    def arrays_of(self, value: Any) -> Any:
        """A value like that of the call with None in place of what is no array."""
        leaves, tree = jax.tree.flatten(value)
        if not self.others or tree != self.tree:
            return value
        for position in self.others:
            leaves[position] = None
        return tree.unflatten(leaves)

    def filled(self, argument: Any, refs: dict[str, Any]) -> Any:
        """What the function gets, from what `arrays_of` gave; `refs` takes new Refs."""
        if not (self.others or self.refs or self.fixed):
            return argument
        arrays = jax.tree.leaves(argument)
        for position in self.fixed:
            arrays[position] = self.numbers[position]
        for position in self.refs:
            arrays[position] = ref = jax.new_ref(arrays[position])
            refs[self.name if self.count == 1 else f"{self.name}[{position}]"] = ref
        given, leaves = iter(arrays), []
        for i in range(self.tree.num_leaves):
            leaves.append(self.others[i] if i in self.others else next(given))
        return self.tree.unflatten(leaves)


class BoundCall:
    """A function with those parts of one call that are no arrays; it takes the others.

    Its arguments are those of the call that hold arrays, one by one, keywords last and
    by name in order. In place of what is no array they hold None.

    Attributes:
        fn: the function.
        names: what the function calls its arguments.
        refs: the positions, among the arrays, of those that are a `jax.Ref`.
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
        self.fn, self.compiles = fn, compiles
        self._slots, self._changes = tuple(slots), changes
        refs: list[int] = []
        names, written, begun = [], [], 0
        for slot in slots:
            if not slot.static:
                names.append(slot.name)
                refs += [begun + position for position in slot.refs]
                begun += slot.count
            if not slot.bound:
                value = f"={shown(slot.value, 20)}" if slot.static else ""
                written.append(slot.name + value)
        self.names, self.refs = tuple(names), tuple(refs)
        # A call in short: `step(x, mode='train', w)`.
        self.__name__ = f"{function_name(fn)}({', '.join(written)})"
        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(f"a{i}", kind) for i in range(len(names))]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *arguments: Any) -> Any:
        """The result; with the new values of what was changed in place, if any was."""
        result, changed = self.call(arguments)
        return (result, changed) if changed else result

    def call(self, arguments: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """The result, and by name the new values of what was changed in place."""
        given = iter(arguments)
        refs: dict[str, Any] = {}
        values, positional, named = [], [], {}
        for slot in self._slots:
            value = slot.value if slot.static else slot.filled(next(given), refs)
            values.append(value)
            if slot.keyword:
                named[slot.name] = value
            else:
                positional.append(value)
        before = self._states(values)
        result = self.fn(*positional, **named)
        changed = {name: jax.freeze(ref) for name, ref in refs.items()}
        for name, leaf in self._states(values).items():
            if before.get(name) is not leaf:
                changed[name] = leaf
        return result, changed

    def _states(self, values: Sequence[Any]) -> dict[str, Any]:
        """The arrays of all flax.nnx modules by name, where changes of them count."""
        leaves: dict[str, Any] = {}
        for slot, value in zip(self._slots, values, strict=True):
            if self._changes and slot.holds_nnx:
                for path, leaf, _ in leaves_with_paths(value)[0]:
                    leaves[path_name(slot.name, path)] = leaf
        return leaves

    def with_static_numbers(
        self, kinds: tuple[type, ...]
    ) -> tuple[BoundCall, list[str]] | None:
        """The same call with Python numbers of some types as they are, and their names.

        None where it has none, and under `jax.jit`, which would take them as arrays.
        """
        fixed, names = [], []
        for slot in self._slots:
            numbers = [i for i, v in slot.numbers.items() if isinstance(v, kinds)]
            names += [slot.name] if numbers else []
            fixed.append(replace(slot, fixed=tuple(numbers)))
        if not names or self.compiles:
            return None
        return BoundCall(self.fn, fixed, self._changes, self.compiles), names

    def change_note(self, names: Sequence[str]) -> str:
        """A note where jax.jit would drop what the function changed, or `""`."""
        refs = {slot.name for slot in self._slots if slot.refs}
        roots: dict[str, None] = {}
        for name in names:
            if name not in refs:
                roots[name.partition(".")[0].partition("[")[0]] = None
        if self.compiles or not roots:
            return ""
        return str(Note("changed in place", (function_name(self.fn), *roots)))

    def arguments(
        self, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """The arguments with arrays, out of a call like that of the program.

        Args:
            args: all positional arguments, or the arguments with arrays alone.
            keywords: the arguments by name.

        Raises:
            ProgramError: for another number of arguments, and for other static ones.
        """
        names = [s.name for s in self._slots if not s.keyword and not s.bound]
        if not keywords and len(args) == len(self.names) != len(names):
            return tuple(args)
        given = {**dict(zip(names, args, strict=False)), **keywords}
        wanted = {s.name for s in self._slots if not s.bound}
        if len(args) != len(names) or set(given) != wanted:
            if not keywords:  # what is wrong is said where the values are read
                return tuple(args)
            raise ProgramError(
                f"The program was made of a call with {listed(sorted(wanted), 'and')},"
                f" and the values are {listed(sorted(given), 'and')}. Give them in the"
                " same way."
            )
        arrays = []
        for slot in self._slots:
            value = slot.value if slot.bound else given[slot.name]
            if not slot.static:
                arrays.append(slot.arrays_of(value))
            elif value is not slot.value and value != slot.value:
                raise ProgramError(
                    f"{slot.name} is static: the program was made with"
                    f" {shown(slot.value)}, and the values have {shown(value)}. Make"
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
        return fn.arguments(args, keywords)
    raise ProgramError(
        f"The program was made of a call without keywords, and the values have"
        f" {listed(list(keywords), 'and')}. Give them in the same way."
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
    check_depth((positional, keywords))
    slots = _slots(jitted, positional, {**jitted.keywords, **keywords})
    taken = [slot for slot in slots if not slot.static]
    arguments = tuple(slot.arrays_of(slot.value) for slot in taken)
    # By identity: two arguments may be equal.
    index = {id(slot): i for i, slot in enumerate(taken)}
    mesh = None
    if jitted.pmapped is not None:
        position = {id(slot): i for i, slot in enumerate(slots) if not slot.keyword}
        positions = [position.get(id(slot)) for slot in taken]
        arguments, mesh = jitted.pmapped.laid_out(arguments, positions)
    changes = any(slot.holds_nnx for slot in slots) and not jitted.by_jax
    fn = jitted.fn
    if changes or any(not slot.plain for slot in slots):
        fn = BoundCall(fn, slots, changes, jitted.compiles)
    meshes = []
    for slot in slots:
        if slot.static and isinstance(slot.value, _MESHES):
            meshes.append(slot.value)
    donated = [index[id(slot)] for slot in _donated(jitted, slots) if id(slot) in index]
    return Call(
        fn,
        arguments,
        tuple(slot.name for slot in taken),
        sum(not slot.keyword for slot in taken),
        tuple(
            index.get(id(slot)) for slot in slots[len(jitted.bound) : len(positional)]
        ),
        jitted,
        tuple(sorted(set(donated))),
        tuple(meshes),
        mesh,
    )


_MESHES = (jax.sharding.Mesh, jax.sharding.AbstractMesh, MeshSpec)


def _slots(
    jitted: Jitted, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> list[_Slot]:
    """The arguments of a call: by position, then by name in order."""
    count, settings = len(positional), jitted.settings
    names = parameter_names(jitted.fn, count)
    static = {s % count for s in settings.static if -count <= s < count}
    slots = []
    for i, value in enumerate(positional):
        slot = _Slot(names[i], value, bound=i < len(jitted.bound), static=i in static)
        slots.append(_with_arrays(slot, jitted))
    for name in sorted(keywords):
        bound, static_name = name in jitted.keywords, name in settings.static_names
        slot = _Slot(name, keywords[name], True, bound, static_name)
        slots.append(_with_arrays(slot, jitted))
    return slots


def _donated(jitted: Jitted, slots: Sequence[_Slot]) -> list[_Slot]:
    """The arguments that `jax.jit` or `eqx.filter_jit` donates."""
    positional = [slot for slot in slots if not slot.keyword]
    donated = []
    for position in jitted.settings.donate:
        if -len(positional) <= position < len(positional):
            donated.append(positional[position])
    for slot in slots:
        if slot.keyword and slot.name in jitted.settings.donate_names:
            donated.append(slot)
    # eqx.filter_jit(donate=...) keeps its choice in these two.
    if getattr(jitted.fn, "donate_first", None) is True:
        donated += slots[:1]
    if getattr(jitted.fn, "donate_rest", None) is True:
        donated += slots[1:]
    return donated


def _with_arrays(slot: _Slot, jitted: Jitted) -> _Slot:
    """An argument with what it holds, found out where it is not static."""
    if slot.static:
        return slot
    leaves, tree = jax.tree.flatten(slot.value)
    # To equinox Python numbers are static.
    equinox = type(jitted.fn).__module__.startswith("equinox.")
    equinox = equinox or _holds(slot.value, "equinox", ("Module",))
    others, refs, numbers, count = {}, [], {}, 0
    for i, leaf in enumerate(leaves):
        number = is_number(leaf)
        if (equinox and number) or not (number or is_array(leaf)):
            others[i] = leaf
            continue
        if is_ref(leaf):
            refs.append(count)
        if number and not jitted.by_jax:
            numbers[count] = leaf
        count += 1
    if others and jitted.by_jax:
        raise ProgramError(
            f"{slot.name} holds {shown(next(iter(others.values())))}, which is no array,"
            " and jax.jit takes arrays alone. Name the argument in static_argnames of"
            " jax.jit, or give sv.program the function without jax.jit."
        )
    if leaves and not count:
        return replace(slot, static=True)
    return replace(
        slot,
        tree=tree,
        others=others,
        count=count,
        refs=tuple(refs),
        numbers=numbers,
        holds_nnx=_holds(slot.value, "flax.nnx", ("Pytree", "Object", "Variable")),
    )


def is_ref(leaf: Any) -> bool:
    """Whether it is a `jax.Ref`, which a function changes in place."""
    return isinstance(leaf, jax.Ref)


def _holds(value: Any, module: str, names: Sequence[str]) -> bool:
    """Whether a tree holds an object of a library, judged only where that is loaded."""
    library = sys.modules.get(module)
    if library is None:
        return False
    kinds = tuple(vars(library)[n] for n in names if n in vars(library))
    nodes = jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, kinds))
    return any(isinstance(node, kinds) for node in nodes)
