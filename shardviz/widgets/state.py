"""A session as a small JSON document and back, and sessions on what people pass.

Reading a document executes nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
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
MAX_STATE = 64 << 20  # characters of JSON
MAX_LEAVES = 100_000  # of a model
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
    state: dict[str, Any] = {
        "shardviz": VERSION,
        "mesh": _mesh_state(now.mesh),
        "arrays": [_array_state(array) for array in now.arrays],
        "rules": now.rules.text(),
        "dialect": now.program.dialect.value,
        "program": now.entry or DEVICE_PUT,
        "selected": now.selected,
        "look": _look_state(dataclasses.asdict(now.look)),
        "target": now.target,
    }
    function = now.missing_function if now.entry else now.program.name
    if function:
        state["function"] = function
    if now.model is not None:
        state["model"] = _model_state(now.model)
    return state


def _look_state(look: dict[str, Any]) -> dict[str, Any]:
    for name, value in look.items():
        if isinstance(value, tuple):
            look[name] = list(value)
    return look


def _array_state(array: ArraySpec) -> dict[str, str]:
    state = array_fields(array)
    if array.memory_kind is not None:
        state["memory_kind"] = array.memory_kind
    return state


def _model_state(model: Leaves) -> dict[str, Any]:
    state: dict[str, Any] = {
        "leaves": [_array_state(array) for array in model.arrays],
        "partners": dict(model.partners),
        "unknown": sorted(model.unknown),
    }
    if model.by_path:
        state["by_path"] = sorted(model.by_path)
    return state


def _mesh_state(mesh: MeshSpec) -> dict[str, Any]:
    state: dict[str, Any] = {
        "axes": [list(axis) for axis in mesh.shape.items()],
        "types": list(mesh.axis_types),
    }
    if not mesh.ids_are_positions:
        state["device_ids"] = mesh.device_ids.ravel().tolist()
    if len(mesh.processes) > 1:
        state["processes"] = mesh.even_hosts or mesh.process_indices.ravel().tolist()
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
    if len(line) > LONGEST_LINE:
        return ""
    return line


# --- reading --------------------------------------------------------------------------


def open_state(state: Any) -> Session:
    """The session that a state describes.

    Raises:
        ProgramError: if it is not a state, or of a newer shardviz.
        ShardvizError: if a part of it cannot be parsed.
    """
    if isinstance(state, str):
        state = _from_json(state)
    if not isinstance(state, dict) or state.get("shardviz") != VERSION:
        raise ProgramError(
            f"This is no Explorer state of version {VERSION}; got {shown(state)}."
            " Pass what explorer.state() returned."
        )
    parts = {
        "arrays": _read_arrays(state.get("arrays")),
        "mesh": _read_mesh(state.get("mesh")),
        "rules": Rules.parse(state.get("rules", "")),
        "dialect": Dialect.of(state.get("dialect", "linen"), paths=False),
    }
    session = _session(state, parts, _read_model(state.get("model")))
    _restore_look(session, state)
    return session


def _from_json(text: str) -> Any:
    if len(text) > MAX_STATE:
        raise ProgramError(
            f"A state is a small document; got {len(text):,} characters."
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(
            f"This is no JSON: {shown(str(error), 200)}."
            " Pass explorer.state() as it is."
        ) from error


def _session(
    state: dict[str, Any], parts: dict[str, Any], model: Leaves | None
) -> Session:
    """The menu's program of that name with these parts; else one that places arrays."""
    name, function = state.get("program", DEVICE_PUT), state.get("function", "")
    # A program of the menu with fewer or more arrays was edited since.
    if is_known(name) and not function:
        known = known_program(name)
        if len(known.arrays) == len(parts["arrays"]):
            return Session(known.replace(**parts), name, model=model)
    # Older states have a function's name in the place of a program of the menu.
    if not function and name != DEVICE_PUT:
        function = name
    missing = function[:MAX_NAME] if isinstance(function, str) else ""
    program = Program(put_on_devices, name=DEVICE_PUT, **parts)
    return Session(program, DEVICE_PUT, missing_function=missing, model=model)


