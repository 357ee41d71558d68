"""Records the constraint calls of a program while jax traces it, as `Constraint`
values.

Python tells of the calls (`watching.py`), under whatever name a function was imported;
neither flax nor jax nor the user's module is changed.

What became of a call is read off what happened: an array that comes back as the very
object that went in is not constrained. Only why it is not is concluded, in the order of
`flax.linen.spmd.with_logical_constraint`, from the rules, the mesh and the fallback.

Once jax has traced a nested function it does not call it again: it takes what it kept.
So do we, with the calls that the function made then. What jax kept before the first
plan is unknown.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.core.backend.bridge import adopt_mesh, adopt_spec
from shardviz.core.backend.jax_compat import (
    CONSTRAINT_FUNCTIONS,
    OWN_CALLERS,
    TRACE_BEGINS,
    function_of,
    traced_line,
    wants_shapes_alone,
)
from shardviz.core.backend.tracing.jaxprs import (
    JaxprOperation,
    operations,
    plain_jaxpr,
    users_line,
)
from shardviz.core.backend.tracing.mesh_context import logical_rules, mesh_context
from shardviz.core.backend.tracing.watching import CallListener, watched
from shardviz.core.errors import ShardvizError
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.resolution import Resolution, resolve
from shardviz.core.layout.rules.rules import Dialect, Rules
from shardviz.core.program.constraints import (
    CONSTRAINED,
    ERROR,
    FALLBACK,
    IDENTITY,
    LOGICAL,
    NO_MESH,
    NO_RULES,
    UNBOX,
    VARIABLE,
    Constraint,
    undecided,
)
from shardviz.core.program.notes import Note
from shardviz.core.xla.module import is_user_file, line_in_words

_RULES_CONTEXT = "logical_axis_rules"
# What is called, by the module that defines it and its name. flax's are looked for
# where flax is imported already.
_WATCHED = (
    *CONSTRAINT_FUNCTIONS,
    ("flax.linen.spmd", LOGICAL),
    ("flax.core.spmd", "shard_value"),
    ("flax.core.spmd", _RULES_CONTEXT),
)


@dataclass(eq=False)
class _Call:
    """A call that has begun: what it was called with, and what was in force then."""

    frame: FrameType
    name: str
    arguments: Sequence[Any]
    source: str
    boxed: bool
    context_rules: Any
    rules_source: str
    inner: list[tuple[_Call, Any]] = field(default_factory=list)


class ConstraintCalls(CallListener):
    """The constraint calls of one program, in the order in which it makes them.

    Attributes:
        found: one Constraint per call and array.
        unknown: why some calls of this program are not known, in a sentence; `""` where
            all are.
        raised: the call that an exception left last, while nothing was called after it;
            or None.
    """

    def __init__(self) -> None:
        self.found: list[Constraint] = []
        self.unknown = ""
        self.raised: Constraint | None = None
        self._open: list[_Call] = []
        self._tables: dict[int, tuple[Any, Rules | None, str]] = {}
        self._contexts: dict[int, tuple[Any, str]] = {}
        self._codes: dict[int, CodeType] = {}  # of the functions around any call, by id
        self._around: frozenset[int] = (
            frozenset()
        )  # the ids of those around the present call
        self._made: list[
            tuple[Constraint, frozenset[int]]
        ] = []  # each call, and what was around it
        self._called: set[str] = (
            set()
        )  # of the functions that are kept, the lines of those called
        self._traced: set[str] = (
            set()
        )  # the lines of what jax traced: functions, gradients of them
        self._bottom: FrameType | None = None
        self._for_shapes = False
        self._preliminary: list[Constraint] = []

    def begin(self) -> None:
        """Forgets what an earlier attempt to trace the program had found."""
        self.__init__()
        self._bottom = sys._getframe(1)

    def watched(self) -> dict[str, CodeType]:
        """The functions that are there now, by what they are called."""
        found = {line: kept.code for line, kept in list(_kept_functions.items())}
        for module, name in _present():
            fn = function_of(module, name)
            if fn is None:
                self.unseen(str(Note("function replaced", (f"{module}.{name}",))))
            else:
                found[name] = fn.__code__
        return found

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """One of the watched functions begins."""
        if name == TRACE_BEGINS:
            self._traced.add(traced_line(arguments[1]))
            return
        if name in _kept_functions:
            self._called.add(name)
            return
        if name == _RULES_CONTEXT:
            # Python 3.11 tells of it once more where the `with` block ends.
            self._contexts.setdefault(
                id(arguments[0]), (arguments[0], _users_line(frame))
            )
            return
        self._leave_until(frame)
        caller = frame.f_back
        module = "" if caller is None else str(caller.f_globals.get("__name__", ""))
        if not self._open and module in OWN_CALLERS:
            return
        self.raised = None
        rules = logical_rules()
        source = self._contexts.get(id(rules), (None, ""))[1]
        boxed = (
            caller is not None and caller.f_code.co_name == "unbox" and "flax" in module
        )
        if not self._open:
            self._note_stack(frame)
        line = _users_line(frame)
        self._open.append(_Call(frame, name, arguments, line, boxed, rules, source))

    def returned(self, frame: FrameType, value: Any) -> None:
        """One of the watched functions returns."""
        if not any(one.frame is frame for one in self._open):
            return
        while self._open[-1].frame is not frame:
            self._raise(self._open.pop())
        one = self._open.pop()
        if self._open:
            self._open[-1].inner.append((one, value))
        else:
            self._add(self._described(one, value))

    def end(self) -> None:
        """Nothing is watched any more: what has not returned, an exception has left."""
        while self._open:
            self._raise(self._open.pop())
        self._bottom = None
        self._tables, self._contexts = {}, {}

    def broken(self, error: Exception) -> None:
        """Recording failed; the program is traced on."""
        said = f"{type(error).__name__}: {error}"
        self.unseen(str(Note("recording failed", (said,))))
        self._open.clear()

    def unseen(self, words: str) -> None:
        """The calls cannot be seen, for this reason."""
        self.unknown = self.unknown or words

    def _leave_until(self, frame: FrameType) -> None:
        """Drops the calls that are not around this frame: an exception has left them."""
        while self._open:
            around = frame.f_back
            while around is not None and around is not self._open[-1].frame:
                around = around.f_back
            if around is not None:
                return
            self._raise(self._open.pop())

    def _raise(self, one: _Call) -> None:
        if self._open:
            self._open[-1].inner.append((one, _RAISED))
            return
        failed = self._described(one, _RAISED)
        self._add(failed)
        self.raised = failed[-1] if failed else None

    def _note_stack(self, frame: FrameType) -> None:
        """Notes which functions hold the call, and whether it is made for shapes alone."""
        inside, around = frame, frame.f_back
        self._for_shapes, codes = False, []
        while around is not None and around is not self._bottom:
            self._codes[id(around.f_code)] = around.f_code
            codes.append(id(around.f_code))
            self._for_shapes |= wants_shapes_alone(inside, around)
            inside, around = around, around.f_back
        self._around = frozenset(codes)

    def _add(self, calls: list[Constraint]) -> None:
        (self._preliminary if self._for_shapes else self.found).extend(calls)
        self._made += [(call, self._around) for call in calls]

    def _described(self, one: _Call, value: Any) -> list[Constraint]:
        if one.name == LOGICAL:
            return self._logical(one, value)
        return (
            self._variable(one, value)
            if one.name == "shard_value"
            else _plain(one, value)
        )

    def _logical(self, one: _Call, value: Any) -> list[Constraint]:
        x, names, rules, mesh, fallback = one.arguments
        origin = "argument" if rules is not None else "nn.logical_axis_rules"
        if rules is not None and one.boxed:
            origin = "nn.with_logical_partitioning"
        if rules is None:
            rules = one.context_rules
            origin += f" at {one.rules_source}" if one.rules_source else ""
        table, problem = self._table(rules)
        context = mesh_context()
        seen, mesh_from = _seen(mesh, context, "flax with_logical_constraint")
        basis = Constraint(
            UNBOX if one.boxed else LOGICAL,
            one.source,
            rules=table,
            rules_from=origin if rules else "",
            mesh=seen,
            mesh_from=mesh_from,
            fallback=getattr(fallback, "name", str(fallback)),
            unseen=context.legacy[-1] if seen is None and context.legacy else None,
            problem=problem,
        )
        made = []
        for leaf, own, result in _leaves(x, names, value):
            call = _with(basis, shape=_shape(leaf), names=own)
            call = _resolved(call, Dialect.LINEN)
            made.append(_logical_effect(one, call, bool(rules), leaf, result))
        return _only_raised(made) if value is _RAISED else made

    def _variable(self, one: _Call, value: Any) -> list[Constraint]:
        x, sharding, own, mesh = one.arguments
        spec = getattr(getattr(sharding, "sharding", sharding), "spec", sharding)
        named = getattr(sharding, "mesh", None)
        context = mesh_context()
        seen, mesh_from = _seen(mesh or named, context, "flax with_logical_constraint")
        both = (*(one.context_rules or ()), *(own or ()))
        table, problem = self._table(both)
        at = f" at {one.rules_source}" if one.rules_source else ""
        origins = (
            ("nn.logical_axis_rules" + at, one.context_rules),
            ("sharding_rules", own),
        )
        call = Constraint(
            VARIABLE,
            one.source,
            _shape(x),
            _spec_entries(spec),
            table,
            " and ".join(name for name, some in origins if some),
            seen,
            "sharding" if mesh is None and named is not None else mesh_from,
            unseen=context.legacy[-1] if seen is None and context.legacy else None,
            problem=problem,
        )
        call = _resolved(call, Dialect.NNX)
        if value is _RAISED:
            return [_with(call, effect=ERROR)]
        inner = _inner_call(one, x, value)
        spec = None if inner is None else _sharding_spec(inner.arguments[1])
        return [_with(call, effect=_changed(x, value), spec=spec)]

    def _table(self, rules: Any) -> tuple[Rules | None, str]:
        """The rules, read once; and what is wrong with them."""
        if not rules:
            return None, ""
        if id(rules) not in self._tables:
            try:
                table, problem = Rules.of(rules), ""
            except ShardvizError as error:
                table, problem = None, str(error)
            self._tables[id(rules)] = rules, table, problem
        return self._tables[id(rules)][1:]

    def settle(self, found: Sequence[JaxprOperation] | None) -> None:
        """Adds those calls made for shapes alone that were not made again.

        What jax had kept of a nested function from then is part of the program.

        Args:
            found: the operations of the program; None where an exception ended its
                trace.
        """
        left, missing = Counter(one.key for one in self.found), []
        for one in self._preliminary:
            if left[one.key]:
                left[one.key] -= 1
            else:
                missing.append(one)
        self._preliminary = []
        lines = _constrained_lines(found or ()) if missing else ()
        self.found += [
            o for o in missing if found is None or not o.acts or o.source in lines
        ]

    def add_kept(self, found: Sequence[JaxprOperation]) -> None:
        """Adds the calls of nested functions that jax did not call, since it had traced
        them.

        Args:
            found: the operations of the program.
        """
        here = self._made_in()
        added = {id(one) for one in self.found}
        inner = {
            id(jaxpr): jaxpr for one in found for jaxpr in map(plain_jaxpr, one.inner)
        }
        for jaxpr in inner.values():
            line = traced_line(getattr(jaxpr, "debug_info", None))
            calls = _kept_calls.get(jaxpr)
            was_called = calls is None and (line in here or line in self._called)
            if was_called:
                calls = ()
                if line in here:
                    _kept_functions[line] = here[line]
                    calls = here[line].calls
            elif calls is None and line in _kept_functions:
                # A gradient, say, of what jax had kept: of its calls those that are
                # still in it.
                constrained = _constrained_lines(operations(jaxpr))
                before = _kept_functions[line].calls
                calls = tuple(
                    c for c in before if not c.acts or c.source in constrained
                )
            elif calls is None:
                if self._note_unseen(line, jaxpr):
                    continue
                calls = ()
            _kept_calls[jaxpr] = calls
            if not was_called:
                self.found += [call for call in calls if id(call) not in added]
                added.update(map(id, calls))

    def _made_in(self) -> dict[str, _KeptFunction]:
        """The calls of this trace by the line of each function that was around them."""
        found: dict[str, _KeptFunction] = {}
        for call, around in self._made:
            for code in map(self._codes.__getitem__, around):
                line = f"{code.co_filename}:{code.co_firstlineno}"
                before = found[line].calls if line in found else ()
                found[line] = _KeptFunction(code, (*before, call))
        return found

    def _note_unseen(self, line: str, jaxpr: Any) -> bool:
        """Notes a function that jax had traced before any plan; whether it may hide a
        call.
        """
        if line in self._traced:
            return False
        file, _, number = line.rpartition(":")
        # A call that does nothing is not in the jaxpr; there are such calls in flax
        # alone.
        written = is_user_file(file) or "/flax/" in file
        may_hide = written and "flax.linen.spmd" in sys.modules
        if not may_hide and not _constrained_lines(operations(jaxpr)):
            return False
        at = f" at {line_in_words(file, int(number))}" if number.isdigit() else ""
        self.unseen(str(Note("traced before", (at,))))
        return True


@dataclass(frozen=True)
class _KeptFunction:
    """A nested function that jax traced, and the calls that it made when that was last
    done.
    """

    code: CodeType
    calls: tuple[Constraint, ...]


# What nested functions did when a plan traced them: of each, by file and line; and of
# what jax made of it, as long as jax keeps that.
_kept_functions: dict[str, _KeptFunction] = {}
_kept_calls: weakref.WeakKeyDictionary[Any, tuple[Constraint, ...]] = (
    weakref.WeakKeyDictionary()
)


def _constrained_lines(found: Iterable[JaxprOperation]) -> set[str]:
    """The user's lines that constrain a value, as the operations of a jaxpr name them."""
    kinds = ("sharding_constraint", "reshard")
    return {users_line(one.equation) for one in found if one.name in kinds}


