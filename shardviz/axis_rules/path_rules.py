"""PathResolution: which pattern decides an array's spec, and why others do not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardviz.axis_rules.dialects import Dialect, PathDialect
from shardviz.axis_rules.path_matching import (
    PathMatch,
    fits,
    is_key_of,
    is_one_element,
    match_path,
    matched_spec,
    missing_words,
)
from shardviz.axis_rules.path_remedies import PathSearch
from shardviz.axis_rules.remedies import Remedies, Remedy
from shardviz.axis_rules.remedy_search import Arrays, Leaf
from shardviz.axis_rules.rules import PathRule, PathRules
from shardviz.axis_rules.verdicts import (
    BROKEN,
    Invalid,
    NoMatch,
    OneElement,
    Problem,
    RankMismatch,
    SeveralMatch,
    Shadowed,
    UnreadableProblem,
    Verdict,
    deciding,
)
from shardviz.base.display import Displayed, explanation
from shardviz.base.errors import RuleError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import check_path
from shardviz.base.partition_spec import Spec, rank_problem


@dataclass(frozen=True, repr=False)
class PathResolution(Displayed):
    """How one array's path became a spec; created by `shardviz.resolve` and `audit`.

    Attributes:
        path: the path of the array, with segments joined by `/`.
        rules: the table.
        dialect: the library that reads the table.
        mesh: the mesh that verdicts are checked against, or None.
        shape: the shape that verdicts are checked against, or None.

    >>> from shardviz.axis_rules.path_rules import resolve_path
    >>> from shardviz.types import PathRules
    >>> table = PathRules.of([("mlp/.*/kernel", (None, "model")), (".*", ())])
    >>> print(resolve_path("mlp/0/kernel", table).explain())
    mlp/0/kernel → P(None, 'model')  (regex, 2 patterns)
    pattern 1 ('mlp/.*/kernel' → P(None, 'model')) matches and splits dimension 1 over 'model'.
    pattern 2 ('.*' → P()) also matches, but comes after pattern 1, which decides.
    """

    path: str
    rules: PathRules
    dialect: PathDialect = Dialect.REGEX
    mesh: MeshSpec | None = None
    shape: tuple[int, ...] | None = None

    @cached_property
    def match(self) -> PathMatch:
        """The patterns that match, and the one that decides."""
        return match_path(self.path, self.rules, self.dialect)

    @property
    def winner(self) -> int | None:
        """The index of the pattern that decides, or None."""
        return self.match.winner

    @property
    def one_element(self) -> bool:
        """Whether the dialect leaves the array unsplit because it has one element."""
        return is_one_element(self.shape, self.dialect)

    @cached_property
    def spec(self) -> Spec | None:
        """The resulting spec; None if the library raises an error."""
        return matched_spec(self.match, self.rules, self.shape, self.dialect)

    @property
    def partition_spec(self) -> Any:
        """The spec as a `jax.sharding.PartitionSpec`, or None."""
        return None if self.spec is None else self.spec.to_jax()

    @property
    def problem(self) -> Problem | None:
        """Why there is no spec, or None."""
        return self.match.problem if self.spec is None else None

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One Verdict per pattern, in table order."""
        return tuple(self._judge(index, rule) for index, rule in enumerate(self.rules))

    def _judge(self, index: int, rule: PathRule) -> Verdict:
        dialect = self.dialect
        if index == self.winner:
            return self._judge_winner(index, rule)
        try:
            is_key = is_key_of(rule.pattern, self.path, dialect)
            if not is_key and not fits(rule.pattern, self.path, dialect):
                lacks = missing_words(rule.pattern, dialect.text(self.path))
                matching_all = f".*{rule.pattern}.*"
                # Before keras#22164, a match of part of the path was enough.
                if not (
                    dialect.searched_once and fits(matching_all, self.path, dialect)
                ):
                    matching_all = ""
                return NoMatch(index, rule, lacks, matching_all, dialect.library)
        except RuleError as error:
            return Invalid(index, rule, str(error))
        if self.winner is not None:
            by_key = is_key_of(self.rules[self.winner].pattern, self.path, dialect)
            return Shadowed(index, rule, self.winner, by_key, dialect.library)
        if self.match.several:
            return SeveralMatch(index, rule, self.match.several, dialect.library)
        # The library would have failed before it reached this pattern.
        problem = self.match.problem
        error = problem.error if isinstance(problem, UnreadableProblem) else ""
        return Invalid(index, rule, error)

    def _judge_winner(self, index: int, rule: PathRule) -> Verdict:
        if self.one_element:
            return OneElement(index, rule)
        rank = rule.spec.rank
        if self.shape is not None:
            rank = len(self.shape)
        if wrong_rank := rank_problem(rule.spec, rank):
            return RankMismatch(index, rule, wrong_rank)
        dims, used = rule.spec.dims, rule.spec.axes
        return deciding(index, rule, dims, self.shape, self.mesh, self.dialect, used)

    def explain(self) -> str:
        """Explains which pattern decides, and why the others do not."""
        return explanation(self)

    def remedies(
        self, want: object, dtype: str = "float32", arrays: Arrays | None = None
    ) -> Remedies:
        """Finds the smallest edits that split the array as requested."""
        rank = len(self.shape or ())
        if self.shape is None:  # assume the longest spec's rank
            rank = max((rule.spec.rank for rule in self.rules), default=0)
        leaf = Leaf(self.path, (None,) * rank, self.shape, dtype)
        search = PathSearch(leaf, self.rules, self.mesh, self.dialect, arrays)
        return search.find(want)

    def first_remedy(self) -> Remedy | None:
        """Returns an edit that splits the array if it fails; else None."""
        # If no pattern matches, Keras replicates the array. This can be intended, so it
        # is not a failure.
        failed = self.problem is not None
        if self.winner is not None:
            failed = self.verdicts[self.winner].outcome in BROKEN
        if not failed:
            return None
        return self.remedies("split").suggested

    def __repr__(self) -> str:
        return f"PathResolution({self.path} → {self.spec}, {self.dialect.name})"


def resolve_path(
    path: Any,
    rules: PathRules,
    mesh: MeshSpec | None = None,
    shape: Any = None,
    dialect: PathDialect = Dialect.REGEX,
) -> PathResolution:
    """Resolves one path to a spec, with a verdict for every pattern.

    Raises:
        RuleError: if the path cannot be parsed, or the dialect raises an error.

    >>> str(resolve_path("mlp/0/kernel", PathRules.of([("kernel", (None, "model"))])).spec)
    "P(None, 'model')"
    """
    path = check_path(path, RuleError)
    resolution = PathResolution(path, rules, dialect, mesh, shape)
    if resolution.problem is not None and dialect.raises:
        raise RuleError(f"{shown(path)}: {resolution.problem}")
    return resolution
