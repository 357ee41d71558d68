"""CachedFunction: compiles once per signature, and explains why a call compiled."""

from __future__ import annotations

import functools
import threading
import time
import traceback
import types
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from shardviz.base.backend.jax_compat import jit_settings
from shardviz.base.format import plural
from shardviz.base.typing import PyTree, UserFunction
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
from shardviz.runs.cached import (
    CallEntry,
    DroppedSignature,
    Miss,
    NeverCompiled,
    NewSignature,
)

_Error = TypeVar("_Error", bound=Exception)
# Part of jax's error message for an array with an unexpected memory layout.
_OTHER_LAYOUT = "layouts that disagree"


@dataclass(frozen=True)
class _Compiled:
    """The executable for one signature, or the error of its compile.

    Attributes:
        miss: why the signature was compiled.
        signature: the signature.
        trace_s, compile_s: seconds to trace and lower, and to compile.
        executable: the executable; None after an error.
        error: a copy of the compile's error, without its traceback.
    """

    miss: Miss
    signature: Signature
    trace_s: float
    compile_s: float
    executable: jax.stages.Compiled | None = None
    error: Exception | None = None


class CachedFunction:
    """A function that compiles once per call signature.

    Created by `sv.cached`, and safe to call from any thread: if several threads make a
    call with the same new signature, one compiles and the others wait. If the compile
    fails, all of them raise its error.

    Calls that no executable can serve go to plain `jax.jit` and are counted in
    `fallbacks`.

    >>> import numpy as np
    >>> double = CachedFunction(lambda x: x * 2)
    >>> [float(double(np.float32(n))) for n in (1, 2)], double.hits, double.misses
    ([2.0, 4.0], 1, 1)
    >>> result = double(np.int32(1))
    >>> double.entries[-1].difference
    (ArrayChanged(name='x', aspect='dtype', before='float32', after='int32'),)
    """

    def __init__(self, fn: UserFunction, size: int = 128, **options: Any) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.jitted = jax.jit(fn, **options)
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        # Cached, because inspecting a function is the slowest part of a call.
        self._names = functools.cache(functools.partial(parameter_names, fn))
        self._cache = ExecutableCache(size)
        self._settings = jit_settings(self.jitted)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        # Keeps twice as many signatures as the cache, to recognise those that the cache
        # has dropped.
        self._history: OrderedDict[Hashable, _Compiled] = OrderedDict()
        self._fallbacks: Counter[str] = Counter()
        self._latest: Miss | None = None

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Binds a decorated method to its instance, as for a plain function.
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Runs the executable for these arguments, after compiling it if needed."""
        try:
            if self._settings is None:  # this jax version hides static arguments
                raise Uncached("settings")
            names = self._names(len(args))
            call = split_call(names, args, kwargs, self._settings)
            key = call_key(call)
        except Uncached as reason:
            return self._fall_back(str(reason), args, kwargs)
        raised: list[Exception] = []

        def compile_and_note() -> _Compiled:
            compiled = self._compile(key, call, args, kwargs, raised)
            with self._lock:
                self._history[key] = compiled
                while len(self._history) > 2 * self._cache.size:
                    self._history.popitem(last=False)
            return compiled

        compiled = self._cache.get_or_make(key, compile_and_note, self.name)
        if raised:  # this thread compiled, so raise the error with its traceback
            raise raised.pop()
        if compiled.error is not None:
            raise _copied(compiled.error)
        assert compiled.executable is not None  # there was no error
        try:
            return compiled.executable(*call.args, **call.kwargs)
        except ValueError as error:
            if _OTHER_LAYOUT not in str(error):
                raise
        return self._fall_back("memory layout", args, kwargs)

    def _fall_back(
        self, reason: str, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        # Without the lock, concurrent increments could be lost.
        with self._lock:
            self._fallbacks[reason] += 1
        return self.jitted(*args, **kwargs)

    def _compile(
        self,
        key: Hashable,
        call: SplitCall,
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
        raised: list[Exception],
    ) -> _Compiled:
        """Compiles for one signature.

        Adds an error to `raised`, and keeps only a copy for the cache.
        """
        signature = signature_of(call)
        miss = self._note_miss(key, signature)
        begun = time.perf_counter()
        lowered_at, executable, kept_error = begun, None, None
        try:
            lowered = self.jitted.lower(*args, **kwargs)
            lowered_at = time.perf_counter()
            # Names that fail this check would make the compiler abort the process.
            check_lowered_names(lowered)
            executable = lowered.compile()
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            frames = traceback.extract_tb(error.__traceback__)
            error.add_note(
                f"Compiling {self.name}{signature} failed at"
                f" {frames[-1].filename}:{frames[-1].lineno}; later calls like it fail"
                " the same way."
            )
            raised.append(error)
            kept_error = _copied(error)
        return _Compiled(
            miss,
            signature,
            trace_s=lowered_at - begun,
            compile_s=time.perf_counter() - lowered_at,
            executable=executable,
            error=kept_error,
        )

    def _note_miss(self, key: Hashable, signature: Signature) -> Miss:
        """Records why a signature has to be compiled."""
        with self._lock:
            entry = 1 if self._latest is None else self._latest.entry + 1
            text = str(signature)
            dropped = self._history.pop(key, None)
            if dropped is not None:
                self._latest = DroppedSignature(
                    self.name, text, entry, dropped.miss.entry, self._cache.size
                )
                return self._latest
            earlier = list(self._history.values())
            closest = nearest(signature, [compiled.signature for compiled in earlier])
            if closest is not None:
                index, differences = closest
                self._latest = NewSignature(
                    self.name, text, entry, earlier[index].miss.entry, differences
                )
            else:
                self._latest = Miss(self.name, text, entry)
            return self._latest

    @property
    def hits(self) -> int:
        """The number of calls that found an executable or waited for a compile."""
        return self._cache.hits

    @property
    def misses(self) -> int:
        """The number of calls that had to compile."""
        return self._cache.misses

    @property
    def fallbacks(self) -> dict[str, int]:
        """The number of calls that went to plain `jax.jit`, by reason.

        `"transformation"`: the call is inside a jax transformation. `"disable_jit"`,
        `"debug_nans"`: this jax setting is on. `"static"`: a static argument is
        unhashable. `"not an array"`: jax rejects an argument. `"tree"`: jax cannot
        flatten the arguments. `"memory layout"`: an array's layout differs from the
        compiled one. `"settings"`: this version of jax hides its settings.
        """
        with self._lock:
            return dict(self._fallbacks)

    @property
    def entries(self) -> tuple[CallEntry, ...]:
        """The cached signatures, least recently used first."""
        entries = []
        for row in self._cache.rows:
            compiled: _Compiled = row.value
            error = ""
            if compiled.error is not None:
                error = f"{type(compiled.error).__name__}: {compiled.error}"
            entry = CallEntry(
                compiled.miss.entry,
                compiled.miss.signature,
                compiled.trace_s,
                compiled.compile_s,
                row.hits,
                difference=compiled.miss.differences,
                error=error,
            )
            entries.append(entry)
        return tuple(entries)

    def cache_size(self) -> int:
        """Returns the number of cached signatures, including failed compiles."""
        return len(self._cache)

    def explain_miss(self) -> str:
        """Explains in one sentence why the latest compile was needed."""
        return str(self._latest or NeverCompiled(self.name))

    def clear(self) -> None:
        """Drops executables, failures and counts: the next call compiles again."""
        self._cache.clear()
        with self._lock:
            self._forget()

    def __repr__(self) -> str:
        return (
            f"CachedFunction({self.name}: {plural(self.cache_size(), 'entry', 'entries')},"
            f" {plural(self.hits, 'hit')}, {plural(self.misses, 'miss', 'misses')},"
            f" {plural(sum(self.fallbacks.values()), 'fallback')})"
        )


def _copied(error: _Error) -> _Error:
    """Copies an error without its traceback, to store or raise the copy.

    If many threads raised the same exception object, it would collect all their
    tracebacks and keep the arrays in their frames alive.
    """
    # Don't call the class: constructors of jax's errors take a tracer, which the errors
    # don't store.
    copied = type(error).__new__(type(error), *error.args)
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__notes__ = list(getattr(error, "__notes__", ()))
    return copied
