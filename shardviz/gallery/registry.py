"""Shelf: named examples in a fixed order, made when somebody takes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from shardviz.core.errors import ShardvizError
from shardviz.core.format import shown, suggestion

T = TypeVar("T")


class Example(NamedTuple, Generic[T]):
    """One example: its name, one sentence about it, and how it is made."""

    name: str
    sentence: str
    make: Callable[[], T]


class Registry(Generic[T]):
    """Examples of one kind.

    Raises:
        ShardvizError: if two examples have one name.

    >>> shelf = Shelf("number", [Example("one", "The first.", lambda: 1)])
    >>> shelf.names(), shelf.get("one"), shelf.describe("one")
    (('one',), 1, 'The first.')
    """

    def __init__(self, kind: str, examples: Iterable[Example[T]]):
        self._kind = kind
        self._examples: dict[str, Example[T]] = {}
        for example in examples:
            if example.name in self._examples:
                raise ShardvizError(f"Two examples are called {shown(example.name)}; rename one.")
            self._examples[example.name] = example

    def names(self) -> tuple[str, ...]:
        """Every name, in the order a menu shows them."""
        return tuple(self._examples)

    def get(self, name: str) -> T:
        """The example of that name.

        Raises:
            ShardvizError: if there is none, with the nearest name.
        """
        return self._find(name).make()

    def describe(self, name: str) -> str:
        """One sentence on the example of that name.

        Raises:
            ShardvizError: if there is none, with the nearest name.
        """
        return self._find(name).sentence

    def _find(self, name: str) -> Example[T]:
        if isinstance(name, str) and name in self._examples:
            return self._examples[name]
        raise ShardvizError(
            f"The gallery has no {self._kind} called {shown(name)}."
            f"{suggestion(name, self._examples)}"
        )
