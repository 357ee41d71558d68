"""Processes that end, stop or hang, at five moments each: who is named, and how soon it is over.

    python -m tests.bench.mistakes                # all
    python -m tests.bench.mistakes killed stopped # some faults

The others hear which process it was, by the report or by a line, or by jax's own words as
`failures.explain` reads them. A process that hangs while it places arrays, or in a function that
the program calls, is named in a line and not ended: nobody knows how long that may take.
"""

from __future__ import annotations

import os
import sys
import time

from shardviz.core.backend.failures import meaning_of
from tests.spmd.faults import FAULTS, MOMENTS, PLANTED, VICTIM
from tests.spmd.processes import HEARTBEAT, Ended, run_cases

_WAIT = 8  # seconds that processes wait for one another
_LIMIT = HEARTBEAT + 5
_NEVER_ENDS = ("hangs-placing", "hangs-calling", "hangs-calling_again")


def named(processes: list[Ended], victim: int, case: str) -> str:
    """Where a process other than the victim names it; `""` where none does."""
    whole = f"rocess {victim}"
    for rank, ended in enumerate(processes):
        if rank == victim:
            continue
        if whole in str(ended.cases.get(case, "")):
            return "report"
        lines = [line for line in ended.log.splitlines() if line.startswith("shardviz:")]
        if any(whole in line for line in lines):
            return "line"
        if whole in str(meaning_of(ended.log) or ""):
            return "jax"
    return ""


def planted_at(ended: Ended) -> float:
    """When the fault happened, in seconds of the clock."""
    lines = [line for line in ended.log.splitlines() if line.startswith(PLANTED)]
    return float(lines[0].removeprefix(PLANTED)) if lines else 0.0


def one(fault: str, moment: str, count: int, victim: int) -> bool:
    """Plants a fault, and prints what came of it."""
    case = f"{fault}-{moment}"
    environment = {VICTIM: str(victim), "SHARDVIZ_WAIT": str(_WAIT)}
    begun = time.time()
    processes = run_cases(
        "tests.spmd.faults", count, [case], seconds=75, kill_last=victim, environment=environment
    )
    others = [p for rank, p in enumerate(processes) if rank != victim]
    took = begun + max(p.seconds for p in others) - (planted_at(processes[victim]) or begun)
    answered = (
        max((p.answered or p.seconds) for p in others) + begun - planted_at(processes[victim])
    )
    where = named(processes, victim, case)
    left = [p.pid for p in processes if _lives(p.pid)]
    over = min(took, answered)  # jax may wait at the end of the script once more
    right = bool(where) and not left and (over <= _LIMIT or case in _NEVER_ENDS)
    answer = next((p.cases[case] for p in others if case in p.cases), "")
    print(
        f"{'ok   ' if right else 'WRONG'} {case}, process {victim} of {count}: named by"
        f" {where or 'nobody'}; answer after {answered:.0f} s, all ended after {took:.0f} s;"
        f" {len(left)} processes left. {str(answer)[:160]}",
        flush=True,
    )
    return right


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main(*faults: str) -> int:
    """Plants every fault at every moment, in two processes and in four, also in process 0."""
    wrong = 0
    for number, fault in enumerate(faults or FAULTS):
        for place, moment in enumerate(MOMENTS):
            count = 2 if (number + place) % 2 else 4
            victim = 0 if place == 4 else count - 1
            wrong += not one(fault, moment, count, victim)
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
