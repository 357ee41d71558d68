"""Forks, interrupts, Jupyter's restarts and shutdowns: the next call works, nothing is left."""

from __future__ import annotations

from tests.worker.forks import FORKS, INTERRUPTS, NEXT_S, done, nothing_left
from tests.worker.kernels import BUSY, IDLE, WITHOUT, ends, middle

FORKED, INTERRUPTED = 50, 100  # of each kind
ENDED = 10  # restarts, and as many shutdowns
KERNELS = {"idle": IDLE, "busy": IDLE + BUSY}


def main() -> int:
    """Does them; returns how many calls came too late or failed, and how much was left."""
    return _forks() + _kernels()


def _forks() -> int:
    missed = 0
    print(f"{'':34}{'count':>6}{'next call: median':>19}{'longest':>9}{'wrong':>7}{'left':>6}")
    for kind in (*FORKS, *INTERRUPTS):
        found = done([kind], FORKED if kind in FORKS else INTERRUPTED)[kind]
        seconds, wrong = found["seconds"], found["wrong"]
        longest = max(seconds, default=0.0)
        print(f"{kind:34}{len(seconds):6}{middle(seconds):17.2f} s{longest:7.2f} s"
              f"{len(wrong):7}{len(found['left']):6}", flush=True)  # fmt: skip
        for line in (*wrong, *found["left"]):
            print(f"    {line}")
        missed += len(wrong) + len(found["left"]) + sum(s > NEXT_S for s in seconds)
    return missed


def _kernels() -> int:
    missed, alone = 0, ends(WITHOUT, 3)
    print("\nJupyter: seconds, median and longest")
    print(f"  {'without shardviz':22}{_row(alone)}")
    for name, code in KERNELS.items():
        with nothing_left() as left:
            found = ends(code, ENDED)
        print(f"  {f'its worker is {name}':22}{_row(found)}   left: {len(left)}", flush=True)
        missed += len(left) + sum(s > NEXT_S for s in found["next"])
        # Jupyter waits 2.5 s for a kernel, and then kills it.
        missed += sum(s > 2.4 for s in (*found["shutdown"], *found["restart"]))
    return missed


def _row(seconds: dict[str, list[float]]) -> str:
    cells = (f"{name} {middle(s):.2f} {max(s):.2f} ({len(s)})" for name, s in seconds.items())
    return "   ".join(cells)
