"""A session as a small JSON document and back, and sessions on what people pass.

Reading a document executes nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_tree import Children
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.rules.resolution import Resolution
from shardviz.core.layout.rules.rules import Dialect, Rules
from shardviz.core.layout.trees.audit import Audit, audit
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.gallery import programs as gallery_programs
from shardviz.gallery.programs import is_known, known_program
from shardviz.widgets.document import (
    DEVICE_PUT,
    MAX_ARRAYS,
    array_fields,
    put_on_devices,
)
from shardviz.widgets.model_view import Leaves
from shardviz.widgets.session import Session

VERSION = 1
MAX_NAME = 100  # characters of a function's name
# A line of code that is copied has at most so many characters, and leaves of a model.
LONGEST_LINE = 20_000
MOST_IN_LINE = 200


# --- writing --------------------------------------------------------------------------


def session_state(session: Session) -> dict[str, Any]:
    """The state of a session, in JSON's own types.

    It cannot hold the user's own function, only its arrays, and its name as `function`.
    """
    now = session.now
    mesh = now.mesh
    shape = [list(axis) for axis in mesh.shape.items()]
    mesh_state: dict[str, Any] = {"axes": shape, "types": list(mesh.axis_types)}
    if not mesh.ids_are_positions:
        mesh_state["device_ids"] = mesh.device_ids.ravel().tolist()
    if len(mesh.processes) > 1:
        processes = mesh.even_hosts or mesh.process_indices.ravel().tolist()
        mesh_state["processes"] = processes
    look = dataclasses.asdict(now.look)
    for name in ("dims", "at"):
        look[name] = look[name] and list(look[name])
    state: dict[str, Any] = {
        "shardviz": VERSION,
        "mesh": mesh_state,
        "arrays": [_array_state(array) for array in now.arrays],
        "rules": now.rules.text(),
        "dialect": now.program.dialect.value,
        "program": now.entry or DEVICE_PUT,
        "selected": now.selected,
        "look": look,
        "target": now.target,
    }
    function = now.missing_function if now.entry else now.program.name
    if function:
        state["function"] = function
    if now.model is not None:
        state["model"] = {
            "leaves": [_array_state(array) for array in now.model.arrays],
            "partners": dict(now.model.partners),
            "unknown": sorted(now.model.unknown),
            "by_path": sorted(now.model.by_path),
        }
    return state


def _array_state(array: ArraySpec) -> dict[str, str]:
    state = array_fields(array)
    if array.memory_kind is not None:
        state["memory_kind"] = array.memory_kind
    return state


def line_to_restore(session: Session) -> str:
    """The code that opens the state in another kernel; `""` where it would be too long.

    >>> line_to_restore(session_on(None)).startswith("import shardviz as sv; sv.explore('{")
    True
    """
    model = session.now.model
    if model is not None and len(model.arrays) > MOST_IN_LINE:
        return ""
    line = f"import shardviz as sv; sv.explore({json.dumps(session_state(session))!r})"
    return line if len(line) <= LONGEST_LINE else ""


# --- reading --------------------------------------------------------------------------


def open_state(state: Any) -> Session:
    """The session that a state describes.

    Raises:
        ShardvizError: if it is not a state of this version, or a part cannot be parsed.
    """
    try:
        if isinstance(state, str):
            state = json.loads(state)
        if state["shardviz"] != VERSION:
            raise KeyError(VERSION)
        return _session(state)
    except ShardvizError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ProgramError(
            f"This is no Explorer state of version {VERSION}; got {shown(state)}."
            " Pass what explorer.state() returned."
        ) from error


def _session(state: dict[str, Any]) -> Session:
    """The menu's program of that name with these parts; else one that places arrays."""
    mesh, model, leaves = state["mesh"], state.get("model"), None
    parts = {
        "arrays": _read_arrays(state["arrays"]),
        "mesh": make_mesh(
            mesh["axes"],
            axis_types=mesh.get("types"),
            device_ids=mesh.get("device_ids"),
            processes=mesh.get("processes"),
        ),
        "rules": Rules.parse(state.get("rules", "")),
        "dialect": Dialect.of(state.get("dialect", "linen"), paths=False),
    }
    _check_count(parts["arrays"])
    if model is not None:
        unknown, by_path = model.get("unknown", []), model.get("by_path", [])
        arrays, partners = _read_arrays(model["leaves"]), model.get("partners", {})
        leaves = Leaves(arrays, partners, frozenset(unknown), frozenset(by_path))
    name, function = state.get("program", DEVICE_PUT), state.get("function", "")
    # A program of the menu with fewer or more arrays was edited since.
    if is_known(name) and not function:
        known = known_program(name)
        if len(known.arrays) == len(parts["arrays"]):
            session = Session(known.replace(**parts), name, model=leaves)
            return _with_look(session, state)
    # Older states have a function's name in the place of a program of the menu.
    if not function and name != DEVICE_PUT:
        function = name
    program = Program(put_on_devices, name=DEVICE_PUT, **parts)
    missing = function[:MAX_NAME]
    session = Session(program, DEVICE_PUT, missing_function=missing, model=leaves)
    return _with_look(session, state)


