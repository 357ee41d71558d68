"""Dialects: what each library means by a rule table.

A `Dialect` holds every difference between two libraries that read the same table, and
all code asks its fields. To add a dialect, add one entry below and its section in
`docs/semantics.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, overload

from shardviz.base.errors import RuleError
from shardviz.base.format import listed, shown, suggestion


@dataclass(frozen=True)
class Dialect:
    """The library that reads a table, and its meaning of that table.

    Attributes:
        name: as users write it, `dialect="linen"`.
        library: the library, as sentences call it.

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

    # Equal dialects have one name, and a hash of all fields would be slow.
    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def value(self) -> str:
        """The name."""
        return self.name

    @property
    def by_path(self) -> bool:
        """True if it reads a table of paths, `PathRules`; False for one of names."""
        return isinstance(self, PathDialect)

    @overload
    @staticmethod
    def of(value: object, paths: Literal[False]) -> NameDialect: ...
    @overload
    @staticmethod
    def of(value: object, paths: bool = True) -> Dialect: ...
    @staticmethod
    def of(value: object, paths: bool = True) -> Dialect:
        """The dialect with that name, in any case.

        Args:
            value: the name, or a Dialect.
            paths: False if only dialects that read a table of names are allowed.

        Raises:
            RuleError: no such dialect is allowed here.
        """
        if isinstance(value, Dialect) and (paths or not value.by_path):
            return value
        allowed = {d.name: d for d in DIALECTS if paths or not d.by_path}
        name = value.name if isinstance(value, Dialect) else value
        # Users write MaxText and LINEN, too.
        dialect = allowed.get(str(name).lower())
        if dialect is None:
            raise RuleError(
                f"No dialect is called {shown(name)} here.{suggestion(name, allowed)} There"
                f" are {listed(allowed)}."
            )
        return dialect


@dataclass(frozen=True)
class NameDialect(Dialect):
    """A dialect that reads a table from logical names to mesh axes, `Rules`.

    Attributes:
        last_repeat_wins: of several rules for a name only the last one counts, as in a
            dict. Otherwise they are tried in order.
        dimensions_apart: each dimension is resolved without the others, so an array may
            have a name or a mesh axis twice. Otherwise rule order is priority over the
            whole array, and each mesh axis is used once.
        unknown_name_is_axis: a name without a rule is taken for a mesh axis. Otherwise
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
    """A dialect that reads a table from patterns of paths to specs, `PathRules`.

    Attributes:
        whole_path: a pattern must match all of the path. Otherwise it may be found
            anywhere in it.
        ignores_case: letters match in either case.
        separator: joins the segments of the path that patterns are matched with.
        key_first: a pattern that is the path itself wins over all others, which are not
            matched then.
        first_match_wins: the first pattern that matches decides. Otherwise two patterns
            that match are an error.
        replicates_unmatched: an array that no pattern matches is replicated. Otherwise
            that is an error.
        one_element_unsplit: an array of one element is never split or matched.
        unique_patterns: a table has each pattern once.
        raises: an error about one array ends an audit. Otherwise its row shows it.
        searched_once: older versions of the library searched anywhere in the path.

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
        """The path as patterns see it.

        >>> PathDialect("dots", "Dots", separator=".").text("mlp/0/kernel")
        'mlp.0.kernel'
        """
        return path.replace("/", self.separator)


#: `flax.linen.logical_to_mesh_axes`.
Dialect.LINEN = NameDialect("linen", "Flax Linen")
#: `flax.nnx`, which turns the rules into a dict.
Dialect.NNX = NameDialect(
    "nnx",
    "Flax NNX",
    last_repeat_wins=True,
    dimensions_apart=True,
    unknown_name_is_axis=True,
)
#: MaxText, which reads a table as linen does and drops axes of size 1.
Dialect.MAXTEXT = NameDialect("maxtext", "MaxText", drops_size_one=True)
#: `match_partition_rules` of EasyLM and T5X.
Dialect.REGEX = PathDialect("regex", "EasyLM", one_element_unsplit=True)
#: `keras.distribution.LayoutMap`.
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
