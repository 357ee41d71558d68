"""The table of all edits that the page can make, by name.

An edit returns a new Document or raises a `ShardvizError`. `apply` calls an edit and
stores its error in the Document, under the name of the edit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.remedies import Remedy
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError, ShardvizError
from shardviz.base.format import plural, shown
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import IntArray
from shardviz.explorer.document import (
    ARRAY_FIELDS,
    DEVICE_PUT,
    MAX_ARRAYS,
    ArrayFields,
    Document,
    program_fields,
    put_on_devices,
)
from shardviz.explorer.targets import (
    axes_text,
    checked_target,
    fitting_mesh,
    why_no_placement,
)
from shardviz.gallery import arrays as gallery_arrays
from shardviz.gallery import meshes as gallery_meshes
from shardviz.gallery import rules as gallery_rules
from shardviz.gallery import scenarios as gallery_scenarios
from shardviz.gallery.programs import known_program
from shardviz.legacy.typed import is_sharding_spec
from shardviz.programs.program import Program

# Attributes of a Document that are kept when another program is opened.
_KEPT = ("target", "own", "revision", "by")
# Names for new mesh axes, in order of preference.
AXIS_NAMES = ("data", "model", "expert", "stage", "seq")


def apply(
    document: Document, name: str, value: Any, array: int | None = None
) -> Document:
    """Returns the Document after one edit; an invalid edit only stores its error."""
    placed_errors = {}
    for field, error in document.errors.items():
        # Fields keep their errors; errors of buttons are shown only once.
        if field != name and field in PLACED:
            placed_errors[field] = error
    before = document.replace(errors=placed_errors)
    # A field keeps its text even if that is invalid.
    if name in ("mesh", "hosts", "rules"):
        before = before.replace(text={**before.text, name: value})
    make = EDITS[name]
    try:
        if name not in OF_ARRAYS:
            return make(before, value)
        if array is None:
            array = before.selected
        return make(before, value, _array_number(before, array))
    except ShardvizError as error:
        return before.replace(errors={**placed_errors, name: str(error)})


def _array_number(document: Document, number: int) -> int:
    if not 0 <= number < len(document.fields):
        raise ShardvizError(
            f"There is no array {number}; there are {len(document.fields)}."
        )
    return number


# --- arrays ---------------------------------------------------------------------------


def _type_field(name: str, document: Document, text: str, index: int) -> Document:
    """Sets the text of one field of an array."""
    fields = list(document.fields)
    typed = fields[index].typed(name, text, document.mesh)
    other_names = {f.good.name for i, f in enumerate(fields) if i != index}
    if not typed.errors and typed.good.name in other_names:
        error = ShardvizError(
            f"Another array is called {shown(typed.good.name)}; names are unique."
        )
        typed = ArrayFields(fields[index].good, typed.text, {"name": str(error)})
    fields[index] = typed
    return _with_fields(document, fields)


def _split(document: Document, value: tuple[int, str, bool], index: int) -> Document:
    """Adds a mesh axis to a dimension of an array's spec, or removes it.

    An axis splits at most one dimension, so adding it removes it from all others. If
    the new spec is equivalent to the spec from the rules, the typed spec is cleared.
    """
    dim, axis, on = value
    request = document.program.requests[index]
    rank = request.array.rank
    if not 0 <= dim < rank:
        raise ShardvizError(
            f"{request.array.name} has {plural(rank, 'dimension')}, counted from 0; got"
            f" dimension {dim}."
        )
    if on and axis not in document.mesh.shape:
        raise ShardvizError(f"The mesh has no axis {shown(axis)} any more.")
    before = (request.spec or Spec()).of_rank(rank)
    dims = []
    for number, axes in enumerate(before.dims):
        if on or number == dim:
            axes = tuple(name for name in axes if name != axis)
        dims.append((*axes, axis) if on and number == dim else axes)
    after = replace(
        before, dims=tuple(dims), unconstrained=before.unconstrained - {dim}
    )
    by_rules = None
    if request.resolution is not None:
        by_rules = request.resolution.spec
    follows_rules = by_rules is not None and after.equivalent(by_rules)
    return _type_field("spec", document, "" if follows_rules else str(after), index)


def _with_fields(document: Document, fields: Sequence[ArrayFields]) -> Document:
    """Returns the Document with changed fields, and updates its arrays to match."""
    document = document.replace(fields=tuple(fields))
    arrays = tuple(f.good for f in fields)
    if arrays == document.arrays:
        return document
    if document.model is not None:
        document = document.replace(model=document.model.edited(arrays))
    return document.replace(program=document.program.replace(arrays=arrays))


def _only_placed(document: Document) -> Document:
    """Replaces the program with one that only places the arrays on devices.

    Needed after adding or removing arrays, because the function takes a fixed number.
    """
    old = document.program
    arrays = tuple(f.good for f in document.fields)
    program = Program(
        put_on_devices, arrays, old.mesh, old.rules, old.dialect, name=DEVICE_PUT
    )
    return document.replace(program=program, entry=DEVICE_PUT, missing_function="")


def _selected(document: Document, number: int) -> Document:
    # The old `dims` and `at` belong to the previously selected array.
    return document.replace(selected=number, dims=None, at=None)


def _select(document: Document, value: int) -> Document:
    return _selected(document, _array_number(document, value))


def _add(document: Document, value: object) -> Document:
    """Adds a copy of the selected array with a new name."""
    names = {f.good.name for f in document.fields}
    number = next(n for n in itertools.count() if f"a{n}" not in names)
    array = ArraySpec(f"a{number}", (64, 64))
    if document.fields:
        array = document.fields[document.selected].good.replace(name=array.name)
    return _with_array(document, array)


def _with_array(document: Document, array: ArraySpec) -> Document:
    """Adds an array and selects it."""
    if len(document.fields) >= MAX_ARRAYS:
        raise LayoutError(f"The Explorer holds at most {MAX_ARRAYS} arrays.")
    fields = (*document.fields, ArrayFields.of(array))
    document = _only_placed(document.replace(fields=fields))
    return _selected(document, len(fields) - 1)


def _open(document: Document, value: int) -> Document:
    """Adds a leaf of the model to the arrays; without a model, selects an array."""
    if document.model is None:
        return _select(document, value)
    leaf = document.model.arrays[value]
    names = [f.good.name for f in document.fields]
    if leaf.name in names:
        return _selected(document, names.index(leaf.name))
    return _with_array(document, leaf)


def _remove(document: Document, value: int) -> Document:
    index = _array_number(document, value)
    if len(document.fields) == 1:
        raise LayoutError("The last array cannot be removed; edit it instead.")
    fields = (*document.fields[:index], *document.fields[index + 1 :])
    document = _only_placed(document.replace(fields=fields))
    return _selected(document, min(document.selected, len(fields) - 1))


# --- the mesh -------------------------------------------------------------------------


def _with_mesh(document: Document, mesh: MeshSpec) -> Document:
    fields = list(document.fields)
    for index, array_fields in enumerate(fields):
        # A legacy ShardingSpec depends on the mesh, so parse it again.
        if is_sharding_spec(array_fields.text["spec"]):
            fields[index] = array_fields.typed("spec", array_fields.text["spec"], mesh)
    document = document.replace(program=document.program.replace(mesh=mesh))
    text = program_fields(document.program)
    document = document.written(mesh=text["mesh"], hosts=text["hosts"])
    return _with_fields(document, fields)


def _changed_mesh(
    document: Document,
    shape: Mapping[str, int],
    processes: int | IntArray,
    types: str | Sequence[str] | None = None,
) -> Document:
    """Returns the Document with new mesh axes, hosts or axis types."""
    old, ids = document.mesh, None
    if old.size == math.prod(shape.values()) and not old.ids_are_positions:
        ids = old.device_ids
    if types is None:
        old_types = dict(zip(old.axis_names, old.axis_types, strict=True))
        # A new axis gets the type that all old axes share, or Auto.
        common = old.axis_types[0] if len(set(old.axis_types)) == 1 else "Auto"
        types = [old_types.get(name, common) for name in shape]
    mesh = make_mesh(shape, axis_types=types, device_ids=ids, processes=processes)
    return _with_mesh(document, mesh.replace(device_kind=old.device_kind))


def _resize(document: Document, shape: Mapping[str, int]) -> Document:
    # Keep the number of hosts, or reduce it so that it divides the number of devices.
    hosts = math.gcd(len(document.mesh.processes), math.prod(shape.values()))
    return _changed_mesh(document, shape, hosts)


def _type_mesh(document: Document, text: str) -> Document:
    return _resize(document, make_mesh(text).shape).written(mesh=text)


def _write_axes(document: Document, sizes: Mapping[str, int | str]) -> Document:
    """Sets the axes, as if the user had typed them into the mesh field."""
    return apply(document, "mesh", axes_text(sizes))


def _add_axis(document: Document, value: object) -> Document:
    """Adds a mesh axis of size 2 with a new name."""
    shape = document.mesh.shape
    names = [*AXIS_NAMES, *(f"axis{i}" for i in range(len(shape) + 1))]
    name = next(name for name in names if name not in shape)
    return _resize(document, {**shape, name: 2})


def _size_axis(document: Document, value: tuple[str, str]) -> Document:
    name, text = value
    return _write_axes(document, {**_axes_with(document, name), name: text})


def _remove_axis(document: Document, name: str) -> Document:
    sizes = _axes_with(document, name)
    del sizes[name]
    return _write_axes(document, sizes)


def _move_axis(document: Document, value: tuple[str, int]) -> Document:
    """Moves an axis to another position in the mesh's axis order."""
    name, place = value
    sizes = _axes_with(document, name)
    order = [axis_name for axis_name in sizes if axis_name != name]
    order.insert(max(0, place), name)
    return _write_axes(document, {axis: sizes[axis] for axis in order})