def _read_model(part: Any) -> Leaves | None:
    if part is None:
        return None
    if not isinstance(part, dict):
        raise ProgramError(f"The state's model must be an object; got {shown(part)}.")
    partners = part.get("partners", {})
    if not isinstance(partners, dict):
        raise ProgramError(f"Partners are pairs of paths; got {shown(partners)}.")
    _read_paths(list(partners.values()))
    unknown = _read_paths(part.get("unknown", []))
    by_path = _read_paths(part.get("by_path", []))
    leaves = _read_arrays(part.get("leaves"), MAX_LEAVES)
    return Leaves(leaves, partners, unknown, by_path)


def _read_paths(part: Any) -> frozenset[str]:
    if not isinstance(part, list) or not all(isinstance(path, str) for path in part):
        raise ProgramError(f"The state holds paths of leaves; got {shown(part)}.")
    return frozenset(part)


def _read_mesh(part: Any) -> MeshSpec:
    if not isinstance(part, dict):
        raise ProgramError(f"The state's mesh must be an object; got {shown(part)}.")
    return make_mesh(
        part.get("axes"),
        axis_types=part.get("types"),
        device_ids=part.get("device_ids"),
        processes=part.get("processes"),
    )


def _read_arrays(part: Any, most: int = MAX_ARRAYS) -> tuple[ArraySpec, ...]:
    if not isinstance(part, list) or len(part) > most:
        raise ProgramError(
            f"The state's arrays must be a list of at most {most:,}; got {shown(part)}."
        )
    return tuple(_read_array(row) for row in part)


def _read_array(row: Any) -> ArraySpec:
    texts = isinstance(row, dict) and all(isinstance(v, str) for v in row.values())
    if not texts:
        raise ProgramError(f"An array in the state holds strings; got {shown(row)}.")
    # ArraySpec parses the strings.
    parts: dict[str, Any] = {
        "name": row.get("name", ""),
        "shape": row.get("shape", ""),
        "logical": row.get("logical") or None,
        "dtype": row.get("dtype", "float32"),
        "spec": row.get("spec") or None,
        "memory_kind": row.get("memory_kind") or None,
    }
    return ArraySpec(**parts)


def _restore_look(session: Session, state: dict[str, Any]) -> None:
    """Restores how the session was shown; what does not fit is left out."""
    look = state.get("look")
    if not isinstance(look, dict):
        look = {}
    values = {"select": state.get("selected"), "target": state.get("target"), **look}
    for name in ("select", "target", "by", "colour", "dims", "at"):
        if values.get(name) not in (None, [], ""):
            session.edit(name, values[name])
    session.forget()


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
    arrays = _arrays_in(thing)
    if arrays:
        base = gallery_programs.get(default)
        return _session_on_arrays(arrays, base.mesh, rules=base.rules)
    try:
        return _session_on_audit(audit(thing, children=children))
    except ShardvizError as error:
        raise ShardvizError(
            "The Explorer opens on a program, a mesh, arrays, an audit, a layout, a"
            f" resolution, a report or a saved state; got {shown(thing)}. For a model,"
            " open its audit: sv.explore(sv.audit(model, rules, mesh))."
        ) from error


def _arrays_in(thing: Any) -> tuple[ArraySpec, ...]:
    """The ArraySpecs that a thing is or lists; none where it is anything else."""
    if isinstance(thing, ArraySpec):
        return (thing,)
    # Anything else that can be iterated over may be a model.
    if not isinstance(thing, (list, tuple)):
        return ()
    if not all(isinstance(array, ArraySpec) for array in thing):
        return ()
    if len(thing) > MAX_ARRAYS:
        raise ProgramError(
            f"The Explorer opens at most {MAX_ARRAYS} arrays; got {len(thing):,}. Open"
            " an audit of them."
        )
    return tuple(thing)


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
