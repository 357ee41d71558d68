"""Lets processes compare a call before they make it, and names missing processes.

Processes communicate through the key-value store of `jax.distributed`: a collective
would wait forever for a missing process. Each process writes an account of its call and
reads all others, so all processes find the same difference. If a process ends while
others wait, jax reports it after `heartbeat_timeout_seconds`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, Protocol, TypeVar

from shardviz.base.errors import ProgramError
from shardviz.base.format import shown
from shardviz.runs.agreement import (
    Account,
    Missing,
    OtherFailed,
    difference,
)

T = TypeVar("T")
WAIT = "SHARDVIZ_WAIT"
# Seconds to wait for a missing process.
_LIMIT = 30.0
# Seconds to wait for a key between checks for failures.
_SLICE = 0.25
# Seconds between checks for failures during a run.
_POLL = 1.0

# Group of processes -> counter of its calls, equal in all its processes.
_NUMBERS: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class KeyValueStore(Protocol):
    """The client of jax's key-value store, whose class is private to jax."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool, /) -> None: ...
    def key_value_delete(self, key: str, /) -> None: ...
    def key_value_dir_get(self, key: str, /) -> list[tuple[str, str]]: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int, /) -> str: ...


class Disagreement(ProgramError):
    """The processes' calls differ, or a process is missing or failed."""


def seconds_to_wait() -> float:
    """Returns how many seconds to wait for a missing process.

    Raises:
        ProgramError: if SHARDVIZ_WAIT is not a positive number.
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
        store: the client of jax's key-value store.
        process: index of this process.
        processes: indices of all participating processes, in order.
        call: text of the call, such as `"sv.run('step')"`.
    """

    def __init__(
        self,
        store: KeyValueStore,
        process: int,
        processes: Sequence[int],
        call: str,
    ) -> None:
        self.process, self.processes, self.call = process, tuple(processes), call
        self._store = store
        # Different groups of processes can make calls at the same time, so calls are
        # numbered per group.
        group = hashlib.sha256(repr(self.processes).encode()).hexdigest()[:8]
        self._group = f"shardviz/{group}"
        self._number = next(_NUMBERS[self.processes])
        self._limit = seconds_to_wait()

    def compare(self, account: Account) -> None:
        """Compares the accounts of all processes.

        Raises:
            Disagreement: if accounts differ or processes are missing.
        """
        self._write("account", account.text)
        texts = self._all("account", self._limit)
        if self._number and self.process == self.processes[0]:
            # All processes have reached this call, so the previous one is finished.
            self._store.key_value_delete(f"{self._group}/{self._number - 1}/")
        different = difference([Account.read(text) for text in texts.values()])
        if different is not None:
            raise Disagreement(str(different))

    def ready(self, step: str) -> None:
        """Waits until every process is ready for a stage.

        Args:
            step: the stage, `"place"` or `"run"`.

        Raises:
            Disagreement: if another process failed meanwhile.
        """
        # No time limit is needed: a failing process reports its error through the store.
        self._write(f"ready to {step}", "yes")
        self._all(f"ready to {step}", None)

    def run(self, execute: Callable[[], T]) -> T:
        """Executes a program, and stops waiting if another process failed.

        Args:
            execute: executes the program and waits for its results. It is called in
                another thread, because it may wait forever.

        Raises:
            Disagreement: if another process failed; the results may never come.
            Exception: any error of the run.
        """
        finished = threading.Event()
        results: list[T] = []
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                results.append(execute())
            except BaseException as error:  # noqa: BLE001  raised below
                raised.append(error)
            finished.set()

        threading.Thread(target=wait, name="shardviz-run", daemon=True).start()
        # jax waits forever if a device of another process is missing.
        while not finished.wait(_POLL):
            failure = self._failure()
            if failure is not None:
                raise Disagreement(
                    f"{failure} The devices of this process still wait for it: end all"
                    " processes and start them again."
                )
        if raised:
            raise raised[0]
        return results[0]

    def fail(self, stage: str, message: str) -> None:
        """Reports to the other processes that this process failed."""
        with contextlib.suppress(Exception):  # the store itself may have failed
            self._write("failed", json.dumps([stage, message]))

    def _all(self, name: str, limit: float | None) -> dict[int, str]:
        """Waits for a value from every process, and returns process -> value.

        Args:
            name: the name of the value.
            limit: maximum seconds to wait; None for no limit.
        """
        begun = time.monotonic()
        while True:
            texts = self._texts(name)
            # Check for failures even if all values are there: a process can fail after
            # it has written its value.
            failure = self._failure()
            if failure is not None:
                raise Disagreement(str(failure))
            absent = tuple(p for p in self.processes if p not in texts)
            if not absent:
                return texts
            if limit is not None and time.monotonic() - begun >= limit:
                missing = str(Missing(self.call, absent, tuple(sorted(texts)), limit))
                self.fail("compare", missing)
                raise Disagreement(missing)
            self._await(f"{name}/{absent[0]}")

    def _failure(self) -> OtherFailed | None:
        """Returns the failure of another process, or None."""
        for process, text in sorted(self._texts("failed").items()):
            if process != self.process:
                return OtherFailed(process, *json.loads(text))
        return None

    def _write(self, name: str, text: str) -> None:
        # Overwrite, because a failed call may report its failure twice.
        key = self._key(f"{name}/{self.process}")
        try:
            self._store.key_value_set(key, text, True)
        except RuntimeError as error:
            _raise_no_answer(error)

    def _await(self, name: str) -> None:
        """Waits briefly for a key to be written."""
        try:
            self._store.blocking_key_value_get(self._key(name), int(_SLICE * 1000))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                _raise_no_answer(error)

    def _texts(self, name: str) -> dict[int, str]:
        """Returns process -> value for the values written so far."""
        try:
            entries = self._store.key_value_dir_get(self._key(f"{name}/"))
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return {}
            _raise_no_answer(error)
        return {int(key.rpartition("/")[2]): text for key, text in entries}

    def _key(self, name: str) -> str:
        return f"{self._group}/{self._number}/{name}"


def _raise_no_answer(error: RuntimeError) -> NoReturn:
    message = " ".join(str(error).split())[:200]
    raise Disagreement(
        "The coordinator of jax.distributed, which runs in process 0, does not answer:"
        f" process 0 has ended, or the network is cut. jax says: {message}"
    ) from error
