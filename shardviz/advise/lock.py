"""Lock: a file to commit that records a program's shardings and collectives.

A lock records the spec of every array, and the kind, mesh axes, bytes and count of
every collective. Arrays and collectives that differ only in their layer number share a
line. A lock contains no absolute paths or line numbers, and nothing that depends on
Python's iteration order. The origin of a collective is recorded for readers but not
compared, because code can be moved and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardviz.axis_rules.audit import Audit
from shardviz.base.collective import Collective
from shardviz.base.collective_matching import Traffic, traffic_of
from shardviz.base.display import explanation
from shardviz.base.errors import ProgramError
from shardviz.base.files import write_text
from shardviz.base.format import fold, plural, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.pairing import pair, pair_names
from shardviz.base.parse import read_text_file
from shardviz.base.partition_spec import Spec
from shardviz.base.plain import Plain
from shardviz.compiled.report import Report
from shardviz.plans.plan import Plan
from shardviz.plans.plan_folds import path_in_words
from shardviz.plans.plan_values import bytes_per_device

VERSION = 2
# The order of more devices than this is stored as a digest.
_MOST_LISTED = 64
# The most bytes of a lock file.
_MOST_BYTES = 1 << 24
# The most characters of all names together, with ranges expanded.
_MOST_LETTERS = 1 << 24
# Bytes and counts of a collective must be less than this.
_MOST = 1 << 63
_BRACES = re.compile(r"\{\{|\}\}|\{([\d.,]+)\}")


class LockedCollective(NamedTuple):
    """A group of equal collectives in a lock.

    Attributes:
        kind: the kind of collective, such as `all-gather`.
        over: the mesh axes that the collectives run over.
        bytes: the result's bytes per device, for one execution of one collective.
        executions: how often loops run each collective; None if unknown.
        count: the number of collectives.
        where: the operation and the user's function that contains it; not compared.

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
    def traffic(self) -> Traffic:
        """The compared fields: kind, mesh axes, bytes and executions."""
        return Traffic(self.kind, self.over, self.bytes, self.executions)

    @property
    def bytes_in_all(self) -> int:
        """The total bytes of all executions; one execution if `executions` is None."""
        once = self.bytes * self.count
        return once if self.executions is None else once * self.executions


