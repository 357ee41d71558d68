"""Every argument of every public function, given values of wrong types.

`VALUES` are made anew for every use, since an iterator can be used once. A value that is right
for an argument is left out of its row by its kind (`FINE`).
"""

from __future__ import annotations

import decimal
import json
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shardviz as sv
from shardviz.core.layout.transfer.restore import Restore

#: What Python raises by itself where a value has the wrong type.
PYTHON_ERRORS = (TypeError, ValueError, AttributeError, IndexError, OSError)

#: label -> (kind, what makes the value)
VALUES: dict[str, tuple[str, Callable[[], Any]]] = {
    "numpy array": ("array", lambda: np.zeros(3)),
    "numpy text": ("array", lambda: np.array(["a", "b"])),
    "numpy objects": ("array", lambda: np.array([None, object()])),
    "jax array": ("array", lambda: jnp.ones(3)),
    "jax matrix of bools": ("array", lambda: jnp.ones((2, 2), bool)),
    "control character": ("text", lambda: "a\x00b"),
    "brackets": ("text", lambda: "(" * 5000),
    "nan": ("number", lambda: float("nan")),
    "infinity": ("number", lambda: float("inf")),
    "negative and huge": ("number", lambda: -(10**5000)),
    "decimal": ("number", lambda: decimal.Decimal("1.5")),
    "complex": ("number", lambda: 4j),
    "bytes": ("bytes", lambda: b"data=4"),
    "bytearray": ("bytes", lambda: bytearray(b"a")),
    "memoryview": ("bytes", lambda: memoryview(b"a")),
    "list of nan": ("list", lambda: [float("nan")]),
    "set of objects": ("set", lambda: {object()}),
    "ellipsis": ("object", lambda: ...),
    "object": ("object", object),
    "module": ("object", lambda: json),
    "slice": ("object", lambda: slice(None)),
    "numpy text of no dimension": ("array", lambda: np.array("a")),
}  # fmt: skip

MESH = sv.mesh(data=4, model=2)
RULES = sv.rules(("batch", "data"), ("mlp", "model"))
ARRAY = sv.array("x", (8, 8))
ROWS = [("w", (8, 12), "embed mlp")]
PATHS = sv.rules(("w", ("data",)), dialect="regex")
AUDIT = sv.audit(ROWS, RULES, MESH)
LAYOUT = sv.layout((8, 12), "data", MESH)
PROGRAM = sv.program(abs, ARRAY, mesh=MESH)
PLANNED = sv.plan(PROGRAM)
RING = sv.movement("reduce-scatter", devices=4, size=8)
DEVICES = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
SHAPE = jax.ShapeDtypeStruct((8,), "float32")
FOLDER = tempfile.TemporaryDirectory()  # removed at the end


def _checkpoint(folder: Path) -> Path:
    """A checkpoint of one array, as orbax writes its metadata."""
    leaf = {"key_metadata": [{"key": "w"}], "value_metadata": {"value_type": "jax.Array"}}
    array = {
        "zarr_format": 2, "shape": [8, 8], "chunks": [4, 8], "dtype": "<f4", "compressor": None,
        "fill_value": None, "filters": None, "order": "C",
    }  # fmt: skip
    (folder / "w").mkdir()
    (folder / "w" / ".zarray").write_text(json.dumps(array))
    (folder / "_METADATA").write_text(json.dumps({"tree_metadata": {"w": leaf}}))
    return folder


SAVED = _checkpoint(Path(FOLDER.name))

