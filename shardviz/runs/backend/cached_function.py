"""CachedFunction: compiles once per signature, and says why a call compiled."""

from __future__ import annotations

import functools
import threading
import time
import traceback
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax

from shardviz.base.backend.jax_compat import jit_settings
from shardviz.base.format import plural
from shardviz.programs.backend.arguments import parameter_names
from shardviz.programs.backend.bridge import check_lowered_names
from shardviz.runs.backend.signature import (
    Signature,
    SplitCall,
    Uncached,
    call_key,
    nearest,
    signature_of,
    split_call,
)
from shardviz.runs.cache import ExecutableCache
from shardviz.runs.cached import CallEntry, Difference, Miss

# What jax says of an array whose memory layout an executable does not take.
_OTHER_LAYOUT = "layouts that disagree"


@dataclass(frozen=True)
class _Made:
    """What one signature came to: an executable, or the error of its compile."""

    miss: Miss
    signature: Signature
    run: Any = None
    error: Exception | None = None
    trace_s: float = 0.0
    compile_s: float = 0.0


class CachedFunction:
    """A function that compiles once for each signature of its calls.

    Made by `sv.cached`; safe to call from any thread. Of several threads that call it
    with a new signature one compiles and the others wait; where that fails, all of them
    get the error.

    Calls that no executable can serve go to plain `jax.jit` and are counted in
    `fallbacks`.

    >>> import numpy as np
    >>> double = CachedFunction(lambda x: x * 2)
    >>> [float(double(np.float32(n))) for n in (1, 2)], double.hits, double.misses
    ([2.0, 4.0], 1, 1)
    >>> result = double(np.int32(1))
    >>> double.entries[-1].difference
    (Difference(code='dtype', name='x', before='float32', after='int32'),)
    """

    def __init__(self, fn: Callable[..., Any], size: int = 128, **options: Any) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.jitted = jax.jit(fn, **options)
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        # To inspect a function takes longer than all the rest of a call.
        self._names = functools.cache(functools.partial(parameter_names, fn))
        self._cache = ExecutableCache(size)
        self._settings = jit_settings(self.jitted)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        # Twice as many as the cache holds, so that a signature that was dropped is
        # known when it comes back.
        self._known: OrderedDict[Hashable, _Made] = OrderedDict()
        self._fallbacks: Counter[str] = Counter()
        self._latest = Miss(self.name, "", 0)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # As a method of a class it is bound to the instance, as a function would be.
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the executable for these arguments, compiled where there is none."""
        try:
            if self._settings is None:  # this jax hides what is static
                raise Uncached("settings")
            names = self._names(len(args))
            call = split_call(names, args, kwargs, self._settings)
            key = call_key(call)
        except Uncached as reason:
            return self._fall_back(str(reason), args, kwargs)
        fresh: list[Exception] = []

        def make() -> _Made:
            made = self._compiled(key, call, args, kwargs, fresh)
            with self._lock:
                self._known[key] = made
                while len(self._known) > 2 * self._cache.size:
                    self._known.popitem(last=False)
            return made

        made = self._cache.get_or_make(key, make, self.name)
        if fresh:  # this thread compiled: the error itself, with its traceback
            raise fresh.pop()
        if made.error is not None:
            raise _copied(made.error)
        try:
            return made.run(*call.args, **call.kwargs)
        except ValueError as error:
            if _OTHER_LAYOUT not in str(error):
                raise
        return self._fall_back("memory layout", args, kwargs)

    def _fall_back(self, reason: str, args: Any, kwargs: Any) -> Any:
        # A count is read and written, which another thread could come between.
        with self._lock:
            self._fallbacks[reason] += 1
        return self.jitted(*args, **kwargs)

    def _compiled(
        self,
        key: Hashable,
        call: SplitCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fresh: list[Exception],
    ) -> _Made:
        """Compiles for one signature; an error is kept, and as it is in `fresh`."""
        signature = signature_of(call)
        miss = self._note_miss(key, signature)
        begun = time.perf_counter()
        lowered_at, run, error = begun, None, None
        try:
            lowered = self.jitted.lower(*args, **kwargs)
            lowered_at = time.perf_counter()
            # The compiler would end the process.
            check_lowered_names(lowered)
            run = lowered.compile()
        except Exception as raised:  # noqa: BLE001  a user's function may raise anything
            frames = traceback.extract_tb(raised.__traceback__)
            raised.add_note(
                f"Compiling {self.name}{signature} failed at"
                f" {frames[-1].filename}:{frames[-1].lineno}; later calls like it fail"
                " the same way."
            )
            fresh.append(raised)
            error = _copied(raised)
        times = lowered_at - begun, time.perf_counter() - lowered_at
        return _Made(miss, signature, run, error, *times)

    def _note_miss(self, key: Hashable, signature: Signature) -> Miss:
        """Notes what is new about a signature."""
        with self._lock:
            before = self._known.pop(key, None)
            others = list(self._known.values())
            number, earlier = self._latest.entry + 1, None
            closest, difference = None, ()
            if before is not None:
                earlier = before.miss.entry
                difference = (Difference("dropped", str(earlier)),)
            elif close := nearest(signature, [made.signature for made in others]):
                closest, difference = others[close[0]].miss.entry, close[1]
            text, size = str(signature), self._cache.size
            self._latest = Miss(
                self.name, text, number, closest, difference, earlier, size
            )
            return self._latest

    @property
    def hits(self) -> int:
        """How many calls found their executable, those that waited for it too."""
        return self._cache.hits

    @property
    def misses(self) -> int:
        """How many calls had to compile."""
        return self._cache.misses

    @property
    def fallbacks(self) -> dict[str, int]:
        """How many calls went to plain `jax.jit`, by the reason.

        `"transformation"`: jax transforms a function around the call. `"disable_jit"`,
        `"debug_nans"`: these are on. `"static"`: a static argument has no hash. `"not
        an array"`, `"tree"`: jax refuses an argument, or cannot flatten them. `"memory
        layout"`: an array has another one than the executable takes. `"settings"`: this
        jax hides what it compiles for.
        """
        with self._lock:
            return dict(self._fallbacks)

    @property
    def entries(self) -> tuple[CallEntry, ...]:
        """What is held, the least recently used first."""
        entries = []
        for row in self._cache.rows:
            made: _Made = row.value
            miss, error = made.miss, ""
            if made.error is not None:
                error = f"{type(made.error).__name__}: {made.error}"
            times = made.trace_s, made.compile_s
            entry = CallEntry(
                miss.entry, miss.signature, *times, row.hits, miss.differences, error
            )
            entries.append(entry)
        return tuple(entries)

    def cache_size(self) -> int:
        """How many signatures it holds, those whose compile failed too."""
        return len(self._cache)

    def explain_miss(self) -> str:
        """Why the last call that compiled had to, in a sentence."""
        return str(self._latest)

    def clear(self) -> None:
        """Forgets executables, failures and counts: the next call compiles again."""
        self._cache.clear()
        with self._lock:
            self._forget()

    def __repr__(self) -> str:
        return (
            f"CachedFunction({self.name}: {plural(self.cache_size(), 'entry', 'entries')},"
            f" {plural(self.hits, 'hit')}, {plural(self.misses, 'miss', 'misses')},"
            f" {plural(sum(self.fallbacks.values()), 'fallback')})"
        )


def _copied(error: Exception) -> Exception:
    """A copy of an error without its traceback, to be kept or raised in another thread.

    One exception object raised in many threads would collect the tracebacks of all of
    them, and keep alive the arrays in their frames.
    """
    # Not by calling the class: jax's errors are made of a tracer, and keep its words
    # alone.
    twin = type(error).__new__(type(error), *error.args)
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    twin.__notes__ = list(getattr(error, "__notes__", ()))
    return twin