@dataclass(frozen=True, repr=False)
class Lock(Plain):
    """The recorded facts of a program, plan or audit; created by `shardviz.lock`.

    Attributes:
        name: the program's name.
        mesh: the mesh as text.
        arrays: array name -> dtype, shape, spec, memory kind and donation, as text. A
            program's arrays are its arguments and results.
        collectives: the collectives that XLA's partitioner inserted; None if they are
            not recorded.
        bytes_per_device: the total bytes of the arrays on each device.
        made_with: the jax version and the target; not compared.
        device_order: the device at each position of the mesh, as text; `""` if the
            devices are in the order of their ids.

    >>> import shardviz as sv
    >>> from shardviz.advise.lock import lock_audit
    >>> model = sv.audit([("w", (8, 4), "embed mlp")], [("mlp", "model")], "model=2")
    >>> lock_audit(model).arrays["w"]
    "float32[8, 4] P(None, 'model')"
    """

    name: str
    mesh: str
    arrays: Mapping[str, str]
    collectives: tuple[LockedCollective, ...] | None = None
    bytes_per_device: int | None = None
    made_with: Mapping[str, str] = field(default_factory=dict)
    device_order: str = ""

    @cached_property
    def text(self) -> str:
        """The lock as sorted JSON, with one line per array and collective."""
        # Written by hand, because json.dumps writes a single line or one line per number.
        head = {"shardviz_lock": VERSION, "name": self.name, "mesh": self.mesh}
        if self.device_order:
            head["device_order"] = self.device_order
        head["made_with"] = dict(sorted(self.made_with.items()))
        head["bytes_per_device"] = self.bytes_per_device
        entries = [_pair(key, value) for key, value in head.items()]
        arrays = {_escaped(name): text for name, text in self.arrays.items()}
        lines = [_pair(name, text) for name, text in sorted(folded_layers(arrays))]
        entries.append('"arrays": ' + _block("{", lines, "}"))
        if self.collectives is not None:
            lines = [json.dumps(c._asdict()) for c in self.collectives]
            entries.append('"collectives": ' + _block("[", lines, "]"))
        return "{\n  " + ",\n  ".join(entries) + "\n}\n"

    def write(self, path: Any) -> None:
        """Writes the lock to a file, and creates its folder if it doesn't exist.

        Raises:
            ProgramError: if the file cannot be written. An existing file then stays
                unchanged.
        """
        write_text(path, self.text, "a lock")

    def update(self, path: Any) -> bool:
        """Writes the lock unless the file already has it; returns whether it wrote."""
        before = None
        with contextlib.suppress(
            ProgramError
        ):  # there is no file yet, or it isn't a lock
            before = read_lock(path)
        if before is not None:
            same_content = (before.collectives is None) == (self.collectives is None)
            if same_content and before.diff(self).same:
                return False
        self.write(path)
        return True

    def diff(self, new: Lock) -> LockDiff:
        """The differences between this lock and a newer one.

        Raises:
            ProgramError: if this lock has collectives and `new` has none, or if `new`
                is not a Lock.

        >>> from shardviz.types import Lock
        >>> lock = Lock("f", "data=2", {})
        >>> lock.diff(lock).same
        True
        """
        if not isinstance(new, Lock):
            raise ProgramError(
                f"A lock is compared with another lock; got {shown(new)}. Give"
                " sv.lock(program), or sv.lock(path) for a file."
            )
        if self.collectives is not None and new.collectives is None:
            raise ProgramError(
                f"The lock of {self.name} has collectives, and {new.name} was locked"
                " without them: lock the program itself, or write the lock from a plan"
                " or an audit."
            )
        names = pair_names(self.arrays, new.arrays)
        changed: dict[str, tuple[str, str]] = {}
        for name, _ in names.paired:
            before, after = self.arrays[name], new.arrays[name]
            if before != after:
                changed[name] = before, after
        added = {name: new.arrays[name] for name in names.new}
        removed = {name: self.arrays[name] for name in names.gone}
        gained: tuple[LockedCollective, ...] = ()
        lost: tuple[LockedCollective, ...] = ()
        if self.collectives is not None and new.collectives is not None:
            gained, lost = _gained_and_lost(self.collectives, new.collectives)
        return LockDiff(self, new, changed, added, removed, gained, lost)

    def __repr__(self) -> str:
        kinds = [plural(len(self.arrays), "array")]
        if self.collectives is not None:
            kinds.append(plural(sum(c.count for c in self.collectives), "collective"))
        return f"Lock({self.name} on {self.mesh}: {', '.join(kinds)})"

    def _text_(self) -> str:
        return self.text


def _pair(key: str, value: object) -> str:
    return f"{json.dumps(key)}: {json.dumps(value)}"


def _block(opening: str, lines: list[str], closing: str) -> str:
    if not lines:
        return opening + closing
    return f"{opening}\n    " + ",\n    ".join(lines) + f"\n  {closing}"


def _escaped(name: str) -> str:
    # Single braces mark layer numbers.
    return name.replace("{", "{{").replace("}", "}}")


