"""CachedFunction: a function that compiles once per signature, and says why a call compiled."""

from __future__ import annotations

import functools
import inspect
import threading
import time
import traceback
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from shardviz.core.backend.bridge import check_lowered_names
from shardviz.core.backend.call_cache.signature import (
    ArrayImpl,
    Contexts,
    LeafSignature,
    NoFastPath,
    Parameters,
    Signature,
    SplitCall,
    at_top,
    sharding_text,
    signature_key,
    signature_of,
    why_not,
)
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, plural, shown, suggestion
from shardviz.core.program.cache import CacheRow, ExecutableCache


def note_compile(error: Exception, call: str) -> None:
    """Adds to a fresh error what was compiled, where it failed, and that this is remembered."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    error.add_note(f"Compiling {call} failed{where}; later calls like it fail the same way.")


def copy_error(error: Exception) -> Exception:
    """A copy of an error without its traceback, to be kept or raised in another thread.

    One exception object raised in many threads would collect the tracebacks of all of them, and
    keep alive the arrays in their frames.

    >>> first = KeyError("x")
    >>> twin = copy_error(first)
    >>> twin is first, type(twin) is type(first), str(twin) == str(first)
    (False, True, True)
    """
    kind = type(error)
    try:
        # Not by calling the class: jax's errors are made from a tracer and keep the message only.
        twin = kind.__new__(kind, *error.args)
        twin.args = error.args
        twin.__dict__.update(error.__dict__)
        same = str(twin) == str(error)
    except Exception:  # noqa: BLE001  a foreign class may do anything when it is made
        return error
    if not same:
        return error  # it keeps its words outside args, as some of Python's own do
    if "__notes__" in error.__dict__:
        twin.__notes__ = list(error.__notes__)
    if isinstance(error.__cause__, Exception):
        twin.__cause__ = copy_error(error.__cause__)
    return twin


def differences(new: Signature, old: Signature) -> tuple[str, ...]:
    """What differs between two signatures, a sentence each; nothing where they are one.

    >>> import numpy as np
    >>> from shardviz.core.backend.call_cache.signature import Contexts
    >>> from shardviz.core.backend.call_cache.signature import Parameters, signature_of
    >>> parameters, here = Parameters(lambda x: x, None, None), Contexts().current()
    >>> calls = [parameters.split((np.zeros(n),), {}) for n in (8, 16)]
    >>> old, new = (signature_of(call, here, parameters) for call in calls)
    >>> differences(new, old)
    ('argument x: shape [8] became [16]',)
    """
    return (*_tree(new, old), *_leaves(new, old), *_statics(new, old), *_context(new, old))


def nearest(new: Signature, known: Sequence[Signature]) -> tuple[int, tuple[str, ...]] | None:
    """Which of the known signatures differs least, the latest of equals, and in what."""
    found = [(differences(new, old), -index) for index, old in enumerate(known)]
    if not found:
        return None
    words, index = min(found, key=lambda pair: (len(pair[0]), pair[1]))
    return -index, words


def _tree(new: Signature, old: Signature) -> Iterator[str]:
    if new.tree == old.tree:
        return
    now, before = ([leaf.name for leaf in s.leaves] for s in (new, old))
    come = [n for n in now if n not in before]
    gone = [n for n in before if n not in now]
    if come:
        yield f"tree: came {listed(come)}"
    if gone:
        yield f"tree: went {listed(gone)}"
    if not come and not gone:
        yield f"tree: {shown(old.tree, 200)} became {shown(new.tree, 200)}"


def _leaves(new: Signature, old: Signature) -> Iterator[str]:
    before = {leaf.name: leaf for leaf in old.leaves}
    for leaf in new.leaves:
        if leaf.name in before:
            for words in _leaf(leaf, before[leaf.name]):
                yield f"argument {leaf.name}: {words}"


def _leaf(new: LeafSignature, old: LeafSignature) -> Iterator[str]:
    a, b = new.aval, old.aval
    if a.shape != b.shape:
        yield f"shape {list(b.shape)} became {list(a.shape)}"
    if a.dtype != b.dtype:
        yield f"dtype {b.dtype} became {a.dtype}"
    if a.weak_type != b.weak_type:
        yield f"weak type {b.weak_type} became {a.weak_type}"
    if new.sharding != old.sharding:
        yield _sharding(new.sharding, old.sharding)
    elif a != b and (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type):
        yield f"type {shown(b, 120)} became {shown(a, 120)}"


def _sharding(new: Any, old: Any) -> str:
    if old is None:
        return f"sharding: uncommitted became {sharding_text(new)}"
    if new is None:
        return f"sharding: {sharding_text(old)} became uncommitted"
    texts = [sharding_text(old), sharding_text(new)]
    if texts[0] == texts[1]:
        texts = [f"{t} {_devices(s)}" for t, s in zip(texts, (old, new), strict=True)]
    if texts[0] == texts[1]:
        texts = [shown(old, 200), shown(new, 200)]
    return f"sharding {texts[0]} became {texts[1]}"


def _devices(sharding: Any) -> str:
    devices = getattr(getattr(sharding, "mesh", None), "devices", None)
    ids = sharding.device_set if devices is None else devices.flat
    return f"on devices {[d.id for d in ids]}"


def _statics(new: Signature, old: Signature) -> Iterator[str]:
    now, before = dict(new.statics), dict(old.statics)
    for name in dict.fromkeys([*before, *now]):
        if name not in now:
            yield f"static argument {name}: {shown(before[name])} became not given"
        elif name not in before:
            yield f"static argument {name}: not given became {shown(now[name])}"
        elif not _same(now[name], before[name]):
            yield f"static argument {name}: {_values(before[name], now[name])}"


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _values(old: Any, new: Any) -> str:
    if shown(old) == shown(new):
        return f"{shown(old)} became another {type(new).__name__} that reads the same"
    return f"{shown(old)} became {shown(new)}"


def _context(new: Signature, old: Signature) -> Iterator[str]:
    if new.context is old.context:
        return
    words = new.context.differences(old.context)
    yield from words or ["another setting of jax, which this version of it does not name"]


@dataclass(frozen=True)
class CallEntry:
    """One signature that a CachedFunction holds an executable, or a failure, for.

    Attributes:
        entry: its number, counted from 1 in the order of their compiles.
        signature: the arguments in words.
        trace_s: seconds to trace and lower.
        compile_s: seconds to compile.
        hits: how many calls found it.
        waited: the names of the threads that waited for its compile.
        difference: what its signature had that the nearest earlier one had not.
        error: why the compile failed, or an empty text.

    >>> CallEntry(1, "(x: float32[8])", 0.01, 0.02, 3).waited
    ()
    """

    entry: int
    signature: str
    trace_s: float
    compile_s: float
    hits: int
    waited: tuple[str, ...] = ()
    difference: tuple[str, ...] = ()
    error: str = ""


@dataclass(eq=False, slots=True)
class _Made:
    """What one signature came to: an executable, or the error of its compile."""

    number: int
    signature: Signature
    difference: tuple[str, ...]
    run: Any = None
    error: Exception | None = None
    trace_s: float = 0.0
    compile_s: float = 0.0


class CachedFunction:
    """A function that compiles once for each signature of its calls; made by `sv.cached`.

    Safe to call from any thread. Arrays, NumPy arrays and Python numbers, in any tree, take the
    fast path. The other calls go to plain `jax.jit` and are counted in `fallbacks`.

    >>> import numpy as np
    >>> double = CachedFunction(lambda x: x * 2)
    >>> [float(double(np.float32(n))) for n in (1, 2)], double.hits, double.misses
    ([2.0, 4.0], 1, 1)
    >>> result = double(np.int32(1))
    >>> print(double.explain_miss())
    <lambda> was compiled for (x: int32[]), entry 2; the nearest is entry 1: argument x: dtype
    float32 became int32.
    """

    def __init__(self, fn: Callable[..., Any], size: int = 128, **options: Any) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.jitted = jax.jit(fn, **options)
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        self._cache = ExecutableCache(size)
        self._parameters = Parameters(
            fn, options.get("static_argnums"), options.get("static_argnames")
        )
        self._plain = not self._parameters.any_static
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._contexts = Contexts()
        # Twice the size, so that a signature that was dropped is known when it comes back.
        self._known: OrderedDict[Hashable, _Made] = OrderedDict()
        self._misses: list[str] = []
        self._fallbacks: Counter[str] = Counter()
        self._count = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the executable for these arguments, compiled first where there is none."""
        if self._plain and not kwargs:
            flat: list[Any] = [self._contexts.current()]
            for x in args:
                if type(x) is not ArrayImpl:
                    break
                flat += (x.aval, x.sharding if x.committed else None)
            else:
                if at_top():
                    made = self._cache.find(tuple(flat))
                    if made is not None:
                        if made.error is not None:
                            raise copy_error(made.error)
                        try:
                            return made.run(*args)
                        except Exception as error:  # noqa: BLE001  looked at, and raised again
                            return self._rescue(made, error, args, kwargs)
        return self._look_up(args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def _look_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call that is new, or whose arguments are not a flat list of arrays."""
        if reason := why_not():
            return self._fall_back(reason, args, kwargs)
        context = self._contexts.current()
        call = self._parameters.split(args, kwargs)
        try:
            key = signature_key(call, context)
        except NoFastPath as reason:
            return self._fall_back(str(reason), args, kwargs)
        first: list[Exception] = []

        def make() -> _Made:
            made = self._note_miss(key, signature_of(call, context, self._parameters))
            try:
                self._compile(made, args, kwargs)
            except Exception as error:  # noqa: BLE001  kept, and raised to all callers
                note_compile(error, f"{self.name}{made.signature}")
                first.append(error)
                made.error = copy_error(error)
            return made

        made = self._cache.get_or_make(key, make, self.name)
        if made.error is not None:
            raise first.pop() if first else copy_error(made.error)
        try:
            return made.run(*call.args, **call.kwargs)
        except Exception as error:  # noqa: BLE001  looked at, and raised again
            return self._rescue(made, error, args, kwargs)

    def _compile(self, made: _Made, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begun = time.perf_counter()
        lowered = self.jitted.lower(*args, **kwargs)
        made.trace_s = time.perf_counter() - begun
        begun = time.perf_counter()
        check_lowered_names(lowered)
        made.run = lowered.compile()
        made.compile_s = time.perf_counter() - begun

    def _note_miss(self, key: Hashable, signature: Signature) -> _Made:
        """Finds what is new about a signature, and keeps it for `explain_miss`."""
        with self._lock:
            before = self._known.pop(key, None)
            others = list(self._known.values())
            close = nearest(signature, [m.signature for m in others])
            self._count += 1
            made = _Made(self._count, signature, close[1] if close else ())
            self._known[key] = made
            while len(self._known) > 2 * self._cache.size:
                self._known.popitem(last=False)
            head = f"{self.name} was compiled for {signature}, entry {made.number}"
            if before is not None and (before.run or before.error):
                made.difference = (f"the same as entry {before.number}, which was dropped",)
                kept = plural(self._cache.size, "signature")
                why = f"it is {made.difference[0]}: the cache holds {kept}"
            elif close is None:
                why = "nothing was compiled before"
            else:
                why = f"the nearest is entry {others[close[0]].number}: {'; '.join(close[1])}"
            self._misses.append(f"{head}; {why}.")
            del self._misses[:-1000]
            return made

    def _rescue(
        self, made: _Made, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Goes by jax.jit where that would have done otherwise; raises the error where not."""
        if reason := why_not():
            return self._fall_back(reason, args, kwargs)
        call = self._parameters.split(args, kwargs)
        if isinstance(error, ValueError) and _other_layouts(made.run, call):
            return self._fall_back("an array in another memory layout", args, kwargs)
        raise error

    def _fall_back(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:
            self._fallbacks[reason] += 1
        return self.jitted(*args, **kwargs)

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
        """How many calls went to plain `jax.jit`, by the reason."""
        with self._lock:
            return dict(self._fallbacks)

    @property
    def entries(self) -> tuple[CallEntry, ...]:
        """What is held, the least recently used first."""
        return tuple(_entry(row) for row in self._cache.rows)

    def cache_size(self) -> int:
        """How many signatures it holds, those whose compile failed too."""
        return len(self._cache)

    def explain_miss(self) -> str:
        """Why the last call that compiled had to, in a sentence."""
        with self._lock:
            return self._misses[-1] if self._misses else f"{self.name} was never compiled."

    def explain_misses(self) -> tuple[str, ...]:
        """Why each call that compiled had to, the first one first; the last thousand."""
        with self._lock:
            return tuple(self._misses)

    def table(self) -> list[dict[str, Any]]:
        """The entries as rows of plain values, the most recently used one first.

        Each has the fields of CallEntry and `name`; `waited` and `difference` are lists.
        """
        rows = [{"name": self.name, **asdict(entry)} for entry in reversed(self.entries)]
        return [{k: list(v) if isinstance(v, tuple) else v for k, v in r.items()} for r in rows]

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


def make_cached(fn: Callable[..., Any], size: int, options: Mapping[str, Any]) -> CachedFunction:
    """The CachedFunction of a function.

    Args:
        fn: the function.
        size: how many signatures to hold.
        options: options of `jax.jit`.

    Raises:
        ProgramError: for what is no function, and for options that `jax.jit` does not take.
    """
    if not callable(fn):
        raise ProgramError(f"What is cached is a function; got {shown(fn)}.")
    known = list(inspect.signature(jax.jit).parameters)[1:]
    for name in options:
        if name not in known:
            raise ProgramError(f"jax.jit has no option {shown(name)}.{suggestion(name, known)}")
    return CachedFunction(fn, size, **options)


def _entry(row: CacheRow) -> CallEntry:
    made: _Made = row.value
    error = "" if made.error is None else f"{type(made.error).__name__}: {made.error}"
    times = made.trace_s, made.compile_s
    return CallEntry(
        made.number, str(made.signature), *times, row.hits, row.waited, made.difference, error
    )


def _other_layouts(run: Any, call: SplitCall) -> bool:
    """Whether an array has another memory layout than the executable needs."""
    formats = jax.tree.leaves(run.input_formats)
    arrays: list[Any] = jax.tree.leaves((call.args, call.kwargs))
    if len(formats) != len(arrays):
        return False
    return any(
        f.layout is not None and hasattr(x, "format") and x.format.layout != f.layout
        for f, x in zip(formats, arrays, strict=True)
    )
