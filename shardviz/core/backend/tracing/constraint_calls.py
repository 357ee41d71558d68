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
from dataclasses import dataclass, field, replace
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
from shardviz.core.layout.mesh_context import MeshContext
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.resolution import resolve
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

    @property
    def context_rules_from(self) -> str:
        """Where `context_rules` come from."""
        if self.rules_source:
            return f"nn.logical_axis_rules at {self.rules_source}"
        return "nn.logical_axis_rules"


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
        # The functions around any call, by id; the ids of those around this one.
        self._codes: dict[int, CodeType] = {}
        self._around = frozenset[int]()
        # Each call with the ids of what was around it: jax may keep any of these
        # functions, and then the call is one that the function made.
        self._made: list[tuple[Constraint, frozenset[int]]] = []
        # By line: the kept functions that were called; and what jax traced, functions
        # and their gradients, which can hide no call.
        self._called = set[str]()
        self._traced = set[str]()
        self._bottom: FrameType | None = None
        self._for_shapes = False
        self._preliminary: list[Constraint] = []

    def begin(self) -> None:
        """Forgets what an earlier attempt to trace the program had found."""
        self.__init__()
        self._bottom = sys._getframe(1)

    def watched(self) -> dict[str, CodeType]:
        """The functions that are there now, by what they are called."""
        # A copy: plans in other threads add to them.
        codes = {line: kept.code for line, kept in list(_kept_functions.items())}
        for module, name in _present():
            fn = function_of(module, name)
            if fn is None:
                self.unseen(str(Note("function replaced", (f"{module}.{name}",))))
            else:
                codes[name] = fn.__code__
        return codes

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
        caller, module, caller_name = frame.f_back, "", ""
        if caller is not None:
            module = str(caller.f_globals.get("__name__", ""))
            caller_name = caller.f_code.co_name
        if not self._open and module in OWN_CALLERS:
            return
        self.raised = None
        rules = logical_rules()
        source = self._contexts.get(id(rules), (None, ""))[1]
        boxed = caller_name == "unbox" and "flax" in module
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
        reason = f"{type(error).__name__}: {error}"
        self.unseen(str(Note("recording failed", (reason,))))
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
        self.raised = None
        if failed:
            self.raised = failed[-1]

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
        if self._for_shapes:
            self._preliminary += calls
        else:
            self.found += calls
        self._made += [(call, self._around) for call in calls]

    def _described(self, one: _Call, value: Any) -> list[Constraint]:
        if one.name == LOGICAL:
            return self._logical(one, value)
        if one.name == "shard_value":
            return self._variable(one, value)
        return _plain(one, value)

    def _logical(self, one: _Call, value: Any) -> list[Constraint]:
        x, names, rules, mesh, fallback = one.arguments
        rules_from = "argument"
        if rules is None:
            rules, rules_from = one.context_rules, one.context_rules_from
        elif one.boxed:
            rules_from = "nn.with_logical_partitioning"
        if not rules:
            rules_from = ""
        table, problem = self._table(rules)
        context = mesh_context()
        seen, mesh_from = _seen(mesh, context, "flax with_logical_constraint")
        basis = Constraint(
            UNBOX if one.boxed else LOGICAL,
            one.source,
            rules=table,
            rules_from=rules_from,
            mesh=seen,
            mesh_from=mesh_from,
            fallback=getattr(fallback, "name", str(fallback)),
            unseen=_unseen(seen, context),
            problem=problem,
        )
        made = []
        for leaf, own, result in _leaves(x, names, value):
            call = replace(basis, shape=_shape(leaf), names=own)
            call = _resolved(call, Dialect.LINEN)
            made.append(_logical_effect(one, call, bool(rules), leaf, result))
        if value is _RAISED:
            return _only_raised(made)
        return made

    def _variable(self, one: _Call, value: Any) -> list[Constraint]:
        x, sharding, own, mesh = one.arguments
        spec = getattr(getattr(sharding, "sharding", sharding), "spec", sharding)
        named = getattr(sharding, "mesh", None)
        context = mesh_context()
        seen, mesh_from = _seen(mesh or named, context, "flax with_logical_constraint")
        if mesh is None and named is not None:
            mesh_from = "sharding"
        # nnx appends the variable's own rules to those of the context.
        table, problem = self._table((*(one.context_rules or ()), *(own or ())))
        rules_from = []
        if one.context_rules:
            rules_from.append(one.context_rules_from)
        if own:
            rules_from.append("sharding_rules")
        call = Constraint(
            VARIABLE,
            one.source,
            _shape(x),
            _spec_entries(spec),
            table,
            " and ".join(rules_from),
            seen,
            mesh_from,
            unseen=_unseen(seen, context),
            problem=problem,
        )
        call = _resolved(call, Dialect.NNX)
        if value is _RAISED:
            return [replace(call, effect=ERROR)]
        spec = _inner_spec(_inner_call(one, x, value))
        return [replace(call, effect=_effect(x, value), spec=spec)]

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
        if not missing:
            return
        lines = _constrained_lines(found or ())
        for one in missing:
            if found is None or not one.acts or one.source in lines:
                self.found.append(one)

    def add_kept(self, found: Sequence[JaxprOperation]) -> None:
        """Adds the calls of nested functions that jax did not call, since it had traced
        them.

        Args:
            found: the operations of the program.
        """
        here = self._made_in()
        added = {id(one) for one in self.found}
        inner = {}  # by id: a nested function may be called in several places
        for operation in found:
            for jaxpr in map(plain_jaxpr, operation.inner):
                inner[id(jaxpr)] = jaxpr
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
                calls = ()
                for call in _kept_functions[line].calls:
                    if not call.acts or call.source in constrained:
                        calls = (*calls, call)
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
        functions: dict[str, _KeptFunction] = {}
        for call, around in self._made:
            for number in around:
                code = self._codes[number]
                line = f"{code.co_filename}:{code.co_firstlineno}"
                before = functions.get(line, _KeptFunction(code)).calls
                functions[line] = _KeptFunction(code, (*before, call))
        return functions

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
        at = ""
        if number.isdigit():
            at = f" at {line_in_words(file, int(number))}"
        self.unseen(str(Note("traced before", (at,))))
        return True


