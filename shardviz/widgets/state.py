"""A session as a small JSON document, and back. Reading one executes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_tree import Children
from shardviz.core.layout.audit import Audit, audit
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.parse import MAX_NAME, limited
from shardviz.core.layout.resolution import Request, Resolution
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.gallery import programs as gallery_programs
from shardviz.gallery.programs import is_known, known_program
from shardviz.widgets.model_view import Leaves
from shardviz.widgets.session import DEVICE_PUT, MAX_ARRAYS, Session, array_fields, put_on_devices

VERSION = 1
MAX_STATE = 64 << 20
MAX_LEAVES = 100_000
LONGEST_LINE = 20_000  # characters of a line that is copied
MOST_IN_LINE = 200  # leaves of a model


def session_state(session: Session) -> dict[str, Any]:
    """The state of a session, in JSON's own types.

    It cannot hold the user's own function, only its arrays, and its name as `function`.
    """
    program = session.program
    function = session.missing_function if session.entry else program.name
    return {
        "shardviz": VERSION,
        "mesh": _mesh_state(session.mesh),
        "arrays": [_array_state(a) for a in session.arrays],
        "rules": session.rules.text(),
        "dialect": program.dialect.value,
        "program": session.entry or DEVICE_PUT,
        **({"function": function} if function else {}),
        **({"model": _model_state(session.model)} if session.model else {}),
        "selected": session.selected,
        "look": {k: list(v) if isinstance(v, tuple) else v for k, v in session.look.items()},
        "target": session.target,
    }


def _array_state(array: ArraySpec) -> dict[str, str]:
    kind = {} if array.memory_kind is None else {"memory_kind": array.memory_kind}
    return {**array_fields(array), **kind}


def _model_state(model: Leaves) -> dict[str, Any]:
    leaves = [_array_state(a) for a in model.arrays]
    return {
        "leaves": leaves,
        "partners": dict(model.partners),
        "unknown": sorted(model.unknown),
        **({"by_path": sorted(model.by_path)} if model.by_path else {}),
    }


def _mesh_state(mesh: MeshSpec) -> dict[str, Any]:
    state: dict[str, Any] = {
        "axes": [[n, s] for n, s in mesh.shape.items()],
        "types": list(mesh.axis_types),
    }
    if not mesh.ids_are_positions:
        state["device_ids"] = mesh.device_ids.ravel().tolist()
    if len(mesh.processes) > 1:
        state["processes"] = mesh.even_hosts or mesh.process_indices.ravel().tolist()
    return state


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
            f"This is no Explorer state of version {VERSION}; got {shown(state)}. Pass what"
            " explorer.state() returned."
        )
    mesh = _read_mesh(state.get("mesh"))
    arrays = _read_arrays(state.get("arrays"))
    rules = Rules.parse(state.get("rules", ""))
    dialect = Dialect.of(state.get("dialect", "linen"), paths=False)
    parts = {"arrays": arrays, "mesh": mesh, "rules": rules, "dialect": dialect}
    session = _session(state, parts)
    session.model = _read_model(state.get("model"))
    _restore_look(session, state)
    return session


def _read_model(part: Any) -> Leaves | None:
    if part is None:
        return None
    known = part if isinstance(part, dict) else {}
    partners, unknown = known.get("partners", {}), known.get("unknown", [])
    by_path = known.get("by_path", [])
    paths = [*partners, *partners.values()] if isinstance(partners, dict) else [None]
    for some in (unknown, by_path):
        paths += some if isinstance(some, list) else [None]
    if not all(isinstance(path, str) for path in paths):
        raise ProgramError(f"The state's model holds leaves by their paths; got {shown(part)}.")
    leaves = _read_arrays(known.get("leaves"), MAX_LEAVES)
    return Leaves(leaves, dict(partners), frozenset(unknown), frozenset(by_path))


def _session(state: dict[str, Any], parts: dict[str, Any]) -> Session:
    """The menu's program of that name with these parts; else a program that places the arrays."""
    name, function = state.get("program", DEVICE_PUT), state.get("function", "")
    if is_known(name) and not function:
        known = known_program(name)
        if len(known.arrays) == len(parts["arrays"]):
            return Session(known.replace(**parts), name)
    session = Session(Program(put_on_devices, name=DEVICE_PUT, **parts), DEVICE_PUT)
    # Older states have a function's name in the place of a program of the menu.
    function = function or (name if name != DEVICE_PUT else "")
    session.missing_function = function[:MAX_NAME] if isinstance(function, str) else ""
    return session


def _from_json(text: str) -> Any:
    if len(text) > MAX_STATE:
        raise ProgramError(f"A state is a small document; got {len(text):,} characters.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise ProgramError(
            f"This is no JSON: {shown(str(error), 200)}. Pass explorer.state() as it is."
        ) from error


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
    arrays = []
    for row in part:
        if not isinstance(row, dict) or not all(isinstance(v, str) for v in row.values()):
            raise ProgramError(f"An array in the state holds strings; got {shown(row)}.")
        arrays.append(
            ArraySpec(
                row.get("name", ""),
                row.get("shape", ""),  # type: ignore[arg-type]  # ArraySpec parses strings
                row.get("logical") or None,  # type: ignore[arg-type]
                row.get("dtype", "float32"),
                row.get("spec") or None,  # type: ignore[arg-type]
                row.get("memory_kind") or None,
            )
        )
    return tuple(arrays)