def _read_arrays(rows: list[dict[str, Any]]) -> tuple[ArraySpec, ...]:
    arrays = []
    for row in rows:
        # ArraySpec parses the strings.
        array = ArraySpec(
            row["name"],
            row["shape"],
            row.get("logical") or None,
            row.get("dtype", "float32"),
            row.get("spec") or None,
            row.get("memory_kind"),
        )
        arrays.append(array)
    return tuple(arrays)


def _check_count(arrays: Sequence[ArraySpec]) -> None:
    if len(arrays) > MAX_ARRAYS:
        raise ProgramError(
            f"The Explorer opens at most {MAX_ARRAYS} arrays; got {len(arrays):,}. Open"
            " an audit of them."
        )


def _with_look(session: Session, state: dict[str, Any]) -> Session:
    """Restores how the session was shown; what does not fit is left out."""
    look = state.get("look", {})
    values = {"select": state.get("selected"), "target": state.get("target"), **look}
    for name in ("select", "target", "by", "colour", "dims", "at"):
        if values.get(name) not in (None, [], ""):
            session.edit(name, values[name])
    session.forget()
    return session


# --- sessions on what people pass -----------------------------------------------------


def session_on(thing: Any, children: Children | None = None) -> Session:
    """A session on anything that `shardviz.explore` takes.

    Raises:
        ShardvizError: for something else.

    >>> session_on(None).now.entry, session_on(make_mesh(data=2)).mesh.size
    ('MLP', 2)
    """
    default = gallery_programs.DEFAULT
    if thing is None:
        return Session(gallery_programs.get(default), default, brief=True)
    if isinstance(thing, Program):
        return Session(thing, own=thing)
    if isinstance(thing, MeshSpec):
        return Session(gallery_programs.get(default).replace(mesh=thing), default)
    if isinstance(thing, Audit):
        return _session_on_audit(thing)
    if isinstance(thing, Layout) and thing.spec is not None:
        return _session_on_layout(thing)
    if isinstance(thing, Resolution):
        return _session_on_resolution(thing)
    if isinstance(thing, Report):
        return _session_on_report(thing)
    if isinstance(thing, (dict, str)):
        return open_state(thing)
    if isinstance(thing, ArraySpec):
        thing = [thing]
    # Anything else that can be iterated over may be a model.
    if (
        isinstance(thing, (list, tuple))
        and thing
        and (all(isinstance(array, ArraySpec) for array in thing))
    ):
        _check_count(thing)
        base = gallery_programs.get(default)
        return _session_on_arrays(thing, base.mesh, rules=base.rules)
    try:
        return _session_on_audit(audit(thing, children=children))
    except ShardvizError as error:
        raise ShardvizError(
            "The Explorer opens on a program, a mesh, arrays, an audit, a layout, a"
            f" resolution, a report or a saved state; got {shown(thing)}. For a model,"
            " open its audit: sv.explore(sv.audit(model, rules, mesh))."
        ) from error


def _session_on_arrays(
    arrays: Iterable[ArraySpec], mesh: MeshSpec, **parts: Any
) -> Session:
    program = Program(put_on_devices, tuple(arrays), mesh, name=DEVICE_PUT, **parts)
    return Session(program, DEVICE_PUT)


def _session_on_audit(audit: Audit) -> Session:
    """A session on a model: its leaves, of which the largest is opened as an array."""
    if not audit.rows:
        raise ShardvizError("The audit has no arrays; the Explorer shows at least one.")
    largest, most = audit.rows[0], -1
    for row in audit.rows:
        if row.layout is not None and row.layout.bytes_per_device > most:
            largest, most = row, row.layout.bytes_per_device
    leaves = Leaves.of_audit(audit)
    first = next(array for array in leaves.arrays if array.name == largest.path)
    program = Program(put_on_devices, (first,), audit.mesh, name=DEVICE_PUT)
    if isinstance(audit.rules, Rules):
        program = program.replace(rules=audit.rules, dialect=audit.dialect)
    return Session(program, DEVICE_PUT, model=leaves)


def _session_on_layout(layout: Layout) -> Session:
    if layout.request is None:
        array = ArraySpec("array", layout.shape, None, layout.dtype, layout.spec)
        return _session_on_arrays([array], layout.mesh)
    found = layout.request.resolution
    parts = {}
    if found is not None:
        parts = {"rules": found.rules, "dialect": found.dialect}
    return _session_on_arrays([layout.request.array], layout.mesh, **parts)


def _session_on_resolution(found: Resolution) -> Session:
    if found.mesh is None or found.shape is None:
        missing = "a mesh" if found.mesh is None else "a shape"
        raise ShardvizError(
            f"The Explorer shows an array on a mesh; got {shown(found)}, without"
            f" {missing}. Give both to sv.resolve: mesh= and shape=."
        )
    array = ArraySpec("array", found.shape, found.names)
    parts = {"rules": found.rules, "dialect": found.dialect}
    return _session_on_arrays([array], found.mesh, **parts)


def _session_on_report(report: Report) -> Session:
    """A session on what was compiled: the program's arguments, split as they were."""
    arrays = []
    for name, layout in report.in_layouts.items():
        if layout.spec is not None:
            array = ArraySpec(name, layout.shape, None, layout.dtype, layout.spec)
            arrays.append(array)
    if report.mesh is None or not arrays:
        raise ShardvizError(
            f"{report} has no arguments with known shardings to show. Open its"
            " program: sv.explore(program)."
        )
    return _session_on_arrays(arrays, report.mesh)
