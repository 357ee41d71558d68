"""audit() -> Audit: many arrays under one rule table, and what every rule did.

How each array is split, how many bytes each device holds, which names no rule knows, and which
rules decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from shardviz.core.display import Displayed
from shardviz.core.errors import LayoutError
from shardviz.core.format import bytes_text, joined, listed, nearest, plural, shown
from shardviz.core.layout.array_leaf import Names, TreeLeaf, on_mesh
from shardviz.core.layout.array_tree import Children, read_arrays
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.libraries import mesh_of
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.resolution import Request, Resolution, request
from shardviz.core.layout.rules import Dialect, Rule, Rules
from shardviz.core.layout.verdicts import BROKEN, Outcome


@dataclass(frozen=True)
class RuleUse:
    """What one rule did.

    Attributes:
        index: its position in the table, counted from 0.
        rule: the rule.
        decides: the arrays in which it decides how a dimension is split.
        leaves_unsplit: the arrays in which it ends the search and leaves a dimension unsplit.
        lost: the arrays in which other dimensions use its axes, each with a sentence.
        unreached: the arrays in which another rule had decided the dimension before.
        broken: the arrays in which it decides and that cannot be laid out so, each with a sentence.
        never: where it decides nothing anywhere, one sentence on why; else None.
        absent: whether it never fires because no array has a dimension of its name.

    >>> RuleUse(0, Rule("batch", ("data",)), decides=("x",)).never is None
    True
    """

    index: int
    rule: Rule
    decides: tuple[str, ...] = ()
    leaves_unsplit: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    unreached: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    never: str | None = None
    absent: bool = False


def rule_summary(requests: Iterable[Request], rules: Rules) -> tuple[RuleUse, ...]:
    """One RuleUse per rule, in table order; arrays with a spec of their own do not count.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.resolution import request
    >>> table = Rules.of(("mlp", "model"), ("embed", "model"), ("embed", None), ("embed", "data"))
    >>> found = request(ArraySpec("w", (8, 4), "embed mlp"), make_mesh(data=4, model=2), table)
    >>> uses = rule_summary([found], table)
    >>> uses[0].decides, uses[2].leaves_unsplit, uses[1].lost[0][1]
    (('w',), ('w',), "'model' goes to 'mlp' through rule 1")
    >>> uses[3].never
    "never fires: rule 3 ends every search for 'embed' first"
    """
    found = _Uses(tuple(requests), rules)
    return tuple(found.use(index, rule) for index, rule in enumerate(rules))


@dataclass
class _Tally:
    """A RuleUse under construction. `owners` counts the (axis, name, rule) that it lost to."""

    decides: list[str] = field(default_factory=list)
    leaves_unsplit: list[str] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    owners: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    by_rules: set[int] = field(default_factory=set)


class _Event(NamedTuple):
    """What one rule did in all arrays that share a Resolution."""

    rule: int
    kind: str  # the field of _Tally it goes to
    sentence: str = ""
    owners: tuple[tuple[str, str, int], ...] = ()
    by_rule: int | None = None


class _Uses:
    """Collects over all requests; arrays that share a Resolution share their events."""

    def __init__(self, requests: tuple[Request, ...], rules: Rules):
        self.rules = rules
        self.tallies = [_Tally() for _ in rules]
        self.named: set[str] = set()  # logical names of arrays that rules decide
        self.overridden: set[str] = set()  # those of arrays with a spec of their own
        self.unresolved: set[str] = set()
        events: dict[int, list[_Event]] = {}
        for one in requests:
            names = {n for n in one.array.logical or () if isinstance(n, str)}
            if one.spec_wins:
                self.overridden |= names
            elif one.resolution is None:
                self.unresolved |= names
            else:
                key = id(one.resolution)
                if key not in events:
                    events[key] = list(_events(one.resolution))
                    self.named |= names
                self._tally(one.array.name, events[key])
        self.everywhere = self.named | self.overridden | self.unresolved
        self.nnx = any(r.resolution and r.resolution.dialect is Dialect.NNX for r in requests)

    def _tally(self, array: str, events: Sequence[_Event]) -> None:
        for rule, kind, sentence, owners, by_rule in events:
            tally = self.tallies[rule]
            entries = getattr(tally, kind)
            entry = (array, sentence) if kind in ("lost", "broken") else array
            if not entries or entries[-1] != entry:  # nnx lets one name occur twice in an array
                entries.append(entry)
            tally.owners.update(owners)
            if by_rule is not None:
                tally.by_rules.add(by_rule)

    def use(self, index: int, rule: Rule) -> RuleUse:
        """The RuleUse of one rule."""
        tally = self.tallies[index]
        idle = not (tally.decides or tally.leaves_unsplit or tally.broken)
        return RuleUse(
            index,
            rule,
            tuple(tally.decides),
            tuple(tally.leaves_unsplit),
            tuple(tally.lost),
            tuple(tally.unreached),
            tuple(tally.broken),
            f"never fires: {self._why_never(index, rule, tally)}" if idle else None,
            idle and rule.logical not in self.everywhere,
        )

    def _why_never(self, index: int, rule: Rule, tally: _Tally) -> str:
        name = shown(rule.logical)
        if rule.logical not in self.named:
            return self._why_absent(rule, name)
        before = None if self.nnx else self._preempting(index, rule)
        if before is not None:
            ends = not self.rules[before].axes
            return f"rule {before + 1} " + (
                f"ends every search for {name} first"
                if ends
                else f"({self.rules[before]}) takes every {name} that this one could"
            )
        if not tally.lost:
            numbers = listed(sorted(r + 1 for r in tally.by_rules))
            word = "rule" if len(tally.by_rules) == 1 else "rules"
            does = ("replaces" if len(tally.by_rules) == 1 else "replace") if self.nnx else (
                "decides" if len(tally.by_rules) == 1 else "decide")  # fmt: skip
            what = "it: nnx takes the last of a name" if self.nnx else f"every {name} first"
            return f"{word} {numbers} {does} {what}"
        takers = _takers(o for o, _ in tally.owners.most_common(4))
        lost = "it loses " + joined(
            f"{listed(axes)} to {shown(owner)} (rule {through + 1})"
            for (owner, through), axes in takers.items()
        )
        if not tally.unreached:
            return f"{lost} in every array" if len(tally.lost) > 1 else lost
        return (
            f"{lost} in {plural(len(tally.lost), 'array')}, and other rules decide first in"
            f" {len(tally.unreached):,}"
        )

    def _why_absent(self, rule: Rule, name: str) -> str:
        if rule.logical in self.overridden:
            return f"each array with {name} has a PartitionSpec of its own, which wins"
        if rule.logical in self.unresolved:
            return f"the names of the arrays with {name} cannot be resolved"
        # An unused rule beside a name that no rule knows is most likely a typo.
        close = nearest(rule.logical, (n for n in self.named if n not in self.rules.by_name))
        hint = f"; an array has {shown(close)}" if close else ""
        return f"no array has a dimension {name}{hint}"

    def _preempting(self, index: int, rule: Rule) -> int | None:
        """An earlier rule that wins wherever this one could: it needs no other axes."""
        for before in self.rules.by_name[rule.logical]:
            if before >= index:
                return None
            if set(self.rules[before].axes) <= set(rule.axes):
                return before
        return None


def _events(resolution: Resolution) -> Iterable[_Event]:
    """What every rule for these names did, in sentences that are true of each such array."""
    by_name, nnx = resolution.rules.by_name, resolution.dialect is Dialect.NNX
    for dim, name in enumerate(resolution.names):
        if not isinstance(name, str):
            continue
        winner = resolution.winners[dim]
        for index in by_name.get(name, ()):
            if winner is not None and index != winner and (nnx or winner < index):
                yield _Event(index, "unreached", by_rule=winner)
                continue
            verdict = resolution.verdict(dim, index)
            if verdict.outcome is Outcome.UNSPLIT:
                yield _Event(index, "leaves_unsplit")
            elif verdict.outcome in BROKEN:
                reason = verdict.reason.removeprefix("decides, but ")
                yield _Event(index, "broken", f"dimension {dim}: {reason}")
            elif verdict.decides:
                yield _Event(index, "decides")
            else:
                yield _lost(resolution, index, verdict.taken)


def _lost(
    resolution: Resolution, index: int, taken: tuple[tuple[str, int, int | None], ...]
) -> _Event:
    owners = tuple(
        (axis, str(resolution.names[dim]), through)
        for axis, dim, through in taken
        if through is not None
    )
    parts = [
        f"{listed(axes)} {'goes' if len(axes) == 1 else 'go'} to {shown(owner)} through rule"
        f" {through + 1}"
        for (owner, through), axes in _takers(owners).items()
    ]
    return _Event(index, "lost", joined(parts), owners)


def _takers(
    owners: Iterable[tuple[str, str, int]],
) -> dict[tuple[str, int], list[str]]:
    """Which axes go where: from (logical name, rule) to axes."""
    takers: dict[tuple[str, int], list[str]] = {}
    for axis, owner, through in owners:
        takers.setdefault((owner, through), []).append(axis)
    return takers


BIG = 1 << 20  # bytes; smaller arrays may be replicated without mention
SHOWN = 5


class Unmatched(NamedTuple):
    """A logical name that no rule knows, the nearest name that one does, and its arrays.

    >>> Unmatched("embded", "embed", ("w_out",)).nearest
    'embed'
    """

    name: str
    nearest: str | None
    arrays: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Audit(Displayed):
    """Many arrays under one rule table; made by `shardviz.audit`.

    Attributes:
        rows: one Request per array, in the order of the tree. Where nothing says how an array is
            split over the mesh, its row has no spec; a live one that is not on the mesh has the
            layout that it has now.
        mesh: the mesh they are laid out on.
        rules: the table.
        dialect: the library whose reading of the table counts.
        elsewhere: the arrays with a sharding of their own on a mesh of other axes; their specs are
            read by the names of its axes.
        unnamed: the arrays without names beside others in a box of flax, which reads them as not
            split.

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
    elsewhere: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()

    @cached_property
    def bytes_per_device(self) -> int:
        """What all arrays that lay out take on the device that holds most of them, in bytes."""
        alone: Counter[int] = Counter()
        for row in self.off_mesh:
            assert row.layout is not None
            alone.update(dict.fromkeys(row.layout.device_ids, row.layout.bytes_per_device))
        split = sum(_bytes_per_device(r) for r in self._laid_out if r.spec is not None)
        return split + max(alone.values(), default=0)

    @cached_property
    def unknown(self) -> tuple[Request, ...]:
        """The rows of which nothing says how they are split; no bytes are counted for them."""
        return tuple(r for r in self.rows if r.layout is None and not r.problem)

    @cached_property
    def off_mesh(self) -> tuple[Request, ...]:
        """The rows of live arrays whose sharding names no mesh axes: those of one device."""
        return tuple(r for r in self._laid_out if r.spec is None)

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
        """Arrays of 1 MiB or more that are replicated, the largest first."""
        if self.mesh.size == 1:
            return ()
        return tuple(
            r for r in self.largest if r.spec is not None and _is_whole(r) and r.array.bytes >= BIG
        )

    @cached_property
    def unmatched(self) -> tuple[Unmatched, ...]:
        """Logical names that no rule knows, in the order they come.

        In nnx such a name is a mesh axis; where the mesh has it, it is left out.
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
        """All findings, one paragraph each."""
        parts = [
            _explain_sizes(self),
            _explain_unknown(self),
            _explain_problems(self),
            _explain_unmatched(self),
            _explain_replicated(self),
            _explain_rules(self),
        ]
        return "\n".join(p for p in parts if p)

    def __repr__(self) -> str:
        trouble = f", {len(self.unknown):,} unknown" if self.unknown else ""
        trouble += f", {plural(len(self.problems), 'problem')}" if self.problems else ""
        return (
            f"Audit({plural(len(self.rows), 'array')} on {_axes(self.mesh)},"
            f" {plural(len(self.rules), 'rule')}: {bytes_text(self.bytes_per_device)} on each"
            f" device{trouble})"
        )


def audit(
    tree_or_table: Any,
    rules: Any = (),
    mesh: Any = None,
    dialect: Any = Dialect.LINEN,
    names: Names | None = None,
    children: Children | None = None,
) -> Audit:
    """Resolves and lays out every array of a table, a tree or a model with one rule table.

    What fails for an array becomes its row's `problem` and is never raised.

    Args:
        tree_or_table: what `read_arrays` takes: ArraySpecs, rows, mappings, trees, models.
        rules: the table, or what `Rules.of` takes.
        mesh: the mesh, or what `make_mesh` takes; that of the arrays where there is none.
        dialect: who reads the table.
        names: called as `names(path, array)` for arrays that say nothing themselves.
        children: the named children of a container that is registered with jax, or None.

    Raises:
        ShardvizError: for a tree, table, mesh or dialect that cannot be read.

    >>> audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "data=4, model=2")
    Audit(1 array on data=4, model=2, 1 rule: 2 MiB on each device)
    """
    reader = Dialect.of(dialect)
    table = rules if isinstance(rules, Rules) else Rules.of(rules)
    if names is not None and not callable(names):
        raise LayoutError(f"names= is a function of a path and an array; got {shown(names)}.")
    found = read_arrays(tree_or_table, names, children)
    own = {id(leaf.mesh): mesh_of(leaf.mesh) for leaf in found if leaf.mesh is not None}
    grid = _mesh(mesh, own.values())
    moved = {key for key, other in own.items() if other is not None and other.shape != grid.shape}
    elsewhere = [leaf for leaf in found if id(leaf.mesh) in moved and leaf.array.spec is not None]
    bare = [leaf for leaf in found if not leaf.known and leaf.array.rank]
    # flax's get_partition_spec leaves what is in no box unsplit, in a tree that has boxes.
    boxed = any(leaf.defaults for leaf in found)
    rows = _rows(found, grid, table, reader, boxed)
    return Audit(
        tuple(rows),
        grid,
        table,
        reader,
        tuple(leaf.array.name for leaf in elsewhere),
        tuple(leaf.array.name for leaf in bare) if boxed else (),
    )


def _mesh(given: Any, own: Iterable[MeshSpec | None]) -> MeshSpec:
    """The mesh that was given, or the first that an array brings."""
    if given is not None:
        return given if isinstance(given, MeshSpec) else make_mesh(given)
    found = next((mesh for mesh in own if mesh is not None), None)
    if found is None:
        raise LayoutError(
            "An audit needs a mesh; got none, and no array's sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    return found


def _rows(
    found: Iterable[TreeLeaf], mesh: MeshSpec, rules: Rules, dialect: Dialect, boxed: bool
) -> Iterable[Request]:
    """One Request per array; arrays of one signature share their Resolution and Layout.

    Args:
        boxed: whether arrays that say nothing are read as not split.
    """
    memo: dict[Any, Request] = {}
    for leaf in found:
        if leaf.problem is not None:
            yield Request(leaf.array, None, None, None, leaf.problem)
            continue
        array = on_mesh(leaf, mesh, rules, dialect)
        if not (leaf.known or boxed or mesh.size == 1):
            whole = leaf.layout is not None and _covers(leaf.layout, mesh)
            if not whole and (leaf.layout is not None or array.rank):
                yield Request(array, None, None, leaf.layout, None)
                continue
        key = (array.shape, array.logical, array.dtype, array.spec)
        first = memo.get(key)
        if first is None:
            first = memo[key] = request(array, mesh, rules, dialect)
            yield first
        else:
            yield Request(array, first.resolution, first.spec, first.layout, first.problem)


def _covers(layout: Layout, mesh: MeshSpec) -> bool:
    """Whether a live array is replicated on all devices of the mesh."""
    return layout.num_blocks == 1 and set(layout.device_ids) >= set(mesh.device_ids.flat)


def _is_whole(row: Request) -> bool:
    return row.layout is not None and row.layout.num_blocks == 1


def _bytes_per_device(row: Request) -> int:
    return 0 if row.layout is None else row.layout.bytes_per_device


def _explain_sizes(found: Audit) -> str:
    head = (
        f"{plural(len(found.rows), 'array')} of {bytes_text(found.bytes)} on {_axes(found.mesh)}"
        f" ({plural(found.mesh.size, 'device')}) by {plural(len(found.rules), 'rule')}, read as"
        f" {found.dialect.value}: {bytes_text(found.bytes_per_device)} on each device."
    )
    top = [f"{r.array.name} {bytes_text(_bytes_per_device(r))}" for r in found.largest[:SHOWN]]
    return f"{head} Largest there: {joined(top)}." if len(found.rows) > 1 and top else head


def _explain_unknown(found: Audit) -> str:
    lines = []
    if found.unknown:
        size = bytes_text(sum(r.array.bytes for r in found.unknown))
        one = len(found.unknown) == 1
        lines.append(
            f"How {plural(len(found.unknown), 'array')} {'is' if one else 'are'} split is unknown"
            f" ({_few(r.path for r in found.unknown)}; {size} in all), and no bytes are counted for"
            f" {'it' if one else 'them'}. Give a sharding, names beside the arrays, or names= to"
            " sv.audit."
        )
    if found.off_mesh:
        ids = sorted({int(i) for r in found.off_mesh if r.layout for i in r.layout.device_ids})
        names = [f"{r.array.name} ({bytes_text(_bytes_per_device(r))})" for r in found.off_mesh]
        lines.append(
            f"{plural(len(names), 'live array')} {'is' if len(names) == 1 else 'are'} on"
            f" {'device' if len(ids) == 1 else 'devices'} {joined(map(str, ids), limit=SHOWN)} and"
            f" not split over the mesh: {_few(names)}."
        )
    if found.elsewhere:
        lines.append(
            f"{plural(len(found.elsewhere), 'array')} of another mesh"
            f" {'is' if len(found.elsewhere) == 1 else 'are'} read here by the names of the axes:"
            f" {_few(found.elsewhere)}."
        )
    if found.unnamed:
        lines.append(
            f"{plural(len(found.unnamed), 'array')} without names beside others that have some:"
            f" flax reads that as not split ({_few(found.unnamed)})."
        )
    return "\n".join(lines)


def _explain_problems(found: Audit) -> str:
    if not found.problems:
        return ""
    # Arrays of one shape fail with one sentence, which is shown once.
    alike: dict[str, list[str]] = {}
    for name, sentence in found.problems.items():
        alike.setdefault(sentence, []).append(name)
    lines = [f"  {_few(names)}: {sentence}" for sentence, names in alike.items()]
    return _first_lines(f"{plural(len(found.problems), 'array')} cannot be laid out:", lines)


def _explain_unmatched(found: Audit) -> str:
    lines = []
    for name, close, arrays in found.unmatched:
        hint = f" Did you mean {shown(close)}?" if close else ""
        lines.append(f"No rule knows {shown(name)} (in {_few(arrays)}).{hint}")
    return _first_lines("", lines)


def _explain_replicated(found: Audit) -> str:
    if not found.replicated:
        return ""
    names = [f"{r.array.name} ({bytes_text(r.array.bytes)})" for r in found.replicated]
    word = "is" if len(names) == 1 else "are"
    return f"{plural(len(names), 'large array')} {word} replicated: {_few(names)}."


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
    return _first_lines(f"{head}:" if lines else f"{head}.", lines)


def _axes(mesh: MeshSpec) -> str:
    """The mesh as text; axes of size 1, which large models have by the dozen, are only counted."""
    split = [f"{name}={size}" for name, size in mesh.shape.items() if size > 1]
    ones = len(mesh.shape) - len(split)
    if ones < 3:
        return str(mesh)
    return ", ".join([*split, f"{plural(ones, 'axis', 'axes')} of size 1"])


def _few(names: Iterable[str]) -> str:
    return joined(names, limit=SHOWN)


def _first_lines(head: str, lines: list[str]) -> str:
    kept = lines[: 2 * SHOWN]
    if len(lines) > len(kept):
        kept.append(f"  … and {len(lines) - len(kept):,} more")
    return "\n".join([head, *kept] if head else kept)
