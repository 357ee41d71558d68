"""Records the calls in a program that may constrain an array, while jax traces it.

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
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.axis_rules.dialects import Dialect, NameDialect
from shardviz.axis_rules.libraries import spec_of
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rules
from shardviz.base.backend.jax_compat import (
    CONSTRAINT_FUNCTIONS,
    OWN_CALLERS,
    TRACE_BEGINS,
    function_of,
    traced_line,
    wants_shapes_alone,
)
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.programs.backend.bridge import adopt_mesh
from shardviz.programs.backend.jaxprs import operations, plain_jaxpr, users_line
from shardviz.programs.backend.mesh_context import logical_rules, mesh_context
from shardviz.programs.backend.watching import CallListener, watched
from shardviz.programs.constraints import (
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
from shardviz.programs.notes import FunctionReplaced, TracedBefore

# What is called, by the module that defines it and its name. flax's are looked for
# where flax is imported already.
_WATCHED = (
    *CONSTRAINT_FUNCTIONS,
    ("flax.linen.spmd", LOGICAL),
    ("flax.core.spmd", "shard_value"),
)
_RAISED = object()  # in place of what a function returned, where an exception left it
# What traced functions did when a plan traced them last, by file and line. jax may keep
# what it made of them as long as the process lives.
_kept: dict[str, tuple[Constraint, ...]] = {}


@dataclass(eq=False)
class _Call:
    """A call that has begun: what it was called with, and what was in force then."""

    frame: FrameType
    name: str
    arguments: Sequence[Any]
    source: str
    boxed: bool
    rules: Any
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
        self._bottom: FrameType | None = None
        # The functions that jax traced, by line, and whether it did so for more than
        # the shapes of their results.
        self._traced: dict[str, bool] = {}
        # The calls that each function made, by its line, those for shapes alone too.
        self._made: dict[str, list[Constraint]] = {}

    def begin(self) -> None:
        """Forgets what an earlier attempt to trace the program had found."""
        self.__init__()
        self._bottom = sys._getframe(1)

    def end(self) -> None:
        """Nothing is watched any more: what has not returned, an exception has left."""
        self._leave_until(None)
        self._bottom = None

    def watched(self) -> dict[str, CodeType]:
        """The functions that are there now, by what they are called."""
        codes = {}
        for module, name in _present():
            fn = function_of(module, name)
            if fn is None:
                self.unseen(str(FunctionReplaced(f"{module}.{name}")))
            else:
                codes[name] = fn.__code__
        return codes

    def unseen(self, words: str) -> None:
        """The calls cannot be seen, for this reason."""
        self.unknown = self.unknown or words
        self._open.clear()

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """One of the watched functions begins."""
        if name == TRACE_BEGINS:
            line = traced_line(arguments[1])
            # jax's own functions make no call that is hidden later.
            if not self._traced.get(line):
                self._traced[line] = not _written(line) or not self._around(frame)[1]
            return
        self._leave_until(frame)
        caller, module, caller_name = frame.f_back, "", ""
        if caller is not None:
            module = str(caller.f_globals.get("__name__", ""))
            caller_name = caller.f_code.co_name
        if not self._open and module in OWN_CALLERS:
            return
        self.raised = None
        boxed = caller_name == "unbox" and "flax" in module
        source, rules = _users_line(frame), logical_rules()
        self._open.append(_Call(frame, name, arguments, source, boxed, rules))

    def returned(self, frame: FrameType, value: Any) -> None:
        """One of the watched functions returns."""
        if any(one.frame is frame for one in self._open):
            while self._open[-1].frame is not frame:
                self._close(_RAISED)
            self._close(value)

    def _leave_until(self, frame: FrameType | None) -> None:
        """Drops the calls that are not around this frame: an exception has left them."""
        while self._open:
            around = None if frame is None else frame.f_back
            while around is not None and around is not self._open[-1].frame:
                around = around.f_back
            if around is not None:
                return
            self._close(_RAISED)

    def _close(self, value: Any) -> None:
        """Ends the innermost call, which returned a value or was left."""
        one = self._open.pop()
        if self._open:
            self._open[-1].inner.append((one, value))
            return
        calls = _described(one, value)
        lines, for_shapes = self._around(one.frame)
        for line in lines:
            self._made.setdefault(line, []).extend(calls)
        if value is _RAISED and calls:
            self.raised = calls[-1]
        if value is _RAISED or not for_shapes:
            self.found += calls

    def _around(self, frame: FrameType) -> tuple[set[str], bool]:
        """The lines of the functions around a call; whether it is for shapes alone."""
        lines, for_shapes = set(), False
        inside, around = frame, frame.f_back
        while around is not None and around is not self._bottom:
            code = around.f_code
            lines.add(f"{code.co_filename}:{code.co_firstlineno}")
            for_shapes |= wants_shapes_alone(inside, around)
            inside, around = around, around.f_back
        return lines, for_shapes

    def add_kept(self, jaxpr: Any) -> None:
        """Adds the calls of nested functions that jax kept, and remembers all.

        Args:
            jaxpr: the program.
        """
        added = set(map(id, self.found))
        seen = set()  # by id: a nested function may be called in several places
        for operation in operations(jaxpr):
            for inner in map(plain_jaxpr, operation.inner):
                line = traced_line(getattr(inner, "debug_info", None))
                made_here = self._traced.get(line) and line in self._made
                if id(inner) in seen or made_here:
                    continue
                seen.add(id(inner))
                for call in self._calls_of(line, inner):
                    if id(call) not in added:
                        added.add(id(call))
                        self.found.append(call)
        for line in self._traced:
            if line in self._made:
                _kept[line] = tuple(self._made[line])
            elif _written(line):
                _kept.setdefault(line, ())

    def _calls_of(self, line: str, jaxpr: Any) -> list[Constraint]:
        """The calls that a function made when jax traced it, before."""
        constrained = set()
        for operation in operations(jaxpr):
            if operation.name in ("sharding_constraint", "reshard"):
                constrained.add(users_line(operation.equation))
        calls = self._made.get(line)
        if calls is None:
            calls = _kept.get(line)
        if self._traced.get(line):
            # Called again without a call, or jax made its gradient of what it kept.
            unknown = any(not call.acts for call in calls or ())
            calls = [call for call in calls or () if call.acts]
        else:
            # A call that does nothing is not in the jaxpr; only flax has such calls.
            silent = _written(line) and "flax.linen.spmd" in sys.modules
            missing = constrained.difference(call.source for call in calls or ())
            unknown = bool(missing) or (calls is None and silent)
        if unknown:
            file, _, number = line.rpartition(":")
            at = line_in_words(file, int(number)) if number.isdigit() else ""
            self.unseen(str(TracedBefore(at)))
        # Of a gradient, say, a part of the function alone.
        return [c for c in calls or () if not c.acts or c.source in constrained]


def _written(line: str) -> bool:
    """Whether a function is the user's or flax's, by its file and line."""
    file = line.rpartition(":")[0]
    return is_user_file(file) or "/flax/" in file


def _present() -> list[tuple[str, str]]:
    """Those functions of libraries that are imported now, by module and name."""
    return [(m, name) for m, name in _WATCHED if hasattr(sys.modules.get(m), name)]


def _users_line(frame: FrameType) -> str:
    around = frame.f_back
    while around is not None:
        if is_user_file(around.f_code.co_filename):
            return line_in_words(around.f_code.co_filename, around.f_lineno)
        around = around.f_back
    return ""


# What a call was, and what became of it.


def _described(one: _Call, value: Any) -> list[Constraint]:
    if one.name == LOGICAL:
        return _logical(one, value)
    if one.name == "shard_value":
        return _variable(one, value)
    return _plain(one, value)


def _logical(one: _Call, value: Any) -> list[Constraint]:
    """The arrays of flax's `with_logical_constraint`, in the order of its own checks."""
    x, names, rules, mesh, fallback = one.arguments
    rules = one.rules if rules is None else rules
    basis = Constraint(
        UNBOX if one.boxed else LOGICAL,
        one.source,
        fallback=getattr(fallback, "name", str(fallback)),
        **_in_force(rules, mesh),
    )
    made = []
    for leaf, own, result in _paired(x, names, value, _is_names):
        call = replace(basis, shape=_shape(leaf), names=_entries(own))
        call = _resolved(call, Dialect.LINEN)
        inner = _inner_call(one, leaf, result)
        effect = _effect(leaf, result)
        spec = None
        if inner is not None:
            spec = _sharding_spec(inner.arguments[1])
        elif effect == IDENTITY:
            effect = _why_not(call, bool(rules))
        made.append(replace(call, effect=effect, spec=spec))
    if value is _RAISED:
        # Of several arrays, the one that the error is about.
        unmatched = [call for call in made if call.problem or undecided(call)]
        return (unmatched or [c for c in made if c.spec is not None] or made)[:1]
    return made


