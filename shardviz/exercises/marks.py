"""Marks of exercises, which a lecturer can collect, and the lock on solutions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

from shardviz.base.errors import ShardvizError
from shardviz.base.format import shown
from shardviz.base.typing import JsonDict
from shardviz.exercises import words as words


@dataclass
class Mark:
    """The progress in one exercise.

    Attributes:
        exercise: the name of the exercise.
        tried: number of answers checked.
        right: whether any answer was right.
        hints: number of hints shown.
        solution_seen: whether the solution was shown before the first right answer.

    >>> from shardviz import exercises
    >>> exercises.Mark("arrays/memory", tried=2).right
    False
    """

    exercise: str
    tried: int = 0
    right: bool = False
    hints: int = 0
    solution_seen: bool = False


@dataclass(frozen=True, repr=False)
class Marks:
    """The marks of all exercises that were begun, in course order.

    Attributes:
        marks: one Mark per exercise.

    >>> from shardviz import exercises
    >>> print(exercises.Marks((exercises.Mark("arrays/memory", tried=2, right=True, hints=1),)))
    exercise       answers  right  hints  solution seen
    arrays/memory        2  yes        1  no
    Right: 1 of 1 begun exercise.
    """

    marks: tuple[Mark, ...]

    @property
    def right(self) -> int:
        """The number of exercises with a right answer."""
        return sum(mark.right for mark in self.marks)

    def to_dict(self) -> JsonDict:
        """Returns plain data: exercise name -> fields of its mark.

        >>> from shardviz import exercises
        >>> exercises.Marks((exercises.Mark("arrays/memory", 1),)).to_dict()["arrays/memory"]["tried"]
        1
        """
        marks = {}
        for mark in self.marks:
            fields = asdict(mark)
            marks[fields.pop("exercise")] = fields
        return marks

    def to_json(self) -> str:
        """Returns the marks as JSON, for a lecturer to collect.

        >>> from shardviz import exercises
        >>> print(exercises.Marks((exercises.Mark("arrays/memory", 2, True, 1),)).to_json())
        {
          "arrays/memory": {
            "tried": 2,
            "right": true,
            "hints": 1,
            "solution_seen": false
          }
        }
        """
        return json.dumps(self.to_dict(), indent=2)

    def __repr__(self) -> str:
        return words.marks_table([tuple(asdict(mark).values()) for mark in self.marks])


@dataclass
class Progress:
    """The marks of this process, and the lock on its solutions.

    Attributes:
        marks: exercise name -> mark.
        hashed: the hash of the word that unlocks the solutions; `""` without a lock.
    """

    marks: dict[str, Mark] = field(default_factory=dict)
    hashed: str = ""

    def of(self, name: str) -> Mark:
        """Returns the mark of an exercise; creates it if needed."""
        return self.marks.setdefault(name, Mark(name))

    def report(self, names: Iterable[str]) -> Marks:
        """Returns the marks of those named exercises that were begun."""
        # Copy the marks, because later answers must not change a report.
        begun = [replace(self.marks[name]) for name in names if name in self.marks]
        return Marks(tuple(begun))

    def lock(self, hashed: str) -> None:
        """Hides the solutions; raises if another word already hides them."""
        if self.hashed not in ("", hashed):
            raise ShardvizError(words.LOCKED_ALREADY)
        self.hashed = hashed

    def unlock(self, word: str) -> None:
        """Shows the solutions again if the word is right."""
        if self.hashed not in ("", hash_of(word)):
            raise ShardvizError(words.not_the_word(shown(word)))
        self.hashed = ""


def hash_of(word: object) -> str:
    """Hashes the word of a lock.

    Raises:
        ShardvizError: if the word isn't text, or is empty.
    """
    if not isinstance(word, str) or not word:
        raise ShardvizError(words.no_word(shown(word)))
    return hashlib.sha256(word.encode()).hexdigest()
