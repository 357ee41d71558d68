"""Dialects: how each library interprets a rule table.

The fields of a `Dialect` describe every difference between libraries that read the same
table; all other code uses these fields. To add a dialect, add an entry below and a
section in `docs/semantics.md` or `docs/path-tables.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, overload

from shardviz.base.errors import RuleError
from shardviz.base.format import listed, shown, suggestion
from shardviz.base.plain import Plain


@dataclass(frozen=True)
class Dialect(Plain):
    """A library that reads a rule table, and how it interprets the table.

    Attributes:
        name: the name that users pass, as in `dialect="linen"`.
        library: the library's name in sentences.

    >>> from shardviz.types import Dialect
    >>> Dialect.of("MaxText") is Dialect.MAXTEXT
    True
    """

    name: str
    library: str

    LINEN: ClassVar[NameDialect]
    NNX: ClassVar[NameDialect]
    MAXTEXT: ClassVar[NameDialect]
    REGEX: ClassVar[PathDialect]
    KERAS: ClassVar[PathDialect]

    # Names are unique, and hashing all fields would be slow.
    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def value(self) -> str:
        """The dialect's name, same as `name`."""
        return self.name

    @property
    def by_path(self) -> bool:
        """True if the dialect reads `PathRules`, False if it reads `Rules`."""
        return isinstance(self, PathDialect)

    @overload
    @staticmethod
    def of(value: object, paths: Literal[False]) -> NameDialect: ...
    @overload
    @staticmethod
    def of(value: object, paths: bool = True) -> Dialect: ...
    @staticmethod
    def of(value: object, paths: bool = True) -> Dialect:
        """Returns the dialect with this name, ignoring case.

        Args:
            value: the name, or a Dialect.
            paths: False to allow only dialects that read `Rules`.

        Raises:
            RuleError: if the dialect is unknown or not allowed.
        """
        if isinstance(value, Dialect) and (paths or not value.by_path):
            return value
        allowed = {d.name: d for d in DIALECTS if paths or not d.by_path}
        name = value.name if isinstance(value, Dialect) else value
        # Accept spellings such as MaxText and LINEN.
        dialect = allowed.get(str(name).lower())
        if dialect is None:
            raise RuleError(
                f"No dialect is called {shown(name)} here.{suggestion(name, allowed)} There"
                f" are {listed(allowed)}."
            )
        return dialect


@dataclass(frozen=True)
class NameDialect(Dialect):
    """A dialect that reads `Rules`, a table from logical names to mesh axes.

    Attributes:
        last_repeat_wins: if a name has several rules, only the last one counts, as in a
            dict. Otherwise they are tried in order.
        dimensions_apart: dimensions are resolved independently, so an array can use a
            name or a mesh axis twice. Otherwise rules are tried in table order for the
            whole array, and each mesh axis is used at most once.
        unknown_name_is_axis: a name without a rule is used as a mesh axis. Otherwise
            its dimension is not split.
        drops_size_one: mesh axes of size 1 are left out of the spec.

    >>> Dialect.NNX.last_repeat_wins, Dialect.LINEN.last_repeat_wins
    (True, False)
    """

    last_repeat_wins: bool = False
    dimensions_apart: bool = False
    unknown_name_is_axis: bool = False
    drops_size_one: bool = False

    __hash__ = Dialect.__hash__


@dataclass(frozen=True)
class PathDialect(Dialect):
    """A dialect that reads `PathRules`, a table from path patterns to specs.

    Attributes:
        whole_path: a pattern must match the whole path. Otherwise it can match any part
            of the path.
        ignores_case: patterns match without regard to case.
        separator: joins the path's segments before patterns are matched.
        key_first: a pattern that equals the path decides, and no other pattern is
            tried.
        first_match_wins: the first pattern that matches decides. Otherwise, two
            matching patterns are an error.
        replicates_unmatched: an array that no pattern matches is replicated. Otherwise,
            such an array is an error.
        one_element_unsplit: an array of one element is never split, and no pattern is
            matched.
        unique_patterns: a table cannot contain a pattern twice.
        raises: an error about one array ends an audit. Otherwise the array's row
            reports the error.
        searched_once: in older versions of the library, a pattern could match any part
            of the path.

    >>> Dialect.KERAS.whole_path, Dialect.KERAS.first_match_wins
    (True, False)
    """

    whole_path: bool = False
    ignores_case: bool = False
    separator: str = "/"
    key_first: bool = False
    first_match_wins: bool = True
    replicates_unmatched: bool = False
    one_element_unsplit: bool = False
    unique_patterns: bool = False
    raises: bool = False
    searched_once: bool = False

    __hash__ = Dialect.__hash__

    def text(self, path: str) -> str:
        """Returns the path in the form that patterns are matched with.

        >>> PathDialect("dots", "Dots", separator=".").text("mlp/0/kernel")
        'mlp.0.kernel'
        """
        return path.replace("/", self.separator)


#: Flax Linen, as in `flax.linen.logical_to_mesh_axes`.
Dialect.LINEN = NameDialect("linen", "Flax Linen")
#: Flax NNX, which converts the rules to a dict.
Dialect.NNX = NameDialect(
    "nnx",
    "Flax NNX",
    last_repeat_wins=True,
    dimensions_apart=True,
    unknown_name_is_axis=True,
)
#: MaxText, which reads tables like linen but drops axes of size 1.
Dialect.MAXTEXT = NameDialect("maxtext", "MaxText", drops_size_one=True)
#: EasyLM and T5X, as in their `match_partition_rules`.
Dialect.REGEX = PathDialect("regex", "EasyLM", one_element_unsplit=True)
#: Keras, as in `keras.distribution.LayoutMap`.
Dialect.KERAS = PathDialect(
    "keras",
    "Keras",
    whole_path=True,
    key_first=True,
    first_match_wins=False,
    replicates_unmatched=True,
    unique_patterns=True,
    raises=True,
    searched_once=True,
)

DIALECTS: tuple[Dialect, ...] = (
    Dialect.LINEN,
    Dialect.NNX,
    Dialect.MAXTEXT,
    Dialect.REGEX,
    Dialect.KERAS,
)
