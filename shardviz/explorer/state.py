"""Saves sessions as small JSON documents, and opens sessions on documents or values.

Opening a saved session executes no code from the document.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from shardviz.axis_rules.array_tree import Children, read_tree
from shardviz.axis_rules.audit import Audit, audit
from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.optimizer_state import GROUPS
from shardviz.axis_rules.panel.model_view import Leaves
from shardviz.axis_rules.panel.rules_view import looks_wrong
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rule_tables import dialect_of
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import SpecOnMesh
from shardviz.base.typing import JsonDict, PyTree
from shardviz.compiled.report import Report
from shardviz.explorer.document import (
    DEVICE_PUT,
    MAX_ARRAYS,
    array_fields,
    put_on_devices,
)
from shardviz.explorer.session import Session
from shardviz.explorer.targets import (
    checked_target,
    fitting_mesh,
    topology_of,
    why_no_placement,
)
from shardviz.gallery import programs as gallery_programs
from shardviz.gallery.programs import is_known, known_program
from shardviz.hardware.topology import Topology
from shardviz.programs.program import Program

VERSION = 1
# Maximum length of a function's name, in characters.
MAX_NAME = 100


# --- writing --------------------------------------------------------------------------


def session_state(session: Session) -> JsonDict:
    """Returns the state of a session as a JSON document.

    A user's function can't be saved, only its arrays and, as `function`, its name.
    """
    now = session.now
    mesh = now.mesh
    shape = [list(axis) for axis in mesh.shape.items()]
    mesh_state: JsonDict = {"axes": shape, "types": list(mesh.axis_types)}
    if not mesh.ids_are_positions:
        mesh_state["device_ids"] = mesh.device_ids.ravel().tolist()
    if len(mesh.processes) > 1:
        processes = mesh.even_hosts or mesh.process_indices.ravel().tolist()
        mesh_state["processes"] = processes
    state: JsonDict = {
        "shardviz": VERSION,
        "mesh": mesh_state,
        "arrays": _array_states(now.arrays),
        "rules": now.rules.text(),
        "dialect": now.program.dialect.value,
        "program": now.entry or DEVICE_PUT,
        "selected": now.selected,
        "target": now.target,
        "look": {"by": now.by, "dims": list(now.dims or ()), "at": list(now.at or ())},
    }
    function = now.missing_function if now.entry else now.program.name
    if function:
        state["function"] = function
    if now.model is not None:
        state["model"] = {
            "leaves": _array_states(now.model.arrays),
            "partners": dict(now.model.partners),
            "unknown": sorted(now.model.unknown),
            "by_path": sorted(now.model.by_path),
            "roles": list(now.model.roles),
        }
    return state


def _array_states(arrays: Iterable[ArraySpec]) -> list[dict[str, str]]:
    states = []
    for array in arrays:
        state = array_fields(array)
        if array.memory_kind is not None:
            state["memory_kind"] = array.memory_kind
        states.append(state)
    return states


# --- reading --------------------------------------------------------------------------


def open_state(state: object) -> Session:
    """Opens a session from a saved state.

    Raises:
        ShardvizError: if it is not a state of this version, or cannot be parsed.
    """
    try:
        if isinstance(state, str):
            state = json.loads(state)
        document: JsonDict = state  # type: ignore[assignment]  checked by reading it
        if document["shardviz"] != VERSION:
            raise KeyError(VERSION)
        return _session(document)
    except ShardvizError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ProgramError(
            f"This is not an Explorer state of version {VERSION}; got {shown(state)}."
            " Pass what explorer.state() returned; for a file of XLA, sv.report(path)."
        ) from error


def _session(state: JsonDict) -> Session:
    """Opens a session on a gallery program, or on one that only places the arrays."""
    mesh, model, leaves = state["mesh"], state.get("model"), None
    arrays = _read_arrays(state["arrays"])
    parts = {
        "mesh": make_mesh(
            mesh["axes"],
            axis_types=mesh.get("types"),
            device_ids=mesh.get("device_ids"),
            processes=mesh.get("processes"),
        ),
        "rules": Rules.parse(state.get("rules", "")),
        "dialect": Dialect.of(state.get("dialect", "linen"), paths=False),
    }
    if model is not None:
        unknown, by_path = model.get("unknown", []), model.get("by_path", [])
        leaf_arrays, partners = _read_arrays(model["leaves"]), model.get("partners", {})
        roles = tuple(model.get("roles", ()))
        if len(roles) != len(leaf_arrays) or not {*roles} <= {*GROUPS}:
            roles = ()
        leaves = Leaves(
            leaf_arrays, partners, frozenset(unknown), frozenset(by_path), roles
        )
    entry, missing = state.get("program", DEVICE_PUT), state.get("function", "")
    program = None
    # After adding or removing arrays, the arrays no longer fit the function.
    if is_known(entry) and not missing:
        program = known_program(entry).replace(**parts)
        if len(program.arrays) == len(arrays):
            program = program.replace(arrays=arrays)
        else:
            program = None
    if program is None:
        program, entry = _placing(arrays, **parts), DEVICE_PUT
    session = Session(program, entry, missing_function=missing[:MAX_NAME], model=leaves)
    # Invalid choices have no effect: `forget` clears the errors of their edits.
    session.edit("select", state.get("selected", 0))
    look = {"target": state.get("target"), **state.get("look", {})}
    for name in ("target", "by", "dims", "at"):
        if look.get(name):
            session.edit(name, look[name])
    session.forget()
    return session


def _read_arrays(rows: Iterable[JsonDict]) -> tuple[ArraySpec, ...]:
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


def _placing(arrays: Iterable[ArraySpec], mesh: MeshSpec, **parts: Any) -> Program:
    """Creates a program that only places arrays on devices.

    Raises:
        ProgramError: if there are too many arrays to show.
    """
    arrays = tuple(arrays)
    if len(arrays) > MAX_ARRAYS:
        raise ProgramError(
            f"The Explorer opens at most {MAX_ARRAYS} arrays; got {len(arrays):,}. Open"
            " an audit of them."
        )
    return Program(put_on_devices, arrays, mesh, name=DEVICE_PUT, **parts)


# --- sessions on any value ------------------------------------------------------------


def session_on(
    value: PyTree,
    children: Children | None = None,
    mesh: MeshSpec | None = None,
    rules: Rules | None = None,
) -> Session:
    """Opens a session on any value of `shardviz.explore`, in the view that suits it.

    Args:
        value: the value to show.
        children: returns the children of a user-defined class in a model, or None.
        mesh, rules: replace the mesh and rules of `value`, if not None.

    Raises:
        ShardvizError: if the Explorer cannot show the value.

    >>> session_on(None).now.entry, session_on(make_mesh(data=2)).mesh.size
    ('MLP', 2)
    >>> session_on("tpu:v5e:4x4").mesh.size
    16
    """
    replaced: JsonDict = {}
    if mesh is not None:
        replaced["mesh"] = mesh
    if rules is not None:
        replaced["rules"] = rules
        if rules.dialect is not None:
            replaced["dialect"] = rules.dialect
    default = gallery_programs.DEFAULT
    example = gallery_programs.get(default).replace(**replaced)
    if value is None:
        return Session(example, default)
    if isinstance(value, Report) and isinstance(value.of, Program):
        # The report isn't shown if the caller replaces the program's mesh or rules.
        program = value.of.replace(**replaced) if replaced else value.of
        target = "" if value.on is None else value.on.name
        return _opened(program, own=program, view="Program", target=target)
    if isinstance(value, Program):
        value = value.replace(**replaced)
        return _opened(value, own=value, view="Program")
    if isinstance(value, MeshSpec):
        return Session(example.replace(mesh=value), default)
    named = str(value) if isinstance(value, Topology) else value
    if isinstance(named, str) and topology_of(named) is not None:
        target = checked_target(named)
        if mesh is None:
            example = example.replace(
                mesh=fitting_mesh(example.mesh, target) or example.mesh
            )
        by = "mesh" if why_no_placement(example.mesh, target) else "position"
        return Session(example, default, target=target, by=by)
    # A dict without a version is a tree of arrays.
    saved = isinstance(value, dict) and "shardviz" in value
    if (saved or isinstance(value, str)) and not replaced:
        return open_state(value)
    if isinstance(value, ArraySpec):
        value = [value]
    if isinstance(value, (list, tuple)):
        specs = all(isinstance(array, ArraySpec) for array in value)
        if value and specs and len(value) <= MAX_ARRAYS:
            parts = {"rules": example.rules, "dialect": example.dialect}
            return _opened(_placing(value, example.mesh, **parts))
    program = _program_of(value)
    if program is not None:
        view = "Rules" if isinstance(value, Resolution) else ""
        return _opened(program.replace(**replaced), view=view)
    # Any other value may be a model.
    if not isinstance(value, Audit) or replaced:
        value = _audited(value, children, mesh, rules, example.mesh)
    return _session_on_audit(value)


def _audited(
    tree_or_audit: PyTree,
    children: Children | None,
    mesh: MeshSpec | None,
    rules: Rules | None,
    default: MeshSpec,
) -> Audit:
    """Audits a tree of arrays, or repeats an audit with other rules or another mesh.

    Args:
        tree_or_audit: the tree, or an audit.
        children: returns the children of a user-defined class in the tree, or None.
        mesh, rules: replace the mesh and rules of the audit, if not None.
        default: the mesh if neither the caller nor an array has one.
    """
    try:
        if not isinstance(tree_or_audit, Audit):
            tree = read_tree(tree_or_audit, children=children)
            named = any(leaf.mesh is not None for leaf in tree.kinds)
            if mesh is None and not named:
                mesh = default
            return audit(tree, rules or (), mesh)
        arrays = [row.array for row in tree_or_audit.rows]
        table = tree_or_audit.rules if rules is None else rules
        dialect = dialect_of(rules, None, tree_or_audit.dialect)
        return audit(arrays, table, mesh or tree_or_audit.mesh, dialect)
    except ShardvizError as error:
        raise ShardvizError(
            "The Explorer opens on a program, a mesh, arrays, an audit, a layout, a"
            " resolution, a report, a model, a function with its arguments, or a"
            f" saved state; got {shown(tree_or_audit)}."
        ) from error


def _opened(program: Program, **parts: Any) -> Session:
    """Opens a session on a program, and selects the array from `_first_shown`."""
    entry = "" if "own" in parts else DEVICE_PUT
    return Session(program, entry, selected=_first_shown(program.requests), **parts)


def _first_shown(requests: Sequence[Request]) -> int:
    """Returns the index of the largest split array, or of the largest if none is split.

    The first array is often a norm or a bias, whose layout is not interesting. If two
    arrays have the same size, the one with more bytes per device wins.
    """
    best, largest = 0, (False, -1, -1)
    for number, request in enumerate(requests):
        split, per_device = False, 0
        if request.layout is not None:
            split = request.layout.num_blocks > 1
            per_device = request.layout.bytes_per_device
        size = (split, request.array.bytes, per_device)
        if size > largest:
            best, largest = number, size
    return best


def _program_of(value: object) -> Program | None:
    """Creates a program that places the arrays of a layout, resolution or report."""
    if isinstance(value, SpecOnMesh):
        raise ShardvizError(
            f"A sharding has no shape; got {value}. Open the layout of an array with it:"
            " sv.explore(sv.layout((512, 2048), sharding))."
        )
    if isinstance(value, Layout) and value.spec is not None:
        if value.request is None:
            array = ArraySpec("array", value.shape, None, value.dtype, value.spec)
            return _placing([array], value.mesh)
        resolution, array, mesh = (
            value.request.resolution,
            value.request.array,
            value.mesh,
        )
        if resolution is None:
            return _placing([array], mesh)
        return _placing(
            [array], mesh, rules=resolution.rules, dialect=resolution.dialect
        )
    if isinstance(value, Resolution):
        if value.mesh is None or value.shape is None:
            raise ShardvizError(
                f"The Explorer shows an array on a mesh; got {shown(value)}. Give both"
                " to sv.resolve: mesh= and shape=."
            )
        array = ArraySpec("array", value.shape, value.names)
        parts = {"rules": value.rules, "dialect": value.dialect}
        return _placing([array], value.mesh, **parts)
    if isinstance(value, Report):
        arrays = []
        # Show the arguments of the compiled program, with their shardings.
        for name, layout in value.in_layouts.items():
            if layout.spec is not None:
                array = ArraySpec(name, layout.shape, None, layout.dtype, layout.spec)
                arrays.append(array)
        if value.mesh is None or not arrays:
            raise ShardvizError(
                f"{value} has no arguments with known shardings to show. Open its"
                " program: sv.explore(program)."
            )
        return _placing(arrays, value.mesh)
    return None


def _session_on_audit(audit: Audit) -> Session:
    """Opens a session on a model, and shows its largest split leaf as an array.

    The first leaf that fails or has a likely misspelt name becomes a second array.
    """
    if not audit.rows:
        raise ShardvizError("The audit has no arrays; the Explorer shows at least one.")
    leaves = Leaves.of_rows(audit.rows, audit.dialect.by_path)
    numbers = [_first_shown(audit.rows)]
    if isinstance(audit.rules, Rules):
        wrong = (n for n, row in enumerate(audit.rows) if looks_wrong(row, audit.mesh))
        numbers += [
            number for number in itertools.islice(wrong, 1) if number not in numbers
        ]
    program = _placing([leaves.arrays[number] for number in numbers], audit.mesh)
    if isinstance(audit.rules, Rules):
        program = program.replace(rules=audit.rules, dialect=audit.dialect)
    return Session(program, DEVICE_PUT, model=leaves, view="Model")