def _present() -> list[tuple[str, str]]:
    """Those functions of libraries that are imported now, by module and name."""
    return [(m, name) for m, name in _WATCHED if hasattr(sys.modules.get(m), name)]


_RAISED = object()  # in place of what a function returned, where an exception left it


def _users_line(frame: FrameType) -> str:
    around = frame.f_back
    while around is not None:
        if is_user_file(around.f_code.co_filename):
            return line_in_words(around.f_code.co_filename, around.f_lineno)
        around = around.f_back
    return ""


def _seen(mesh: Any, context: Any, api: str) -> tuple[MeshSpec | None, str]:
    """The mesh that a call sees, and where it comes from."""
    if mesh is not None:
        return _adopted(mesh), "argument"
    found = context.sees(api)
    if found is None:
        return None, ""
    return found, "context" if found is context.abstract else "with mesh"


def _adopted(mesh: Any) -> MeshSpec | None:
    if not isinstance(mesh, (Mesh, AbstractMesh)) or mesh.empty:
        return None
    return adopt_mesh(mesh)


def _shape(x: Any) -> tuple[int, ...] | None:
    shape = getattr(
        x, "shape", () if isinstance(x, (bool, int, float, complex)) else None
    )
    return None if shape is None else tuple(shape)


def _with(call: Constraint, **changes: Any) -> Constraint:
    made = object.__new__(Constraint)
    object.__setattr__(made, "__dict__", {**call.__dict__, **changes})
    return made


