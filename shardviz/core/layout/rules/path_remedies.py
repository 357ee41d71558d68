"""The smallest edits of a table of paths with which an array is split as wanted.

A pattern is moved, added, removed or given another spec, or one that misses the path by
a misspelt word or by one segment is corrected. Each edit is made, the path is matched
again, and what gives the wish is kept; then all other arrays are matched with the new
table. An edit with which an array can no longer be laid out is left out. A pattern for
the path alone touches no other array: where any table can give the wish, one edit is
enough.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.errors import RuleError
from shardviz.core.format import nearest
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.partition_spec import Spec, rank_problem
from shardviz.core.layout.rules import remedy_edits as edits
from shardviz.core.layout.rules.path_matching import (
    PathMatch,
    fits,
    is_one_element,
    match_path,
    matched_spec,
    matcher,
    plain_words,
    required,
    widened,
    words_of,
)
from shardviz.core.layout.rules.remedies import (
    MOST_AXES,
    LeafSearch,
    NoRemedy,
    Remedies,
    Remedy,
    Step,
)
from shardviz.core.layout.rules.remedy_edits import Kind
from shardviz.core.layout.rules.rules import Dialect, PathRule, PathRules
from shardviz.core.layout.rules.wishes import Wish

MOST_TARGETS = 8  # specs that a pattern is given, where only a size was wanted
MOST_NEAR = 3  # words of a path that a misspelt one may have been
MOST_CORRECTED = 200  # patterns that are tried in place of others
MOST_WEIGHED = 64  # edits of which the effect on other arrays is found
NONE, FAILS = -1, -2  # in place of a pattern: none matches; the library raises an error

_DIGITS = re.compile(r"[0-9]+")


class Correction(NamedTuple):
    """A pattern that matches a path, in place of one that nearly does.

    Attributes:
        pattern: the corrected pattern.
        typo: whether it corrects a misspelt word.
        other: whether a segment became another one, so that it is for other paths.
    """

    pattern: str
    typo: bool = False
    other: bool = False


def corrections(pattern: str, path: str, dialect: Dialect) -> Iterator[Correction]:
    """Patterns that match a path and differ by a misspelt word or by one segment."""
    for made in (*_respelt(pattern, path), *_by_segment(pattern, path, dialect)):
        if _matches(made.pattern, path, dialect):
            yield made


def _matches(pattern: str, path: str, dialect: Dialect) -> bool:
    try:
        return fits(pattern, path, dialect)
    except RuleError:  # what was a group is cut in two
        return False


def _respelt(pattern: str, path: str) -> Iterator[Correction]:
    # The words of the path, with and without underscores and digits.
    known: dict[str, None] = {}
    for kind in (r"\w+", r"[^\W_]+", r"[^\W\d]+"):
        known |= dict.fromkeys(re.findall(kind, path))
    for word in plain_words(pattern):
        if word[0] in known:
            continue
        left = list(known)
        for _ in range(MOST_NEAR):
            close = nearest(word[0], left)
            if close is None:
                break
            left.remove(close)
            text = pattern[: word.start()] + close + pattern[word.end() :]
            yield Correction(text, typo=True)


def _by_segment(pattern: str, path: str, dialect: Dialect) -> Iterator[Correction]:
    """The pattern with one segment less, more, or another; what is left has words."""
    lead = "^" * pattern.startswith("^")
    tail = "$" * (pattern.endswith("$") and not pattern.endswith(r"\$"))
    parts = pattern[len(lead) : len(pattern) - len(tail)].split("/")
    strange, worded = [], []
    for i, part in enumerate(parts):
        words = words_of(part)
        if words:
            worded.append(i)
        if any(word not in path for word in words):
            strange.append(i)
    if len(strange) > 1 or not any(w in path for w in words_of(pattern)):
        return

    def made(start: int, stop: int, *new: str) -> str:
        return f"{lead}{'/'.join([*parts[:start], *new, *parts[stop:]])}{tail}"

    entire = dialect is Dialect.KERAS
    segments = dict.fromkeys(_general(s) for s in path.split("/"))
    if entire and not strange:
        yield from map(Correction, widened(pattern))
    some = strange or range(len(parts))
    for i in some:
        if worded != [i]:
            yield Correction(made(i, i + 1))
    if not strange:
        # Without an anchor, what is before and after a pattern does not matter.
        first, last = int(not (entire or lead)), len(parts) + bool(entire or tail)
        for i in range(first, last):
            if _matches(made(i, i, "[^/]+"), path, dialect):
                yield from (Correction(made(i, i, s)) for s in segments)
    for i in some:
        if worded != [i] and _matches(made(i, i + 1, "[^/]+"), path, dialect):
            for segment in segments:
                text = made(i, i + 1, segment)
                if text != pattern:
                    yield Correction(text, other=True)


def _general(path: str) -> str:
    """A pattern for a path in every layer."""
    return _DIGITS.sub(r"\\d+", re.escape(path))


class PathEdit(NamedTuple):
    """One edit of a table of paths.

    Attributes:
        kind: what it does; `RULE_NAME` changes a pattern, `AXES` its spec.
        subject: the index of the pattern that it is done to; None for a new one.
        place: the index that a pattern is moved to, once it was taken out, or added at.
        rule: what the pattern becomes.
        tier: 0 where it corrects a mistake in spelling, 2 where it takes a pattern from
            other arrays, else 1.
        size: another size of the array instead: (dimension, old, new, what divides it).
    """

    kind: Kind
    subject: int | None
    place: int
    rule: PathRule | None = None
    tier: int = 1
    size: tuple[int, int, int, int] | None = None

    def apply(self, rules: PathRules) -> PathRules:
        """The table with the edit."""
        if self.kind is Kind.SIZE:
            return rules
        entries, new = list(rules.entries), self.rule
        if self.subject is not None:
            old = entries.pop(self.subject)
            if self.kind is Kind.MOVE:
                new = old
        if new is not None:
            entries.insert(self.place, new)
        return PathRules(tuple(entries), rules.mesh)

    def resized(self, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The shape of the array with the edit."""
        if self.size is None or shape is None:
            return shape
        dim, _, new, _ = self.size
        return (*shape[:dim], new, *shape[dim + 1 :])

    def step(self, rules: PathRules, path: str | None) -> Step:
        """The edit as a fact."""
        if self.size is not None:
            dim, old, new, parts = self.size
            return Step(self.kind, (), dim, 0, new, old, path, parts=parts)
        return Step(self.kind, rules.entries, self.subject, self.place, self.rule)


