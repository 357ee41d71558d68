"""Starts the same script in several processes that `jax.distributed` joins, and reads its answers.

    found = run_cases("tests.spmd.same_script", 2, ["run", "layout"])
    found[1].cases["run"]

The module of the cases has a dict `CASES` of functions; each is called with the number of the
process and returns what JSON can hold. All of them run in one start of the processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
HEARTBEAT = 10  # seconds
_MARK = "@case "


@dataclass
class Ended:
    """What one process said and how it ended.

    Attributes:
        cases: name to what the case returned.
        log: all that it printed.
        code: its exit code; negative for a signal.
        seconds: how long it lived.
        answered: when its last case was over, in seconds from the start; 0.0 where none was.
        pid: its number.
    """

    cases: dict[str, Any]
    log: str
    code: int
    seconds: float
    answered: float = 0.0
    pid: int = 0


def run_cases(
    module: str,
    count: int,
    cases: Sequence[str],
    devices: int = 0,
    seconds: float = 240,
    kill_last: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Runs the cases in `count` processes, in order.

    Args:
        module: the module that has them.
        count: how many processes.
        cases: their names.
        devices: simulated devices of each process; 8 over all of them where left out.
        seconds: after which all processes are killed.
        kill_last: the process that is killed when the others have ended, if it has not.
        environment: further environment variables.
    """
    port, begun = free_port(), time.monotonic()
    own = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    own |= {"XLA_FLAGS": "", **(environment or {})}
    each = devices or 8 // count
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(count)]
        started = []
        for rank, log in enumerate(logs):
            arguments = [str(n) for n in (time.time(), rank, count, each, port)]
            with log.open("wb") as out:
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.spmd.processes", *arguments, module, *cases],
                        cwd=ROOT,
                        env={**os.environ, **own},
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )
        ends: dict[int, tuple[int, float]] = {}
        for rank in sorted(range(count), key=lambda rank: rank == kill_last):
            limit = begun + seconds if rank != kill_last else 0.0
            ends[rank] = _wait(started[rank], begun, limit)
        texts = [log.read_text(errors="replace") for log in logs]
    return [
        Ended(*_cases(texts[rank])[:1], texts[rank], *ends[rank], _cases(texts[rank])[1], p.pid)
        for rank, p in enumerate(started)
    ]


def _wait(process: subprocess.Popen[bytes], begun: float, until: float) -> tuple[int, float]:
    try:
        code = process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        code = process.wait()
    return code, time.monotonic() - begun


def _cases(log: str) -> tuple[dict[str, Any], float]:
    """What the cases returned, and when the last of them did."""
    found: dict[str, Any] = {}
    when = 0.0
    for line in log.splitlines():
        if line.startswith(_MARK):  # what C++ prints may stand before a line, never inside
            seconds, name, text = line.removeprefix(_MARK).split(" ", 2)
            found[name], when = json.loads(text), float(seconds)
    return found, when


def main(
    begun: float, rank: int, count: int, devices: int, port: int, module: str, *cases: str
) -> None:
    """One of the processes."""
    import importlib

    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if count > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            count,
            rank,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    jax.devices()  # which waits for all processes to start theirs
    functions = importlib.import_module(module).CASES
    for name in cases:
        try:
            found = functions[name](rank)
        except Exception as error:  # noqa: BLE001  what a case raises is what it found
            found = {"raised": f"{type(error).__name__}: {error}"}
        print(f"\n{_MARK}{time.time() - begun:.2f} {name} {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    _rank, _count, _devices, _port = map(int, sys.argv[2:6])
    main(float(sys.argv[1]), _rank, _count, _devices, _port, *sys.argv[6:])