def _axes_with(document: Document, name: str) -> dict[str, int | str]:
    """Returns axis name -> size for all mesh axes.

    Raises:
        ShardvizError: if the mesh has no axis of this name.
    """
    sizes: dict[str, int | str] = {**document.mesh.shape}
    if name not in sizes:
        raise ShardvizError(f"The mesh has no axis {shown(name)} any more.")
    return sizes


def _type_hosts(document: Document, text: str) -> Document:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        raise ShardvizError(
            f"The number of hosts must be a whole number of 1 or more; got {shown(text)}."
        )
    changed = _changed_mesh(document, document.mesh.shape, int(digits))
    return changed.written(hosts=text)


def _choose_types(document: Document, value: str) -> Document:
    mesh = document.mesh
    processes = mesh.even_hosts or mesh.process_indices
    return _changed_mesh(document, mesh.shape, processes, value)


def _fit(document: Document, value: object) -> Document:
    """Resizes the mesh to the devices and hosts of the target."""
    mesh = fitting_mesh(document.mesh, document.target)
    if mesh is None:
        return document
    return _changed_mesh(document, mesh.shape, len(mesh.processes))


def _choose_target(document: Document, text: str) -> Document:
    return document.replace(target=checked_target(text))


# --- rules ----------------------------------------------------------------------------