#: `function(argument)` -> the function of that argument
ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "mesh(axes)": lambda v: sv.mesh(v),
    "mesh(name)": lambda v: sv.mesh([(v, 4)]),
    "mesh(size)": lambda v: sv.mesh(data=v),
    "mesh(axis_types)": lambda v: sv.mesh(data=4, axis_types=v),
    "mesh(device_ids)": lambda v: sv.mesh(data=4, device_ids=v),
    "mesh(processes)": lambda v: sv.mesh(data=4, processes=v),
    "rules(pairs)": lambda v: sv.rules(v),
    "rules(name)": lambda v: sv.rules((v, "data")),
    "rules(axes)": lambda v: sv.rules(("batch", v)),
    "rules(dialect)": lambda v: sv.rules(("batch", "data"), dialect=v),
    "rules(paths)": lambda v: sv.rules(v, dialect="regex"),
    "rules(pattern)": lambda v: sv.rules((v, ()), dialect="regex"),
    "rules(path's spec)": lambda v: sv.rules(("w", v), dialect="keras"),
    "resolve(path)": lambda v: sv.resolve(v, PATHS, dialect="keras"),
    "audit(paths)": lambda v: sv.audit(ROWS, v, MESH, dialect="keras"),
    "diff(other)": lambda v: AUDIT.diff(v),
    "hosts(count)": lambda v: sv.hosts(v, devices=2),
    "hosts(devices)": lambda v: sv.hosts(2, devices=v),
    "hosts(platform)": lambda v: sv.hosts(2, devices=2, platform=v),
    "array(name)": lambda v: sv.array(v, (8,)),
    "array(shape)": lambda v: sv.array("x", v),
    "array(size)": lambda v: sv.array("x", (8, v)),
    "array(logical)": lambda v: sv.array("x", (8, 8), v),
    "array(dtype)": lambda v: sv.array("x", (8,), dtype=v),
    "array(spec)": lambda v: sv.array("x", (8,), spec=v),
    "resolve(names)": lambda v: sv.resolve(v, RULES, shape=(8, 8)),
    "resolve(rules)": lambda v: sv.resolve("batch", v),
    "resolve(mesh)": lambda v: sv.resolve("batch", RULES, mesh=v),
    "resolve(shape)": lambda v: sv.resolve("batch", RULES, mesh=MESH, shape=v),
    "resolve(dialect)": lambda v: sv.resolve("batch", RULES, dialect=v),
    "remedies(thing)": lambda v: sv.remedies(v, "split"),
    "remedies(want)": lambda v: sv.remedies(sv.resolve("batch", RULES, shape=(8,)), v),
    "remedies(dtype)": lambda v: sv.remedies(sv.resolve("batch", RULES), "split", dtype=v),
    "layout(thing)": lambda v: sv.layout(v, "data", MESH),
    "layout(spec)": lambda v: sv.layout((8, 12), v, MESH),
    "layout(entry)": lambda v: sv.layout((8, 12), (v,), MESH),
    "layout(mesh)": lambda v: sv.layout((8, 12), "data", v),
    "process_rows(thing)": lambda v: sv.process_rows(v, "data", MESH),
    "process_rows(spec)": lambda v: sv.process_rows((8, 12), v, MESH),
    "process_rows(mesh)": lambda v: sv.process_rows((8, 12), "data", v),
    "layout(rules)": lambda v: sv.layout(sv.array("x", (8,), "batch"), mesh=MESH, rules=v),
    "layout(dtype)": lambda v: sv.layout((8, 12), "data", MESH, dtype=v),
    "layout(dialect)": lambda v: sv.layout(ARRAY, mesh=MESH, rules=RULES, dialect=v),
    "audit(tree)": lambda v: sv.audit(v, RULES, MESH),
    "audit(rules)": lambda v: sv.audit(ROWS, v, MESH),
    "audit(mesh)": lambda v: sv.audit(ROWS, RULES, v),
    "audit(dialect)": lambda v: sv.audit(ROWS, RULES, MESH, dialect=v),
    "audit(names)": lambda v: sv.audit({"w": np.zeros(8)}, RULES, MESH, names=v),
    "restore(path)": lambda v: sv.restore(v, sv.Spec(), MESH),
    "restore(wanted)": lambda v: sv.restore(SAVED, v, MESH),
    "restore(leaf)": lambda v: sv.restore(SAVED, {"w": v}, MESH),
    "restore(mesh)": lambda v: sv.restore(SAVED, sv.Spec(), v),
    "restore(rules)": lambda v: sv.restore(SAVED, ROWS, MESH, rules=v),
    "restore(dialect)": lambda v: sv.restore(SAVED, ROWS, MESH, dialect=v),
    "restore(step)": lambda v: sv.restore(SAVED, sv.Spec(), MESH, step=v),
    "restore(item)": lambda v: sv.restore(SAVED, sv.Spec(), MESH, item=v),
    "to_jax(thing)": lambda v: sv.to_jax(v),
    "text(thing)": lambda v: sv.text(v),
    "text(width)": lambda v: sv.text(MESH, v),
    "plot(thing)": lambda v: sv.plot(v),
    "plot(dims)": lambda v: sv.plot(LAYOUT, dims=v),
    "plot(by)": lambda v: sv.plot(MESH, by=v),
    "plot(colour)": lambda v: sv.plot(MESH, colour=v),
    "plot(view)": lambda v: sv.plot(LAYOUT, view=v),
    "plot(theme)": lambda v: sv.plot(MESH, theme=v),
    "explore(thing)": lambda v: sv.explore(v),
    "program(fn)": lambda v: sv.program(v, ARRAY, mesh=MESH),
    "program(array)": lambda v: sv.program(abs, v, mesh=MESH),
    "program(mesh)": lambda v: sv.program(abs, ARRAY, mesh=v),
    "program(rules)": lambda v: sv.program(abs, ARRAY, mesh=MESH, rules=v),
    "program(dialect)": lambda v: sv.program(abs, ARRAY, mesh=MESH, dialect=v),
    "program(in_specs)": lambda v: sv.program(abs, ARRAY, mesh=MESH, in_specs=v),
    "program(donate)": lambda v: sv.program(abs, ARRAY, mesh=MESH, donate=v),
    "program(name)": lambda v: sv.program(abs, ARRAY, mesh=MESH, name=v),
    "plan(program)": lambda v: sv.plan(v),
    "compile(program)": lambda v: sv.compile(v),
    "compile(target)": lambda v: sv.compile(PROGRAM, v),
    "compile(options)": lambda v: sv.compile(PROGRAM, options=v),
    "stages(program)": lambda v: sv.stages(v),
    "expect(thing)": lambda v: sv.expect(v),
    "expect(stage)": lambda v: sv.expect(AUDIT, stage=v),
    "expect(no kind)": lambda v: sv.expect(PLANNED).no(v),
    "expect(no over)": lambda v: sv.expect(PLANNED).no(over=v),
    "expect(at_most)": lambda v: sv.expect(PLANNED).at_most(v),
    "expect(at_most per)": lambda v: sv.expect(PLANNED).at_most(1, per=v),
    "expect(fits)": lambda v: sv.expect(AUDIT).fits(v),
    "expect(sharded)": lambda v: sv.expect(AUDIT).sharded(v),
    "expect(matches)": lambda v: sv.expect(AUDIT).matches(v),
    "lock(thing)": lambda v: sv.lock(v),
    "run(program)": lambda v: sv.run(v),
    "run(repeat)": lambda v: sv.run(PROGRAM, repeat=v),
    "effects(thing)": lambda v: sv.effects(v),
    "cached(fn)": lambda v: sv.cached(v),
    "cached(size)": lambda v: sv.cached(abs, size=v),
    "reshard(tree)": lambda v: sv.reshard(v, "x=2", "x=2"),
    "reshard(from)": lambda v: sv.reshard(ROWS, v, "x=2"),
    "reshard(to)": lambda v: sv.reshard(ROWS, "x=2", v),
    "reshard(specs)": lambda v: sv.reshard(ROWS, "x=2", ("x=2", v)),
    "reshard(specs in a tree)": lambda v: sv.reshard(ROWS, "x=2", ("x=2", {"w": v})),
    "reshard(dialect)": lambda v: sv.reshard(ROWS, "x=2", "x=2", dialect=v),
    "reshard(topology)": lambda v: sv.reshard(ROWS, "x=2", "x=2", topology=v),
    "movement(what)": lambda v: sv.movement(v, devices=4, size=8),
    "movement(which)": lambda v: sv.movement(LAYOUT, v),
    "movement(number)": lambda v: sv.movement(PLANNED, v),
    "movement(mesh)": lambda v: sv.movement("all-gather", mesh=v, size=8),
    "movement(axes)": lambda v: sv.movement("all-gather", mesh=MESH, axes=v, size=8),
    "movement(devices)": lambda v: sv.movement("all-gather", devices=v, size=8),
    "movement(size)": lambda v: sv.movement("all-gather", devices=4, size=v),
    "movement(group)": lambda v: sv.movement("all-gather", mesh=MESH, size=8, group=v),
    "movement(algorithm)": lambda v: sv.movement("all-gather", devices=4, size=8, algorithm=v),
    "movement(topology)": lambda v: sv.movement("all-gather", topology=v, size=8),
    "movement(holdings)": lambda v: sv.movement("all-gather", devices=4, size=8).holdings(v),
    "movement(execute)": lambda v: sv.movement("all-gather", devices=4, size=8).execute(v),
    "movement(split)": lambda v: RING.execute([np.zeros(4)] * 4, split=v),
    "movement(step)": lambda v: sv.plot(RING, step=v),
    "compare_meshes(mesh)": lambda v: sv.compare_meshes(v, DEVICES, abs, SHAPE),
    "compare_meshes(fn)": lambda v: sv.compare_meshes(DEVICES, DEVICES, v, SHAPE),
    "topology(text)": lambda v: sv.topology(v),
    "save_html(path)": lambda v: EXPLORER.save_html(v),
}  # fmt: skip
EXPLORER = sv.explore(MESH)