@dataclass(frozen=True)
class _KeptFunction:
    """A nested function that jax traced, and the calls that it made when that was last
    done.
    """

    code: CodeType
    calls: tuple[Constraint, ...] = ()


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


def _seen(mesh: Any, context: MeshContext, api: str) -> tuple[MeshSpec | None, str]:
    """The mesh that a call sees, and where it comes from."""
    if mesh is not None:
        return _adopted(mesh), "argument"
    seen = context.sees(api)
    if seen is None:
        return None, ""
    if seen is context.abstract:
        return seen, "context"
    return seen, "with mesh"


def _unseen(seen: MeshSpec | None, context: MeshContext) -> MeshSpec | None:
    """The mesh of `with mesh:` around a call that sees no mesh."""
    if seen is None and context.legacy:
        return context.legacy[-1]
    return None


def _adopted(mesh: Any) -> MeshSpec | None:
    if not isinstance(mesh, (Mesh, AbstractMesh)) or mesh.empty:
        return None
    return adopt_mesh(mesh)


def _shape(x: Any) -> tuple[int, ...] | None:
    if isinstance(x, (bool, int, float, complex)):
        return ()
    shape = getattr(x, "shape", None)
    if shape is None:
        return None
    return tuple(shape)


def _resolved(call: Constraint, dialect: Dialect) -> Constraint:
    if call.rules is None or call.names is None:
        return call
    shape = call.shape
    if shape is not None and len(shape) != len(call.names):
        shape = None  # which name is for which dimension is not known
    try:
        resolution = resolve(
            call.names, call.rules, mesh=call.mesh, shape=shape, dialect=dialect
        )
    except ShardvizError as error:
        return replace(call, problem=str(error))
    return replace(call, resolution=resolution)


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
        parts = tree.flatten_up_to(x)
    except ValueError:  # the call raises it, too
        parts, own = [x], [None]
    leaves = []
    for part, part_names in zip(parts, own, strict=True):
        for leaf in jax.tree.leaves(part):
            leaves.append((leaf, _spec_entries(part_names)))
    results = _results(value, len(leaves))
    for (leaf, leaf_names), result in zip(leaves, results, strict=False):
        yield leaf, leaf_names, result


def _results(value: Any, count: int) -> list[Any]:
    """What a call returned for each of its arrays."""
    if value is _RAISED:
        return [_RAISED] * count
    return jax.tree.leaves(value)