def _why_not(call: Constraint, has_rules: bool) -> str:
    """Why flax did not constrain an array."""
    if not has_rules:
        return NO_RULES
    if call.names is None:
        return IDENTITY
    if call.fallback == "NO_CONSTRAINT" and undecided(call):
        return FALLBACK
    return NO_MESH if call.mesh is None else IDENTITY


def _variable(one: _Call, value: Any) -> list[Constraint]:
    """The array of an nnx Variable with an `out_sharding`."""
    x, sharding, own, mesh = one.arguments
    spec = getattr(getattr(sharding, "sharding", sharding), "spec", sharding)
    # nnx appends the variable's own rules to those of the context.
    rules = (*(one.rules or ()), *(own or ()))
    known = _in_force(rules, mesh or getattr(sharding, "mesh", None))
    call = Constraint(VARIABLE, one.source, _shape(x), _entries(spec), **known)
    call = _resolved(call, Dialect.NNX)
    inner = _inner_call(one, x, value)
    constrained = None
    if inner is not None:
        constrained = _sharding_spec(inner.arguments[1])
    return [replace(call, effect=_effect(x, value), spec=constrained)]


def _plain(one: _Call, value: Any) -> list[Constraint]:
    """The arrays of `jax.lax.with_sharding_constraint` or `jax.sharding.reshard`."""
    x, shardings = one.arguments[:2]
    context = mesh_context()
    is_leaf = lambda v: v is None or isinstance(v, PartitionSpec)  # noqa: E731
    made = []
    for leaf, own, result in _paired(x, shardings, value, is_leaf):
        mesh = context.sees(one.name)
        if isinstance(own, NamedSharding):
            mesh = _adopted(own.mesh)
        call = Constraint(
            one.name,
            one.source,
            _shape(leaf),
            mesh=mesh,
            effect=_effect(leaf, result),
            spec=_sharding_spec(own),
        )
        if one.boxed:
            names = _entries(getattr(own, "spec", own))
            call = replace(call, call=UNBOX, names=names)
        made.append(call)
    return made[-1:] if value is _RAISED else made


