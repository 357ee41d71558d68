"""What it costs to show meshes of up to 16,777,216 devices, each form in a process of its own.

    python -m tests.bench.large_meshes            every mesh in every form
    python -m tests.bench.large_meshes live html  some of the forms (`FORMS` names them)

Prints the seconds of CPU time and of the clock, and the growth of the peak memory, from before the
mesh is made to when it is shown. A small mesh is shown first, so that no import is counted.
"""

from __future__ import annotations

import gc
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import shardviz as sv
from shardviz.figures import png

SECONDS, MIB = 0.5, 300
N = 1 << 24

#: name -> axes, options of sv.mesh, and the spec of an array of one element per block
MESHES: dict[str, tuple[dict[str, int], dict[str, Callable[[], Any]], str]] = {
    "8": ({"a": 4, "b": 2}, {}, "(a, b)"),
    "65,536": ({"a": 65536}, {}, "a"),
    "65,537": ({"a": 65537}, {}, "a"),
    "1,048,576": ({"a": 1024, "b": 1024}, {}, "(a, b)"),
    "one axis": ({"a": N}, {}, "a"),
    "one axis, replicated": ({"a": N}, {}, ""),
    "8,388,608 x 2": ({"a": N // 2, "b": 2}, {}, "a"),
    "2 x 8,388,608": ({"a": 2, "b": N // 2}, {}, "b"),
    "5-D": ({"a": 64, "b": 32, "c": 32, "d": 16, "e": 16}, {}, "(e, c), (a, b)"),
    "a prime": ({"a": 16_777_213}, {}, "a"),
    "hosts of 8": ({"a": N // 8, "b": 8}, {"processes": lambda: N // 8}, "b"),
    "hosts of 8, given": ({"a": N // 8, "b": 8}, {"processes": lambda: np.arange(N) // 8}, "b"),
    "hosts alternating": (
        {"a": N // 8, "b": 8},
        {"processes": lambda: np.arange(N) % (N // 8)},
        "b",
    ),
    "ids reversed": ({"a": N}, {"device_ids": lambda: np.arange(N)[::-1]}, "a"),
    "ids shuffled": (
        {"a": N // 2, "b": 2},
        {"device_ids": lambda: np.random.default_rng(0).permutation(N)},
        "(b, a)",
    ),
}


def _layout(mesh: sv.MeshSpec, spec: str) -> sv.Layout:
    return sv.layout((mesh.size, mesh.size), spec, mesh)


def _explorer(mesh: sv.MeshSpec, spec: str) -> Any:
    return sv.explore(_layout(mesh, spec))


#: name -> what shows a mesh, or an array over it
FORMS: dict[str, Callable[[sv.MeshSpec, str], Any]] = {
    "text": lambda mesh, _: sv.text(mesh),
    "plot": lambda mesh, _: sv.plot(mesh),
    "stored": lambda mesh, _: mesh._repr_mimebundle_(),
    "layout text": lambda mesh, spec: sv.text(_layout(mesh, spec)),
    "layout stored": lambda mesh, spec: _layout(mesh, spec)._repr_mimebundle_(),
    "layout devices": lambda mesh, spec: png(_layout(mesh, spec), view="devices"),
    "by host": lambda mesh, _: png(mesh, by="host"),
    "live": _explorer,
    "html": lambda mesh, spec: _explorer(mesh, spec).page(),
    "live stored": lambda mesh, spec: _explorer(mesh, spec)._repr_mimebundle_(),
}


def measured(mesh: str, form: str) -> tuple[float, float, float]:
    """Seconds of CPU time and of the clock, and MiB, to make and show a mesh, in this process."""
    axes, options, spec = MESHES[mesh]
    show = FORMS[form]
    given = {name: make() for name, make in options.items()}
    show(sv.mesh(b=2), "")
    gc.collect()
    before, cpu, clock = _peak(), time.process_time(), time.perf_counter()
    made = sv.mesh(axes, **given)
    shown = show(made, spec)
    times = time.process_time() - cpu, time.perf_counter() - clock
    assert shown
    return *times, _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _least(mesh: str, form: str) -> tuple[float, float, float]:
    """`measured` in a process of its own; of what takes too long the quickest of three.

    To touch 128 MiB for the first time takes 0.02 s, or 0.3 s where no huge pages are free.
    """
    command = [sys.executable, "-m", "tests.bench.large_meshes", "--one", mesh, form]
    found: list[tuple[float, float, float]] = []
    while len(found) < 3 and (not found or found[-1][0] > SECONDS):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        cpu, clock, mib = map(float, done.stdout.split())
        found.append((cpu, clock, mib))
    return min(found)


def main(forms: Sequence[str] = ()) -> None:
    """Prints a line per mesh and form, and marks what takes too long or too much."""
    if len(forms) == 3 and forms[0] == "--one":
        print(*measured(forms[1], forms[2]))
        return
    if unknown := set(forms) - set(FORMS):
        sys.exit(f"There is no form {', '.join(sorted(unknown))}; there are {', '.join(FORMS)}.")
    for mesh, (axes, _, _) in MESHES.items():
        print(f"\n{mesh}: {math.prod(axes.values()):,} devices")
        for form in forms or FORMS:
            try:
                cpu, clock, mib = _least(mesh, form)
            except subprocess.CalledProcessError as error:
                print(f"  {form:<16} FAILED {error.stderr.strip().splitlines()[-1]}")
                continue
            mark = "" if cpu <= SECONDS and mib <= MIB else "  over the limit"
            print(f"  {form:<16}{cpu:7.2f} s CPU {clock:7.2f} s {mib:7.0f} MiB{mark}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