class PathArrays:
    """The arrays of an audit's rows that a table of paths splits, and what matches
    their paths.

    `sizes` has the shape and type of each, as a position in `kinds`, and `folds` has a
    number that an array shares with those of other layers and with its moments; int
    `[arrays]`.

    >>> PathArrays().paths
    []
    """

    def __init__(self, rows: Iterable[Any] = ()):
        # What cannot be laid out whatever the table says is no affair of the table.
        found = []
        for row in rows:
            if row.by_path and not row.spec_wins and (row.spec or not row.by_path.spec):
                found.append(row)
        self.paths: list[str] = [r.path for r in found]
        self.at = {path: n for n, path in enumerate(self.paths)}
        self.sizes, self.kinds = _numbered((r.shape, r.dtype) for r in found)
        self.folds, _ = _numbered(
            (_DIGITS.sub("0", r.partner or r.path), r.shape) for r in found
        )
        self._text = "\n".join(self.paths)
        self._found: dict[Any, tuple[np.ndarray, bool]] = {}

    def matched(self, pattern: str, dialect: Dialect) -> tuple[np.ndarray, bool]:
        """Whether a pattern matches each path, bool `[arrays]`; and whether it is none."""
        key = (pattern, dialect)
        if key not in self._found:
            self._found[key] = self._match(pattern, dialect)
        return self._found[key]

    def _match(self, pattern: str, dialect: Dialect) -> tuple[np.ndarray, bool]:
        none = np.zeros(len(self.paths), bool)
        try:
            test, text = matcher(pattern, dialect), required(pattern)
        except RuleError:
            return none, True
        if text not in self._text:
            return none, False
        return np.array([text in p and bool(test(p)) for p in self.paths], bool), False

    def winners(self, rules: PathRules, dialect: Dialect) -> np.ndarray:
        """Per array the index of the pattern that decides, NONE or FAILS."""
        count = len(self.paths)
        winner, times = np.full(count, NONE), np.zeros(count, int)
        for index, rule in enumerate(rules.entries):
            hits, fails = self.matched(rule.pattern, dialect)
            if dialect is Dialect.REGEX:
                winner[(winner == NONE) & (hits | fails)] = FAILS if fails else index
            else:
                winner[hits] = index
                times += hits + 2 * fails
        if dialect is Dialect.KERAS:
            winner[times > 1] = FAILS
            for pattern, index in rules.patterns.items():
                if pattern in self.at:
                    winner[self.at[pattern]] = index
        return winner