#: what is right for an argument: kinds of values, or single values
FINE: dict[str, tuple[str, ...]] = {
    "text(thing)": ("jax array", "jax matrix of bools"),
    "plot(thing)": ("jax array", "jax matrix of bools"),
    # Whatever is no array is a static argument, and functions take anything.
    "program(array)": (
        *("array", "text", "bytes", "set", "object"),
        *("list of nan", "nan", "infinity", "decimal", "complex"),
    ),
    "array(logical)": ("numpy text",),
    "program(name)": ("text",),
    "text(width)": ("negative and huge",),  # text has a least width
    "audit(tree)": ("numpy array", "jax array", "jax matrix of bools"),
    # What says nothing of these arrays leaves them behind, with the reason.
    **dict.fromkeys(
        [f"reshard({n})" for n in ("tree", "from", "to", "specs", "specs in a tree")],
        ("numpy array", "jax array", "jax matrix of bools"),
    ),
    "restore(wanted)": ("numpy array", "jax array", "jax matrix of bools"),  # trees of one array
    "restore(leaf)": ("numpy array", "jax array", "jax matrix of bools"),
    "resolve(names)": ("numpy text",),
}


def cases() -> list[tuple[str, str]]:
    """Every argument with every value that is wrong for it."""
    return [
        (argument, label)
        for argument in ARGUMENTS
        for label, (kind, _) in VALUES.items()
        if not {kind, label} & set(FINE.get(argument, ()))
    ]


def outcome(argument: str, label: str) -> str:
    """What is not as it should be where an argument gets a value; `""` where all is."""
    try:
        result = ARGUMENTS[argument](VALUES[label][1]())
    except sv.ShardvizError as error:
        return "" if str(error).isprintable() else f"says {str(error)!a}"
    except PYTHON_ERRORS as error:
        # One that is raised in this file says that the function is called wrongly here.
        frames = traceback.walk_tb(error.__traceback__)
        if any(f.f_globals["__name__"].startswith("shardviz") for f, _ in frames):
            return ""
        return f"is not called: {error}"
    except Exception as error:  # noqa: BLE001  whatever else is raised is what is looked for
        return f"raises {type(error).__name__}: {str(error)[:150]}"
    if isinstance(result, sv.Report) and result.error is not None:
        return ""
    if isinstance(result, Restore) and any(row.problem for row in result.rows):
        return ""
    return f"takes it: {type(result).__name__}"
