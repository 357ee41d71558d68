"""The smallest edits of a table of paths with which an array is split as somebody wants.

A pattern is moved, added, removed or given another spec, or one that misses the path by a
misspelt word or by one segment is corrected. Each edit is made, the path is matched again, and what
gives the wish is kept; then all other arrays are matched with the new table. An edit with which
an array can no longer be laid out is left out. A pattern for the path alone touches no other array:
where any table can give the wish, one edit is enough.

The functions that match are passed in, since `PathResolution.explain` ends with a remedy.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.errors import RuleError
from shardviz.core.format import joined, nearest, shown
from shardviz.core.layout import remedy_edits as edits
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.partition_spec import Spec, rank_problem
from shardviz.core.layout.remedies import MOST_AXES, LeafSearch, Remedy
from shardviz.core.layout.remedy_edits import Kind, Wish
from shardviz.core.layout.rules import Dialect, PathRule, PathRules

MOST_TARGETS = 8  # specs that a pattern is given, where only a size was wanted
MOST_NEAR = 3  # words of a path that a misspelt one may have been
MOST_CORRECTED = 200  # patterns that are tried in place of others
MOST_WEIGHED = 64  # edits of which the effect on other arrays is found
NONE, FAILS = -1, -2  # in place of a pattern: none matches; the library raises an error

_WORD = re.compile(r"[^\W\d]\w+")
_NOT_PLAIN = re.compile(r"\\.|\[[^\]]*\]|\{[^}]*\}|\(\?[a-zA-Z]*[:)]?|\w[?*]")
_DIGITS = re.compile(r"[0-9]+")

#: A pattern of that text, with `search`, `fullmatch` and `required`; raises a RuleError.
Compile = Callable[[str], Any]


def tests(pattern: str, dialect: Dialect, compiled: Compile) -> Callable[[str], bool]:
    """Whether a pattern matches a path as the dialect asks for; a path that is a key aside."""
    found = compiled(pattern)
    return found.search if dialect is Dialect.REGEX else found.fullmatch


@lru_cache(maxsize=4096)
def words_of(pattern: str) -> tuple[str, ...]:
    """The words in a pattern that stand there letter by letter.

    >>> words_of("mlp/.*/kernels?$")
    ('mlp', 'kernel')
    """
    return tuple(dict.fromkeys(match[0] for match in _words(pattern)))


def _words(pattern: str) -> Iterator[re.Match[str]]:
    return _WORD.finditer(_NOT_PLAIN.sub(lambda m: " " * len(m[0]), pattern))


def widened(pattern: str) -> tuple[str, str, str]:
    """Patterns that match all of a path where this one is found in a part of it."""
    return f".*{pattern}", f"{pattern}.*", f".*{pattern}.*"


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


def corrections(
    pattern: str, path: str, dialect: Dialect, compiled: Compile
) -> Iterator[Correction]:
    """Patterns that match a path and differ from this one by a misspelt word or by one segment."""

    def matches(text: str) -> bool:
        try:
            return tests(text, dialect, compiled)(path)
        except RuleError:  # what was a group, or would take too long
            return False

    made = itertools.chain(_respelt(pattern, path), _by_segment(pattern, path, dialect, matches))
    return (found for found in made if matches(found.pattern))


def _respelt(pattern: str, path: str) -> Iterator[Correction]:
    known = dict.fromkeys(
        w for kind in (r"\w+", r"[^\W_]+", r"[^\W\d]+") for w in re.findall(kind, path)
    )
    for word in _words(pattern):
        left = [] if word[0] in known else list(known)
        for _ in range(MOST_NEAR):
            close = nearest(word[0], left)
            if close is None:
                break
            left.remove(close)
            yield Correction(pattern[: word.start()] + close + pattern[word.end() :], typo=True)


def _by_segment(
    pattern: str, path: str, dialect: Dialect, matches: Callable[[str], bool]
) -> Iterator[Correction]:
    """The pattern with one segment less, more, or in place of another; what is left has words."""
    lead = "^" * pattern.startswith("^")
    tail = "$" * (pattern.endswith("$") and not pattern.endswith(r"\$"))
    parts = pattern[len(lead) : len(pattern) - len(tail)].split("/")
    strange = [i for i, part in enumerate(parts) if any(w not in path for w in words_of(part))]
    if len(strange) > 1 or not any(w in path for w in words_of(pattern)):
        return

    def made(start: int, stop: int, *new: str) -> str:
        return f"{lead}{'/'.join([*parts[:start], *new, *parts[stop:]])}{tail}"

    entire, segments = dialect is Dialect.KERAS, [_general(s) for s in path.split("/")]
    if entire and not strange:
        yield from map(Correction, widened(pattern))
    worded = [i for i, part in enumerate(parts) if words_of(part)]
    for i in strange or range(len(parts)):
        if worded != [i]:
            yield Correction(made(i, i + 1))
    # Without an anchor, what is before and after a pattern does not matter.
    first, last = int(not (entire or lead)), len(parts) + bool(entire or tail)
    for i in () if strange else range(first, last):
        if matches(made(i, i, "[^/]+")):
            yield from (Correction(made(i, i, s)) for s in dict.fromkeys(segments))
    for i in strange or range(len(parts)):
        if worded != [i] and matches(made(i, i + 1, "[^/]+")):
            new = (made(i, i + 1, s) for s in dict.fromkeys(segments))
            yield from (Correction(text, other=True) for text in new if text != pattern)


def _general(path: str) -> str:
    """A pattern for a path in every layer."""
    return _DIGITS.sub(r"\\d+", re.escape(path))


class PathEdit(NamedTuple):
    """One edit of a table of paths.

    Attributes:
        kind: what it does; `RULE_NAME` changes a pattern, `AXES` its spec.
        subject: the index of the pattern that it is done to; None for a new one.
        place: the index that a pattern is moved to, once it was taken out, or added before.
        rule: what the pattern becomes.
        tier: 0 where it corrects a mistake in spelling, 2 where it takes a pattern from other
            arrays, else 1.
        shape: the array's shape, where that is changed instead.
        text: what to do, where that is changed.
    """

    kind: Kind
    subject: int | None
    place: int
    rule: PathRule | None = None
    tier: int = 1
    shape: tuple[int, ...] | None = None
    text: str = ""

    def apply(self, rules: PathRules) -> PathRules:
        """The table with the edit."""
        entries, i, at = list(rules.entries), self.subject, self.place
        if self.kind is Kind.SIZE:
            return rules
        old = entries.pop(i) if i is not None else None
        new = self.rule or (old if self.kind is Kind.MOVE else None)
        if new is not None:
            entries.insert(at, new)
        return PathRules(tuple(entries), rules.mesh)

    def sentence(self, rules: PathRules) -> str:
        """What to do, in words.

        >>> table = PathRules.of([("a", ()), ("b", ("x",))])
        >>> PathEdit(Kind.MOVE, 1, 0).sentence(table)
        "Move pattern 2 ('b' → P('x')) before pattern 1 ('a' → P())"
        """
        i, at, rule = self.subject, self.place, self.rule
        if self.text:
            return self.text
        if i is None:
            end = "at the end" if at == len(rules) else f"before {_line(rules, at)}"
            return f"Add the pattern {shown(rule and rule.pattern)} → {rule and rule.spec} {end}"
        line = _line(rules, i)
        if self.kind is Kind.REMOVE:
            return f"Remove {line}"
        if rule is None:
            return f"Move {line} {'before' if at < i else 'after'} {_line(rules, at)}"
        if self.kind is Kind.AXES:
            return f"Give {line} the spec {rule.spec}"
        return f"Change {line} to {shown(rule.pattern)}"


def _line(rules: PathRules, index: int) -> str:
    return f"pattern {index + 1} ({shown(rules[index].pattern)} → {rules[index].spec})"


class PathArrays:
    """The arrays of an audit's rows that a table of paths splits, and what matches their paths.

    `sizes` has the shape and type of each, as a position in `kinds`, and `folds` has a number that
    an array shares with those of other layers and with its moments; int `[arrays]`.

    >>> PathArrays().paths
    []
    """

    def __init__(self, rows: Iterable[Any] = ()):
        # What cannot be laid out whatever the table says is no affair of the table.
        found = [
            r for r in rows if r.by_path and not r.spec_wins and (r.spec or not r.by_path.spec)
        ]
        self.paths: list[str] = [r.path for r in found]
        self.at = {path: n for n, path in enumerate(self.paths)}
        self.sizes, self.kinds = _numbered((r.shape, r.dtype) for r in found)
        parts = ((_DIGITS.sub("0", r.partner or r.path), r.shape) for r in found)
        self.folds, _ = _numbered(parts)
        self._text = "\n".join(self.paths)
        self._found: dict[Any, tuple[np.ndarray, bool]] = {}

    def matched(self, pattern: str, dialect: Dialect, compiled: Compile) -> tuple[np.ndarray, bool]:
        """Whether a pattern matches each path, bool `[arrays]`; and whether finding out fails."""
        key = (pattern, dialect)
        if key not in self._found:
            self._found[key] = self._match(pattern, dialect, compiled)
        return self._found[key]

    def _match(self, pattern: str, dialect: Dialect, compiled: Compile) -> tuple[np.ndarray, bool]:
        none = np.zeros(len(self.paths), bool)
        try:
            test, text = tests(pattern, dialect, compiled), compiled(pattern).required
            if text not in self._text:
                return none, False
            return np.array([text in p and test(p) for p in self.paths], bool), False
        except RuleError:
            return none, True

    def winners(self, rules: PathRules, dialect: Dialect, compiled: Compile) -> np.ndarray:
        """Per array the index of the pattern that decides, NONE or FAILS; as `match_path`."""
        count = len(self.paths)
        winner, times = np.full(count, NONE), np.zeros(count, int)
        for index, rule in enumerate(rules.entries):
            hits, fails = self.matched(rule.pattern, dialect, compiled)
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
    """A search among all `arrays` under a table of paths.

    Attributes:
        resolve: the PathResolution of the array under another table.
        compiled: what makes a pattern of its text.
        arrays: all arrays.
    """

    resolve: Callable[[PathRules], Any]
    compiled: Compile
    arrays: PathArrays

    @cached_property
    def _resolution(self) -> Any:
        return self.resolve(self.rules)

    @property
    def now(self) -> Spec | None:
        return self._padded(self._resolution.spec)

    def _padded(self, spec: Spec | None) -> Spec | None:
        """With an entry for every dimension."""
        rank = len(self.leaf.names)
        if spec is None or spec.rank >= rank:
            return spec
        dims = spec.dims + ((),) * (rank - spec.rank)
        return Spec(dims, spec.unconstrained, spec.unreduced, spec.reduced)

    def first(self) -> str | None:
        """One sentence on what to change, where something looks like a mistake."""
        found = () if (want := self._wanted()) is None else self.find(want, most=1)
        if not found:
            return None
        edit = found[0].edit
        return f"To {found.want}: {edit[0].lower()}{edit[1:]}."

    def _wanted(self) -> Spec | str | None:
        """What the table was most likely meant to give the array, or None where it gives that."""
        found = self._resolution
        if found.one_element:
            return None
        if found.winner is None:
            several = [self.rules[i].spec for i in found.match.several]
            return next(filter(self._fits, several or self._corrected_specs()), None)
        spec = self.rules[found.winner].spec
        if not self._fits(spec):
            return next(filter(self._fits, self._reshaped(spec)), "split")
        later = [self.rules[i].spec for i in self._fitting if i > found.winner]
        hidden = self.dialect is Dialect.REGEX and not (spec.axes or spec.unconstrained)
        return next((s for s in later if hidden and s.axes and self._fits(s)), None)

    def _corrected_specs(self) -> Iterator[Spec]:
        """The specs of patterns that nearly match."""
        for rule in self.rules:
            made = corrections(rule.pattern, self._resolution.path, self.dialect, self.compiled)
            if any(not c.other for c in made):
                yield rule.spec

    def _fits(self, spec: Spec) -> bool:
        if rank_problem(spec, len(self.leaf.names)):
            return False
        return not isinstance(self.layout(self.leaf.shape, self.leaf.dtype, spec), str)

    @cached_property
    def _fitting(self) -> list[int]:
        """The indices of the patterns that match the path."""
        path, found = self._resolution.path, []
        for index, rule in enumerate(self.rules):
            try:
                if tests(rule.pattern, self.dialect, self.compiled)(path):
                    found.append(index)
            except RuleError:
                continue
        return found

    def _search(self, wish: Wish, most: int, pairs: bool) -> tuple[list[Remedy], str | None]:
        if self._resolution.one_element:
            return [], f"{self.leaf.title} has one element, and EasyLM never splits such an array."
        best: dict[Any, tuple[Any, Remedy]] = {}
        every = ((e, self.resolve(e.apply(self.rules)).spec) for e in self._edits(wish))
        good = (edit for edit, spec in every if self._meets(spec, wish, edit.shape))
        for number, edit in enumerate(itertools.islice(good, MOST_WEIGHED)):
            made = self._remedy(edit, number)
            if made is not None:
                # Of edits that differ in how a new pattern is written, the best one is enough.
                alike = edit.kind, edit.subject, edit.shape, made[1].spec
                best[alike] = min(best.get(alike, made), made, key=lambda m: m[0])
        found = [remedy for _, remedy in sorted(best.values(), key=lambda m: m[0])[:most]]
        return found, None if found else self._too_small(wish) or self._reason(wish)

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
        path, arrays = self._resolution.path, self.arrays
        for index, rule in enumerate(self.rules):
            if index in self._fitting or not self._meets(rule.spec, wish):
                continue
            used = arrays.matched(rule.pattern, self.dialect, self.compiled)[0].any()
            for made in corrections(rule.pattern, path, self.dialect, self.compiled):
                if made.pattern not in self.rules.patterns:
                    tier = 2 if used or made.other else int(not made.typo)
                    new = PathRule(made.pattern, rule.spec)
                    yield PathEdit(Kind.RULE_NAME, index, index, new, tier)

    def _meets(self, spec: Spec | None, wish: Wish, shape: tuple[int, ...] | None = None) -> bool:
        whole = self._padded(spec)
        if whole is None or whole.rank > len(self.leaf.names):
            return False
        return self._good(shape or self.leaf.shape, whole, wish)

    def _moved(self) -> Iterator[PathEdit]:
        """A later pattern before the one that decides, or that one after the next."""
        winner = self._resolution.winner
        if self.dialect is Dialect.KERAS or winner is None:
            return
        later = [i for i in self._fitting if i > winner]
        yield from (PathEdit(Kind.MOVE, index, winner) for index in later)
        yield from (PathEdit(Kind.MOVE, winner, index) for index in later[:1])

    def _removed(self) -> Iterator[PathEdit]:
        found = self._resolution
        several = found.match.several if found.winner is None else (found.winner,)
        yield from (PathEdit(Kind.REMOVE, i, i) for i in several)

    def _resized(self) -> Iterator[PathEdit]:
        leaf, spec = self.leaf, self.now
        if spec is None or leaf.shape is None or self.mesh is None or spec.rank > len(leaf.shape):
            return
        for edit in edits.resized((), leaf.names, leaf.shape, spec, self.mesh):
            assert edit.subject is not None
            d, parts = edit.subject, math.prod(self.mesh.shape[a] for a in spec.dims[edit.subject])
            assert isinstance(edit.target, int)
            shape = (*leaf.shape[:d], edit.target, *leaf.shape[d + 1 :])
            text = edits.size_words(edit, leaf.shape, parts)
            yield PathEdit(Kind.SIZE, None, 0, shape=shape, text=text)

    def _other_specs(self, targets: list[Spec]) -> Iterator[PathEdit]:
        """Another spec for the pattern that decides."""
        at, known = self._resolution.winner, self.mesh.axis_names if self.mesh else ()
        for spec in targets:
            if at is None:
                return
            old = self.rules[at]
            tier = int(not edits.misspelt(old.spec.axes, spec.axes, known))
            yield PathEdit(Kind.AXES, at, at, PathRule(old.pattern, spec), tier)

    def _added(self, targets: list[Spec]) -> Iterator[PathEdit]:
        before = None if self.dialect is Dialect.KERAS else self._resolution.winner
        place = len(self.rules) if before is None else before
        for spec, pattern in itertools.product(targets, dict.fromkeys(self._patterns())):
            if pattern not in self.rules.patterns:
                yield PathEdit(Kind.ADD, None, place, PathRule(pattern, spec))

    def _patterns(self) -> list[str]:
        """Patterns for the path: with its moments, in every layer, and alone."""
        path, folds, regex = self._resolution.path, self.arrays.folds, self.dialect is Dialect.REGEX
        same = [] if self._me is None else np.flatnonzero(folds == folds[self._me])
        ends = [_general(self.arrays.paths[i]).split("/")[::-1] for i in same]
        shared = itertools.takewhile(lambda s: len(set(s)) == 1, zip(*ends, strict=False))
        general, alone = _general(path), re.escape(path)
        end = "/".join([segments[0] for segments in shared][::-1])
        most = [(f"(^|/){end}$" if regex else f".*{end}")] if end not in ("", general) else []
        if regex:
            return [*most, f"{general}$", f"^{general}$", f"^{alone}$"]
        return [*most, *([general] if _DIGITS.search(path) else []), path, alone]

    def _targets(self, wish: Wish) -> list[Spec]:
        """The spec that is wanted, or else some that would do, the likely ones first."""
        if wish.spec is not None:
            return [wish.spec]
        winner = self._resolution.winner
        likely = itertools.chain(
            () if winner is None else self._reshaped(self.rules[winner].spec),
            dict.fromkeys(rule.spec for rule in self.rules),
        )
        kinds = [likely, self._one_dimension_more(wish)]
        if wish.limit is not None and self.mesh is not None and self.leaf.shape is not None:
            enough = [spec for size, spec in self._splits() if size <= wish.limit]
            kinds.append(sorted(enough, key=lambda s: len(s.axes)))
        found: dict[Spec, Spec] = {}
        for some in kinds:
            for spec in itertools.islice((s for s in some if self._meets(s, wish)), MOST_TARGETS):
                found.setdefault(spec.trimmed, spec)
        return list(found.values())

    def _reshaped(self, spec: Spec) -> Iterator[Spec]:
        """A spec of another rank or with misspelt axes, as it may have been meant."""
        if self.mesh is not None:
            names = self.mesh.axis_names
            spec = Spec(tuple(tuple(edits.near(a, names) or a for a in d) for d in spec.dims))
        extra = spec.rank - len(self.leaf.names)
        if extra <= 0:
            blank = ((),) * -extra
            yield from (
                Spec((*spec.dims[:i], *blank, *spec.dims[i:])) for i in range(spec.rank + 1)
            )
            return
        bare = [i for i, axes in enumerate(spec.dims) if not axes]
        for places in (bare, range(spec.rank)):
            for gone in itertools.islice(itertools.combinations(places, extra), MOST_TARGETS):
                yield Spec(tuple(d for i, d in enumerate(spec.dims) if i not in gone))

    def _one_dimension_more(self, wish: Wish) -> Iterator[Spec]:
        """The spec as it is, as far as it can be laid out, with other axes in one dimension."""
        base = self._sound_dims()
        dims = range(len(base)) if wish.dim is None else (wish.dim,)
        for axes in edits.subsets(self._axes, MOST_AXES):
            rest = [tuple(a for a in d if a not in axes) for d in base]
            yield from (Spec((*rest[:d], axes, *rest[d + 1 :])) for d in dims)

    def _sound_dims(self) -> list[tuple[str, ...]]:
        """The dimensions as they are split now, those that cannot be left unsplit."""
        found: list[tuple[str, ...]] = [()] * len(self.leaf.names)
        for d, axes in enumerate(self.now.dims if self.now is not None else ()):
            if d < len(found) and self._fits(Spec((*found[:d], axes))):
                found[d] = axes
        return found

    def _remedy(self, edit: PathEdit, number: int) -> tuple[Any, Remedy] | None:
        """The remedy of an edit, with what it is sorted by; None where it breaks an array."""
        rules, shape = edit.apply(self.rules), edit.shape or self.leaf.shape
        spec = self._padded(self.resolve(rules).spec)
        effect = self._effect(rules)
        if effect is None or spec is None:
            return None
        others, saved = effect
        here = self._saves(spec, shape, self.leaf.dtype)
        everywhere = None if here is None else here + saved
        paths, strange = tuple(self.arrays.paths[i] for i in others), len(others)
        if self._me is None:  # what lays out here may be meant for others
            strange += edit.kind is Kind.AXES and self.now is not None and self._fits(self.now)
        else:
            folds, now = self.arrays.folds, self._now
            same = (folds == folds[self._me]) & (now == now[self._me])
            strange -= int(same[others].sum())
        many = len(spec.axes) > 1 and spec.trimmed not in self._known
        lost, counted = self._unsplit(spec), strange if edit.tier else 0
        # A smaller size saves bytes, which nobody asked for.
        more = 0 if edit.shape is not None else -(everywhere or 0)
        kind = Kind.ADD if edit.kind is Kind.RULE_NAME and edit.tier else edit.kind
        key = (edit.tier, many, lost, counted, kind, more, number)
        text = edit.sentence(self.rules)
        return key, Remedy(text, rules, self.leaf.names, shape, spec, here, everywhere, paths)

    @cached_property
    def _me(self) -> int | None:
        return self.arrays.at.get(self._resolution.path)

    @cached_property
    def _now(self) -> np.ndarray:
        return self._specs_under(self.rules)

    @cached_property
    def _ones(self) -> np.ndarray:
        one = [self.dialect is Dialect.REGEX and math.prod(s) == 1 for s, _ in self.arrays.kinds]
        return np.array(one, bool)[self.arrays.sizes]

    def _specs_under(self, rules: PathRules) -> np.ndarray:
        """Per array the number of its spec under a table, or FAILS."""
        winners = self.arrays.winners(rules, self.dialect, self.compiled)
        none = FAILS if self.dialect is Dialect.REGEX else self._numbers[Spec()]
        # Indexed by NONE and FAILS from the end.
        found = np.array([*(self._numbers[r.spec] for r in rules), FAILS, none])[winners]
        found[self._ones] = self._numbers[Spec()]
        return found

    @cached_property
    def _numbers(self) -> dict[Spec, int]:
        return defaultdict(itertools.count().__next__)

    @cached_property
    def _known(self) -> set[Spec]:
        return {rule.spec.trimmed for rule in self.rules}

    def _effect(self, rules: PathRules) -> tuple[np.ndarray, int] | None:
        """The other arrays that change and the bytes per device saved; None where one breaks."""
        before, after, saved = self._now, self._specs_under(rules), 0
        changed = np.flatnonzero(before != after)
        changed = changed[changed != self._me] if self._me is not None else changed
        moves = np.stack([self.arrays.sizes[changed], before[changed], after[changed]])
        unique, kind, counts = np.unique(moves, axis=1, return_inverse=True, return_counts=True)
        differs = []
        for (size, old, new), count in zip(unique.T.tolist(), counts.tolist(), strict=True):
            (was, as_), (becomes, to) = self._held(size, old), self._held(size, new)
            if becomes is None and was is not None:
                return None
            shape, dtype = self.arrays.kinds[size]
            whole = size_in_bytes(math.prod(shape), dtype)
            saved += count * ((whole if was is None else was) - (becomes or whole))
            differs.append((was is None) != (becomes is None) or not as_.equivalent(to))
        return changed[np.array(differs, bool)[kind.ravel()]], saved

    def _held(self, size: int, number: int) -> tuple[int | None, Spec]:
        """What such an array takes per device with such a spec, None where it fails; the spec."""
        if number == FAILS:
            return None, Spec()
        (shape, dtype), spec = self.arrays.kinds[size], list(self._numbers)[number]
        found = self.layout(shape, dtype, spec)
        return found.bytes_per_device if isinstance(found, Layout) else None, spec

    def _reason(self, wish: Wish) -> str:
        """Why no table gives what is wanted."""
        what, sizes = wish.words(self.leaf.title), self.leaf.shape
        if wish.spec is not None:
            found = self.layout(sizes, self.leaf.dtype, wish.spec)
            return f"No table can {what}. {found}" if isinstance(found, str) else f"{what}?"
        if sizes == ():
            return f"No table can {what}: it has no dimension."
        some = (sizes or ()) if wish.dim is None else (sizes or ())[wish.dim :][:1]
        which = joined((f"{n:,}" for n in some), "or") or "its sizes"
        return f"No table can {what}: no axis of the mesh ({self.mesh}) divides {which}."
