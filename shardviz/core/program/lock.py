"""Lock: how arrays are split and what a program communicates, in a file to commit.

A lock says which spec every array has, and which collectives there are: kind, mesh
axes, bytes, and how many. Arrays and collectives that differ in the number of their
layer only are one line. It holds no path, no line number, and nothing that depends on
an order of Python. Where a collective comes from is written beside it for people and is
not compared: code may be moved and renamed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.display import explanation
from shardviz.core.errors import ProgramError
from shardviz.core.format import fold, plural, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.trees.audit import Audit
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_folds import path_in_words
from shardviz.core.program.plan_values import bytes_per_device
from shardviz.core.program.report import Collective, Report

VERSION = 2
UNKNOWN_SPEC = "unknown"
_MOST_LISTED = 64  # devices; of more a digest says their order


class LockedArray(NamedTuple):
    """One array of a lock.

    Attributes:
        dtype: its element type; `""` where the record does not say.
        shape: its global shape.
        spec: its PartitionSpec as text, without trailing dimensions that are not split.
        memory: the kind of memory that holds it, such as `pinned_host`; `""` for that
            of the device, None where it is not known.
        donated: whether its memory is given to the results; None where that is not
            known.

    >>> LockedArray("float32", (8, 4), "P('data')", "pinned_host", True).text
    "float32[8, 4] P('data') in pinned_host, donated"
    """

    dtype: str
    shape: tuple[int, ...]
    spec: str
    memory: str | None = None
    donated: bool | None = None

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}] {self.placed}"

    @property
    def placed(self) -> str:
        """Spec, memory and donation in one line."""
        memory = f" in {self.memory}" if self.memory else ""
        donated = ", donated" if self.donated else ""
        return f"{self.spec}{memory}{donated}"

    def has_type_of(self, other: LockedArray) -> bool:
        """Whether another one has the same type and shape, as far as both are known."""
        types = self.dtype == other.dtype or not (self.dtype and other.dtype)
        return types and self.shape == other.shape

    def as_known_of(self, other: LockedArray) -> LockedArray:
        """The same without what is not known of another one."""
        memory = None if other.memory is None else self.memory
        donated = None if other.donated is None else self.donated
        return self._replace(memory=memory, donated=donated)


class LockedCollective(NamedTuple):
    """Collectives of a lock that are alike.

    Attributes:
        kind: such as `all-gather`.
        over: the mesh axes it runs over.
        bytes: bytes of its result on each device, of one of them, once.
        executions: how often loops run each of them; None where that is not known.
        count: how many there are.
        where: its operation and the user's function, for people; not compared.

    >>> LockedCollective("all-gather", ("data",), 1024, 3, 2, "mlp").bytes_in_all
    6144
    """

    kind: str
    over: tuple[str, ...]
    bytes: int
    executions: int | None
    count: int
    where: str

    @property
    def identity(self) -> tuple[str, tuple[str, ...], int, int | None]:
        """What is compared: kind, mesh axes, bytes and executions."""
        return self.kind, self.over, self.bytes, self.executions

    @property
    def bytes_in_all(self) -> int:
        """The bytes of all of them over all executions; once where that is unknown."""
        often = 1 if self.executions is None else self.executions
        return self.bytes * self.count * often


@dataclass(frozen=True, repr=False)
class Lock:
    """What is locked of a program, a plan or an audit; made by `shardviz.lock`.

    Attributes:
        name: the name of the program, or of the file.
        mesh: the mesh as text.
        arrays: every array by name: of a program its arguments and results.
        collectives: what XLA's partitioner put in; None where that is not locked.
        bytes_per_device: what the arrays take on each device; None where it is not
            known.
        device_order: which device is at each position of the mesh, as text; `""` where
            they are in the order of their numbers, None where it is not known.
        made_with: the versions and target it was made with; not compared.
        foreign: whether it is another library's record, which names paths in its own
            way.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> found = audit([("w", (8, 4), "embed mlp")], [("mlp", "model")], "model=2")
    >>> lock_audit(found).arrays["w"].spec
    "P(None, 'model')"
    """

    name: str
    mesh: str
    arrays: Mapping[str, LockedArray]
    collectives: tuple[LockedCollective, ...] | None = None
    bytes_per_device: int | None = None
    made_with: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False
    device_order: str | None = None

    @cached_property
    def text(self) -> str:
        """The lock as JSON: sorted, one line for each array and collective."""
        head = {"shardviz_lock": VERSION, "name": self.name, "mesh": self.mesh}
        if self.device_order:
            head["device_order"] = self.device_order
        head["made_with"] = dict(sorted(self.made_with.items()))
        head["bytes_per_device"] = self.bytes_per_device
        entries = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
        arrays = {escaped(name): array.text for name, array in self.arrays.items()}
        lines = []
        for name, text in sorted(folded_layers(arrays)):
            lines.append(f"{json.dumps(name)}: {json.dumps(text)}")
        entries.append('"arrays": ' + _block("{", lines, "}"))
        if self.collectives is not None:
            lines = [json.dumps(c._asdict()) for c in self.collectives]
            entries.append('"collectives": ' + _block("[", lines, "]"))
        return "{\n  " + ",\n  ".join(entries) + "\n}\n"

    def write(self, path: Any) -> None:
        """Writes the lock to a file, and its folder where there is none.

        Raises:
            ProgramError: where it cannot be written.
        """
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(self.text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ProgramError(
                f"Cannot write a lock to {shown(path)}: {error.strerror}."
            ) from None

    def diff(self, new: Lock) -> LockDiff:
        """What differs between what is locked and what is so now.

        Raises:
            ProgramError: where `new` is no lock, or lacks the collectives that this one
                has.
        """
        if not isinstance(new, Lock):
            raise ProgramError(
                f"A lock is compared with a lock, from sv.lock; got {shown(new)}."
            )
        if self.collectives is not None and new.collectives is None:
            raise ProgramError(
                f"The lock of {self.name} has collectives, and {new.name} was locked"
                " without them: lock the program itself, or write the lock from a plan"
                " or an audit."
            )
        return lock_difference(self, new)

    def __repr__(self) -> str:
        kinds = [plural(len(self.arrays), "array")]
        if self.collectives is not None:
            kinds.append(plural(sum(c.count for c in self.collectives), "collective"))
        return f"Lock({self.name} on {self.mesh}: {', '.join(kinds)})"

    def _text_(self) -> str:
        return self.text


def _block(opening: str, lines: list[str], closing: str) -> str:
    if not lines:
        return opening + closing
    return f"{opening}\n    " + ",\n    ".join(lines) + f"\n  {closing}"


def escaped(name: str) -> str:
    """A name whose own braces are doubled, since single ones hold numbers of layers.

    >>> escaped("layers{3}")
    'layers{{3}}'
    """
    return name.replace("{", "{{").replace("}", "}}")


# From a program, a plan or an audit.


def lock_audit(audit: Audit) -> Lock:
    """The lock of the arrays of an audit.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> lock_audit(audit([("w", (8, 4), "embed mlp")], [("mlp", "model")], "model=2"))
    Lock(audit on model=2: 1 array)
    """
    rows = []
    for row in audit.rows:
        memory = _memory(row.array.memory_kind)
        array = LockedArray(row.dtype, row.shape, _spec_text(row.spec), memory)
        rows.append((row.path, array))
    return Lock(
        "audit",
        _mesh_text(audit.mesh),
        unique_arrays(rows),
        None,
        audit.bytes_per_device,
        device_order=device_order(audit.mesh),
    )


def lock_plan(plan: Plan, report: Report | None = None) -> Lock:
    """The lock of a plan's arguments and results, and of a report's collectives.

    The specs are Shardy's, which XLA itself runs; its estimate of collectives is not
    locked, since XLA's partitioner may choose otherwise.

    Raises:
        ProgramError: where there is no plan, or the program was not compiled.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> lock_plan(plan)
    Lock(f on data=2: 1 array)
    """
    for made in (plan, report):
        if made is not None and made.error is not None:
            raise ProgramError(
                f"There is nothing to lock of {plan.program}. {made.error}"
            )
    ends = [op for op in plan.ops if op.kind != "op"]
    rows = []
    for op in ends:
        spec, memory = _spec_text(op.spec), _memory(op.memory_kind)
        rows.append(
            (op.name, LockedArray(op.dtype, op.shape, spec, memory, op.donated))
        )
    lock = Lock(
        plan.program,
        _mesh_text(plan.mesh),
        unique_arrays(rows),
        None,
        sum(bytes_per_device(op, plan.mesh) for op in ends),
        _versions(),
        device_order=device_order(plan.mesh),
    )
    if report is None:
        return lock
    refuse_unknown_partitioning(report)
    functions = {op.source: op.calls[-1] for op in plan.ops if op.calls and op.source}
    collectives = tuple(_lock_collectives(report.partitioned or (), functions))
    made_with = {**_versions(), "target": report.target}
    return replace(lock, collectives=collectives, made_with=made_with)


def refuse_unknown_partitioning(report: Report) -> None:
    """Refuses a report without the partitioner's stage.

    The collectives of the final program stand for no others: passes after the
    partitioner combine, move and remove them.

    Raises:
        ProgramError: with why they are not known, as the notes of the report say.
    """
    if report.partitioned is None:
        why = " ".join(map(str, report.notes))
        raise ProgramError(
            f"Which collectives XLA's partitioner put into {report.program} is unknown,"
            f" so they can be neither locked nor checked. {why}".rstrip()
        )


def _versions() -> dict[str, str]:
    try:
        return {"jax": metadata.version("jax")}
    except metadata.PackageNotFoundError:
        return {}


def _mesh_text(mesh: MeshSpec) -> str:
    if set(mesh.axis_types) <= {"Auto"}:
        return str(mesh)
    return f"{mesh} ({', '.join(mesh.axis_types)})"


def _memory(kind: str | None) -> str:
    return "" if kind in (None, "device") else kind


def device_order(mesh: MeshSpec) -> str:
    """Which device is at each position of a mesh; `""` where they are in order.

    Devices are counted from 0, since their numbers differ from machine to machine.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> device_order(make_mesh("data=4", device_ids=[10, 12, 11, 13]))
    '0, 2, 1, 3'
    """
    ranks = np.argsort(np.argsort(mesh.device_ids.reshape(-1)))
    if (ranks == np.arange(ranks.size)).all():
        return ""
    if ranks.size <= _MOST_LISTED:
        return ", ".join(map(str, ranks))
    digest = hashlib.sha256(ranks.astype("<i8").tobytes()).hexdigest()[:16]
    return f"{', '.join(map(str, ranks[:8]))}, … ({digest})"


def _spec_text(spec: Spec | None) -> str:
    return UNKNOWN_SPEC if spec is None else str(spec.trimmed)


def unique_arrays(items: Iterable[tuple[str, LockedArray]]) -> dict[str, LockedArray]:
    """Arrays by name; one whose name is there already gets a number."""
    arrays: dict[str, LockedArray] = {}
    for name, array in items:
        free, number = name, 2
        while free in arrays:
            free, number = f"{name} ({number})", number + 1
        arrays[free] = array
    return arrays


def _lock_collectives(
    collectives: Iterable[Collective], functions: Mapping[str, str]
) -> list[LockedCollective]:
    """Collectives folded by layer, sorted."""

    def function(c: Collective) -> str:
        # A line of no function of the program's is where it is compiled from.
        name = functions.get(c.source)
        file = c.source.rpartition(":")[0]
        backward = ", backward" * (c.phase == "backward")
        return backward + (f" ({name} in {file})" if name else "")

    def alike(c: Collective) -> Hashable:
        return c.kind, c.mesh_axes, c.bytes_per_device, c.trips, function(c)

    counts: Counter[LockedCollective] = Counter()
    for one in fold(collectives, lambda c: escaped(path_in_words(c.op)), alike):
        c = one.items[0]
        where = one.name + function(c)
        locked = LockedCollective(
            c.kind, c.mesh_axes, c.bytes_per_device, c.trips, 1, where
        )
        counts[locked] += len(one.items)
    folded = [locked._replace(count=count) for locked, count in counts.items()]
    return sorted(
        folded, key=lambda c: (c.kind, c.over, c.where, c.bytes, c.executions or 0)
    )


def plain_path(path: str) -> str:
    """A path without the marks that libraries put round its parts, as paths are
    compared.

    >>> plain_path(".params/['params']/['decoder']/['layers']"), plain_path("params.decoder[0].w")
    ('params/params/decoder/layers', 'params/decoder/0/w')
    """
    return "/".join(part for part in re.split(r"[^\w\-]+", path) if part)


# Comparing.


class ChangedArray(NamedTuple):
    """An array as it is locked and as it is now, each as far as both are known.

    >>> array = LockedArray("float32", (8,), "P('data')")
    >>> ChangedArray(array, array).after.shape
    (8,)
    """

    before: LockedArray
    after: LockedArray


@dataclass(frozen=True, repr=False)
class LockDiff:
    """What differs between a lock and what is so now; made by `Lock.diff`.

    Attributes:
        before, after: the lock, and what is so now.
        changed: the arrays that changed, by name.
        added, removed: the arrays that one of them lacks, by name.
        gained, lost: the collectives that one of them lacks.

    >>> old = Lock("f", "data=2", {"x": LockedArray("float32", (8,), "P('data')")})
    >>> new = Lock("f", "data=2", {"x": LockedArray("float32", (8,), "P()")})
    >>> print(old.diff(new))
    1 array changed.
    x: P('data') -> P()
    >>> old.diff(old).same
    True
    """

    before: Lock
    after: Lock
    changed: Mapping[str, ChangedArray]
    added: Mapping[str, LockedArray]
    removed: Mapping[str, LockedArray]
    gained: tuple[LockedCollective, ...] = ()
    lost: tuple[LockedCollective, ...] = ()

    @property
    def same(self) -> bool:
        """Whether everything is as it was locked."""
        moved = self.remeshed or self.reordered
        return not (moved or self.respecified or self.communicates)

    @property
    def remeshed(self) -> bool:
        """Whether the mesh differs; a record of activations names none."""
        old, new = self.before.mesh, self.after.mesh
        return bool(old and new) and old != new

    @property
    def reordered(self) -> bool:
        """Whether the devices are in another order."""
        old, new = self.before.device_order, self.after.device_order
        return old is not None and new is not None and old != new

    @property
    def respecified(self) -> bool:
        """Whether any array differs."""
        return bool(self.changed or self.added or self.removed)

    @property
    def communicates(self) -> bool:
        """Whether any collective differs."""
        return bool(self.gained or self.lost)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many arrays and collectives differ, by what became of them."""
        arrays = {
            "changed": len(self.changed),
            "new": len(self.added),
            "gone": len(self.removed),
        }
        collectives = {
            "gained": sum(c.count for c in self.gained),
            "lost": sum(c.count for c in self.lost),
        }
        return {"array": arrays, "collective": collectives}

    @property
    def remade(self) -> dict[str, tuple[str, str]]:
        """What they were made with, where that differs: `jax` or `target`."""
        remade: dict[str, tuple[str, str]] = {}
        for what in ("jax", "target"):
            old = self.before.made_with.get(what, "")
            new = self.after.made_with.get(what, "")
            if old and new and old != new:
                remade[what] = old, new
        return remade

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The difference, one sentence a line."""
        return tuple(explanation(self).splitlines())

    def __str__(self) -> str:
        return explanation(self)

    def __repr__(self) -> str:
        return f"LockDiff({self.after.name}: {self.lines[0].rstrip('.')})"

    def _text_(self) -> str:
        return str(self)


def folded_layers(some: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names and values, those of all layers as one, in their order."""
    folds = fold(some.items(), itemgetter(0), itemgetter(1))
    return [(one.name, one.items[0][1]) for one in folds]