def _restore_look(session: Session, state: dict[str, Any]) -> None:
    """Restores how the session was shown; what does not fit is left out."""
    look = state.get("look")
    look = look if isinstance(look, dict) else {}
    edits = [("select", state.get("selected")), ("target", state.get("target"))]
    edits += [(k, look.get(k)) for k in ("by", "colour", "dims", "at")]
    for name, value in edits:
        if value not in (None, [], ""):
            session.edit(name, value)
    session.forget()


def _session_on_audit(audit: Audit) -> Session:
    """A session on a model: its leaves, of which the largest is opened as an array."""
    if not audit.rows:
        raise ShardvizError("The audit has no arrays; the Explorer shows at least one.")
    rows = sorted(audit.rows, key=lambda r: r.layout is None or -r.layout.bytes_per_device)
    leaves = Leaves.of_audit(audit)
    first = next(a for a in leaves.arrays if a.name == rows[0].path)
    program = Program(put_on_devices, (first,), audit.mesh, name=DEVICE_PUT)
    if isinstance(audit.rules, Rules):
        program = program.replace(rules=audit.rules, dialect=audit.dialect)
    session = Session(program, DEVICE_PUT)
    session.model = leaves
    return session


def line_to_restore(session: Session) -> str:
    """The code that opens the state again in another kernel; `""` where it would be too long.

    >>> line_to_restore(session_on(None)).startswith("import shardviz as sv; sv.explore('{")
    True
    """
    if session.model and len(session.model.arrays) > MOST_IN_LINE:
        return ""
    line = f"import shardviz as sv; sv.explore({json.dumps(session_state(session))!r})"
    return line if len(line) <= LONGEST_LINE else ""


def _session_on_arrays(
    arrays: Iterable[ArraySpec], mesh: MeshSpec, request: Request | Resolution | None = None
) -> Session:
    """A session on arrays, with the rules by which one was resolved."""
    program = Program(put_on_devices, tuple(arrays), mesh, name=DEVICE_PUT)
    found = request.resolution if isinstance(request, Request) else request
    if found is not None:
        program = program.replace(rules=found.rules, dialect=found.dialect)
    return Session(program, DEVICE_PUT)


def _session_on_layout(layout: Layout) -> Session:
    if layout.request is not None:
        return _session_on_arrays([layout.request.array], layout.mesh, layout.request)
    array = ArraySpec("array", layout.shape, None, layout.dtype, layout.spec)
    return _session_on_arrays([array], layout.mesh)


def _session_on_resolution(found: Resolution) -> Session:
    if found.mesh is None or found.shape is None:
        raise ShardvizError(
            f"The Explorer shows an array on a mesh; got {shown(found)}, without"
            f" {'a mesh' if found.mesh is None else 'a shape'}. Give both to sv.resolve: mesh= and"
            " shape=."
        )
    array = ArraySpec("array", found.shape, found.names)
    return _session_on_arrays([array], found.mesh, found)


def _session_on_report(report: Report) -> Session:
    """A session on what was compiled: the arguments of the program, split as they were."""
    known = {name: one for name, one in report.in_layouts.items() if one.spec is not None}
    if report.mesh is None or not known:
        raise ShardvizError(
            f"{report} has no arguments with known shardings to show. Open its program:"
            " sv.explore(program)."
        )
    arrays = (ArraySpec(name, v.shape, None, v.dtype, v.spec) for name, v in known.items())
    return _session_on_arrays(arrays, report.mesh)


def session_on(thing: Any, children: Children | None = None) -> Session:
    """A session on anything that `shardviz.explore` takes.

    Args:
        thing: what it opens on.
        children: the named children of a container that is registered with jax, or None.

    Raises:
        ShardvizError: for something else.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> session_on(None).entry, session_on(make_mesh(data=2)).mesh.size
    ('MLP', 2)
    """
    if thing is None:
        name = gallery_programs.DEFAULT
        session = Session(gallery_programs.get(name), name)
        session.brief = True
        return session
    if isinstance(thing, Program):
        return Session(thing, own=thing)
    if isinstance(thing, MeshSpec):
        name = gallery_programs.DEFAULT
        return Session(gallery_programs.get(name).replace(mesh=thing), name)
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
    arrays = (thing,) if isinstance(thing, ArraySpec) else thing
    if isinstance(arrays, Iterable) and not isinstance(arrays, Mapping):
        arrays = tuple(limited(arrays, MAX_ARRAYS, "The arrays of the Explorer", ProgramError))
        if arrays and all(isinstance(a, ArraySpec) for a in arrays):
            base = gallery_programs.get(gallery_programs.DEFAULT)
            program = Program(put_on_devices, arrays, base.mesh, base.rules, name=DEVICE_PUT)
            return Session(program, DEVICE_PUT)
    try:
        return _session_on_audit(audit(thing, children=children))
    except ShardvizError as error:
        raise ShardvizError(
            f"The Explorer opens on a program, a mesh, arrays, an audit, a layout, a resolution, a"
            f" report or a saved state; got {shown(thing)}. For a model, open its audit:"
            " sv.explore(sv.audit(model, rules, mesh))."
        ) from error
