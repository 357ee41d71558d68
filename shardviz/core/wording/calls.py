"""What is said of the arguments of a program."""

from __future__ import annotations


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