def _in_force(rules: Any, mesh: Any) -> dict[str, Any]:
    """The rules and the mesh of a call of flax, as a Constraint has them."""
    table, problem = None, ""
    try:
        table = Rules.of(rules) if rules else None
    except ShardvizError as error:
        problem = str(error)
    seen = _adopted(mesh)
    if mesh is None:
        seen = mesh_context().sees("flax with_logical_constraint")
    return {"rules": table, "problem": problem, "mesh": seen}


def _adopted(mesh: Any) -> MeshSpec | None:
    if not isinstance(mesh, (Mesh, AbstractMesh)) or mesh.empty:
        return None
    return adopt_mesh(mesh)


def _shape(x: Any) -> tuple[int, ...] | None:
    if isinstance(x, (bool, int, float, complex)):
        return ()
    shape = getattr(x, "shape", None)
    return None if shape is None else tuple(shape)


def _resolved(call: Constraint, dialect: NameDialect) -> Constraint:
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
    if not isinstance(value, (tuple, PartitionSpec)):
        return value is None
    free = PartitionSpec.UNCONSTRAINED
    return all(v is None or isinstance(v, str) or v is free for v in value)


def _entries(names: Any) -> tuple[object, ...] | None:
    if isinstance(names, (PartitionSpec, tuple, list)):
        return tuple(names)
    return None


def _paired(
    x: Any, prefix: Any, value: Any, is_leaf: Callable[[Any], bool]
) -> list[tuple[Any, Any, Any]]:
    """Every array of a call with what it was given, and what came back."""
    own, tree = jax.tree.flatten(prefix, is_leaf=is_leaf)
    try:
        parts = tree.flatten_up_to(x)
    except ValueError:  # the call raises it, too
        parts, own = [x], [None]
    leaves = []
    for part, entry in zip(parts, own, strict=True):
        leaves += [(leaf, entry) for leaf in jax.tree.leaves(part)]
    results = [_RAISED] * len(leaves)
    if value is not _RAISED:
        results = jax.tree.leaves(value)
    return [(*leaf, result) for leaf, result in zip(leaves, results, strict=False)]


def _inner_call(one: _Call, leaf: Any, result: Any) -> _Call | None:
    """The constraint of jax that a call of flax made for one of its arrays."""
    for inner, value in one.inner:
        # By identity: `==` of arrays compares their elements.
        taken = set(map(id, jax.tree.leaves(inner.arguments[0])))
        returned = set(map(id, jax.tree.leaves(value)))
        if id(leaf) in taken and id(result) in returned:
            return inner
    return None


def _effect(x: Any, result: Any) -> str:
    if result is _RAISED:
        return ERROR
    return IDENTITY if result is x else CONSTRAINED


def _sharding_spec(sharding: Any) -> Spec | None:
    """The spec of a PartitionSpec, a NamedSharding or a Format; of all else None."""
    sharding = getattr(sharding, "sharding", sharding)
    if sharding is None:
        return Spec()
    spec = getattr(sharding, "spec", sharding)
    if not isinstance(spec, PartitionSpec):
        return None
    try:
        return spec_of(spec)
    except ShardvizError:
        return None


_active: ContextVar[ConstraintCalls | None] = ContextVar(
    "constraint_calls", default=None
)


@contextlib.contextmanager
def recorded_calls() -> Iterator[ConstraintCalls]:
    """Within, what is traced by `traced_with_calls` has its constraint calls recorded.

    >>> with recorded_calls() as calls:
    ...     jaxpr = traced_with_calls(lambda: jax.make_jaxpr(abs)(1.0), lambda j: j)
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
    """What `trace` returns; its constraint calls are recorded where somebody wants it.

    Args:
        trace: traces a program; called again where it imports flax, whose functions
            were not watched before that.
        jaxpr_of: gives the jaxpr of what `trace` returned.
        others: what else is to hear of calls meanwhile.
    """
    calls = _active.get()
    if calls is None:
        return watched(trace, others)
    while True:
        present = _present()
        calls.begin()
        try:
            traced = watched(trace, (calls, *others))
        finally:
            calls.end()
        if _present() == present:
            break
    calls.add_kept(jaxpr_of(traced))
    return traced
