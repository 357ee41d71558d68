"""Several processes that do the same at the same time: they compare first, and name who
is missing.

They talk through the key-value store of `jax.distributed` and never through a
collective, which would wait for ever for a process that does not come. One of them, the
lowest, collects what all say and writes the answer that the others wait for. While a
call lasts every process says once in a while that it lives, so that a process that
ended or was stopped is named before jax gives up.

jax keeps the client of that store private; it is looked for here and nowhere else.
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
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.core.program.agreement import (
    Account,
    Busy,
    Doing,
    Missing,
    OtherFailed,
    ProgramDetails,
    Silent,
    difference,
    program_differences,
)
from shardviz.core.xla.module import is_user_file, line_in_words

T = TypeVar("T")
WAIT = "SHARDVIZ_WAIT"
_LIMIT = 30.0  # seconds to wait for a process that does not come
_SLICE = 0.25  # seconds of one wait, between looks at what else happened
_PULSE = 1.0  # seconds from one sign of life to the next; more where there are many processes
_MOST_PER_SECOND = 64
_QUIET = 3.0  # seconds without a sign until a line says so
_SILENT = 20.0  # seconds without a sign until the call ends
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
            f"The environment variable {WAIT} is how many seconds to wait for other processes, such"
            f" as 60; got {shown(text)}."
        )
    return seconds


class Rendezvous:
    """One call of `sv.run` or `sv.compile` that several processes make.

    Args:
        store: the client of the key-value store.
        process: this process.
        every: all processes that take part, in order.
        call: the call, in words.
    """

    def __init__(
        self, store: Any, process: int, every: Sequence[int], call: str
    ) -> None:
        self._store, self.process, self.every, self.call = (
            store,
            process,
            tuple(every),
            call,
        )
        group = hashlib.sha256(repr(self.every).encode()).hexdigest()[:8]
        self._number = next(_NUMBERS[self.every])
        self._group = f"shardviz/{group}"
        self._limit = seconds_to_wait()
        self._stage = ""
        # The last pulse of each process, and what each does, with the time it was new.
        self._pulses: dict[int, tuple[Any, float]] = {}
        self._doing: dict[int, tuple[Any, float]] = {}
        self._caller = threading.get_ident()
        self._said: set[str] = set()
        self._over = threading.Event()
        self._pulse = max(_PULSE, len(self.every) / _MOST_PER_SECOND)
        self._thread = threading.Thread(
            target=self._live, name="shardviz-pulse", daemon=True
        )

    @property
    def lead(self) -> int:
        """The process that collects what all say."""
        return self.every[0]

    def enter(self, stage: str) -> None:
        """Notes the stage, for the other processes."""
        self._stage = stage

    def compare(self, account: Account, details: Callable[[], ProgramDetails]) -> None:
        """Compares what all processes are about to do.

        Args:
            account: what this process is about to do.
            details: makes what a program consists of, where programs differ.

        Raises:
            Disagreement: with the first difference, or the processes that did not come.
        """
        self._thread.start()
        self._say("account", account.text)
        if self.process == self.lead:
            self._answer("compared", self._compared)
        answer = self._heard("compared")
        if self.process in answer.get("details", ()):
            self._say("details", details().text)
        if answer.get("details"):
            if self.process == self.lead:
                self._answer("explained", lambda: self._explained(answer["details"]))
            answer = self._heard("explained")
        if answer.get("sentence"):
            raise Disagreement(answer["sentence"])

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
        self._say(f"ready to {step}", json.dumps(able))
        if self.process == self.lead:
            self._answer(step, lambda: self._all_ready(f"ready to {step}"))
        answer = self._heard(step)
        if answer.get("sentence"):
            raise Disagreement(answer["sentence"])
        return answer["all"]

    def run(self, execute: Callable[[], T], failed: Sequence[BaseException]) -> T:
        """Executes a program, and waits until another process failed or gives no sign
        of life.

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
            problem = self._failure() or self._lifeless(self.every)
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
            self._say("failed", json.dumps([stage, message]))

    def leave(self) -> None:
        """Ends the call in this process."""
        self._over.set()
        with contextlib.suppress(Exception):  # as above
            self._say("left", "")

    def _compared(self) -> dict[str, Any]:
        found = self._all("account", self._limit)
        if self._number:  # all came, so none looks at the call before any more
            self._store.key_value_delete(f"{self._group}/{self._number - 1}/")
        different = difference([Account.read(text) for text in found.values()])
        if different is None:
            return {}
        if different.what == "program":
            details = [different.odd[0], different.others[0]]
            return {"details": details, "found": [different.odd, different.others]}
        return {"sentence": str(different)}

    def _explained(self, wanted: Sequence[int]) -> dict[str, Any]:
        accounts = [
            Account.read(text) for text in self._all("account", self._limit).values()
        ]
        different = difference(accounts)
        assert different is not None  # these accounts differed before
        texts = self._all("details", None, wanted)
        odd, others = (ProgramDetails.read(texts[p]) for p in wanted)
        details = program_differences(odd, others)
        return {"sentence": str(replace(different, details=details))}

    def _all_ready(self, name: str) -> dict[str, Any]:
        return {"all": all(map(json.loads, self._all(name, None).values()))}

    def _answer(self, name: str, find: Callable[[], dict[str, Any]]) -> None:
        """Finds the answer, and writes it down for all."""
        try:
            answer = find()
        except Disagreement as error:
            answer = {"sentence": str(error)}
        self._set(name, json.dumps(answer))

    def _heard(self, name: str) -> dict[str, Any]:
        """The answer of the process that collects."""
        begun, latest = time.monotonic(), self._limit
        while (text := self._get(name)) is None:
            waited = time.monotonic() - begun
            if self.lead in self._those("account"):
                self._refuse_if_lifeless([self.lead])
            elif waited >= latest:
                there = tuple(self._present())
                raise Disagreement(str(Missing(self.call, (self.lead,), there, waited)))
            else:
                self._say_who_is_missing([self.lead], waited)
        return json.loads(text)

    def _all(
        self, name: str, limit: float | None, wanted: Sequence[int] = ()
    ) -> dict[int, str]:
        """What every process says under a name.

        Args:
            name: the name.
            limit: how many seconds to wait; None for as long as the missing ones live.
            wanted: the processes to wait for; all of them where left out.
        """
        begun = time.monotonic()
        while True:
            found = self._those(name)
            absent = [p for p in wanted or self.every if p not in found]
            if not absent:
                return found
            if failure := self._failure():
                raise Disagreement(str(failure))
            waited = time.monotonic() - begun
            if limit is None:
                self._refuse_if_lifeless(absent)
            elif waited >= limit:
                doing = _doing(self._those("pulse").get(absent[0], ""))
                there = tuple(self._present())
                late = Missing(self.call, tuple(absent), there, limit, doing)
                raise Disagreement(str(late))
            else:
                self._say_who_is_missing(absent, waited)
            self._get(f"{name}/{absent[0]}")

    def _present(self) -> list[int]:
        return sorted(self._those("account")) or [self.process]

    def _say_who_is_missing(self, absent: Sequence[int], waited: float) -> None:
        if waited >= _QUIET:
            there = tuple(self._present())
            late = Missing(self.call, tuple(absent), there, _QUIET, ended=False)
            self._line("missing", late)

    def _failure(self) -> OtherFailed | None:
        """What another process failed of."""
        for process, text in sorted(self._those("failed").items()):
            if process != self.process:
                return OtherFailed(process, *json.loads(text))
        return None

    def _refuse_if_lifeless(self, processes: Sequence[int]) -> None:
        if silent := self._lifeless(processes):
            raise Disagreement(str(silent))

    def _lifeless(self, processes: Sequence[int]) -> Silent | None:
        """Which of some processes give no sign of life; a line says so before."""
        now, pulses, left = time.monotonic(), self._those("pulse"), self._those("left")
        quiet: dict[int, float] = {}
        for process in processes:
            if process == self.process or process in left:
                continue
            text = pulses.get(process, "")
            quiet[process] = now - _since(self._pulses, process, text, now)
            doing = _doing(text)
            busy = now - _since(self._doing, process, doing, now)
            # Nobody knows how long a run takes, unless it is in a line of Python.
            runs = doing is not None and doing.stage == "run" and not doing.line
            if doing is not None and not runs and busy >= self._limit:
                self._line(f"busy {process}", Busy(process, doing, busy), [process])
        for least, ends in ((_SILENT, True), (_QUIET, False)):
            late = [p for p, seconds in quiet.items() if seconds >= least + self._pulse]
            if not late:
                continue
            silent = Silent(tuple(late), _doing(pulses.get(late[0], "")), least)
            if ends:
                return silent
            self._line(f"silent {late}", silent, late)
        return None

    def _line(self, what: str, fact: object, about: Sequence[int] = ()) -> None:
        """Writes a fact on the standard error, once, in the lowest process there is."""
        there = [p for p in self._present() if p not in about]
        if what in self._said or there[:1] != [self.process]:
            return
        self._said.add(what)
        print(f"shardviz: {fact}", file=sys.stderr, flush=True)

    def _live(self) -> None:
        for count in itertools.count():
            try:
                text = json.dumps(
                    [self._stage, _users_line(self._stage, self._caller), count]
                )
                self._store.key_value_set(
                    self._key(f"pulse/{self.process}"), text, True
                )
            except Exception:  # noqa: BLE001  the store is gone: jax ends this process
                return
            if self._over.wait(self._pulse):
                return

    def _say(self, name: str, text: str) -> None:
        self._set(f"{name}/{self.process}", text)

    def _set(self, name: str, text: str) -> None:
        try:
            self._store.key_value_set(self._key(name), text, True)
        except RuntimeError as error:
            raise _no_answer(error) from error

    def _get(self, name: str) -> str | None:
        """What is there under a name, or comes there soon; None where nothing does."""
        try:
            return self._store.blocking_key_value_get(
                self._key(name), int(_SLICE * 1000)
            )
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise _no_answer(error) from error

    def _those(self, name: str) -> dict[int, str]:
        """What each process says under a name."""
        try:
            found = self._store.key_value_dir_get(self._key(f"{name}/"))
        except RuntimeError as error:
            if "NOT_FOUND" in str(error):
                return {}
            raise _no_answer(error) from error
        return {int(key.rpartition("/")[2]): text for key, text in found}

    def _key(self, name: str) -> str:
        return f"{self._group}/{self._number}/{name}"