def _numbered(values: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """Per value its position in the list of all that differ."""
    known: dict[Any, int] = {}
    numbers = [known.setdefault(value, len(known)) for value in values]
    return np.array(numbers, int), list(known)


@dataclass
class PathSearch(LeafSearch[PathRules]):
    """A search among all `arrays` under a table of paths."""

    arrays: PathArrays

    @cached_property
    def _match(self) -> PathMatch:
        return self._matched(self.rules)

    def _matched(self, rules: PathRules) -> PathMatch:
        return match_path(self.leaf.path or "", rules, self.dialect)

    def _spec(self, rules: PathRules) -> Spec | None:
        """The spec under a table, with an entry for every dimension."""
        spec = matched_spec(self._matched(rules), rules, self.leaf.shape, self.dialect)
        return self._padded(spec)

    @cached_property
    def _now_spec(self) -> Spec | None:
        return self._spec(self.rules)

    @property
    def now(self) -> Spec | None:
        return self._now_spec

    def _padded(self, spec: Spec | None) -> Spec | None:
        if spec is None or spec.rank >= len(self.leaf.names):
            return spec
        dims = spec.padded(len(self.leaf.names))
        return Spec(dims, spec.unconstrained, spec.unreduced, spec.reduced)

    def first(self) -> Remedies | None:
        """The one remedy of what looks like a mistake, or None."""
        want = self._meant()
        found = None if want is None else self.find(want, most=1)
        return found or None

    def _meant(self) -> Spec | str | None:
        """What the table was most likely meant to give, or None where it gives that."""
        match = self._match
        if is_one_element(self.leaf.shape, self.dialect):
            return None
        if match.winner is None:
            several = [self.rules[i].spec for i in match.several]
            return next(filter(self._fits, several or self._corrected_specs()), None)
        spec = self.rules[match.winner].spec
        if not self._fits(spec):
            return next(filter(self._fits, self._reshaped(spec)), "split")
        if self.dialect is Dialect.KERAS or spec.axes or spec.unconstrained:
            return None
        # A pattern that splits nothing may hide a later one that would split it.
        for index in self._fitting:
            later = self.rules[index].spec
            if index > match.winner and later.axes and self._fits(later):
                return later
        return None

    def _corrected_specs(self) -> Iterator[Spec]:
        """The specs of patterns that nearly match the path."""
        for rule in self.rules:
            made = corrections(rule.pattern, self.leaf.path or "", self.dialect)
            if any(not c.other for c in made):
                yield rule.spec

    def _fits(self, spec: Spec) -> bool:
        if rank_problem(spec, len(self.leaf.names)):
            return False
        return not isinstance(self.layout(self.leaf.shape, self.leaf.dtype, spec), str)

    @cached_property
    def _fitting(self) -> list[int]:
        """The indices of the patterns that match the path."""
        path = self.leaf.path or ""
        found = []
        for index, rule in enumerate(self.rules):
            if _matches(rule.pattern, path, self.dialect):
                found.append(index)
        return found

    def _search(self, wish: Wish, most: int, pairs: bool) -> list[Remedy] | NoRemedy:
        if is_one_element(self.leaf.shape, self.dialect):
            return NoRemedy("one element", wish)
        best: dict[Any, tuple[Any, Remedy]] = {}
        for number, edit in enumerate(self._good_edits(wish)):
            if number >= MOST_WEIGHED:
                break
            made = self._remedy(edit, number)
            if made is not None:
                # Of edits that differ in how a new pattern is written, one is enough.
                alike = edit.kind, edit.subject, edit.size, made[1].spec
                best[alike] = min(best.get(alike, made), made, key=lambda m: m[0])
        ranked = sorted(best.values(), key=lambda m: m[0])[:most]
        if ranked:
            return [remedy for _, remedy in ranked]
        return self._too_small(wish) or self._reason(wish)

    def _good_edits(self, wish: Wish) -> Iterator[PathEdit]:
        for edit in self._edits(wish):
            spec = self._spec(edit.apply(self.rules))
            if self._meets(spec, wish, edit.resized(self.leaf.shape)):
                yield edit

    def _edits(self, wish: Wish) -> Iterator[PathEdit]:
        """The edits that may give the wish, those that are likely meant first."""
        yield from itertools.islice(self._corrected(wish), MOST_CORRECTED)
        yield from self._moved()
        yield from self._removed()
        yield from self._resized()
        targets = self._targets(wish)
        yield from self._other_specs(targets)
        yield from self._added(targets)

    def _corrected(self, wish: Wish) -> Iterator[PathEdit]:
        path = self.leaf.path or ""
        for index, rule in enumerate(self.rules):
            if index in self._fitting or not self._meets(rule.spec, wish):
                continue
            used = self.arrays.matched(rule.pattern, self.dialect)[0].any()
            for made in corrections(rule.pattern, path, self.dialect):
                if made.pattern not in self.rules.patterns:
                    tier = 2 if used or made.other else int(not made.typo)
                    new = PathRule(made.pattern, rule.spec)
                    yield PathEdit(Kind.RULE_NAME, index, index, new, tier)

    def _meets(
        self, spec: Spec | None, wish: Wish, shape: tuple[int, ...] | None = None
    ) -> bool:
        spec = self._padded(spec)
        if spec is None or spec.rank > len(self.leaf.names):
            return False
        return self._good(shape or self.leaf.shape, spec, wish)

    def _moved(self) -> Iterator[PathEdit]:
        """A later pattern before the one that decides, or that one after the next."""
        winner = self._match.winner
        if self.dialect is Dialect.KERAS or winner is None:
            return
        later = [i for i in self._fitting if i > winner]
        for index in later:
            yield PathEdit(Kind.MOVE, index, winner)
        if later:
            yield PathEdit(Kind.MOVE, winner, later[0])

    def _removed(self) -> Iterator[PathEdit]:
        winner = self._match.winner
        for index in self._match.several if winner is None else (winner,):
            yield PathEdit(Kind.REMOVE, index, index)

    def _resized(self) -> Iterator[PathEdit]:
        leaf, spec = self.leaf, self.now
        if spec is None or leaf.shape is None or self.mesh is None:
            return
        if spec.rank > len(leaf.shape):
            return
        for edit in edits.resized((), leaf.names, leaf.shape, spec, self.mesh):
            dim, new = edit.subject, edit.target
            assert dim is not None
            assert isinstance(new, int)
            parts = math.prod(self.mesh.shape[a] for a in spec.dims[dim])
            size = (dim, leaf.shape[dim], new, parts)
            yield PathEdit(Kind.SIZE, None, 0, size=size)

    def _other_specs(self, targets: list[Spec]) -> Iterator[PathEdit]:
        """Another spec for the pattern that decides."""
        at = self._match.winner
        if at is None:
            return
        known = self.mesh.axis_names if self.mesh else ()
        old = self.rules[at]
        for spec in targets:
            tier = int(not edits.misspelt(old.spec.axes, spec.axes, known))
            yield PathEdit(Kind.AXES, at, at, PathRule(old.pattern, spec), tier)

    def _added(self, targets: list[Spec]) -> Iterator[PathEdit]:
        place = self._match.winner
        if self.dialect is Dialect.KERAS or place is None:
            place = len(self.rules)
        for spec in targets:
            for pattern in dict.fromkeys(self._patterns()):
                if pattern not in self.rules.patterns:
                    yield PathEdit(Kind.ADD, None, place, PathRule(pattern, spec))

    def _patterns(self) -> list[str]:
        """Patterns for the path: with its moments, in every layer, and alone."""
        path, regex = self.leaf.path or "", self.dialect is Dialect.REGEX
        general, alone = _general(path), re.escape(path)
        patterns = []
        end = self._shared_end()
        if end not in ("", general):
            patterns.append(f"(^|/){end}$" if regex else f".*{end}")
        if regex:
            return [*patterns, f"{general}$", f"^{general}$", f"^{alone}$"]
        if _DIGITS.search(path):
            patterns.append(general)
        return [*patterns, path, alone]

    def _shared_end(self) -> str:
        """The last segments that the paths of other layers and of moments share."""
        if self._me is None:
            return ""
        folds = self.arrays.folds
        ends = []
        for i in np.flatnonzero(folds == folds[self._me]):
            ends.append(_general(self.arrays.paths[i]).split("/")[::-1])
        shared: list[str] = []
        for segments in zip(*ends, strict=False):
            if len(set(segments)) > 1:
                break
            shared.insert(0, segments[0])
        return "/".join(shared)

    def _targets(self, wish: Wish) -> list[Spec]:
        """The spec that is wanted, or else some that would do, the likely ones first."""
        if wish.spec is not None:
            return [wish.spec]
        winner = self._match.winner
        likely: list[Spec] = []
        if winner is not None:
            likely += self._reshaped(self.rules[winner].spec)
        likely += dict.fromkeys(rule.spec for rule in self.rules)
        kinds: list[Iterable[Spec]] = [likely, self._one_dimension_more(wish)]
        if wish.limit is not None and self.mesh is not None and self.leaf.shape:
            enough = [spec for size, spec in self._splits() if size <= wish.limit]
            kinds.append(sorted(enough, key=lambda s: len(s.axes)))
        found: dict[Spec, Spec] = {}
        for some in kinds:
            good = (spec for spec in some if self._meets(spec, wish))
            for spec in itertools.islice(good, MOST_TARGETS):
                found.setdefault(spec.trimmed, spec)
        return list(found.values())

    def _reshaped(self, spec: Spec) -> Iterator[Spec]:
        """A spec of another rank or with misspelt axes, as it may have been meant."""
        if self.mesh is not None:
            names, dims = self.mesh.axis_names, []
            for axes in spec.dims:
                dims.append(tuple(edits.near(a, names) or a for a in axes))
            spec = Spec(tuple(dims))
        extra = spec.rank - len(self.leaf.names)
        if extra <= 0:
            blank = ((),) * -extra
            for i in range(spec.rank + 1):
                yield Spec((*spec.dims[:i], *blank, *spec.dims[i:]))
            return
        # Entries that split nothing are dropped before others.
        bare = [i for i, axes in enumerate(spec.dims) if not axes]
        for places in (bare, range(spec.rank)):
            some = itertools.combinations(places, extra)
            for gone in itertools.islice(some, MOST_TARGETS):
                kept = (d for i, d in enumerate(spec.dims) if i not in gone)
                yield Spec(tuple(kept))

    def _one_dimension_more(self, wish: Wish) -> Iterator[Spec]:
        """The spec as far as it can be laid out, with other axes in one dimension."""
        base = self._sound_dims()
        dims = range(len(base)) if wish.dim is None else (wish.dim,)
        for axes in edits.subsets(self._axes, MOST_AXES):
            rest = [tuple(a for a in d if a not in axes) for d in base]
            for d in dims:
                yield Spec((*rest[:d], axes, *rest[d + 1 :]))

    def _sound_dims(self) -> list[tuple[str, ...]]:
        """The dimensions as they are split now, those that cannot be left unsplit."""
        sound: list[tuple[str, ...]] = [()] * len(self.leaf.names)
        if self.now is not None:
            for d, axes in enumerate(self.now.dims[: len(sound)]):
                if self._fits(Spec((*sound[:d], axes))):
                    sound[d] = axes
        return sound

    def _remedy(self, edit: PathEdit, number: int) -> tuple[Any, Remedy] | None:
        """The remedy of an edit and its rank; None where it breaks an array."""
        rules, shape = edit.apply(self.rules), edit.resized(self.leaf.shape)
        spec, effect = self._spec(rules), self._effect(rules)
        if effect is None or spec is None:
            return None
        others, saved = effect
        here = self._saves(spec, shape, self.leaf.dtype)
        everywhere = None if here is None else here + saved
        many = len(spec.axes) > 1 and spec.trimmed not in self._known
        # A smaller size saves bytes, which nobody asked for.
        more = 0 if edit.size is not None else -(everywhere or 0)
        kind = edit.kind
        if kind is Kind.RULE_NAME and edit.tier:
            kind = Kind.ADD
        strange = self._strange(edit, others) if edit.tier else 0
        key = (edit.tier, many, self._unsplit(spec), strange, kind, more, number)
        change = edit.step(self.rules, self.leaf.path)
        paths = tuple(self.arrays.paths[i] for i in others)
        names = self.leaf.names
        return key, Remedy(change, rules, names, shape, spec, here, everywhere, paths)

    def _strange(self, edit: PathEdit, others: np.ndarray) -> int:
        """How many other arrays change that are not of another layer or a moment."""
        if self._me is not None:
            folds, now = self.arrays.folds, self._now
            same = (folds == folds[self._me]) & (now == now[self._me])
            return len(others) - int(same[others].sum())
        # Of a path alone: a spec that lays out here may be meant for others.
        sound = self.now is not None and self._fits(self.now)
        return len(others) + (edit.kind is Kind.AXES and sound)

    @cached_property
    def _me(self) -> int | None:
        return self.arrays.at.get(self.leaf.path or "")

    @cached_property
    def _now(self) -> np.ndarray:
        return self._specs_under(self.rules)

    @cached_property
    def _ones(self) -> np.ndarray:
        ones = [is_one_element(s, self.dialect) for s, _ in self.arrays.kinds]
        return np.array(ones, bool)[self.arrays.sizes]

    def _specs_under(self, rules: PathRules) -> np.ndarray:
        """Per array the number of its spec under a table, or FAILS."""
        winners = self.arrays.winners(rules, self.dialect)
        none = FAILS if self.dialect is Dialect.REGEX else self._numbers[Spec()]
        # Indexed by NONE and FAILS from the end.
        specs = [self._numbers[r.spec] for r in rules]
        found = np.array([*specs, FAILS, none])[winners]
        found[self._ones] = self._numbers[Spec()]
        return found

    @cached_property
    def _numbers(self) -> dict[Spec, int]:
        return defaultdict(itertools.count().__next__)

    @cached_property
    def _known(self) -> set[Spec]:
        return {rule.spec.trimmed for rule in self.rules}

    def _effect(self, rules: PathRules) -> tuple[np.ndarray, int] | None:
        """The other arrays that change and the bytes saved; None where one breaks."""
        before, after, saved = self._now, self._specs_under(rules), 0
        changed = np.flatnonzero(before != after)
        if self._me is not None:
            changed = changed[changed != self._me]
        # Of thousands of arrays there are few kinds, and few ways in which they change.
        moves = np.stack([self.arrays.sizes[changed], before[changed], after[changed]])
        unique, kind, counts = np.unique(
            moves, axis=1, return_inverse=True, return_counts=True
        )
        differs = []
        for (size, old, new), count in zip(
            unique.T.tolist(), counts.tolist(), strict=True
        ):
            (was, old_spec), (becomes, new_spec) = (
                self._held(size, old),
                self._held(size, new),
            )
            if becomes is None and was is not None:
                return None
            shape, dtype = self.arrays.kinds[size]
            whole = size_in_bytes(math.prod(shape), dtype)
            saved += count * ((whole if was is None else was) - (becomes or whole))
            fails = (was is None) != (becomes is None)
            differs.append(fails or not old_spec.equivalent(new_spec))
        return changed[np.array(differs, bool)[kind.ravel()]], saved

    def _held(self, size: int, number: int) -> tuple[int | None, Spec]:
        """What such an array takes per device, None where it fails; and its spec."""
        if number == FAILS:
            return None, Spec()
        (shape, dtype), spec = self.arrays.kinds[size], list(self._numbers)[number]
        layout = self.layout(shape, dtype, spec)
        held = layout.bytes_per_device if isinstance(layout, Layout) else None
        return held, spec

    def _reason(self, wish: Wish) -> NoRemedy:
        """Why no table gives what is wanted."""
        shape = self.leaf.shape or ()
        if wish.spec is not None:
            error = self.layout(self.leaf.shape, self.leaf.dtype, wish.spec)
            text = error if isinstance(error, str) else ""
            return NoRemedy("no layout", wish, error=text)
        if self.leaf.shape == ():
            return NoRemedy("scalar", wish)
        if wish.dim is not None:
            shape = shape[wish.dim : wish.dim + 1]
        return NoRemedy("does not divide", wish, mesh=self.mesh, sizes=shape)
