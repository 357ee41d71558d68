"""Sentences about the reads that restore a checkpoint."""

from __future__ import annotations

from pathlib import Path

from shardviz.base.format import bytes_text, listed, plural, shown
from shardviz.move.restore import Restore, RestoreProblem, RestoreRow

MOST_PROBLEMS = 8
LARGEST_FIRST = "Arrays, most bytes read first:"
PROCESSES_FIRST = "Processes, most bytes read first:"
NOT_NEEDED = "more than is needed"
COUNTED = (
    "The bytes are those of orbax's default: every process reads all chunks that its own"
    " shards overlap, in full. orbax refuses to read 96 GB or more at once"
    " (restore_concurrent_gb); this is not checked here."
)
_NOTES = {
    "no shardings": "The checkpoint does not record how its arrays were split: its file"
    " _sharding is missing.",
    "one process": "The checkpoint does not record which process has which device, so all"
    " devices count as one process.",
}


def title(restore: Restore) -> str:
    """Describes the checkpoint and its target, on one line.

    Example: `step 5 of run: 1 array, 4 MiB → x=2 · 2 devices · 1 process`.
    """
    saved = restore.checkpoint
    folder = Path(saved.path)
    # The folder of an item is inside the folder of the step.
    if saved.item:
        folder = folder.parent
    name = folder.name
    if saved.step is not None:
        name = f"step {saved.step} of {folder.parent.name}"
    if saved.item:
        name += f", {saved.item}"
    processes = plural(len(restore.process_numbers), "process", "processes")
    devices = plural(restore.mesh.size, "device")
    arrays = f"{plural(len(saved.arrays), 'array')}, {bytes_text(saved.bytes)}"
    return f"{name}: {arrays} → {restore.mesh} · {devices} · {processes}"


def problems(restore: Restore, full: bool = False) -> list[str]:
    """Lists why a checkpoint cannot be restored as requested, one reason per line.

    Only the first few problems of arrays are listed unless `full` is True.
    """
    lines = []
    for path, problem in restore.problems.items():
        lines.append(f"✗ {shown(path)}: {problem}")
    hidden = len(lines) - MOST_PROBLEMS
    if hidden > 0 and not full:
        lines = [*lines[:MOST_PROBLEMS], f"and {plural(hidden, 'more problem')}"]
    if restore.missing:
        lines.append(
            f"✗ requested but not in the checkpoint: {listed(restore.missing)}"
        )
    if restore.not_wanted:
        lines.append(
            f"✗ in the checkpoint but not requested: {listed(restore.not_wanted)}; orbax"
            " leaves them out only with partial_restore=True"
        )
    return lines


def times(least: int, largest: int, needed: int) -> str:
    """Formats the bytes read as a multiple of the bytes needed: `1 to 2.5 ×`."""
    if not needed:
        return "nothing is needed"
    low, high = (f"{n / needed:.2f}".rstrip("0").rstrip(".") for n in (least, largest))
    return f"{high} ×" if low == high else f"{low} to {high} ×"


def converted(row: RestoreRow) -> str:
    """Names the dtype that an array is converted to; `""` if it keeps its dtype."""
    if row.dtype == row.saved.dtype:
        return ""
    return f"; converted to {row.dtype} after it is read"


def short(restore: Restore) -> str:
    """Describes the arrays, the mesh and the bytes read, in short."""
    arrays = plural(len(restore.rows), "array")
    read = bytes_text(sum(process.bytes_at_most for process in restore.processes))
    processes = plural(len(restore.process_numbers), "process", "processes")
    words = f"{arrays} onto {restore.mesh}: at most {read} read by {processes}"
    return words if restore.works else f"{words}; the restore would fail"


def problem(fact: RestoreProblem) -> str:
    """Explains why an array cannot be restored as requested."""
    if fact.code == "shape":
        return (
            f"The checkpoint has shape {fact.saved}, but {fact.wanted} is requested; orbax"
            " pads or truncates only with ArrayRestoreArgs(strict=False)."
        )
    if fact.code == "no spec":
        return (
            "No sharding is requested for the array. Give sv.restore a PartitionSpec or a"
            " sharding, and give orbax a target tree with"
            " jax.ShapeDtypeStruct(shape, dtype, sharding=...) for each array."
        )
    return fact.reason


def notes(restore: Restore) -> list[str]:
    """Lists the checkpoint's missing information, and how reads are counted."""
    return [*(_NOTES[code] for code in restore.notes), COUNTED]


SENTENCES = {Restore: short, RestoreProblem: problem}