def lock_difference(before: Lock, after: Lock) -> LockDiff:
    """What differs between a lock and what is so now.

    >>> lock = Lock("f", "data=2", {})
    >>> lock_difference(lock, lock).same
    True
    """
    old, new = before.arrays, after.arrays
    if before.foreign or after.foreign:
        old, new = _by_plain_path(old, new), _by_plain_path(new, old)
    changed: dict[str, ChangedArray] = {}
    for name, array in old.items():
        if name not in new:
            continue
        pair = ChangedArray(array.as_known_of(new[name]), new[name].as_known_of(array))
        is_typed_alike = pair.before.has_type_of(pair.after)
        if not is_typed_alike or pair.before.placed != pair.after.placed:
            changed[name] = pair
    added = {name: array for name, array in new.items() if name not in old}
    removed = {name: array for name, array in old.items() if name not in new}
    gained: tuple[LockedCollective, ...] = ()
    lost: tuple[LockedCollective, ...] = ()
    if before.collectives is not None and after.collectives is not None:
        gained = _more(after.collectives, before.collectives)
        lost = _more(before.collectives, after.collectives)
    return LockDiff(before, after, changed, added, removed, gained, lost)


def _by_plain_path(
    some: Mapping[str, LockedArray], others: Mapping[str, LockedArray]
) -> dict[str, LockedArray]:
    """Arrays by plain path; one whose start is cut off by that of `others` it ends."""
    known, by_path = [plain_path(name) for name in others], {}
    for name, array in some.items():
        path = plain_path(name)
        if name.startswith("…"):
            ending = f"/{path.partition('/')[2]}"
            ends = [other for other in known if other.endswith(ending)]
            if len(ends) == 1:
                path = ends[0]
        by_path[path] = array
    return by_path


def _more(
    some: Iterable[LockedCollective], others: Iterable[LockedCollective]
) -> tuple[LockedCollective, ...]:
    """The collectives of which `some` has more than `others`, with how many more."""
    there: Counter[Any] = Counter()
    known: set[Any] = set()
    for c in others:
        there[c.identity] += c.count
        known.add((c.identity, c.where))
    more = []
    # Those that the other side has in the same place are matched first: the rest is
    # what is new.
    for c in sorted(some, key=lambda c: (c.identity, c.where) not in known):
        matched = min(c.count, there[c.identity])
        there[c.identity] -= matched
        if c.count > matched:
            more.append(c._replace(count=c.count - matched))
    return tuple(more)
