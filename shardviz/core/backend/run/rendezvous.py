"""Several processes that make the same call: they compare first, and name who is missing.

They talk through the key-value store of `jax.distributed` and never through a
collective, which would wait for ever for a process that does not come. Each writes
what it is about to do and reads what all the others wrote, so all of them find the
same difference. While a call lasts every process writes a pulse, so that one that
ended or was stopped is named before jax gives up.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.core.program.agreement import (
    Account,
    Missing,
    OtherFailed,
    Silent,
    difference,
    first_other_operation,
)

T = TypeVar("T")
WAIT = "SHARDVIZ_WAIT"
_LIMIT = 30.0  # seconds to wait for a process that does not come
_SLICE = 0.25  # seconds of one wait, between looks at what else happened
_PULSE = 1.0  # seconds from one pulse to the next; more where there are many processes
_MOST_PER_SECOND = 64  # pulses that the store takes from all processes together
_QUIET = 3.0  # seconds without a process until a line says so
_SILENT = 20.0  # seconds without a pulse until the call ends
# How often each set of processes has come together: all of them count alike.
_NUMBERS: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class Disagreement(ProgramError):
    """The processes do not do the same, or one of them is missing or failed."""


def seconds_to_wait() -> float:
    """How long to wait for a process that does not come.

    Raises:
        ProgramError: where the environment variable is no number of seconds.
    """
    text = os.environ.get(WAIT, "")
    try:
        seconds = float(text or _LIMIT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ProgramError(
            f"The environment variable {WAIT} is how many seconds to wait for other"
            f" processes, such as 60; got {shown(text)}."
        )
    return seconds


class Rendezvous:
    """One call of `sv.run` or `sv.compile` that several processes make.

    Args:
        store: the client of the key-value store.
        process: this process.
        every: all processes that take part, in order.
        call: the call, such as `"sv.run('step')"`.
    """

    def __init__(
        self, store: Any, process: int, every: Sequence[int], call: str
    ) -> None:
        self.process, self.every, self.call = process, tuple(every), call
        self._store = store
        group = hashlib.sha256(repr(self.every).encode()).hexdigest()[:8]
        self._group = f"shardviz/{group}"
        self._number = next(_NUMBERS[self.every])
        self._limit = seconds_to_wait()
        self._stage = ""
        # The last pulse of each process, and when it was new.
        self._pulses: dict[int, tuple[str, float]] = {}
        self._over = threading.Event()
        self._pulse = max(_PULSE, len(self.every) / _MOST_PER_SECOND)
        self._thread = threading.Thread(
            target=self._live, name="shardviz-pulse", daemon=True
        )

    def enter(self, stage: str) -> None:
        """Notes the stage, for the other processes."""
        self._stage = stage

    def compare(self, account: Account, operations: Callable[[], list[Any]]) -> None:
        """Compares what all processes are about to do.

        Args:
            account: what this process is about to do.
            operations: gives the operations of its program; called where programs
                differ.

        Raises:
            Disagreement: with the first difference, or the processes that did not come.
        """
        self._thread.start()
        self._write("account", account.text)
        texts = self._all("account", self._limit)
        if self._number and self.process == self.every[0]:
            # All have come, so none looks at the call before any more.
            self._store.key_value_delete(f"{self._group}/{self._number - 1}/")
        different = difference([Account.read(text) for text in texts.values()])
        if different is None:
            return
        if different.what == "program":
            self._write("operations", json.dumps(operations()))
            found = self._all("operations", None)
            here, there = (
                json.loads(found[p]) for p in (different.odd[0], different.others[0])
            )
            first = first_other_operation(here, there)
            different = replace(different, operations=first)
        raise Disagreement(str(different))

    def ready(self, step: str, able: bool = True) -> bool:
        """Waits until every process is ready for a step.

        Args:
            step: the step, `"place"` or `"run"`.
            able: whether this process can do what all do or none.

        Returns:
            Whether all of them can.

        Raises:
            Disagreement: where another process failed meanwhile.
        """
        self._write(f"ready to {step}", json.dumps(able))
        return all(map(json.loads, self._all(f"ready to {step}", None).values()))

    def run(self, execute: Callable[[], T], failed: Sequence[BaseException]) -> T:
        """Executes a program, and waits until another process failed or is silent.

        Args:
            execute: executes it and waits for its results; called in another thread,
                since it may wait for ever.
            failed: what callbacks of this process raise; the other devices then wait
                for theirs.

        Raises:
            Disagreement: for the latter; the results may never come.
            Exception: whatever the run raises.
        """
        done, results, raised = threading.Event(), [], []

        def wait() -> None:
            try:
                results.append(execute())
            except BaseException as error:  # noqa: BLE001  raised below
                raised.append(error)
            done.set()

        threading.Thread(target=wait, name="shardviz-run", daemon=True).start()
        while not done.wait(self._pulse):
            if failed:
                raise failed[0]
            problem = self._failure() or self._silent(self.every)
            if problem is not None:
                raise Disagreement(
                    f"{problem} The devices of this process still wait for it: end all"
                    " processes and start them again."
                )
        if raised:
            raise raised[0]
        return results[0]

    def fail(self, stage: str, message: str) -> None:
        """Says to the other processes that this one failed."""
        with contextlib.suppress(Exception):  # the store may be what failed
            self._write("failed", json.dumps([stage, message]))

    def leave(self) -> None:
        """Ends the call in this process."""
        self._over.set()
        with contextlib.suppress(Exception):  # as above
            self._write("left", "")

    def _all(self, name: str, limit: float | None) -> dict[int, str]:
        """What every process wrote under a name.

        Args:
            name: the name.
            limit: how many seconds to wait; None for as long as the missing ones live.
        """
        begun, is_told = time.monotonic(), False
        while True:
            texts = self._texts(name)
            absent = tuple(p for p in self.every if p not in texts)
            # First, since who comes late finds what the others wrote before they left.
            failure = self._failure()
            if failure is None and absent and limit is None:
                failure = self._silent(absent)
            if failure is not None:
                raise Disagreement(str(failure))
            if not absent:
                return texts
            there = tuple(p for p in self.every if p not in absent)
            waited = time.monotonic() - begun
            if limit is not None and waited >= limit:
                missing = str(Missing(self.call, absent, there, limit))
                self.fail("compare", missing)
                raise Disagreement(missing)
            if limit is not None and waited >= _QUIET and not is_told:
                is_told = True
                if self.process == there[0]:  # one line, not one from each of them
                    late = Missing(self.call, absent, there, _QUIET, ended=False)
                    print(f"shardviz: {late}", file=sys.stderr, flush=True)
            self._await(f"{name}/{absent[0]}")

    def _failure(self) -> OtherFailed | None:
        """What another process failed of."""
        for process, text in sorted(self._texts("failed").items()):
            if process != self.process:
                return OtherFailed(process, *json.loads(text))
        return None

    def _silent(self, processes: Sequence[int]) -> Silent | None:
        """Which of some processes have written no pulse for long."""
        now, pulses, left = time.monotonic(), self._texts("pulse"), self._texts("left")
        silent = []
        for process in processes:
            if process == self.process or process in left:
                continue
            text = pulses.get(process, "")
            last, since = self._pulses.get(process, ("", now))
            if text != last:
                since = now
            self._pulses[process] = (text, since)
            if now - since >= _SILENT + self._pulse:
                silent.append(process)
        if not silent:
            return None
        text = pulses.get(silent[0], "")
        stage = json.loads(text)[0] if text else ""
        return Silent(tuple(silent), stage, _SILENT)

    def _live(self) -> None:
        """Writes the pulses of this process, in a thread."""
        for count in itertools.count():
            try:
                text = json.dumps([self._stage, count])
                self._write("pulse", text)
            except Disagreement:  # the store is gone: jax ends this process
                return
            if self._over.wait(self._pulse):
                return

    def _write(self, name: str, text: str) -> None:
        key = self._key(f"{name}/{self.process}")
        try:
            self._store.key_value_set(key, text, True)
        except RuntimeError as error:
            raise _no_answer(error) from error

    def _await(self, name: str) -> None:
        """Waits a moment for a key to come."""
        try:
            self._store.blocking_key_value_get(self._key(name), int(_SLICE * 1000))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise _no_answer(error) from error

    def _texts(self, name: str) -> dict[int, str]:
        """What each process wrote under a name."""
        try:
            found = self._store.key_value_dir_get(self._key(f"{name}/"))
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return {}
            raise _no_answer(error) from error
        return {int(key.rpartition("/")[2]): text for key, text in found}

    def _key(self, name: str) -> str:
        return f"{self._group}/{self._number}/{name}"


def _no_answer(error: RuntimeError) -> Disagreement:
    words = " ".join(str(error).split())[:200]
    return Disagreement(
        "The coordinator of jax.distributed, which runs in process 0, does not answer:"
        " process 0 has ended, or the network is cut. jax ends the other processes. It"
        f" said: {words}"
    )
