"""What is said of calls: their keywords, and why a program was compiled."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.format import joined
from shardviz.core.program.program import Program, changed_parts


def keyword_note(function: str, name: str, public: str) -> str:
    """A keyword that both `sv.<public>` and the user's function have.

    >>> keyword_note("step", "rules", "program").split(",")[0]
    'rules= was given to step'
    """
    return (
        f"{name}= was given to {function}, which has a parameter of that name, and not"
        f" to sv.{public}. To give both, write"
        f" sv.{public}(fn, args=(...), kwargs={{'{name}': ...}}, {name}=...)."
    )


def not_cached(earlier: Sequence[Program], new: Program) -> str:
    """Why a program was compiled and not taken from the cache."""
    if not earlier:
        return "Nothing was compiled before it."
    parts = min((changed_parts(old, new) for old in earlier), key=len)
    if not parts:
        return (
            "The same program: for another target, with a callback, or dropped since."
        )
    return f"Changed since the nearest one: {joined(parts[:8])}."
