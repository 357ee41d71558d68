"""Several processes that make the same call: they compare first, and name who is missing.

They talk through the key-value store of `jax.distributed` and never through a
collective, which would wait for ever for a process that does not come. Each writes
what it is about to do and reads what all the others wrote, so all of them find the
same difference. A process that ends while others wait is named by jax itself, once it
has heard nothing of it for its `heartbeat_timeout_seconds`.
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
from typing import Any, NoReturn, TypeVar

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
_SLICE = 0.25  # seconds of one wait, between looks at what else happened
_POLL = 1.0  # seconds between such looks during a run
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
        # Several groups of processes may call at the same time, each with a count of
        # its own.
        group = hashlib.sha256(repr(self.every).encode()).hexdigest()[:8]
        self._group = f"shardviz/{group}"
        self._number = next(_NUMBERS[self.every])
        self._limit = seconds_to_wait()

    def compare(self, account: Account) -> None:
        """Compares what all processes are about to do.

        Raises:
            Disagreement: with the first difference, or the processes that did not come.
        """
        self._write("account", account.text)
        texts = self._all("account", self._limit)
        if self._number and self.process == self.every[0]:
            # All have come, so none looks at the call before any more.
            self._store.key_value_delete(f"{self._group}/{self._number - 1}/")
        different = difference([Account.read(text) for text in texts.values()])
        if different is not None:
            raise Disagreement(str(different))

    def ready(self, step: str) -> None:
        """Waits until every process is ready for a step.

        Args:
            step: the step, `"place"` or `"run"`.

        Raises:
            Disagreement: where another process failed meanwhile.
        """
        # Whoever fails meanwhile says so, and nobody waits in a collective for it.
        self._write(f"ready to {step}", "yes")
        self._all(f"ready to {step}", None)

    def run(self, execute: Callable[[], T]) -> T:
        """Executes a program, and waits no longer where another process failed.

        Args:
            execute: executes it and waits for its results; called in another thread,
                since it may wait for ever.

        Raises:
            Disagreement: for the latter; the results may never come.
            Exception: whatever the run raises.
        """
        done = threading.Event()
        results: list[T] = []
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                results.append(execute())
            except BaseException as error:  # noqa: BLE001  raised below
                raised.append(error)
            done.set()

        threading.Thread(target=wait, name="shardviz-run", daemon=True).start()
        # jax waits for ever where one of the devices does not come.
        while not done.wait(_POLL):
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
        """Says to the other processes that this one failed."""
        with contextlib.suppress(Exception):  # the store may be what failed
            self._write("failed", json.dumps([stage, message]))

    def _all(self, name: str, limit: float | None) -> dict[int, str]:
        """What every process wrote under a name.

        Args:
            name: the name.
            limit: how many seconds to wait; None until all have come.
        """
        begun = time.monotonic()
        while True:
            texts = self._texts(name)
            # First, since who comes late finds what the others wrote before they left.
            failure = self._failure()
            if failure is not None:
                raise Disagreement(str(failure))
            absent = tuple(p for p in self.every if p not in texts)
            if not absent:
                return texts
            if limit is not None and time.monotonic() - begun >= limit:
                missing = str(Missing(self.call, absent, tuple(sorted(texts)), limit))
                self.fail("compare", missing)
                raise Disagreement(missing)
            self._await(f"{name}/{absent[0]}")

    def _failure(self) -> OtherFailed | None:
        """What another process failed of."""
        for process, text in sorted(self._texts("failed").items()):
            if process != self.process:
                return OtherFailed(process, *json.loads(text))
        return None

    def _write(self, name: str, text: str) -> None:
        # It may write twice: what failed first may fail once more as the call ends.
        key = self._key(f"{name}/{self.process}")
        try:
            self._store.key_value_set(key, text, True)
        except RuntimeError as error:
            _raise_no_answer(error)

    def _await(self, name: str) -> None:
        """Waits a moment for a key to come."""
        try:
            self._store.blocking_key_value_get(self._key(name), int(_SLICE * 1000))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                _raise_no_answer(error)

    def _texts(self, name: str) -> dict[int, str]:
        """What each process wrote under a name."""
        try:
            found = self._store.key_value_dir_get(self._key(f"{name}/"))
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return {}
            _raise_no_answer(error)
        return {int(key.rpartition("/")[2]): text for key, text in found}

    def _key(self, name: str) -> str:
        return f"{self._group}/{self._number}/{name}"


def _raise_no_answer(error: RuntimeError) -> NoReturn:
    words = " ".join(str(error).split())[:200]
    raise Disagreement(
        "The coordinator of jax.distributed, which runs in process 0, does not answer:"
        f" process 0 has ended, or the network is cut. It said: {words}"
    ) from error
