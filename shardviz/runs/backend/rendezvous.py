"""Lets processes that make the same call compare it first, and names missing processes.

They communicate through the key-value store of `jax.distributed`, never through a
collective, which would wait forever for a process that does not come. Each process
writes its account and reads those of all others, so all of them find the same
difference. If a process ends while others wait, jax names it after
`heartbeat_timeout_seconds` without a sign of life.
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
_LIMIT = 30.0  # seconds to wait for a process that does not come
_SLICE = 0.25  # seconds of one wait, before looking for failures again
_POLL = 1.0  # seconds between looks for failures during a run
# Numbers the calls of each set of processes; all of its processes count alike.
_NUMBERS: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class KeyValueStore(Protocol):
    """The client of jax's key-value store; its own class is private to jax."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool, /) -> None: ...
    def key_value_delete(self, key: str, /) -> None: ...
    def key_value_dir_get(self, key: str, /) -> list[tuple[str, str]]: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int, /) -> str: ...


class Disagreement(ProgramError):
    """The processes do different things, or one of them is missing or failed."""


def seconds_to_wait() -> float:
    """The seconds to wait for a process that does not come.

    Raises:
        ProgramError: if the environment variable is not a number of seconds.
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
        processes: all processes that take part, in order.
        call: the call, such as `"sv.run('step')"`.
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
        # Several groups of processes may call at the same time, so each group numbers
        # its own calls.
        group = hashlib.sha256(repr(self.processes).encode()).hexdigest()[:8]
        self._group = f"shardviz/{group}"
        self._number = next(_NUMBERS[self.processes])
        self._limit = seconds_to_wait()

    def compare(self, account: Account) -> None:
        """Compares the accounts of all processes.

        Raises:
            Disagreement: with the first difference, or the processes that did not come.
        """
        self._write("account", account.text)
        texts = self._all("account", self._limit)
        if self._number and self.process == self.processes[0]:
            # All have come, so no process reads the previous call any more.
            self._store.key_value_delete(f"{self._group}/{self._number - 1}/")
        different = difference([Account.read(text) for text in texts.values()])
        if different is not None:
            raise Disagreement(str(different))

    def ready(self, step: str) -> None:
        """Waits until every process is ready for a step.

        Args:
            step: the step, `"place"` or `"run"`.

        Raises:
            Disagreement: if another process failed meanwhile.
        """
        # A process that fails meanwhile reports it, so no other process waits for it in
        # a collective.
        self._write(f"ready to {step}", "yes")
        self._all(f"ready to {step}", None)

    def run(self, execute: Callable[[], T]) -> T:
        """Executes a program, and stops waiting if another process failed.

        Args:
            execute: executes it and waits for its results. It is called in another
                thread, since it may wait forever.

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
        # jax waits forever if one of the devices does not come.
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
        """Reports to the other processes that this one failed."""
        with contextlib.suppress(Exception):  # the store may be what failed
            self._write("failed", json.dumps([stage, message]))

    def _all(self, name: str, limit: float | None) -> dict[int, str]:
        """Waits until every process has written a value, and returns them by process.

        Args:
            name: the name of the value.
            limit: the most seconds to wait; None to wait until all have come.
        """
        begun = time.monotonic()
        while True:
            texts = self._texts(name)
            # Failures first: a late process finds the values of others that have failed
            # since.
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
        """The failure of another process, if there is one."""
        for process, text in sorted(self._texts("failed").items()):
            if process != self.process:
                return OtherFailed(process, *json.loads(text))
        return None

    def _write(self, name: str, text: str) -> None:
        # Overwriting is allowed, since a failed call may report its failure twice.
        key = self._key(f"{name}/{self.process}")
        try:
            self._store.key_value_set(key, text, True)
        except RuntimeError as error:
            _raise_no_answer(error)

    def _await(self, name: str) -> None:
        """Waits a moment for a key to be written."""
        try:
            self._store.blocking_key_value_get(self._key(name), int(_SLICE * 1000))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                _raise_no_answer(error)

    def _texts(self, name: str) -> dict[int, str]:
        """The values written so far, by process."""
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
        f" process 0 has ended, or the network is cut. It said: {message}"
    ) from error