def _since(
    known: dict[int, tuple[Any, float]], process: int, state: Any, now: float
) -> float:
    """Since when a process has been in the same state."""
    last, since = known.get(process, (None, now))
    known[process] = (state, since if state == last else now)
    return known[process][1]


def _doing(pulse: str) -> Doing | None:
    """The stage of a process and the line of the user's code that it is at."""
    if not pulse:
        return None
    stage, line, _ = json.loads(pulse)
    return Doing(stage, line) if stage else None


def _users_line(stage: str, caller: int) -> str:
    """The line of the user's code that runs now: of a callback, or of a function being
    traced.
    """
    python = {
        t.ident
        for t in threading.enumerate()
        if not isinstance(t, threading._DummyThread)
    }
    frames = sys._current_frames()
    threads = [i for i in frames if i not in python]  # XLA's own, where callbacks run
    if stage == "trace":
        threads.append(caller)
    for thread in threads:
        for frame, line in traceback.walk_stack(frames[thread]):
            path = frame.f_code.co_filename
            if is_user_file(path) and not path.startswith("<"):
                return line_in_words(path, line)
    return ""


def _no_answer(error: RuntimeError) -> Disagreement:
    words = " ".join(str(error).split())[:200]
    return Disagreement(
        "The coordinator of jax.distributed, which runs in process 0, does not answer: process 0"
        f" has ended, or the network is cut. jax ends the other processes. It said: {words}"
    )
