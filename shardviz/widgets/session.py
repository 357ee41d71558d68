"""Session: what the Explorer knows. Edits go in, the last good program comes out.

A session knows no widgets. Every edit takes the same walk: the typed text is read, a new Program
is made, its arrays are resolved and laid out, listeners are told. What cannot be read becomes a
sentence at its field, and the last good program stays. No jax is called on this walk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.core.errors import LayoutError, ShardvizError
from shardviz.core.format import shown, suggestion
from shardviz.core.layout.array_spec import ArraySpec, format_names, read_names, read_shape
from shardviz.core.layout.array_spec import dtype_name as read_dtype
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import MAX_RANK, Spec
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.program import Program
from shardviz.gallery import arrays as gallery_arrays
from shardviz.gallery import meshes as gallery_meshes
from shardviz.gallery import rules as gallery_rules
from shardviz.legacy.sharding_spec import is_sharding_spec, parse_sharding_spec
from shardviz.legacy.sharding_spec_mesh import on_mesh
from shardviz.widgets.device_placement import why_no_placement
from shardviz.widgets.menus import checked_target, fitting_mesh, known_program

ARRAY_FIELDS = ("name", "shape", "dtype", "logical", "spec")


@dataclass(frozen=True)
class ArrayFields:
    """One array as it is being typed: the text of every field, and the last good ArraySpec.

    Attributes:
        good: the last ArraySpec that could be made.
        texts: field name to what stands in the field.
        errors: field name to the sentence that is shown at it.
    """

    good: ArraySpec
    texts: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(array: ArraySpec) -> ArrayFields:
        """A draft without mistakes."""
        return ArrayFields(array, array_fields(array))

    def typed(self, name: str, text: str, mesh: MeshSpec) -> ArrayFields:
        """The draft after `text` was typed into a field; mistakes stay with the field they are in.

        The spec may be typed as a PartitionSpec, or as a ShardingSpec over the devices of `mesh`.
        A field can be right by itself and not fit the others (a shape of another rank than the
        names); then the sentence stands at the field that was typed last.
        """
        texts = {**self.texts, name: text}
        values, errors = {}, {}
        for key, reader in _READERS.items():
            try:
                values[key] = reader(texts[key], mesh)
            except ShardvizError as error:
                errors[key] = str(error)
        if errors:
            return ArrayFields(self.good, texts, errors)
        try:
            # The memory that holds it has no field, and stays.
            return ArrayFields(ArraySpec(**values, memory_kind=self.good.memory_kind), texts)
        except ShardvizError as error:
            return ArrayFields(self.good, texts, {name: str(error)})


def _read_spec(text: str, mesh: MeshSpec) -> Spec | None:
    if is_sharding_spec(text):
        return on_mesh(parse_sharding_spec(text), mesh)
    return Spec.parse(text) if text.strip() else None


_READERS: dict[str, Callable[[str, MeshSpec], Any]] = {
    "name": lambda text, _: text.strip(),
    "shape": lambda text, _: read_shape(text),
    "dtype": lambda text, _: read_dtype(text),
    "logical": lambda text, _: read_names(text) if text.strip() else None,
    "spec": _read_spec,
}


def array_fields(array: ArraySpec) -> dict[str, str]:
    """What stands in the fields of an array."""
    return {
        "name": array.name,
        "shape": ", ".join(map(str, array.shape)),
        "dtype": array.dtype,
        "logical": format_names(array.logical),
        "spec": "" if array.spec is None else str(array.spec),
    }


MAX_ARRAYS = 200
DEVICE_PUT = "place the arrays"


def put_on_devices(*arrays: Any) -> tuple[Any, ...]:
    """The program that only puts the arrays where they belong."""
    return arrays


class Session:
    """The state behind one Explorer.

    Attributes:
        program: the last good Program; there always is one.
        entry: the gallery's name of the program, `PLACE`, or `""` for a function of one's own.
        drafts: the arrays as they are being typed.
        texts: what stands in the fields `mesh`, `hosts`, `rules`.
        errors: field name to the sentence that is shown at it.
        lost: the function that a reopened state names and cannot hold; `""` for none.
        selected: which array is looked at.
        look: how devices and array are shown: `by`, `colour`, `dims`, `at`.
        target: what Compile and Run are for; `""` lets shardviz choose.
        revision: counts the edits that changed the program.
    """

    def __init__(self, program: Program, entry: str = "", own: Program | None = None):
        self.program, self.entry = program, entry
        self.lost = ""
        self.own = own  # the program the person brought, offered in the menu beside the gallery
        self.drafts = [ArrayFields.of(a) for a in program.arrays]
        self.texts = program_fields(program)
        self.errors: dict[str, str] = {}
        self.selected = 0
        self.look: dict[str, Any] = {"by": "mesh", "colour": "block", "dims": None, "at": None}
        self.target = ""
        self.revision = 0
        self._listeners: list[Callable[[], None]] = []

    @property
    def mesh(self) -> MeshSpec:
        """The last good mesh."""
        return self.program.mesh

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The last good arrays."""
        return self.program.arrays

    @property
    def rules(self) -> Rules:
        """The last good rules."""
        return self.program.rules or Rules()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every edit."""
        self._listeners.append(listener)

    def edit(self, name: str, value: Any, array: int | None = None) -> None:
        """One edit, as a field or button sends it. Never raises for what a person typed.

        Args:
            name: the field: `mesh`, `hosts`, `types`, `target`, `fit`, `rules`, `dialect`,
                `program`, `select`, `by`, `dims`, `at`, `add`, `remove`, or one of ARRAY_FIELDS.
            value: the text or choice.
            array: the index of the array, for its fields.
        """
        handler = _EDITS.get(name)
        before = self.program
        self.errors.pop(name, None)
        try:
            if name in ARRAY_FIELDS:
                self._edit_array(name, _text(value), self.selected if array is None else array)
            elif handler is not None:
                handler(self, value)
            else:
                raise ShardvizError(f"There is no field {shown(name)}.{suggestion(name, _EDITS)}")
        except ShardvizError as error:
            self.errors[name] = str(error)
        if self.program is not before:
            self.revision += 1
        for listener in self._listeners:
            listener()

    def open(self, program: Program, entry: str) -> None:
        """Takes another program, with its arrays, rules and mesh."""
        self.program, self.entry, self.lost = program, entry, ""
        self.drafts = [ArrayFields.of(a) for a in program.arrays]
        self.texts = program_fields(program)
        self.errors.clear()
        self.selected = 0
        self._reset_view()

    def _reset_view(self) -> None:
        self.look = {**self.look, "dims": None, "at": None}

    def _edit_array(self, name: str, text: str, index: int) -> None:
        index = self._index(index)
        draft = self.drafts[index].typed(name, text, self.mesh)
        if not draft.errors:
            others = [d.good.name for i, d in enumerate(self.drafts) if i != index]
            if draft.good.name in others:
                message = f"Another array is called {shown(draft.good.name)}; names are unique."
                draft = ArrayFields(self.drafts[index].good, draft.texts, {name: message})
        self.drafts[index] = draft
        self._rebuild()

    def _rebuild(self) -> None:
        arrays = tuple(d.good for d in self.drafts)
        if arrays != self.program.arrays:
            self.program = self.program.replace(arrays=arrays)

    def _index(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ShardvizError(f"An array is chosen by its number; got {shown(value)}.")
        if not 0 <= value < len(self.drafts):
            raise ShardvizError(f"There is no array {value}; there are {len(self.drafts)}.")
        return value

    def _edit_mesh(self, value: Any) -> None:
        self.texts["mesh"] = _text(value)
        self._remesh()

    def _edit_hosts(self, value: Any) -> None:
        self.texts["hosts"] = _text(value)
        hosts = _whole_number(self.texts["hosts"], "The number of hosts")
        old = self.mesh
        ids = None if old.ids_are_positions else old.device_ids
        self._take_mesh(make_mesh(old.shape, axis_types=old.axis_types, device_ids=ids,
                                  processes=hosts))  # fmt: skip

    def _edit_types(self, value: Any) -> None:
        old = self.mesh
        ids = None if old.ids_are_positions else old.device_ids
        self._take_mesh(
            make_mesh(old.shape, axis_types=value, device_ids=ids, processes=old.process_indices)
        )

    def _remesh(self) -> None:
        old = self.mesh
        types = dict(zip(old.axis_names, old.axis_types, strict=True))
        shape = make_mesh(self.texts["mesh"]).shape
        total = math.prod(shape.values())
        # As many hosts as before, or the most that still share the devices evenly.
        hosts = math.gcd(len(old.processes), total)
        ids = None if old.ids_are_positions or old.size != total else old.device_ids
        common = old.axis_types[0] if len(set(old.axis_types)) == 1 else "Auto"
        kinds = [types.get(name, common) for name in shape]
        self._take_mesh(make_mesh(shape, axis_types=kinds, device_ids=ids, processes=hosts))
        self.texts["hosts"] = str(hosts)

    def _take_mesh(self, mesh: MeshSpec) -> None:
        self.program = self.program.replace(mesh=mesh)
        for index, draft in enumerate(self.drafts):
            # A ShardingSpec speaks of devices, not of axes: on another mesh it is read anew.
            if is_sharding_spec(draft.texts["spec"]):
                self.drafts[index] = draft.typed("spec", draft.texts["spec"], mesh)
        self._rebuild()

    def _edit_rules(self, value: Any) -> None:
        self.texts["rules"] = _text(value)
        self.program = self.program.replace(rules=Rules.parse(self.texts["rules"]))

    def _edit_tidy(self, value: Any) -> None:
        """The table as shardviz writes it, a rule a line; once a person has left the field."""
        if "rules" not in self.errors:
            self.texts["rules"] = self.rules.text()

    def _edit_dialect(self, value: Any) -> None:
        self.program = self.program.replace(dialect=Dialect.of(value))

    def _edit_target(self, value: Any) -> None:
        self.target = checked_target(_text(value))

    def _edit_fit(self, value: Any) -> None:
        """A mesh as large as the target, on as many hosts."""
        if (fitting := fitting_mesh(self.mesh, self.target)) is not None:
            self._take_mesh(fitting)
            texts = program_fields(self.program)
            self.texts.update(mesh=texts["mesh"], hosts=texts["hosts"])
            self.errors.pop("mesh", None)

    def _edit_program(self, value: Any) -> None:
        name = _text(value)
        if name == DEVICE_PUT:
            self._detach()
        elif name == "" and self.own is not None:
            self.open(self.own, "")
        else:
            self.open(known_program(name, self.mesh), name)

    def _edit_preset(self, value: Any) -> None:
        kind, _, name = _text(value).partition(":")
        if kind == "mesh":
            self._take_mesh(gallery_meshes.get(name))
            self.texts.update(program_fields(self.program))
            self.errors.pop("mesh", None)
        elif kind == "rules":
            self.program = self.program.replace(rules=gallery_rules.get(name))
            self.texts["rules"] = self.rules.text()
            self.errors.pop("rules", None)
        elif kind == "arrays":
            self.drafts = [ArrayFields.of(a) for a in gallery_arrays.get(name)]
            self.selected = 0
            self._reset_view()
            self._detach()
        else:
            raise ShardvizError(f"There is no preset {shown(value)}.")

    def _detach(self) -> None:
        """The arrays stand for themselves from here on: no function takes them in this number."""
        arrays = tuple(d.good for d in self.drafts)
        self.entry, self.lost = DEVICE_PUT, ""
        self.program = Program(
            put_on_devices,
            arrays,
            self.mesh,
            self.program.rules,
            self.program.dialect,
            name=DEVICE_PUT,
        )

    def _edit_select(self, value: Any) -> None:
        self.selected = self._index(value)
        self._reset_view()

    def _edit_by(self, value: Any) -> None:
        if value not in ("mesh", "host", "position"):
            raise ShardvizError(
                f"Devices stand by 'mesh', 'host' or 'position'; got {shown(value)}."
            )
        if value == "position" and (why := why_no_placement(self.mesh, self.target)):
            raise ShardvizError(why)
        self.look = {**self.look, "by": value}

    def _edit_colour(self, value: Any) -> None:
        if value not in ("block", "host"):
            raise ShardvizError(f"Devices are coloured by 'block' or 'host'; got {shown(value)}.")
        self.look = {**self.look, "colour": value}

    def _edit_dims(self, value: Any) -> None:
        rank = self.arrays[self._index(self.selected)].rank
        dims = tuple(value) if isinstance(value, (list, tuple)) else ()
        if len(dims) != 2 or len(set(dims)) != 2 or not all(d in range(rank) for d in dims):
            raise ShardvizError(f"Two of the {rank} dimensions can be shown; got {shown(value)}.")
        self.look = {**self.look, "dims": dims, "at": None}

    def _edit_at(self, value: Any) -> None:
        """Which block of each dimension that is not shown; None shows all of them."""
        numbers = value if isinstance(value, (list, tuple)) else ()
        good = all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in numbers)
        if value is not None and not (numbers and good and len(numbers) <= MAX_RANK):
            raise ShardvizError(f"A step through the blocks is a number; got {shown(value)}.")
        self.look = {**self.look, "at": None if value is None else tuple(numbers)}

    def _edit_add(self, value: Any) -> None:
        if len(self.drafts) >= MAX_ARRAYS:
            raise LayoutError(f"The Explorer holds at most {MAX_ARRAYS} arrays.")
        taken = {d.good.name for d in self.drafts}
        name = next(n for n in (f"a{i}" for i in range(len(taken) + 1)) if n not in taken)
        last = self.drafts[self.selected].good if self.drafts else ArraySpec(name, (64, 64))
        self.drafts.append(ArrayFields.of(replace(last, name=name)))
        self.selected = len(self.drafts) - 1
        self._reset_view()
        self._detach()

    def _edit_remove(self, value: Any) -> None:
        index = self._index(value)
        if len(self.drafts) == 1:
            raise LayoutError("The last array stays; edit it instead.")
        del self.drafts[index]
        self.selected = min(self.selected, len(self.drafts) - 1)
        self._reset_view()
        self._detach()


_EDITS: dict[str, Callable[[Session, Any], None]] = {
    name: getattr(Session, f"_edit_{name}")
    for name in (
        "mesh", "hosts", "types", "target", "fit", "rules", "tidy", "dialect", "program", "preset",
        "select", "by", "colour", "dims", "at", "add", "remove",
    )
}  # fmt: skip


def program_fields(program: Program) -> dict[str, str]:
    """What stands in the fields that belong to no array."""
    return {
        "mesh": ", ".join(f"{format_names((n,))}={s}" for n, s in program.mesh.shape.items()),
        "hosts": str(len(program.mesh.processes)),
        "rules": "" if program.rules is None else program.rules.text(),
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ShardvizError(f"The field holds text; got {shown(value)}.")
    return value


def _whole_number(text: str, what: str) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or len(text) > 12:
        raise ShardvizError(f"{what} must be a whole number of 1 or more; got {shown(text)}.")
    return int(text)
