"""What a user should know about how a program was made or traced."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact


@dataclass(frozen=True)
class Note(Fact):
    """One thing to know. `words/notes.py` lists the codes and says each.

    Attributes:
        code: what it is, such as `"static numbers"`.
        about: names, specs or meshes that it is about, as text.

    >>> print(Note("no array arguments"))
    Traced with the program's mesh in context, as under jax.set_mesh: it has no array...
    """

    code: str
    about: tuple[str, ...] = ()
