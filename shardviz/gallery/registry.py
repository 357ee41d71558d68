"""Registry: named examples of one kind, in the order of a menu, each made by `get`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from shardviz.core.errors import ShardvizError
from shardviz.core.format import shown, suggestion

T = TypeVar("T")
_FIRST: Any = object()  # the name of the first example, where none is given


class Example(NamedTuple, Generic[T]):
    """One example.

    Attributes:
        name: its name in the menu.
        sentence: one sentence about it.
        make: makes it.
        functions: of a program, the names of its functions in `gallery.functions`: first those
            that it calls, in the order to paste them, then its own.
    """

    name: str
    sentence: str
    make: Callable[[], T]
    functions: tuple[str, ...] = ()


class Registry(Generic[T]):
    """Examples of one kind, by name. The first one is the default.

    Raises:
        ShardvizError: if two examples have one name.

    >>> numbers = Registry("number", Example("one", "The first.", lambda: 1))
    >>> numbers.names(), numbers.get("one"), numbers.get(), numbers.describe("one")
    (('one',), 1, 1, 'The first.')
    """

    def __init__(self, kind: str, *examples: Example[T]):
        self._kind = kind
        self._examples: dict[str, Example[T]] = {}
        for example in examples:
            if example.name in self._examples:
                raise ShardvizError(f"Two examples are called {shown(example.name)}; rename one.")
            self._examples[example.name] = example

    @property
    def default(self) -> str:
        """The name of the first example."""
        return self.names()[0]

    def names(self) -> tuple[str, ...]:
        """Every name, in the order a menu shows them."""
        return tuple(self._examples)

    def get(self, name: str = _FIRST) -> T:
        """The example of that name; the first one where no name is given.

        Raises:
            ShardvizError: if there is none, with the nearest name.
        """
        return self._find(self.default if name is _FIRST else name).make()

    def describe(self, name: str) -> str:
        """One sentence on the example of that name.

        Raises:
            ShardvizError: if there is none, with the nearest name.
        """
        return self._find(name).sentence

    def sources(self, name: str) -> tuple[str, ...]:
        """The source of every function of an example, those that it calls first, its own last.

        They run as they are, pasted below the imports that their gallery names.

        Raises:
            ShardvizError: if there is no such example, with the nearest name.
        """
        names = self._find(name).functions
        from shardviz.gallery import functions

        return tuple(inspect.getsource(getattr(functions, each)) for each in names)

    def _find(self, name: str) -> Example[T]:
        if isinstance(name, str) and name in self._examples:
            return self._examples[name]
        raise ShardvizError(
            f"The gallery has no {self._kind} called {shown(name)}."
            f"{suggestion(name, self._examples)}"
        )