def _type_rules(document: Document, text: str) -> Document:
    program = document.program.replace(rules=Rules.parse(text))
    return document.replace(program=program)


def _with_rules(document: Document, rules: Rules) -> Document:
    """Returns the Document with new rules, and one rule per line in the rules field."""
    program = document.program.replace(rules=rules)
    return document.replace(program=program).written(rules=rules.text())


def _tidy(document: Document, value: object) -> Document:
    """Formats the rules field as one rule per line, after the user leaves it."""
    if "rules" in document.errors:
        return document
    return document.written(rules=document.rules.text())


def _move(document: Document, value: Sequence[int]) -> Document:
    """Moves a rule to another position in the table."""
    rules, (old, new) = list(document.rules), value
    # While the text has an error, the page shows no rows to move.
    if max(value) >= len(rules) or "rules" in document.errors:
        raise ShardvizError(f"The table has no rule {max(value)} to move.")
    rules.insert(new, rules.pop(old))
    return _with_rules(document, Rules(tuple(rules)))


def _choose_dialect(document: Document, value: str) -> Document:
    dialect = Dialect.of(value, paths=False)
    return document.replace(program=document.program.replace(dialect=dialect))


def _take_remedy(document: Document, value: tuple[int, Remedy]) -> Document:
    """Applies a remedy: its rules, and its logical names for the arrays it changes."""
    index, remedy = value
    assert isinstance(remedy.rules, Rules)  # sessions have no path rules
    changed = {document.fields[_array_number(document, index)].good.name}
    changed.update(remedy.alike)
    fields = list(document.fields)
    for number, array_fields in enumerate(fields):
        if array_fields.good.name in changed:
            array = array_fields.good.replace(logical=remedy.names)
            if array != array_fields.good:
                fields[number] = ArrayFields.of(array)
    if document.model is not None:
        arrays = [a for a in document.model.arrays if a.name in changed]
        leaves = [array.replace(logical=remedy.names) for array in arrays]
        document = document.replace(model=document.model.edited(leaves))
    return _with_rules(_with_fields(document, fields), remedy.rules)


