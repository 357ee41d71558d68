"""CachedFunction: a function that compiles once per signature, and says why a call
compiled.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import traceback
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax

from shardviz.core.backend.bridge import check_lowered_names
from shardviz.core.backend.call_cache.signature import (
    Signature,
    SplitCall,
    Uncached,
    call_key,
    nearest,
    refuse_uncached,
    signature_of,
    split_call,
)
from shardviz.core.backend.jax_compat import jit_settings
from shardviz.core.backend.tracing.arguments import parameter_names
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown, suggestion
from shardviz.core.program.cache import CacheRow, ExecutableCache
from shardviz.core.program.cached import CallEntry, Difference, Miss

_MOST_MISSES = 1000  # that are remembered
# What jax says of an array whose memory layout an executable does not take.
_OTHER_LAYOUT = "layouts that disagree"


@dataclass(frozen=True)
class _Made:
    """What one signature came to: an executable, or the error of its compile."""

    number: int
    signature: Signature
    difference: tuple[Difference, ...]
    run: Any = None
    error: Exception | None = None
    trace_s: float = 0.0
    compile_s: float = 0.0


class CachedFunction:
    """A function that compiles once for each signature of its calls; made by
    `sv.cached`.

    Safe to call from any thread. Of several threads that call it with a new signature
    one compiles and the others wait; where that fails, all of them get the error.

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
        self._fn = fn
        self._names: dict[int, list[str]] = {}
        self._cache = ExecutableCache(size)
        settings = jit_settings(self.jitted)
        if settings is not None:
            # jax.jit derives positions from names, and names from positions.
            self._static = settings.static, settings.static_names
        else:
            self._static = (
                _all_of(options.get("static_argnums"), int),
                _all_of(options.get("static_argnames"), str),
            )
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        # Twice as many as the cache holds, so that a signature that was dropped is
        # known when it comes back.
        self._known: OrderedDict[Hashable, _Made] = OrderedDict()
        self._misses: list[Miss] = []
        self._fallbacks: Counter[str] = Counter()
        self._count = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # As a method of a class it is bound to the instance, as a function would be.
        if instance is None:
            return self
        return types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the executable for these arguments, compiled first where there is none."""
        try:
            refuse_uncached()
            names = self._names.get(len(args)) or self._name(len(args))
            call = split_call(names, args, kwargs, *self._static)
            key = call_key(call)
        except Uncached as reason:
            return self._fall_back(str(reason), args, kwargs)
        fresh: list[Exception] = []

        def make() -> _Made:
            made = self._compiled(key, call, args, kwargs, fresh)
            self._remember(key, made)
            return made

        made = self._cache.get_or_make(key, make, self.name)
        if made.error is not None:
            if fresh:  # this thread compiled: the error itself, with its traceback
                raise fresh.pop()
            raise copy_error(made.error)
        try:
            return made.run(*call.args, **call.kwargs)
        except ValueError as error:
            if _OTHER_LAYOUT not in str(error):
                raise
        return self._fall_back("memory layout", args, kwargs)

    def _name(self, count: int) -> list[str]:
        # To inspect a function takes longer than all the rest of a call.
        names = self._names[count] = parameter_names(self._fn, count)
        return names

    def _fall_back(self, reason: str, args: Any, kwargs: Any) -> Any:
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
        """Compiles for one signature; an error is kept, and put into `fresh` as it is."""
        number, signature, difference = self._note_miss(key, signature_of(call))
        begun = time.perf_counter()
        lowered_at, run, error = begun, None, None
        try:
            lowered = self.jitted.lower(*args, **kwargs)
            lowered_at = time.perf_counter()
            check_lowered_names(lowered)
            run = lowered.compile()
        except Exception as raised:  # noqa: BLE001  a user's function may raise anything
            _note_compile(raised, f"{self.name}{signature}")
            fresh.append(raised)
            error = copy_error(raised)
        times = lowered_at - begun, time.perf_counter() - lowered_at
        return _Made(number, signature, difference, run, error, *times)

    def _note_miss(
        self, key: Hashable, signature: Signature
    ) -> tuple[int, Signature, tuple[Difference, ...]]:
        """Notes what is new about a signature."""
        with self._lock:
            before = self._known.pop(key, None)
            others = list(self._known.values())
            self._count += 1
            close = nearest(signature, [made.signature for made in others])
            closest = earlier = None
            difference: tuple[Difference, ...] = ()
            if close is not None:
                closest, difference = others[close[0]].number, close[1]
            if before is not None:
                earlier = before.number
                difference = (Difference("dropped", str(earlier)),)
            miss = Miss(
                self.name,
                str(signature),
                self._count,
                closest,
                difference,
                earlier,
                self._cache.size,
            )
            self._misses.append(miss)
            del self._misses[:-_MOST_MISSES]
            return self._count, signature, difference

    def _remember(self, key: Hashable, made: _Made) -> None:
        with self._lock:
            self._known[key] = made
            while len(self._known) > 2 * self._cache.size:
                self._known.popitem(last=False)

    @property
    def hits(self) -> int:
        """How many calls found their executable, those that waited for it too."""
        return self._cache.hits

    @property
    def misses(self) -> int:
        """How many calls had to compile."""
        return self._cache.misses

    @property
    def waited(self) -> int:
        """How many calls waited while another thread compiled for them."""
        return self._cache.waited

    @property
    def fallbacks(self) -> dict[str, int]:
        """How many calls went to plain `jax.jit`, by the reason: one of `FALLBACKS`."""
        with self._lock:
            return dict(self._fallbacks)

    @property
    def entries(self) -> tuple[CallEntry, ...]:
        """What is held, the least recently used first."""
        return tuple(map(_entry, self._cache.rows))

    def cache_size(self) -> int:
        """How many signatures it holds, those whose compile failed too."""
        return len(self._cache)

    def explain_miss(self) -> str:
        """Why the last call that compiled had to, in a sentence."""
        with self._lock:
            latest = self._misses[-1:] or [Miss(self.name, "", 0)]
        return str(latest[0])

    def explain_misses(self) -> tuple[str, ...]:
        """Why each call that compiled had to, the first one first; the last thousand."""
        with self._lock:
            return tuple(map(str, self._misses))

    def table(self) -> list[dict[str, Any]]:
        """The entries as rows of plain values, the most recently used one first.

        Each has the fields of CallEntry and `name`; `waited` and `difference` are
        lists.
        """
        rows = []
        for entry in reversed(self.entries):
            row = {"name": self.name, **asdict(entry)}
            row["waited"] = list(entry.waited)
            row["difference"] = list(map(str, entry.difference))
            rows.append(row)
        return rows

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


def make_cached(
    fn: Callable[..., Any], size: int, options: Mapping[str, Any]
) -> CachedFunction:
    """The CachedFunction of a function.

    Args:
        fn: the function.
        size: how many signatures to hold.
        options: options of `jax.jit`.

    Raises:
        ProgramError: for what is no function, and for options that `jax.jit` does not
            take.
    """
    if not callable(fn):
        raise ProgramError(f"What is cached is a function; got {shown(fn)}.")
    known = list(inspect.signature(jax.jit).parameters)[1:]
    for name in options:
        if name not in known:
            raise ProgramError(
                f"jax.jit has no option {shown(name)}.{suggestion(name, known)}"
            )
    return CachedFunction(fn, size, **options)


def _entry(row: CacheRow) -> CallEntry:
    made: _Made = row.value
    error = ""
    if made.error is not None:
        error = f"{type(made.error).__name__}: {made.error}"
    return CallEntry(
        made.number,
        str(made.signature),
        made.trace_s,
        made.compile_s,
        row.hits,
        row.waited,
        made.difference,
        error,
    )


def _all_of(given: Any, kind: type) -> tuple[Any, ...]:
    if given is None:
        return ()
    if isinstance(given, kind):
        return (given,)
    return tuple(given)


def _note_compile(error: Exception, call: str) -> None:
    """Adds to a fresh error what was compiled, where it failed, and that it is kept."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}"
    error.add_note(
        f"Compiling {call} failed{where}; later calls like it fail the same way."
    )


def copy_error(error: Exception) -> Exception:
    """A copy of an error without its traceback, to be kept or raised in another thread.

    One exception object raised in many threads would collect the tracebacks of all of
    them, and keep alive the arrays in their frames.

    >>> first = KeyError("x")
    >>> twin = copy_error(first)
    >>> twin is first, type(twin) is type(first), str(twin) == str(first)
    (False, True, True)
    """
    kind = type(error)
    # Not by calling the class: jax's errors are made of a tracer, and keep its words
    # alone.
    twin = kind.__new__(kind, *error.args)
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    if "__notes__" in error.__dict__:
        twin.__notes__ = list(error.__notes__)
    if isinstance(error.__cause__, Exception):
        twin.__cause__ = copy_error(error.__cause__)
    return twin