def _spec_entries(names: Any) -> tuple[object, ...] | None:
    if isinstance(names, (PartitionSpec, tuple, list)):
        return tuple(names)
    return None


def _logical_effect(
    one: _Call, call: Constraint, has_rules: bool, leaf: Any, result: Any
) -> Constraint:
    """What became of one array of `with_logical_constraint`, in the order of flax's own
    checks.
    """
    inner = _inner_call(one, leaf, result)
    spec = _inner_spec(inner)
    effect = _effect(leaf, result)
    if effect != IDENTITY:
        return replace(call, effect=effect, spec=spec)
    if not has_rules:
        return replace(call, effect=NO_RULES)
    if inner is not None or call.names is None:
        return replace(call, effect=IDENTITY, spec=spec)
    if call.fallback == "NO_CONSTRAINT" and undecided(call):
        return replace(call, effect=FALLBACK)
    if call.mesh is None:
        return replace(call, effect=NO_MESH)
    return replace(call, effect=IDENTITY)


def _only_raised(calls: list[Constraint]) -> list[Constraint]:
    """Of the arrays of a call that raised, the one that it was about."""
    unmatched = [c for c in calls if c.problem or undecided(c)]
    return (unmatched or [c for c in calls if c.spec is not None] or calls)[:1]


def _inner_call(one: _Call, leaf: Any, result: Any) -> _Call | None:
    """The constraint of jax that a call of flax made for one of its arrays."""
    for inner, value in one.inner:
        # By identity: `==` of arrays compares their elements.
        taken = set(map(id, jax.tree.leaves(inner.arguments[0])))
        returned = set(map(id, jax.tree.leaves(value)))
        if id(leaf) in taken and id(result) in returned:
            return inner
    return None


def _inner_spec(inner: _Call | None) -> Spec | None:
    """The spec that a call of flax gave to jax; None where it made no call of jax."""
    if inner is None:
        return None
    return _sharding_spec(inner.arguments[1])


def _effect(x: Any, result: Any) -> str:
    if result is _RAISED:
        return ERROR
    if result is x:
        return IDENTITY
    return CONSTRAINED


def _plain(one: _Call, value: Any) -> list[Constraint]:
    """The arrays of `jax.lax.with_sharding_constraint` or `jax.sharding.reshard`."""
    x, shardings = one.arguments[:2]
    leaves = jax.tree.leaves(x)
    results = _results(value, len(leaves))
    context = mesh_context()
    made = []
    for leaf, result, own in zip(leaves, results, _spread(shardings, x), strict=False):
        mesh, mesh_from = _seen(None, context, one.name)
        if isinstance(own, NamedSharding):
            mesh, mesh_from = _adopted(own.mesh), "sharding"
        call = Constraint(
            one.name,
            one.source,
            _shape(leaf),
            mesh=mesh,
            mesh_from=mesh_from,
            effect=_effect(leaf, result),
            spec=_sharding_spec(own),
        )
        if one.boxed:
            names = _spec_entries(getattr(own, "spec", own))
            call = replace(call, call=UNBOX, names=names)
        made.append(call)
    if value is _RAISED:
        return made[-1:]
    return made


def _spread(shardings: Any, x: Any) -> list[Any]:
    """One sharding per array of a tree, from a prefix of that tree."""
    is_leaf = lambda v: v is None or isinstance(v, PartitionSpec)  # noqa: E731
    own, tree = jax.tree.flatten(shardings, is_leaf=is_leaf)
    try:
        parts = tree.flatten_up_to(x)
    except ValueError:  # the call raises it, too
        return [None] * len(jax.tree.leaves(x))
    spread = []
    for sharding, part in zip(own, parts, strict=True):
        spread += [sharding] * len(jax.tree.leaves(part))
    return spread


def _sharding_spec(sharding: Any) -> Spec | None:
    """The spec of a PartitionSpec, a NamedSharding or a Format of one; of another kind
    None.
    """
    sharding = getattr(sharding, "sharding", sharding)
    if sharding is None:
        return Spec()
    spec = getattr(sharding, "spec", sharding)
    if not isinstance(spec, PartitionSpec):
        return None
    try:
        return adopt_spec(spec)
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
