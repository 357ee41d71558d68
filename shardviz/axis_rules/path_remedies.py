"""Edits of a path table that could split an array as requested.

An edit moves a pattern up, adds or removes a pattern, changes its spec, or corrects a
misspelt word in a pattern.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from shardviz.axis_rules.dialects import PathDialect
from shardviz.axis_rules.matching import Names
from shardviz.axis_rules.path_matching import (
    PathMatch,
    decided,
    fits,
    is_one_element,
    match_path,
    matched_spec,
    plain_words,
)
from shardviz.axis_rules.remedies import (
    Action,
    AddLine,
    BytesWish,
    MoveLine,
    RemoveLine,
    RenameLine,
    RetargetLine,
    SpecWish,
    SplitWish,
    UnsplitWish,
    Wish,
)
from shardviz.axis_rules.remedy_search import AuditRow, RemedySearch
from shardviz.axis_rules.rules import PathRule, PathRules, near
from shardviz.base.errors import RuleError
from shardviz.base.partition_spec import Spec

# How many specs to try per pattern, if the request is not a spec.
MOST_TARGETS = 12


class PathSearch(RemedySearch[PathRule, PathRules, PathDialect]):
    """A search for edits of a path table."""

    @property
    def _path(self) -> str:
        return self.leaf.path or ""

    @property
    def lines(self) -> tuple[PathRule, ...]:
        return self.rules.entries

    def concerns(self, line: PathRule) -> bool:
        return self._fits_path(line.pattern)

    def table(self, lines: tuple[PathRule, ...]) -> PathRules:
        return PathRules(lines, self.rules.mesh, self.rules.dialect)

    def resolve(self, lines: tuple[PathRule, ...], names: Names) -> Spec | None:
        rules = self.table(lines)
        match = match_path(self._path, rules, self.dialect)
        spec = matched_spec(match, rules, self.leaf.shape, self.dialect)
        if spec is None:
            return None
        return spec.of_rank(len(names))

    def resolved(
        self, lines: tuple[PathRule, ...], touched: Sequence[PathRule]
    ) -> Iterator[tuple[list[AuditRow], object]]:
        changed: set[object] = set()
        for line in touched:
            paths = self.arrays.matched(line.pattern, self.dialect)
            if paths is None:  # the pattern is invalid, so every path fails
                changed.update(self.arrays.groups)
            else:
                changed.update(paths)
            # As a key of a LayoutMap, a pattern can equal the path.
            for path in self.arrays.groups:
                if self.dialect.text(str(path)) == line.pattern:
                    changed.add(path)
        matches: dict[object, list[int]] = {path: [] for path in changed}
        for index, rule in enumerate(lines):
            paths = self.arrays.matched(rule.pattern, self.dialect)
            if paths is None:
                for path in changed:  # pretend two matches, which are an error too
                    matches[path] += [index, index]
            else:
                for path in paths & changed:
                    matches[path].append(index)
        rules, dialect = self.table(lines), self.dialect
        for path, group in self.arrays.groups.items():
            if path in matches:
                match = decided(matches[path], str(path), rules, dialect)
                spec = matched_spec(match, rules, group[0].shape, dialect)
                yield group, match.problem or spec

    def edits(self, wish: Wish) -> Iterator[Action]:
        if is_one_element(self.leaf.shape, self.dialect):
            return
        rules = self.lines
        match = match_path(self._path, self.rules, self.dialect)
        winner, removable, place = match.winner, match.several, len(rules)
        if not isinstance(wish, UnsplitWish):
            yield from self._corrections()
        if winner is not None:
            removable = (winner,)
            if self.dialect.first_match_wins:
                place = winner
                for index, rule in enumerate(rules):
                    if index > winner and self._fits_path(rule.pattern):
                        yield MoveLine(rules, index, winner)
        # After the removal, a later pattern or the only other match decides.
        for index in removable:
            yield RemoveLine(rules, index)
        targets = self._targets(wish, match)
        if winner is not None:
            repaired = next(self._repaired(rules[winner].spec))
            for spec in targets:
                new = PathRule(rules[winner].pattern, spec)
                yield RetargetLine(rules, winner, new, corrects=spec == repaired)
        for spec in targets:
            for pattern in self._patterns():
                if pattern not in self.rules.patterns:
                    yield AddLine(rules, place, PathRule(pattern, spec))

    def _fits_path(self, pattern: str) -> bool:
        try:
            return fits(pattern, self._path, self.dialect)
        except RuleError:
            return False

    def _corrections(self) -> Iterator[Action]:
        """Yields corrections of misspelt words in patterns that match no array."""
        words: dict[str, None] = {}
        # Try words with `_` and digits, then without `_`, then without digits.
        for kind in (r"\w+", r"[^\W_]+", r"[^\W\d]+"):
            words |= dict.fromkeys(re.findall(kind, self._path))
        for index, rule in enumerate(self.lines):
            if self.arrays.matched(rule.pattern, self.dialect):
                continue
            for word in plain_words(rule.pattern):
                if word[0] in words:
                    continue
                close = near(word[0], tuple(words))
                start, end = rule.pattern[: word.start()], rule.pattern[word.end() :]
                text = f"{start}{close}{end}"
                if close and text not in self.rules.patterns and self._fits_path(text):
                    yield RenameLine(self.lines, index, PathRule(text, rule.spec))

    def _patterns(self) -> list[str]:
        """Returns new patterns: for all layers and moments, and for this path only."""
        path, dialect = self._path, self.dialect
        separator, kind = re.escape(dialect.separator), self.arrays.kind(path)
        alike = {p for p in map(str, self.arrays.groups) if self.arrays.kind(p) == kind}
        # The last segments that the paths of all layers and moments have in common.
        shared: list[str] = []
        reversed_paths = [
            _in_every_layer(dialect.text(p)).split(separator)[::-1]
            for p in (*alike, path)
        ]
        for segments in zip(*reversed_paths, strict=False):
            if len(set(segments)) > 1:
                break
            shared.insert(0, segments[0])
        general, end = _in_every_layer(dialect.text(path)), separator.join(shared)
        alone = re.escape(dialect.text(path))
        if dialect.whole_path:
            patterns, shorter = [general], f".*{end}"
            if dialect.key_first:
                alone = dialect.text(path)
        else:
            patterns, shorter = (
                [f"{general}$", f"^{general}$"],
                f"(^|{separator}){end}$",
            )
            alone = f"^{alone}$"
        if end not in ("", general):
            patterns.insert(0, shorter)
        for pattern in patterns:
            matched = self.arrays.matched(pattern, self.dialect)
            if matched is not None and matched <= alike:
                return [pattern, alone]
        return [alone]

    def _targets(self, wish: Wish, match: PathMatch) -> list[Spec]:
        """Returns specs that fulfil the request, the likeliest first."""
        if isinstance(wish, SpecWish):
            return [wish.spec]
        candidates: list[Spec] = []
        if isinstance(wish, UnsplitWish):
            candidates = self._unsplit_specs(wish.dim)
        else:
            if match.winner is not None:
                candidates += self._repaired(self.lines[match.winner].spec)
            # Specs that are already in the table are likelier than new ones.
            candidates += [rule.spec for rule in self.lines]
            candidates += [self.sound, *self._one_axis_more(wish)]
        if isinstance(wish, BytesWish) and self.mesh is not None and self.leaf.shape:
            splits = [spec for _, spec in self.splits()]
            candidates += sorted(splits, key=lambda spec: len(spec.axes))
        targets: dict[Spec, Spec] = {}
        rank = len(self.leaf.names)
        for spec in candidates:
            full = spec.of_rank(rank)
            if self.meets(full, wish):
                # If two specs are equivalent, keep the first, which is likelier.
                targets.setdefault(full, spec)
        return list(targets.values())[:MOST_TARGETS]

    def _unsplit_specs(self, dim: int | None) -> list[Spec]:
        """Returns the current spec without the axes of `dim`, and an empty spec."""
        specs = []
        if self.now is not None and dim is not None:
            dims = self.now.dims
            specs.append(Spec((*dims[:dim], (), *dims[dim + 1 :])))
        return [*specs, Spec()]

    def _repaired(self, spec: Spec) -> Iterator[Spec]:
        """Yields the spec with misspelt axes corrected and surplus entries dropped."""
        dims = [self.corrected(axes) for axes in spec.dims]
        rank = min(len(self.leaf.names), len(dims))
        # Any entry can be the surplus one; try dropping entries without axes first.
        choices = itertools.combinations(dims, rank)
        for entries in sorted(choices, key=lambda dims: dims.count(())):
            yield Spec(entries)

    def _one_axis_more(self, wish: Wish) -> Iterator[Spec]:
        """Yields variants of the current spec, with one mesh axis put in one dimension.

        Dimensions that make the current spec invalid start without axes.
        """
        sound = self.sound.dims
        dims: Sequence[int] = range(len(sound))
        if isinstance(wish, SplitWish) and wish.dim is not None:
            dims = (wish.dim,)
        for axis in self.axes:
            # An axis can split only one dimension, so remove it from the others.
            freed = [tuple(a for a in axes if a != axis) for axes in sound]
            for d in dims:
                yield Spec((*freed[:d], (axis,), *freed[d + 1 :]))


def _in_every_layer(path: str) -> str:
    return re.sub(r"[0-9]+", r"\\d+", re.escape(path))