def _resolved(call: Constraint, dialect: Dialect) -> Constraint:
    if call.rules is None or call.names is None:
        return call
    try:
        shape = (
            call.shape
            if call.shape is not None and len(call.shape) == len(call.names)
            else None
        )
        found: Resolution = resolve(
            call.names, call.rules, mesh=call.mesh, shape=shape, dialect=dialect
        )
    except ShardvizError as error:
        return _with(call, problem=str(error))
    return _with(call, resolution=found)


def _is_names(value: Any) -> bool:
    """What `flax.linen.spmd` takes for the names of one array."""
    free = PartitionSpec.UNCONSTRAINED
    return value is None or (
        isinstance(value, (tuple, PartitionSpec))
        and all(v is None or isinstance(v, str) or v is free for v in value)
    )


def _leaves(x: Any, names: Any, value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Every array of a call with its names and what came back; None for what is not
    known.
    """
    own, tree = jax.tree.flatten(names, is_leaf=_is_names)
    try:
        parts = (
            [(x, names)]
            if names is None
            else zip(tree.flatten_up_to(x), own, strict=True)
        )
    except ValueError:  # the call raises it, too
        parts = [(x, None)]
    leaves = [
        (leaf, _spec_entries(some))
        for part, some in parts
        for leaf in jax.tree.leaves(part)
    ]
    results = [_RAISED] * len(leaves) if value is _RAISED else jax.tree.leaves(value)
    for (leaf, some), result in zip(leaves, results, strict=False):
        yield leaf, some, result


def _spec_entries(names: Any) -> tuple[object, ...] | None:
    if isinstance(names, PartitionSpec):
        return tuple(names)
    return tuple(names) if isinstance(names, (tuple, list)) else None


def _logical_effect(
    one: _Call, call: Constraint, has_rules: bool, leaf: Any, result: Any
) -> Constraint:
    """What became of one array of `with_logical_constraint`, in the order of flax's own
    checks.
    """
    called = _inner_call(one, leaf, result)
    spec = None if called is None else _sharding_spec(called.arguments[1])
    if result is _RAISED:
        return _with(call, effect=ERROR, spec=spec)
    if result is not leaf:
        return _with(call, effect=CONSTRAINED, spec=spec)
    if not has_rules:
        return _with(call, effect=NO_RULES)
    if called is not None or call.names is None:
        return _with(call, effect=IDENTITY, spec=spec)
    if call.fallback == "NO_CONSTRAINT" and undecided(call):
        return _with(call, effect=FALLBACK)
    return _with(call, effect=NO_MESH if call.mesh is None else IDENTITY)


def _only_raised(calls: list[Constraint]) -> list[Constraint]:
    """Of the arrays of a call that raised, the one that it was about."""
    unmatched = [c for c in calls if c.problem or undecided(c)]
    return (unmatched or [c for c in calls if c.spec is not None] or calls)[:1]


def _inner_call(one: _Call, leaf: Any, result: Any) -> _Call | None:
    """The constraint of jax that a call of flax made for one of its arrays."""
    for inner, value in one.inner:
        took = any(some is leaf for some in jax.tree.leaves(inner.arguments[0]))
        if took and any(some is result for some in jax.tree.leaves(value)):
            return inner
    return None


def _changed(x: Any, result: Any) -> str:
    return IDENTITY if result is x else CONSTRAINED


def _plain(one: _Call, value: Any) -> list[Constraint]:
    """The arrays of `jax.lax.with_sharding_constraint` or `jax.sharding.reshard`."""
    x, shardings = one.arguments[:2]
    leaves = jax.tree.leaves(x)
    results = [_RAISED] * len(leaves) if value is _RAISED else jax.tree.leaves(value)
    context = mesh_context()
    made = []
    for leaf, result, own in zip(leaves, results, _spread(shardings, x), strict=False):
        mesh, mesh_from = _seen(None, context, one.name)
        if isinstance(own, NamedSharding):
            mesh, mesh_from = _adopted(own.mesh), "sharding"
        spec = _sharding_spec(own)
        call = Constraint(
            UNBOX if one.boxed else one.name,
            one.source,
            _shape(leaf),
            _spec_entries(getattr(own, "spec", own)) if one.boxed else None,
            mesh=mesh,
            mesh_from=mesh_from,
            effect=ERROR if result is _RAISED else _changed(leaf, result),
            spec=spec,
        )
        made.append(call)
    return made[-1:] if value is _RAISED else made


def _spread(shardings: Any, x: Any) -> list[Any]:
    """One sharding per array of a tree, from a prefix of that tree."""
    is_leaf = lambda v: v is None or isinstance(v, PartitionSpec)  # noqa: E731
    own, tree = jax.tree.flatten(shardings, is_leaf=is_leaf)
    try:
        parts = tree.flatten_up_to(x)
    except ValueError:  # the call raises it, too
        return [None] * len(jax.tree.leaves(x))
    return [
        some
        for some, part in zip(own, parts, strict=True)
        for _ in jax.tree.leaves(part)
    ]


def _sharding_spec(sharding: Any) -> Spec | None:
    """The spec of a PartitionSpec, a NamedSharding or a Format of one; of another kind
    None.
    """
    sharding = getattr(sharding, "sharding", sharding)
    spec = PartitionSpec() if sharding is None else getattr(sharding, "spec", sharding)
    try:
        return adopt_spec(spec) if isinstance(spec, PartitionSpec) else None
    except ShardvizError:
        return None


_active: ContextVar[ConstraintCalls | None] = ContextVar(
    "constraint_calls", default=None
)


@contextlib.contextmanager
def recorded_calls() -> Iterator[ConstraintCalls]:
    """Within, what is traced by `traced_with_calls` has its constraint calls recorded.

    >>> with recorded_calls() as calls:
    ...     jaxpr = traced_with_calls(lambda: jax.jit(lambda x: x).trace(1.0).jaxpr, lambda j: j)
    >>> calls.found
    []
    """
    calls = ConstraintCalls()
    token = _active.set(calls)
    try:
        yield calls
    finally:
        _active.reset(token)


def traced_with_calls(
    trace: Callable[[], Any],
    jaxpr_of: Callable[[Any], Any],
    others: Sequence[CallListener] = (),
) -> Any:
    """What `trace` returns; its constraint calls are recorded where somebody wants
    them.

    Args:
        trace: traces a program; called again where it imports flax, whose functions
            were not watched before that.
        jaxpr_of: gives the jaxpr of what `trace` returned.
        others: what else is to hear of calls meanwhile.
    """
    calls = _active.get()
    if calls is None:
        return watched(trace, others)
    try:
        while True:
            present = _present()
            calls.begin()
            try:
                traced = watched(trace, (calls, *others))
            finally:
                calls.end()
            if _present() == present:
                break
        found = list(operations(jaxpr_of(traced)))
    except BaseException:
        calls.settle(None)
        raise
    calls.add_kept(found)
    calls.settle(found)
    return traced