# --- programs and presets -------------------------------------------------------------


def _opened(document: Document, program: Program, entry: str) -> Document:
    """Returns the Document of another program, and keeps the attributes in `_KEPT`."""
    parts = {name: getattr(document, name) for name in _KEPT}
    return Document.of(program, entry, **parts)


def _take_change(document: Document, changed: Program) -> Document:
    """Applies a proposed change by opening its program; keeps the selected array."""
    model = document.model and document.model.edited(changed.arrays)
    opened = _opened(document, changed, document.entry)
    return opened.replace(model=model, selected=document.selected)


def _choose_program(document: Document, value: str) -> Document:
    if value == DEVICE_PUT:
        return _only_placed(document)
    if value == "" and document.own is not None:
        return _opened(document, document.own, "")
    return _opened(document, known_program(value, document.mesh), value)


def _go_back(document: Document, value: Document) -> Document:
    """Restores an earlier Document of the session."""
    return value


def _choose_preset(document: Document, value: str) -> Document:
    kind, _, name = value.partition(":")
    if kind == "scenario":
        scenario = gallery_scenarios.get(name)
        program = Program(
            put_on_devices,
            scenario.arrays,
            scenario.mesh,
            scenario.rules,
            name=DEVICE_PUT,
        )
        opened = _opened(document, program, DEVICE_PUT)
        return opened.replace(target=checked_target(scenario.target))
    if kind == "mesh":
        return _with_mesh(document, gallery_meshes.get(name))
    if kind == "rules":
        return _with_rules(document, gallery_rules.get(name))
    if kind == "arrays":
        fields = tuple(ArrayFields.of(array) for array in gallery_arrays.get(name))
        document = document.replace(fields=fields, model=None)
        return _selected(_only_placed(document), 0)
    raise ShardvizError(f"There is no preset {shown(value)}.")


# --- how it is shown ------------------------------------------------------------------


def _arrange(document: Document, value: str) -> Document:
    why_not = why_no_placement(document.mesh, document.target)
    if value == "position" and why_not:
        raise ShardvizError(why_not)
    return document.replace(by=value)


def _show_dims(document: Document, value: Sequence[int]) -> Document:
    index = _array_number(document, document.selected)
    rank = document.arrays[index].rank
    if len(value) != 2 or value[0] == value[1] or max(value) >= rank:
        raise ShardvizError(
            f"Two of the {rank} dimensions can be shown; got {shown(value)}."
        )
    return document.replace(dims=tuple(value), at=None)


def _show_blocks(document: Document, value: Sequence[int] | None) -> Document:
    """Chooses a block of each dimension that is not shown; None shows all blocks."""
    return document.replace(at=value and tuple(value))


#: Name of the edit -> function of the Document and the value that the page sends. Edits
#: in `OF_ARRAYS` also take the index of the array.
EDITS: Mapping[str, Callable[..., Document]] = {
    **{name: partial(_type_field, name) for name in ARRAY_FIELDS},
    "split": _split,
    "add": _add,
    "remove": _remove,
    "select": _select,
    "open": _open,
    "mesh": _type_mesh,
    "axis": _add_axis,
    "size": _size_axis,
    "remove_axis": _remove_axis,
    "move_axis": _move_axis,
    "hosts": _type_hosts,
    "types": _choose_types,
    "target": _choose_target,
    "fit": _fit,
    "rules": _type_rules,
    "tidy": _tidy,
    "move": _move,
    "dialect": _choose_dialect,
    "remedy": _take_remedy,
    "change": _take_change,
    "program": _choose_program,
    "preset": _choose_preset,
    "back": _go_back,
    "by": _arrange,
    "dims": _show_dims,
    "at": _show_blocks,
}
#: Edits of one array, which the page gives by its index.
OF_ARRAYS = (*ARRAY_FIELDS, "split")
#: Fields that show their own errors; the page shows other errors as notes.
PLACED = ("mesh", "hosts", "target", "rules")
