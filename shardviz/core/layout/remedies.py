"""remedies() -> Remedies: the smallest edits of a rule table that split an array as somebody wants.

Every edit of `remedy_edits` is made, the array is resolved under the new table, and what gives the
wish is kept; then the other arrays that have a name of the changed rules are resolved again. An
edit with which an array can no longer be laid out is left out.

The functions that resolve are passed in, since `Resolution.explain` ends with a remedy.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Generic, NamedTuple, TypeVar, overload

from shardviz.core.display import Displayed
from shardviz.core.errors import RuleError, ShardvizError
from shardviz.core.format import bytes_text, fold, joined, plural, shown
from shardviz.core.layout import remedy_edits as edits
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout, lay_out_parsed
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.remedy_edits import Arrays, Edit, Group, Kind, Names, Space, State, Wish
from shardviz.core.layout.rules import Dialect, PathRules, Rule, Rules

#: `(names, rules, mesh, dialect) -> Spec`, which raises a RuleError where there is none.
Resolve = Callable[[Names, Rules, MeshSpec | None, Dialect], Spec]
Shape = tuple[int, ...] | None
Table = TypeVar("Table", Rules, PathRules)

MOST = 8  # remedies
MOST_WEIGHED = 48  # of which the effect on other arrays is found, where some are good already
MOST_PAIRS = 1_500
MOST_BREAKING = 250  # edits that break an array, after which no more are tried
MOST_AXES = 3  # that a rule is given at once, where only a size was wanted


@dataclass(frozen=True, repr=False)
class Remedy:
    """One way to split an array as it was wanted; checked by resolving every known array again.

    Attributes:
        edit: what to do, as a sentence.
        rules: the table after it.
        names: the array's logical names after it.
        shape: its shape after it, or None where that is not known.
        spec: how it is split then.
        leaf_bytes_saved: how many bytes per device this array takes less; None where the shape or
            the mesh is not known. An array that could not be laid out counts as not split.
        bytes_saved: the same over all known arrays.
        others: the paths of the other arrays that are split otherwise, too.
        alike: of these, the paths of those that get the same names and shape: the same array of
            other layers, and the moments of an optimizer.
        edits: of how many single edits it consists.

    >>> Remedy("Remove rule 1", Rules(), ("embed",), None, Spec(((),)), None, None, ()).edits
    1
    """

    edit: str
    rules: Rules | PathRules
    names: Names
    shape: Shape
    spec: Spec
    leaf_bytes_saved: int | None
    bytes_saved: int | None
    others: tuple[str, ...]
    edits: int = 1
    alike: tuple[str, ...] = ()

    def effect(self) -> str:
        """What it does, in a sentence.

        >>> Remedy("", Rules(), (), None, Spec.parse("x"), 1024, 4096, ("b", "c")).effect()
        "P('x'); saves 1 KiB per device here and 4 KiB in all; 2 other arrays change: b and c"
        """
        parts = [str(self.spec)]
        if self.leaf_bytes_saved is not None and self.bytes_saved is not None:
            parts.append(_saved(self.leaf_bytes_saved, self.bytes_saved))
        if self.others:
            verb = "changes" if len(self.others) == 1 else "change"
            count = plural(len(self.others), "other array")
            parts.append(
                f"{count} {verb}: {joined((f.name for f in fold(self.others, str)), limit=4)}"
            )
        return "; ".join(parts)

    def __str__(self) -> str:
        return f"{self.edit}: {self.effect()}."

    def __repr__(self) -> str:
        return f"Remedy({self})"


def _saved(here: int, everywhere: int) -> str:
    verbs = ["saves" if n >= 0 else "costs" for n in (here, everywhere)]
    sizes = [bytes_text(abs(n)) if n else "nothing" for n in (here, everywhere)]
    both = sizes[1] if verbs[0] == verbs[1] else f"{verbs[1]} {sizes[1]}"
    in_all = "" if here == everywhere else f" here and {both} in all"
    return f"{verbs[0]} {sizes[0]} per device{in_all}"


@dataclass(frozen=True, repr=False)
class Remedies(Displayed, Sequence[Remedy]):
    """The edits that give what was wanted, the smallest first; made by `shardviz.remedies`.

    Attributes:
        items: the remedies.
        want: what was wanted, in words.
        path: the array; None where it has no name.
        reason: where there is none, one sentence on why; else None.

    >>> found = Remedies((), "split", "w", "w is split already: P('data').")
    >>> len(found), found.reason
    (0, "w is split already: P('data').")
    """

    items: tuple[Remedy, ...]
    want: str
    path: str | None = None
    reason: str | None = None

    @overload
    def __getitem__(self, index: int) -> Remedy: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Remedy, ...]: ...
    def __getitem__(self, index: int | slice) -> Remedy | tuple[Remedy, ...]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def explain(self) -> str:
        """All of them, one line each, or why there is none."""
        if not self.items:
            return self.reason or ""
        lines = [f"{n}. {remedy}" for n, remedy in enumerate(self.items, 1)]
        return "\n".join([f"To {self.want}:", *lines])

    def __repr__(self) -> str:
        if not self.items:
            return f"Remedies(none: {self.reason})"
        more = f" and {len(self) - 1:,} more" if len(self) > 1 else ""
        return f"Remedies(to {self.want}: {self.items[0].edit}{more})"


class Leaf(NamedTuple):
    """The array that somebody wants to be split otherwise; None for what is not known of it."""

    path: str | None
    names: Names
    shape: Shape
    dtype: str = "float32"

    @property
    def title(self) -> str:
        """What sentences call it."""
        return "the array" if self.path is None else self.path


@dataclass
class LeafSearch(Generic[Table]):
    """A search for edits of any kind of table with which one array, `leaf`, is split as wanted."""

    leaf: Leaf
    rules: Table
    mesh: MeshSpec | None
    dialect: Dialect

    def __post_init__(self) -> None:
        self._layouts: dict[Any, Layout | str | None] = {}

    @property
    def now(self) -> Spec | None:
        """How the table splits the array, or None where it cannot be resolved."""
        raise NotImplementedError

    def find(self, want: Any, most: int = MOST, pairs: bool = True) -> Remedies:
        """The remedies, at most so many; those of two edits only where none of one exists."""
        wish = Wish.of(want, self.leaf.names, self.mesh, self.dialect)
        found: Sequence[Remedy] = ()
        if self.now is not None and self._good(self.leaf.shape, self.now, wish):
            reason = self._nothing(self.now)
        elif (reason := self._impossible(wish)) is None:
            found, reason = self._search(wish, most, pairs)
        return Remedies(tuple(found), wish.words(self.leaf.title), self.leaf.path, reason)

    def _search(self, wish: Wish, most: int, pairs: bool) -> tuple[list[Remedy], str | None]:
        """What was found for a wish that is not met; or, where nothing was, why."""
        raise NotImplementedError

    def _nothing(self, spec: Spec) -> str:
        layout = self.layout(self.leaf.shape, self.leaf.dtype, spec)
        known = isinstance(layout, Layout)
        size = f" and takes {bytes_text(layout.bytes_per_device)} per device" if known else ""
        return f"Nothing to change: {self.leaf.title} is split as {spec}{size}."

    def layout(self, shape: Shape, dtype: str, spec: Spec) -> Layout | str | None:
        """The Layout, the sentence on why there is none, or None where too little is known."""
        key = (shape, dtype, spec)
        if key not in self._layouts:
            self._layouts[key] = self._lay_out(shape, dtype, spec)
        return self._layouts[key]

    def _lay_out(self, shape: Shape, dtype: str, spec: Spec) -> Layout | str | None:
        if self.mesh is None:
            axes = spec.axes
            twice = [a for i, a in enumerate(axes) if a in axes[:i]]
            return f"Mesh axis {shown(twice[0])} is used twice." if twice else None
        try:
            if shape is None:
                return spec.check(self.mesh)
            return lay_out_parsed(shape, spec, self.mesh, dtype)
        except ShardvizError as error:
            return str(error)

    def _good(self, shape: Shape, spec: Spec, wish: Wish) -> bool:
        found = self.layout(shape, self.leaf.dtype, spec)
        if isinstance(found, str):
            return False
        if found is None and self.mesh is not None and wish.spec is None and wish.limit is None:
            # The shape is not known: an axis of size 1 splits nothing all the same.
            dims = spec.dims if wish.dim is None else (spec.dims[wish.dim],)
            return any(self.mesh.shape[a] > 1 for axes in dims for a in axes)
        return wish.met(spec, found)

    def _saves(self, spec: Spec, shape: Shape, dtype: str) -> int | None:
        """How many bytes per device the array takes less, split so and of that shape and type."""
        sizes = self.leaf.shape
        after = self.layout(shape, dtype, spec)
        if sizes is None or not isinstance(after, Layout):
            return None
        before = None if self.now is None else self.layout(sizes, dtype, self.now)
        whole = size_in_bytes(math.prod(sizes), dtype)
        known = isinstance(before, Layout)
        return (before.bytes_per_device if known else whole) - after.bytes_per_device

    def _unsplit(self, spec: Spec) -> int:
        """How many dimensions that were split no longer are."""
        now = self.now
        if now is None or isinstance(self.layout(self.leaf.shape, self.leaf.dtype, now), str):
            return 0
        return sum(bool(a) and not b for a, b in zip_longest(now.dims, spec.dims, fillvalue=()))

    @property
    def _axes(self) -> tuple[str, ...]:
        """The mesh axes that split something; those of the table where there is no mesh."""
        if self.mesh is not None:
            return tuple(a for a, size in self.mesh.shape.items() if size > 1)
        return tuple(dict.fromkeys(a for r in self.rules.entries for a in r.axes))

    def _impossible(self, wish: Wish) -> str | None:
        """Why no table at all can give the wish, or None."""
        title = self.leaf.title
        if wish.spec is not None:
            found = self.layout(None, self.leaf.dtype, wish.spec)
            if (wish.spec.unreduced or wish.spec.reduced) and not self.dialect.by_path:
                return "No rule can make a spec with unreduced or reduced axes."
            return f"No table can split {title} so. {found}" if isinstance(found, str) else None
        if wish.limit is not None and (self.mesh is None or self.leaf.shape is None):
            return f"How many bytes {title} takes is not known: its shape or the mesh is missing."
        if not self._axes:
            what = "the mesh has" if self.mesh is not None else "the table names"
            return f"No table can split {title}: {what} no axis of more than one device."
        return None

    def _too_small(self, wish: Wish) -> str | None:
        """Why no table can give the bytes per device, while sizes stay as they are; or None."""
        if wish.limit is None:
            return None
        least = min(bytes_ for bytes_, _ in self._splits())
        if least <= wish.limit:
            return None
        return (
            f"No table can do that: split as far as its sizes allow, {self.leaf.title} still takes"
            f" {bytes_text(least)} per device."
        )

    def _splits(self) -> list[tuple[int, Spec]]:
        """Ways to split the array, one per shape of a shard: its bytes, and few axes."""
        sizes = self.leaf.shape
        assert self.mesh is not None
        assert sizes is not None
        found: dict[tuple[int, ...], tuple[tuple[str, ...], ...]] = {sizes: ((),) * len(sizes)}
        for axis in self._axes:
            parts = self.mesh.shape[axis]
            for shape, dims in list(found.items()):
                for d, n in enumerate(shape):
                    if n % parts == 0:
                        more = (*dims[:d], (*dims[d], axis), *dims[d + 1 :])
                        found.setdefault((*shape[:d], n // parts, *shape[d + 1 :]), more)
        return [(size_in_bytes(math.prod(s), self.leaf.dtype), Spec(d)) for s, d in found.items()]


@dataclass
class Search(LeafSearch[Rules]):
    """A search among all `arrays` under a table of logical names."""

    resolve: Resolve
    arrays: Arrays

    def __post_init__(self) -> None:
        super().__post_init__()
        self._specs: dict[Any, tuple[tuple[Rule, ...], Spec | None]] = {}
        self._breaks: list[tuple[list[tuple[Edit, int]], str]] = []
        self._broken: Group | None = None  # the one that an edit broke last

    @property
    def now(self) -> Spec | None:
        return self.spec(self.start.own, self.leaf.names)

    def _search(self, wish: Wish, most: int, pairs: bool) -> tuple[list[Remedy], str | None]:
        found, all_pairs = self._singles(wish, most), True
        small = None if found else self._too_small(wish)
        if not found and pairs and small is None:
            found, all_pairs = self._pairs(wish, most)
        return found, None if found else small or self._reason(wish, all_pairs)

    @cached_property
    def start(self) -> State:
        """The table and the array as they are."""
        return State(self.rules.entries, self.leaf.names, self.leaf.shape)

    def spec(self, own: tuple[Rule, ...], names: Names) -> Spec | None:
        """How the array is split by its rules, or None where its names cannot be resolved."""
        key = (*map(id, own), names)  # hashing rules takes as long as resolving; `own` keeps them
        known = self._specs.get(key)
        if known is None:
            try:
                spec = self.resolve(names, Rules(own), self.mesh, self.dialect)
            except RuleError:
                spec = None
            known = self._specs[key] = (own, spec)
        return known[1]

    def space(self, wish: Wish) -> Space:
        """The edits that can give the wish."""
        # Of one array alone nobody knows which rules are for others and which are misspelt.
        known = frozenset(self.arrays.by_name) | {n for n in self.leaf.names if n}
        known |= frozenset() if self.arrays.groups else set(self.rules.by_name)
        axes = self.mesh.axis_names if self.mesh is not None else ()
        idle = self._any_axes((*self._axes, *axes)) if wish.spec is not None else ()
        targets = tuple(self._targets(wish, d) for d in range(len(self.leaf.names)))
        # Where nobody asked for an axis of size 1, none is proposed, since it splits nothing.
        useless = frozenset(axes) - frozenset(self._axes) if wish.spec is None else frozenset()
        return Space(targets, axes, self.dialect, known, idle, useless)

    def _any_axes(self, known: Iterable[str]) -> tuple[Rule, ...]:
        """What a rule may lead to: axes that split, few before many, and what rules have now.

        Args:
            known: the axes that it may have.
        """
        allowed = frozenset(known)
        ones = [a for a in self._ones if a in allowed]
        sets = [*edits.subsets(self._axes, MOST_AXES), (), *edits.subsets(tuple(ones), 1)]
        own = [r.axes for r in self.rules.entries if allowed.issuperset(r.axes)]
        return tuple(Rule("", axes) for axes in dict.fromkeys([*sets, *own]))

    def _targets(self, wish: Wish, dim: int) -> tuple[Rule, ...]:
        """What a rule may give a dimension: what is wanted, or else any axes."""
        if wish.spec is not None:
            free = dim in wish.spec.unconstrained
            axes = wish.spec.dims[dim]
            more = ((),) if free else ((), *edits.subsets(self._ones, 2))
            return tuple(Rule("", axes + extra, False, free) for extra in more)
        return self._any_axes(self._axes)

    @property
    def _ones(self) -> tuple[str, ...]:
        """Under maxtext, the axes of size 1 of the array's rules: dropped, but used."""
        used = dict.fromkeys(a for r in self.start.own for a in r.axes)
        return tuple(a for a in used if a in self._dropped)

    def _singles(self, wish: Wish, most: int) -> list[Remedy]:
        found: list[tuple[Any, Remedy]] = []
        for number, members in enumerate(self._classes(wish)):
            last = edits.tier(members[0][0]) > 1 and len(found) >= most
            if found and (last or number >= MOST_WEIGHED):
                break
            best = self._first_good(members)
            if best is not None:
                edit, remedy = best
                # A smaller size saves bytes, which nobody asked for.
                saved = 0 if edit.kind is Kind.SIZE else remedy.bytes_saved or 0
                others = len(remedy.others) if edits.tier(edit) else 0
                lost = self._unsplit(remedy.spec)
                key = (*edits.rank(edit)[:2], lost, others, edit.kind, -saved, number)
                found.append((key, remedy))
        return [remedy for _, remedy in sorted(found, key=lambda f: f[0])[:most]]

    def _classes(self, wish: Wish) -> list[list[tuple[Edit, Spec]]]:
        """The edits that give the wish; those of which one is enough are in one list."""
        classes: dict[Any, list[tuple[Edit, Spec]]] = {}
        moved: dict[Any, Any] = {}
        start, space = self.start, self.space(wish)
        every = itertools.chain(self._fitted(start), edits.single_edits(start, space))
        for edit in every:
            spec = self.spec(edit.own, edit.names)
            if spec is not None and self._useless(edit, spec, space):
                continue
            size = edit.kind is Kind.SIZE
            shape = edit.apply(start, 0).shape if size else start.shape
            if spec is not None and self._good(shape, spec, wish):
                key = edits.same_but_place(edit, spec)
                if edit.kind in (Kind.MOVE, Kind.SWAP):
                    key = moved.setdefault(edit.own, key)
                classes.setdefault(key, []).append((edit, spec))
        return sorted(classes.values(), key=lambda c: edits.rank(c[0][0]))

    def _useless(self, edit: Edit, spec: Spec, space: Space) -> bool:
        """Whether a dimension is renamed, and its new name splits it over axes of size 1 only."""
        if edit.kind is not Kind.ARRAY_NAME:
            return False
        assert edit.subject is not None
        axes = spec.dims[edit.subject]
        return bool(axes) and space.useless.issuperset(axes)

    def _fitted(self, state: State) -> Iterator[Edit]:
        """The sizes that divide in place of one that does not."""
        spec = self.spec(state.own, state.names)
        if spec is not None and self.mesh is not None and state.shape is not None:
            yield from edits.resized(state.own, state.names, state.shape, spec, self.mesh)

    def _first_good(self, members: list[tuple[Edit, Spec]]) -> tuple[Edit, Remedy] | None:
        """The first of edits with one effect on the array that breaks no other array."""
        for edit, spec in members:
            for place in edit.places:
                if len(self._breaks) > MOST_BREAKING:
                    return None
                remedy = self._remedy([(edit, place)], spec)
                if remedy is not None:
                    return edit, remedy
        return None

    def _remedy(self, steps: list[tuple[Edit, int]], spec: Spec) -> Remedy | None:
        """The remedy of edits one after the other, or None where they break an array."""
        states = [self.start]
        for edit, place in steps:
            states.append(edit.apply(states[-1], place))
        state = states[-1]
        touched = {
            n for (edit, at), s in zip(steps, states, strict=False) for n in edit.touched(s, at)
        }
        types = self._alike([edit for edit, _ in steps])
        alike = tuple(types)
        effect = self._effect(state, touched, {self.leaf.path, *alike})
        if isinstance(effect, str):
            self._breaks.append((steps, effect))
            return None
        others, saved = effect
        text = self._text(steps, spec, len(alike))
        here = self._saves(spec, state.shape, self.leaf.dtype)
        everywhere = None
        if here is not None:
            with_it = (self._saves(spec, state.shape, dtype) or 0 for dtype in types.values())
            everywhere = here + sum(with_it) + saved
        rules = self.rules if not touched else Rules(state.entries)
        paths, count = (*alike, *others), len(steps)
        return Remedy(
            text, rules, state.names, state.shape, spec, here, everywhere, paths, count, alike
        )

    def _text(self, steps: list[tuple[Edit, int]], spec: Spec | None = None, alike: int = 0) -> str:
        state, texts = self.start, []
        for edit, place in steps:
            parts = 0
            if edit.kind is Kind.SIZE and spec is not None and self.mesh is not None:
                assert edit.subject is not None
                parts = math.prod(self.mesh.shape[a] for a in spec.dims[edit.subject])
            texts.append(edits.sentence(state, edit, place, self.leaf.path, alike, parts))
            state = edit.apply(state, place)
        return ", then ".join([texts[0], *(t[0].lower() + t[1:] for t in texts[1:])])

    def _alike(self, edits: list[Edit]) -> dict[str, str]:
        """Arrays that are edited with this one: of other layers, and moments; path to type."""
        leaf, found = self.leaf, {}
        if leaf.path is None or not any(e.kind in (Kind.ARRAY_NAME, Kind.SIZE) for e in edits):
            return found
        mine = self._kind(leaf.path)
        for group in self.arrays.groups.values():
            if (group.names, group.shape) == (leaf.names, leaf.shape):
                found |= {p: group.dtype for p in group.paths if self._kind(p) == mine}
        found.pop(leaf.path, None)
        return found

    def _kind(self, path: str) -> str:
        return re.sub(r"[0-9]+", "0", self.arrays.parameters.get(path, path))

    def _effect(
        self, after: State, touched: set[str], edited: set[str | None]
    ) -> tuple[list[str], int] | str:
        """The arrays that are not edited and change, and the bytes per device saved by them.

        Returns:
            Both; or, where an array cannot be laid out any more, a sentence on that.
        """
        rules, others, saved = Rules(after.entries), [], 0
        groups = self.arrays.of(touched)
        if self._broken in groups:  # which most likely breaks again
            groups.insert(0, groups.pop(groups.index(self._broken)))
        for group in groups:
            paths = [p for p in group.paths if p not in edited]
            if not paths:
                continue
            try:
                spec = self.resolve(group.names, rules, self.mesh, self.dialect)
            except RuleError as error:
                if group.spec is None:  # it could not be resolved before either
                    continue
                self._broken = group
                return f"{paths[0]}: {error}"
            if spec == group.spec:
                continue
            layout = self.layout(group.shape, group.dtype, spec)
            if isinstance(layout, str) and not group.broken:
                self._broken = group
                return f"{paths[0]}: {layout}"
            now = layout.bytes_per_device if isinstance(layout, Layout) else group.bytes
            saved += (group.bytes - now) * len(paths)
            others += paths
        return others, saved

    def _pairs(self, wish: Wish, most: int) -> tuple[list[Remedy], bool]:
        """Pairs of edits, and whether all were tried.

        Searched in a table of the array's own rules alone; what is found is then done to the whole
        table.
        """

        def key(r: Remedy) -> tuple:
            return self._unsplit(r.spec), len(r.others), -(r.bytes_saved or 0)

        found: dict[Any, Remedy] = {}
        space = self.space(wish)
        if wish.spec is None:  # more than one axis at a time makes too many pairs
            few = tuple(tuple(t for t in each if len(t.axes) < 2) for each in space.targets)
            space = space._replace(targets=few)
        small = self._own_table(space)
        for tried, (first, second) in enumerate(self._each_pair(small, space, wish)):
            if tried > MOST_PAIRS or len(found) >= most or len(self._breaks) > MOST_BREAKING:
                return sorted(found.values(), key=key), tried <= MOST_PAIRS
            spec = self.spec(second.own, second.names)
            shape = second.apply(small, 0).shape if second.kind is Kind.SIZE else small.shape
            if spec is None or not self._good(shape, spec, wish):
                continue
            if self._useless(first, spec, space) or self._useless(second, spec, space):
                continue
            alike = (first.kind, first.target, second.kind, spec)
            if alike not in found:
                remedy = self._remedy(self._in_whole_table(first, second, space), spec)
                if remedy is not None:
                    found[alike] = remedy
        return sorted(found.values(), key=key), True

    def _own_table(self, space: Space) -> State:
        """The rules for the array's names, and for those that it may be given."""
        start = self.start
        kept, names = set(start.mine), []
        for edit in edits.main_edits(start, space):
            if edit.kind is Kind.RULE_NAME and edit.subject is not None:
                kept.add(edit.subject)
            elif edit.kind is Kind.ARRAY_NAME:
                names.append(edit.target)
        kept |= set(start.indices(tuple(names)))
        return State(tuple(start.entries[i] for i in sorted(kept)), start.names, start.shape)

    def _each_pair(self, state: State, space: Space, wish: Wish) -> Iterator[tuple[Edit, Edit]]:
        """Pairs of edits that may give the wish: after the first, one must be able to."""
        seen = set()
        firsts = [*edits.main_edits(state, space), *self._fitted(state)]
        for first in firsts:
            missing = wish.missing(first.own, first.names, self.dialect, self._dropped)
            after = first.apply(state, first.places[0])
            key = (after.own, after.names, after.shape)
            if len(missing) > 1 or key in seen:
                continue
            seen.add(key)
            yield from ((first, second) for second in self._fitted(after))
            for second in edits.main_edits(after, space, *missing):
                yield first, second

    @cached_property
    def _dropped(self) -> frozenset[str]:
        """The axes that are dropped from the spec: those of size 1, under maxtext."""
        if self.mesh is None or self.dialect is not Dialect.MAXTEXT:
            return frozenset()
        return frozenset(a for a, n in self.mesh.shape.items() if n == 1)

    def _in_whole_table(self, first: Edit, second: Edit, space: Space) -> list[tuple[Edit, int]]:
        """The same two edits in the whole table."""
        state, steps = self.start, []
        for edit in (first, second):
            if edit.kind is not Kind.SIZE:
                every = edits.edits_of(edit.kind, state, space)
                edit = next(e for e in every if (e.own, e.names) == (edit.own, edit.names))
            steps.append((edit, edit.places[0]))
            state = edit.apply(state, edit.places[0])
        return steps

    def _reason(self, wish: Wish, all_pairs: bool) -> str:
        what = wish.words(self.leaf.title)
        if self._breaks:
            (steps, broken), *others = self._breaks
            rest = f" The same is true of {plural(len(others), 'other edit')}." if others else ""
            if len(others) >= MOST_BREAKING:
                rest = f" The same is true of the {len(others):,} other edits that were tried."
            text = self._text(steps)
            first = f"{text[0].lower()}{text[1:]} breaks {broken}"
            return f"No edit can {what} and leave all other arrays as good: {first}{rest}"
        some = f"any of {MOST_PAIRS:,} pairs of edits that were tried"
        pairs = f"Nor can {'two that move, add, remove or change rules' if all_pairs else some}."
        return f"No single edit can {what}{self._because(wish)}. {pairs}"

    def _because(self, wish: Wish) -> str:
        """What stands in the way, where one thing does."""
        dims = wish.spec.dims if wish.spec is not None else ()
        bare = [
            d for d, axes in enumerate(dims) if axes and not isinstance(self.leaf.names[d], str)
        ]
        if wish.dim is not None and not isinstance(self.leaf.names[wish.dim], str):
            bare = [wish.dim]
        if bare:
            return f", because dimension {bare[0]} has no name that a rule could match"
        start = self.start
        missing = wish.missing(start.own, start.names, self.dialect, self._dropped)
        if len(missing) > 1:
            return f", because dimensions {joined(missing)} have no rule for what is wanted"
        return ""
