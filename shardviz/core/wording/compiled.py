"""What is not known of a compiled program, and why."""

from __future__ import annotations

from shardviz.core.program.unpartitioned import Unpartitioned


def unpartitioned(fact: Unpartitioned) -> str:
    """Why it is not known what XLA's partitioner made.

    >>> unpartitioned(Unpartitioned("one device"))
    'The program is for one device, so there is nothing to partition.'
    """
    if fact.code == "one device":
        return "The program is for one device, so there is nothing to partition."
    if fact.code == "refused":
        return f"XLA cannot dump this program: {fact.detail}"
    if fact.code == "no folder":
        why = f" ({fact.detail})" if fact.detail else ""
        return (
            f"XLA's dump cannot be written to {fact.folder}{why}, so what its partitioner"
            " made is unknown: free some space, or name another folder."
        )
    if fact.code == "own dump":
        return (
            "XLA_FLAGS ask for a dump (xla_dump_to), so shardviz makes none of its own."
        )
    return (
        "XLA left no module of its partitioner. That is so where jax's cache on disk"
        " (jax_compilation_cache_dir) had the program."
    )


SENTENCES = {Unpartitioned: unpartitioned}