def folded_layers(by_name: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns (name, value) pairs in order, with equal layers folded into one pair."""
    folds = fold(by_name.items(), itemgetter(0), itemgetter(1))
    return [(layers.name, layers.items[0][1]) for layers in folds]


# --- from a program, a plan or an audit -----------------------------------------------


def lock_audit(audit: Audit) -> Lock:
    """Returns a lock of an audit's arrays.

    >>> import shardviz as sv
    >>> lock_audit(sv.audit([("w", (8, 4), "embed mlp")], [("mlp", "model")], "model=2"))
    Lock(audit on model=2: 1 array)
    """
    arrays: dict[str, str] = {}
    for row in audit.rows:
        memory = row.array.memory_kind
        text = _array_text(row.dtype, row.shape, row.spec, memory)
        _add(arrays, row.path, text)
    order = device_order(audit.mesh)
    held = audit.bytes_per_device
    return Lock("audit", _mesh_text(audit.mesh), arrays, None, held, {}, order)


def lock_plan(plan: Plan, report: Report | None = None) -> Lock:
    """Returns a lock of a plan's arguments and results, and a report's collectives.

    The specs come from Shardy, which XLA itself runs. Shardy's estimated collectives
    are not locked, because XLA's partitioner may choose others.

    Raises:
        ProgramError: if the partitioner's collectives are unknown.

    >>> import shardviz as sv
    >>> from shardviz.plans.plan_values import PlannedOp
    >>> plan = Plan("f", sv.mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> lock_plan(plan)
    Lock(f on data=2: 1 array)
    """
    arrays: dict[str, str] = {}
    held = 0
    for op in plan.ops:
        if op.kind != "op":
            text = _array_text(
                op.dtype, op.shape, op.spec, op.memory_kind, bool(op.donated)
            )
            _add(arrays, op.name, text)
            held += bytes_per_device(op, plan.mesh)
    order, made_with = device_order(plan.mesh), {}
    # A plan may have been unpickled in an environment without jax.
    with contextlib.suppress(metadata.PackageNotFoundError):
        made_with["jax"] = metadata.version("jax")
    lock = Lock(
        plan.program, _mesh_text(plan.mesh), arrays, None, held, made_with, order
    )
    if report is None:
        return lock
    functions = {op.source: op.calls[-1] for op in plan.ops if op.calls and op.source}
    locked = _lock_collectives(partitioned_of(report), functions)
    made_with = {**made_with, "target": report.target}
    return replace(lock, collectives=locked, made_with=made_with)


def partitioned_of(report: Report) -> tuple[Collective, ...]:
    """Returns the collectives that XLA's partitioner inserted into a program.

    The final program's collectives are no substitute, because XLA combines, moves and
    removes collectives after partitioning.

    Raises:
        ProgramError: if these collectives are unknown; gives the report's notes as the
            reason.
    """
    if report.partitioned is None:
        why = " ".join(map(str, report.notes))
        raise ProgramError(
            f"Which collectives XLA's partitioner put into {report.program} is unknown,"
            " so they can be neither locked nor checked. Check the compiled ones:"
            f" sv.expect(report, stage='compiled'). {why}".rstrip()
        )
    return report.partitioned


def _mesh_text(mesh: MeshSpec) -> str:
    if set(mesh.axis_types) <= {"Auto"}:
        return str(mesh)
    return f"{mesh} ({', '.join(mesh.axis_types)})"


def _array_text(
    dtype: str,
    shape: tuple[int, ...],
    spec: Spec | None,
    memory: str | None,
    donated: bool = False,
) -> str:
    """Formats an array for a lock: `float32[8] P('data') in pinned_host, donated`."""
    text = f"{dtype}[{', '.join(map(str, shape))}] "
    # Trailing unsplit dimensions do not change the layout.
    text += "unknown" if spec is None else str(spec.trimmed)
    if memory not in (None, "", "device"):
        text += f" in {memory}"
    return text + ", donated" * donated


def _add(arrays: dict[str, str], name: str, text: str) -> None:
    """Adds an array, with a number after its name if the name is already used."""
    free, number = name, 2
    while free in arrays:
        free, number = f"{name} ({number})", number + 1
    arrays[free] = text


def device_order(mesh: MeshSpec) -> str:
    """Returns the device at each mesh position as text; `""` if they are in order.

    Devices are numbered from 0, because ids differ from machine to machine.

    >>> import shardviz as sv
    >>> device_order(sv.mesh("data=4", device_ids=[10, 12, 11, 13]))
    '0, 2, 1, 3'
    """
    # Unlike the ids, their ranks do not depend on the first id.
    ranks = np.argsort(np.argsort(mesh.device_ids.reshape(-1)))
    if (ranks == np.arange(ranks.size)).all():
        return ""
    if ranks.size <= _MOST_LISTED:
        return ", ".join(map(str, ranks))
    digest = hashlib.sha256(ranks.astype("<i8").tobytes()).hexdigest()[:16]
    return f"{', '.join(map(str, ranks[:8]))}, … ({digest})"


def _lock_collectives(
    collectives: Iterable[Collective], functions: Mapping[str, str]
) -> tuple[LockedCollective, ...]:
    """Folds collectives by layer, and sorts them.

    Args:
        collectives: the collectives.
        functions: source line -> the user's function that contains it.
    """

    def function(c: Collective) -> str:
        backward = ", backward" * (c.phase == "backward")
        name, file = functions.get(c.source), c.source.rpartition(":")[0]
        # A line outside the program's functions is just the line that called compile.
        return backward if name is None else f"{backward} ({name} in {file})"

    def alike(c: Collective) -> Hashable:
        return traffic_of(c), function(c)

    counts: Counter[LockedCollective] = Counter()
    for folded_row in fold(collectives, lambda c: _escaped(path_in_words(c.op)), alike):
        c = folded_row.items[0]
        facts = traffic_of(c)
        counts[LockedCollective(*facts, 1, folded_row.name + function(c))] += len(
            folded_row.items
        )
    folded = [locked._replace(count=count) for locked, count in counts.items()]
    folded.sort(key=lambda c: (c.kind, c.over, c.where, c.bytes, c.executions or 0))
    return tuple(folded)


# --- from a file ----------------------------------------------------------------------


def read_lock(path: Any) -> Lock:
    """Reads a lock from a file.

    Raises:
        ProgramError: if the file does not exist or does not contain a lock.
    """
    try:
        text = read_text_file(Path(path), _MOST_BYTES)
    except ValueError as error:
        raise ProgramError(f"Cannot read a lock: {shown(path)} {error}.") from None
    return parse_lock(text, Path(path).name)


def parse_lock(text: str, name: str = "the lock") -> Lock:
    """Parses a lock from its JSON.

    Args:
        text: the JSON.
        name: the file's name for error messages.

    Raises:
        ProgramError: if the text is not a lock of this version.

    >>> lock = Lock("f", "data=2", {"layers_0/x": "float32[8] P('data')"})
    >>> parse_lock(lock.text).diff(lock).same
    True
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(
            f"{shown(name)} is not a lock, because it is not valid JSON: {error}."
            " sv.lock(program).write(path) writes a lock."
        ) from None
    try:
        if content["shardviz_lock"] != VERSION:
            raise ValueError
        arrays: dict[str, str] = {}
        letters = _MOST_LETTERS
        for pattern, array in content["arrays"].items():
            names = unfolded(pattern, letters)
            letters -= sum(map(len, names))
            arrays.update(dict.fromkeys(names, _read_text(array)))
        collectives = content.get("collectives")
        if collectives is not None:
            collectives = tuple(map(_read_collective, collectives))
        made_with = content["made_with"]
        return Lock(
            _read_text(content["name"]),
            _read_text(content["mesh"]),
            arrays,
            collectives,
            _read_count(content["bytes_per_device"], optional=True),
            {_read_text(key): _read_text(made_with[key]) for key in made_with},
            _read_text(content.get("device_order", "")),
        )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise ProgramError(
            f"{shown(name)} is not a lock of version {VERSION}."
            " sv.lock(program).write(path) writes one."
        ) from None


def _read_collective(entry: Any) -> LockedCollective:
    if not isinstance(entry["over"], list):
        raise TypeError("no list")
    return LockedCollective(
        _read_text(entry["kind"]),
        tuple(map(_read_text, entry["over"])),
        _read_count(entry["bytes"]),
        _read_count(entry["executions"], optional=True),
        _read_count(entry["count"]),
        _read_text(entry["where"]),
    )


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _read_count(value: Any, optional: bool = False) -> Any:
    if not (optional and value is None):
        if type(value) is not int or not 0 <= value < _MOST:  # rejects bool
            raise TypeError("no count")
    return value


def unfolded(pattern: str, limit: int = _MOST_LETTERS) -> list[str]:
    """Expands the folded name on a line of a lock.

    Args:
        pattern: the name on the line, with layer numbers in braces.
        limit: the most characters that all names together may have.

    Raises:
        ValueError: if the names exceed the limit, or the text is invalid.

    >>> unfolded("layers_{0..1,4}/w"), unfolded("a{{0}}b")
    (['layers_0/w', 'layers_1/w', 'layers_4/w'], ['a{0}b'])
    """
    parts: list[list[str]] = []
    at = 0
    letters = len(pattern)
    for match in _BRACES.finditer(pattern):
        parts.append([pattern[at : match.start()]])
        at = match.end()
        if match[1] is None:
            parts.append([match[0][0]])  # an escaped brace
            continue
        numbers: list[str] = []
        for part in match[1].split(","):
            first, dots, last = part.partition("..")
            if dots:
                begin, end = int(first), int(last) + 1
                if letters * (end - begin) > limit:
                    raise ValueError("too many names")
                numbers += map(str, range(begin, end))
            else:
                numbers.append(part)
        parts.append(numbers)
        letters *= len(numbers)
        if letters > limit:
            raise ValueError("too many names")
    return [
        "".join(name_parts) for name_parts in itertools.product(*parts, [pattern[at:]])
    ]


# --- differences ----------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LockDiff:
    """The differences between a lock and a newer one; created by `Lock.diff`.

    Attributes:
        before, after: the old lock, and the new one.
        changed: array name -> (old text, new text), for arrays that changed.
        added, removed: array name -> text, for arrays that only the new or only the old
            lock has.
        gained, lost: the collectives that only the new or only the old lock has.

    >>> old = Lock("f", "data=2", {"x": "float32[8] P('data')"})
    >>> new = Lock("f", "data=2", {"x": "float32[8] P()"})
    >>> print(old.diff(new))
    1 array changed.
    x: P('data') -> P()
    """

    before: Lock
    after: Lock
    changed: Mapping[str, tuple[str, str]]
    added: Mapping[str, str]
    removed: Mapping[str, str]
    gained: tuple[LockedCollective, ...] = ()
    lost: tuple[LockedCollective, ...] = ()

    @property
    def same(self) -> bool:
        """Whether specs and collectives are unchanged."""
        return self.same_specs and not (self.gained or self.lost)

    @property
    def same_specs(self) -> bool:
        """Whether mesh, device order and arrays are unchanged."""
        moved = self.remeshed or self.reordered
        return not (moved or self.changed or self.added or self.removed)

    @property
    def remeshed(self) -> bool:
        """Whether the mesh differs."""
        return self.before.mesh != self.after.mesh

    @property
    def reordered(self) -> bool:
        """Whether the device order differs."""
        return self.before.device_order != self.after.device_order

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The differences, one sentence per line."""
        return tuple(explanation(self).splitlines())

    def __str__(self) -> str:
        return explanation(self)

    def __repr__(self) -> str:
        return f"LockDiff({self.after.name}: {self.lines[0].rstrip('.')})"

    def _text_(self) -> str:
        return str(self)


def _gained_and_lost(
    before: Iterable[LockedCollective], after: Iterable[LockedCollective]
) -> tuple[tuple[LockedCollective, ...], tuple[LockedCollective, ...]]:
    """Returns the gained and the lost collectives, with the differences in count."""
    # First pair collectives that also have the same `where`, so that the rest are those
    # whose code is new or has moved. `_less` then pairs those by traffic alone.
    places = pair(before, after, _identity_and_place, _identity_and_place)
    lost: list[LockedCollective] = []
    gained: list[LockedCollective] = []
    for old, new in places.paired:
        if old.count > new.count:
            lost.append(old._replace(count=old.count - new.count))
        elif new.count > old.count:
            gained.append(new._replace(count=new.count - old.count))
    lost += places.gone
    gained += places.new
    return _less(gained, lost), _less(lost, gained)


def _identity_and_place(collective: LockedCollective) -> Hashable:
    return collective.traffic, collective.where


def _less(
    collectives: Sequence[LockedCollective], moved: Sequence[LockedCollective]
) -> tuple[LockedCollective, ...]:
    """Subtracts the counts in `moved` from collectives with the same traffic."""
    counts: Counter[Hashable] = Counter()
    for collective in moved:
        counts[collective.traffic] += collective.count
    remaining = []
    for collective in collectives:
        matched = min(collective.count, counts[collective.traffic])
        counts[collective.traffic] -= matched
        if collective.count > matched:
            remaining.append(collective._replace(count=collective.count - matched))
    return tuple(remaining)
