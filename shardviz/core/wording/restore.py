"""What restoring a checkpoint reads, in sentences."""

from __future__ import annotations

from pathlib import Path

from shardviz.core.format import bytes_text, listed, plural, shown
from shardviz.core.layout.transfer.restore import (
    MUCH,
    Advice,
    Restore,
    RestoreNote,
    RestoreProblem,
)

MOST_PROBLEMS = 8
LARGEST_FIRST = "Arrays, of which most is read first:"
PROCESSES_FIRST = "Processes, of which most is read first:"
NOT_NEEDED = "more than is needed"


def title(found: Restore) -> str:
    """What goes where: `step 5 of run: 1 array, 4 MiB → x=2 · 2 devices · 1 process`."""
    saved = found.checkpoint
    folder = Path(saved.path)
    if saved.item:  # its own folder, inside that of the step
        folder = folder.parent
    name = folder.name
    if saved.step is not None:
        name = f"step {saved.step} of {folder.parent.name}"
    if saved.item:
        name += f", {saved.item}"
    size = bytes_text(saved.bytes)
    if saved.stored_bytes is not None:
        size += f", {bytes_text(saved.stored_bytes)} stored"
    processes = plural(len(found.process_numbers), "process", "processes")
    devices = plural(found.mesh.size, "device")
    arrays = plural(len(saved.arrays), "array")
    return f"{name}: {arrays}, {size} → {found.mesh} · {devices} · {processes}"


def problems(found: Restore, full: bool = False) -> list[str]:
    """Why it cannot be restored as wanted, a line each; of many, the first ones."""
    lines = []
    for path, problem in found.problems.items():
        lines.append(f"✗ {shown(path)}: {problem}")
    hidden = len(lines) - MOST_PROBLEMS
    if hidden > 0 and not full:
        lines = [*lines[:MOST_PROBLEMS], f"and {plural(hidden, 'more problem')}"]
    if found.missing:
        lines.append(f"✗ wanted and not in the checkpoint: {listed(found.missing)}")
    if found.not_wanted:
        lines.append(
            f"✗ in the checkpoint and not wanted: {listed(found.not_wanted)}; orbax"
            " leaves them out only with partial_restore=True"
        )
    return lines


def notes(found: Restore) -> list[str]:
    """What else to know, and what is counted."""
    limit = found.limit // 10**9
    counted = (
        "Counted is what orbax does by default: every process reads the chunks that its"
        f" own shards meet, {limit:,} GB at once at most (restore_concurrent_gb)."
    )
    return [f"{note}." for note in found.notes] + [counted]


def times(amplification: tuple[float, float] | None) -> str:
    """How many times what is needed is read: `1 to 2.5 ×`."""
    if amplification is None:
        return "nothing is needed"
    least, most = (f"{n:.2f}".rstrip("0").rstrip(".") for n in amplification)
    return f"{most} ×" if least == most else f"{least} to {most} ×"


def short(found: Restore) -> str:
    """What is restored onto what, and how much is read."""
    arrays = plural(len(found.rows), "array")
    read = bytes_text(sum(process.bytes_at_most for process in found.processes))
    processes = plural(len(found.process_numbers), "process", "processes")
    words = f"{arrays} onto {found.mesh}: at most {read} read by {processes}"
    return words if found.works else f"{words}, does not work"


def problem(fact: RestoreProblem) -> str:
    """Why an array cannot be restored as wanted."""
    if fact.code == "shape":
        return (
            f"The checkpoint has shape {fact.saved}, and {fact.wanted} is wanted; orbax pads"
            " or truncates only with ArrayRestoreArgs(strict=False)."
        )
    if fact.code == "no spec":
        return (
            "Nothing says how it is to be split; orbax then splits it as it was saved, over"
            " devices of that time, or makes it a numpy array. Give a PartitionSpec or a"
            " sharding here, and orbax a target tree with jax.ShapeDtypeStruct(shape, dtype,"
            " sharding=...) for each array."
        )
    if fact.code == "limit":
        return (
            f"One shard takes reads of {bytes_text(fact.bytes)}, and orbax refuses"
            f" {bytes_text(fact.limit)} or more at once: raise restore_concurrent_gb, or save"
            " with smaller chunks."
        )
    return fact.reason


def note(fact: RestoreNote) -> str:
    """What else to know, without a full stop."""
    return {
        "converted": f"saved as {fact.before}, converted to {fact.after} after it is read",
        "no shardings": "The checkpoint does not say how its arrays were split: its file"
        " _sharding is missing",
        "own names": f"The names beside {plural(fact.count, 'array')}, such as"
        f" {shown(fact.name)}, are not in the checkpoint: they come from what it is"
        " restored into",
        "one process": "The checkpoint does not say which process has which device: all count"
        " as one process",
    }[fact.code]


def advice(fact: Advice) -> str:
    """What dominates the reads, and what to do about it."""
    row = fact.row
    if row is None:
        return "Hardly anything is read that is not needed, or read twice."
    why = "is held by several processes, each of which reads it"
    if row.bytes_at_most > MUCH * row.bytes_needed and row.layout is not None:
        chunk, shard = list(row.saved.chunk_shape), list(row.layout.shard_shape)
        why = f"has chunks of {chunk}, which several of its new shards of {shard} meet"
    head = (
        f"Up to {fact.times:.1f} times the checkpoint is read; most for {shown(row.path)},"
        f" which {why}."
    )
    if fact.code == "chunks":
        return f"{head} Smaller chunks may help: save with ocp.SaveArgs(chunk_byte_size=...)."
    return (
        f"{head} Restored with {fact.spec} first, and then moved by jax.device_put, it is"
        f" {bytes_text(fact.bytes)} instead of {bytes_text(row.bytes_at_most)}."
    )


SENTENCES = {
    Restore: short,
    RestoreProblem: problem,
    RestoreNote: note,
    Advice: advice,
}
