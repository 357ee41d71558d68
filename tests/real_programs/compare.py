"""Every program of one module with shardviz and without, one JSON line each on standard output.

`python -m tests.real_programs.compare MODULE [NAME ...]`, with 8 simulated devices. What differs
is in `differences`, in words; a program without differences has none.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shardviz as sv
from tests.real_programs.count_collectives import count_collectives
from tests.real_programs.registry import Real
from tests.watch.cache_events import jax_cache_events

BYTES = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
}


def compared(name: str, make: Any) -> dict[str, Any]:
    """What shardviz and jax say about one program, and what differs."""
    begun = time.perf_counter()
    row: dict[str, Any] = {"name": name, "differences": []}
    try:
        _compare(make, row)
    except Exception:  # noqa: BLE001  any failure is a difference
        row["differences"].append(traceback.format_exc(limit=-6))
    return {**row, "seconds": round(time.perf_counter() - begun, 2)}


def _compare(make: Any, row: dict[str, Any]) -> None:
    differ = row["differences"]
    first = make()
    theirs = first.compiled()
    row["theirs"] = _lines(count_collectives(theirs.as_text()))
    analysis = theirs.memory_analysis()
    row["their bytes"] = {name: getattr(analysis, attr) for name, attr in BYTES.items()}
    alone = _call(make()) if first.called else None
    real = make()
    before = dict(jax.config.values)
    with real.context():
        program = sv.program(real.step, *real.args, **real.kwargs, **real.own)
        plan = sv.plan(program)
        report = sv.compile(program)
        ran = sv.run(program, target="attached") if real.runs else None
    if plan.error is not None:
        differ.append(f"plan: {plan.error}")
    if dict(jax.config.values) != before:
        differ.append("jax.config changed")
    row["notes"] = [*dict.fromkeys((*program.notes, *plan.notes, *report.notes))]
    if report.error is not None:
        differ.append(f"compile: {report.error}")
    else:
        found = Counter((c.kind, c.bytes_per_device) for c in report.collectives)
        row["ours"] = _lines(found)
        row["our bytes"] = {name: getattr(report.memory, name) for name in BYTES}
        differ += [
            f"{what}: ours {row[f'our{end}']}, jax's {row[f'their{also}']}"
            for what, end, also in (("collectives", "s", "s"), ("bytes", " bytes", " bytes"))
            if row[f"our{end}"] != row[f"their{also}"]
        ]
    if ran is not None and (ran.error is not None or not ran.ok):
        failed = [f"{c.name}: {c.detail}" for c in ran.checks if not c.ok]
        differ.append(f"run: {ran.error or failed}")
    if alone is not None:
        again = _call(real)
        if alone[0] != again[0]:  # what jax compiles once, to place arrays, was compiled for alone
            alone = _call(make())
        _compare_calls(alone, again, differ)


def _compare_calls(alone: Any, again: Any, differ: list[str]) -> None:
    """What the user's own calls do after shardviz, beside the same calls without it."""
    # jax may keep what a plan traced, as with jax.eval_shape; nothing else may be left out.
    left_out = Counter(alone[0]) - Counter(again[0])
    added = Counter(again[0]) - Counter(alone[0])
    if added or any(not event.startswith("trace ") for event in left_out):
        differ.append(f"events of the user's calls: {again[0]} after shardviz, {alone[0]} without")
    if not _same(alone[1], again[1]):
        differ.append("the user's own function gives other values after shardviz")


def _call(real: Real) -> tuple[list[str], Any]:
    with jax_cache_events() as events:
        result = real.call()
    return sorted(f"{e.kind} {e.name}" for e in events), result


def _same(first: Any, second: Any) -> bool:
    ours, theirs = jax.tree.leaves(first), jax.tree.leaves(second)
    return len(ours) == len(theirs) and all(
        np.array_equal(_values(a), _values(b), equal_nan=True)
        for a, b in zip(ours, theirs, strict=True)
        if hasattr(a, "dtype")
    )


def _values(leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    values = np.asarray(leaf)
    return values if values.dtype.kind in "fciub" else values.astype(np.float32)


def _lines(found: Counter[tuple[str, int]]) -> dict[str, int]:
    return {f"{kind} {size}": times for (kind, size), times in sorted(found.items())}


def main(module: str, *names: str) -> None:
    programs = importlib.import_module(f"tests.real_programs.{module}").PROGRAMS
    for name in names or programs:
        print("\x1e" + json.dumps(compared(name, programs[name]), default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
