"""English sentences about processes that differ, are missing or failed."""

from __future__ import annotations

from shardviz.base.format import by_count, clause, cut, processes
from shardviz.runs.agreement import Difference, Missing, OtherFailed

# Maximum number of characters shown of a value.
_LONGEST = 160


def difference(fact: Difference) -> str:
    """Names the processes and the field that differ, and how to find the cause.

    >>> print(difference(Difference("mesh", (3,), (0, 1, 2), "x=4", "x=8")).split(". ")[0])
    Process 3 differs from processes 0, 1 and 2 in the mesh: x=4 instead of x=8
    """
    differ = by_count(len(fact.differing), "differs", "differ")
    return (
        f"{processes(fact.differing)} {differ} from {processes(fact.reference).lower()} in"
        f" the {fact.field}: {_value(fact.value, fact.line)} instead of"
        f" {_value(fact.reference_value, fact.reference_line)}. Nothing ran: unless all"
        " processes do the same, they wait for each other or compute wrong numbers. Look for"
        " code that depends on jax.process_index(), on files that only one process has, or on random"
        " numbers without a fixed seed. If each process has its own rows, create the array"
        " with jax.make_array_from_process_local_data from the rows that sv.process_rows"
        " lists."
    )


def _value(text: str, line: str) -> str:
    # The list of devices can be long; its beginning is enough.
    return cut(text or "none", _LONGEST) + clause(" ({})", line)


def missing(fact: Missing) -> str:
    """Names the processes that did not reach a call.

    >>> print(missing(Missing("sv.run('step')", (3,), (0, 1), 30)).split(";")[0])
    Process 3 did not reach sv.run('step') within 30 s
    """
    return (
        f"{processes(fact.absent)} did not reach {fact.call} within"
        f" {fact.seconds:.3g} s; {processes(fact.waiting).lower()} waited, and nothing"
        " ran. A missing process is in another branch of the script, is still busy, or has"
        " ended: look at its output. The environment variable SHARDVIZ_WAIT sets"
        " the seconds to wait."
    )


def other_failed(fact: OtherFailed) -> str:
    """Names the process that failed, and the reason."""
    return (
        f"Process {fact.process} failed in the stage {fact.stage!r}, so all processes"
        f" stopped: {fact.message}"
    )


SENTENCES = {
    Difference: difference,
    Missing: missing,
    OtherFailed: other_failed,
}
