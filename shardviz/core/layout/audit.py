"""audit() -> Audit: many arrays against one rule table.

What every array becomes, what a device holds in the end, which names no rule knows, and which
rules do no work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from shardviz.core.display import Displayed
from shardviz.core.errors import bytes_text, plural, shown
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.request import Request, request
from shardviz.core.layout.rule_uses import RuleUse, rule_summary
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.layout.tree import Found, read_arrays

__all__ = ["Audit", "RuleUse", "Unmatched", "audit", "rule_summary"]

BIG = 1 << 20  # bytes; an array below that may be whole everywhere without a word
SHOWN = 5


class Unmatched(NamedTuple):
    """A logical name that no rule speaks of, the nearest one that a rule does, and its arrays.

    >>> Unmatched("embded", "embed", ("w_out",)).nearest
    'embed'
    """

    name: str
    nearest: str | None
    arrays: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Audit(Displayed):
    """Many arrays against one rule table; made by `shardviz.audit`.

    Attributes:
        rows: one Request an array, in the order of the tree.
        mesh: the mesh they are laid out on.
        rules: the table.
        dialect: who read it.

    >>> table = Rules.of(("mlp", "model"), ("embed", "data"), ("heads", "model"))
    >>> found = audit({"wi": ((512, 2048), "embed mlp"), "wo": ((2048, 510), "mlp embd")},
    ...               table, make_mesh(data=4, model=2))
    >>> found.bytes_per_device, [u.index for u in found.unused_rules], found.unmatched
    (2613248, [2], (Unmatched(name='embd', nearest='embed', arrays=('wo',)),))
    """

    rows: tuple[Request, ...]
    mesh: MeshSpec
    rules: Rules
    dialect: Dialect

    @cached_property
    def bytes_per_device(self) -> int:
        """What all arrays that lay out take on each device, in bytes."""
        return sum(r.layout.bytes_per_device for r in self.rows if r.layout is not None)

    @cached_property
    def bytes(self) -> int:
        """What all arrays take together, each counted once, in bytes."""
        return sum(r.array.bytes for r in self.rows)

    @cached_property
    def largest(self) -> tuple[Request, ...]:
        """The rows that lay out, those that take most on each device first."""
        return tuple(sorted(self._laid_out, key=_bytes_per_device, reverse=True))

    @cached_property
    def problems(self) -> Mapping[str, str]:
        """Array name to the sentence on why it cannot be laid out."""
        return MappingProxyType({r.array.name: r.problem for r in self.rows if r.problem})

    @cached_property
    def replicated(self) -> tuple[Request, ...]:
        """Arrays of 1 MiB or more that every device holds whole, the largest first."""
        if self.mesh.size == 1:
            return ()
        return tuple(
            r
            for r in self.largest
            if r.layout is not None and r.layout.num_blocks == 1 and r.array.bytes >= BIG
        )

    @cached_property
    def unmatched(self) -> tuple[Unmatched, ...]:
        """Logical names that no rule speaks of, in the order they come.

        Where nnx takes such a name for a mesh axis and the mesh has it, nothing is amiss.
        """
        arrays: dict[str, list[str]] = {}
        for row in self.rows:
            if row.resolution is not None and not row.spec_wins:
                for name in row.resolution.unknown:
                    arrays.setdefault(name, []).append(row.array.name)
        return tuple(
            Unmatched(name, self.rules.nearest(name), tuple(dict.fromkeys(found)))
            for name, found in arrays.items()
            if not (self.dialect is Dialect.NNX and name in self.mesh.shape)
        )

    @cached_property
    def rule_uses(self) -> tuple[RuleUse, ...]:
        """What every rule did, in table order."""
        return rule_summary(self.rows, self.rules)

    @property
    def unused_rules(self) -> tuple[RuleUse, ...]:
        """The rules that decide nothing anywhere, each with the reason in `.never`."""
        return tuple(u for u in self.rule_uses if u.never)

    @property
    def _laid_out(self) -> Iterable[Request]:
        return (r for r in self.rows if r.layout is not None)

    def explain(self) -> str:
        """The whole story, a finding a paragraph, as a colleague would tell it."""
        parts = [
            _explain_sizes(self),
            _explain_problems(self),
            _explain_unmatched(self),
            _explain_replicated(self),
            _explain_rules(self),
        ]
        return "\n".join(p for p in parts if p)

    def __repr__(self) -> str:
        trouble = f", {plural(len(self.problems), 'problem')}" if self.problems else ""
        return (
            f"Audit({plural(len(self.rows), 'array')} on {_axes(self.mesh)},"
            f" {plural(len(self.rules), 'rule')}: {bytes_text(self.bytes_per_device)} on each"
            f" device{trouble})"
        )


def audit(tree_or_table: Any, rules: Any, mesh: Any, dialect: Any = Dialect.LINEN) -> Audit:
    """Resolves and lays out every array of a table or tree with one rule table.

    What does not work out for an array becomes its row's `problem`, never an error.

    Args:
        tree_or_table: what `read_arrays` takes: ArraySpecs, rows, mappings, trees of arrays.
        rules: the table, or what `Rules.of` takes.
        mesh: the mesh, or what `make_mesh` takes.
        dialect: who reads the table.

    Raises:
        ShardvizError: for a tree, table, mesh or dialect that cannot be read.

    >>> audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "data=4, model=2")
    Audit(1 array on data=4, model=2, 1 rule: 2 MiB on each device)
    """
    reader = Dialect.of(dialect)
    table = rules if isinstance(rules, Rules) else Rules.of(rules)
    grid = mesh if isinstance(mesh, MeshSpec) else make_mesh(mesh)
    rows = _rows(read_arrays(tree_or_table), grid, table, reader)
    return Audit(tuple(rows), grid, table, reader)


def _rows(
    found: Iterable[Found], mesh: MeshSpec, rules: Rules, dialect: Dialect
) -> Iterable[Request]:
    """One Request an array; arrays that ask alike share their Resolution and Layout."""
    memo: dict[Any, Request] = {}
    for array, problem in found:
        if problem is not None:
            yield Request(array, None, None, None, problem)
            continue
        key = (array.shape, array.logical, array.dtype, array.spec)
        first = memo.get(key)
        if first is None:
            first = memo[key] = request(array, mesh, rules, dialect)
            yield first
        else:
            yield Request(array, first.resolution, first.spec, first.layout, first.problem)


def _bytes_per_device(row: Request) -> int:
    return 0 if row.layout is None else row.layout.bytes_per_device


def _explain_sizes(found: Audit) -> str:
    head = (
        f"{plural(len(found.rows), 'array')} of {bytes_text(found.bytes)} on {_axes(found.mesh)}"
        f" ({plural(found.mesh.size, 'device')}) by {plural(len(found.rules), 'rule')}, read as"
        f" {found.dialect.value}: {bytes_text(found.bytes_per_device)} on each device."
    )
    top = [f"{r.array.name} {bytes_text(_bytes_per_device(r))}" for r in found.largest[:SHOWN]]
    return f"{head} Largest there: {', '.join(top)}." if len(found.rows) > 1 and top else head


def _explain_problems(found: Audit) -> str:
    if not found.problems:
        return ""
    # Arrays of one shape fail with one sentence; it is said once.
    alike: dict[str, list[str]] = {}
    for name, sentence in found.problems.items():
        alike.setdefault(sentence, []).append(name)
    lines = [f"  {_few(names)}: {sentence}" for sentence, names in alike.items()]
    return _cut(f"{plural(len(found.problems), 'array')} cannot be laid out:", lines)


def _explain_unmatched(found: Audit) -> str:
    lines = []
    for name, close, arrays in found.unmatched:
        hint = f" Did you mean {shown(close)}?" if close else ""
        lines.append(f"No rule knows {shown(name)} (in {_few(arrays)}).{hint}")
    return _cut("", lines)


def _explain_replicated(found: Audit) -> str:
    if not found.replicated:
        return ""
    names = [f"{r.array.name} ({bytes_text(r.array.bytes)})" for r in found.replicated]
    word = "is" if len(names) == 1 else "are"
    return f"{plural(len(names), 'large array')} {word} whole on every device: {_few(names)}."


def _explain_rules(found: Audit) -> str:
    idle = found.unused_rules
    if not idle:
        return "Every rule decides something." if len(found.rules) else "The table is empty."
    absent = [u for u in idle if u.absent]
    head = f"{len(idle):,} of {plural(len(found.rules), 'rule')} never fire"
    if absent:
        names = dict.fromkeys(u.rule.logical for u in absent)
        head += f"; {len(absent):,} of them for names that no array has ({_few(names)})"
    lines = [f"  rule {u.index + 1} ({u.rule}) {u.never}." for u in idle if not u.absent]
    return _cut(f"{head}:" if lines else f"{head}.", lines)


def _axes(mesh: MeshSpec) -> str:
    """The mesh as text; axes of size 1, which large models have by the dozen, are only counted."""
    split = [f"{name}={size}" for name, size in mesh.shape.items() if size > 1]
    ones = len(mesh.shape) - len(split)
    if ones < 3:
        return str(mesh)
    return ", ".join([*split, f"{plural(ones, 'axis', 'axes')} of size 1"])


def _few(names: Iterable[str]) -> str:
    every = list(names)
    extra = len(every) - SHOWN
    return ", ".join(every[:SHOWN]) + (f" and {extra:,} more" if extra > 0 else "")


def _cut(head: str, lines: list[str]) -> str:
    kept = lines[: 2 * SHOWN]
    if len(lines) > len(kept):
        kept.append(f"  … and {len(lines) - len(kept):,} more")
    return "\n".join([head, *kept] if head else kept)
