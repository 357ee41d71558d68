"""What is not known of a compiled program, and why."""

from __future__ import annotations

from shardviz.core.format import bytes_text
from shardviz.core.program.unpartitioned import Unpartitioned

_NO_FOLDER = (
    "There is no folder for XLA's dump: {} What its partitioner made is unknown."
)


def unpartitioned(fact: Unpartitioned) -> str:
    """Why it is not known what XLA's partitioner made.

    >>> unpartitioned(Unpartitioned("one device"))
    'The program is for one device, so there is nothing to partition.'
    """
    folder, detail = fact.folder, fact.detail
    if fact.code == "one device":
        return "The program is for one device, so there is nothing to partition."
    if fact.code == "no folder":
        return _NO_FOLDER.format(f"{folder!r}, where it was to go, is no folder.")
    if fact.code == "unwritable":
        return _NO_FOLDER.format(
            f"{folder} takes no files ({detail}): free some space or name another one."
        )
    if fact.code == "nearly full":
        return _NO_FOLDER.format(
            f"{folder} has {bytes_text(fact.free)} left, and a dump may need"
            f" {bytes_text(fact.needed)}: free some space or name another one."
        )
    if fact.code == "refused":
        return f"XLA cannot dump this program: {detail}"
    if fact.code == "incomplete":
        return (
            f"XLA could not write all of its partitioner's module to {folder}: it may be"
            " full."
        )
    if fact.code == "other passes":
        return (
            f"XLA was asked to dump the passes {detail!r} only: add 'spmd|shardy' to"
            " xla_dump_hlo_pass_re."
        )
    if fact.code == "cached":
        return (
            "The executable came out of jax's compilation cache on disk, so nothing was"
            " partitioned. Without jax_compilation_cache_dir it is compiled again."
        )
    return f"XLA wrote no module of its partitioner to {folder}."


SENTENCES = {Unpartitioned: unpartitioned}
