"""Session: the state of the Explorer. Every edit goes through `Session.edit`.

An edit parses the typed text and makes a new Program, whose arrays are resolved and laid out; then
the listeners are called. Text that cannot be parsed leaves a sentence at its field, and the last
good program stays. Every edit can be undone and done again. A session uses no widgets, and an edit
calls no jax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.core.errors import LayoutError, ShardvizError
from shardviz.core.format import error_text, shown, suggestion
from shardviz.core.layout.array_spec import ArraySpec, format_names, read_names, read_shape
from shardviz.core.layout.array_spec import dtype_name as read_dtype
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import MAX_RANK, Spec
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.program import Program
from shardviz.gallery import arrays as gallery_arrays
from shardviz.gallery import meshes as gallery_meshes
from shardviz.gallery import rules as gallery_rules
from shardviz.gallery.programs import known_program
from shardviz.legacy.equivalents import on_mesh
from shardviz.legacy.sharding_spec import is_sharding_spec, parse_sharding_spec
from shardviz.widgets.model_view import Leaves, audit_of
from shardviz.widgets.targets import checked_target, fitting_mesh, topology_of, why_no_placement

ARRAY_FIELDS = ("name", "shape", "dtype", "logical", "spec")
MOST_UNDONE = 2_000
AXIS_NAMES = ("data", "model", "expert", "stage", "seq")  # of axes that a button adds


@dataclass(frozen=True)
class ArrayFields:
    """The fields of one array: the text of each, and the last good ArraySpec.

    Attributes:
        good: the last ArraySpec that could be made.
        text: of each field, by its name.
        errors: the sentence at each wrong field, by its name.
    """

    good: ArraySpec
    text: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(array: ArraySpec) -> ArrayFields:
        """The fields of an array, without errors."""
        return ArrayFields(array, array_fields(array))

    def typed(self, name: str, text: str, mesh: MeshSpec) -> ArrayFields:
        """The fields after `text` was typed into one of them; each error stays at its own field.

        The spec may be typed as a PartitionSpec, or as a ShardingSpec over the devices of `mesh`.
        A field can be valid by itself and not fit the others (a shape of another rank than the
        names); then the error is at the field that was typed last.
        """
        typed = {**self.text, name: text}
        values, errors = {}, {}
        for key, reader in _READERS.items():
            try:
                values[key] = reader(typed[key], mesh)
            except ShardvizError as error:
                errors[key] = str(error)
        if errors:
            return ArrayFields(self.good, typed, errors)
        try:
            # The memory kind has no field, so it is kept.
            return ArrayFields(ArraySpec(**values, memory_kind=self.good.memory_kind), typed)
        except ShardvizError as error:
            return ArrayFields(self.good, typed, {name: str(error)})


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
    """The text of the fields of an array."""
    return {
        "name": array.name,
        "shape": _shape_text(array.shape),
        "dtype": array.dtype,
        "logical": format_names(array.logical),
        "spec": "" if array.spec is None else str(array.spec),
    }


MAX_ARRAYS = 200
_Step = tuple[str, dict[str, Any]]  # the name of an edit, and what was there on its other side
DEVICE_PUT = "place the arrays"


def put_on_devices(*arrays: Any) -> tuple[Any, ...]:
    """The program that only places the arrays on their devices."""
    return arrays


class Session:
    """The state behind one Explorer.

    Attributes:
        program: the last good Program; there always is one.
        entry: the gallery's name of the program, `DEVICE_PUT`, or `""` for the user's own function.
        own: the program that the user brought, offered in the menu beside the gallery; or None.
        fields: the fields of each array.
        text: of the fields `mesh`, `hosts` and `rules`.
        errors: the sentence at each wrong field, by its name.
        missing_function: the name of a function that a saved state could not hold; `""` for none.
        selected: the number of the array in the main picture.
        look: how devices and array are shown: `by`, `colour`, `dims`, `at`.
        target: of Compile and Run; `""` lets shardviz choose.
        model: the leaves of the model that the session opened on; None for the arrays alone.
        brief: whether the page begins with the selected array alone; the others unfold.
        revision: a number for every program of this session, that of an undone edit included.
    """

    def __init__(self, program: Program, entry: str = "", own: Program | None = None):
        self.program, self.entry, self.own = program, entry, own
        self.missing_function = ""
        self.fields = [ArrayFields.of(a) for a in program.arrays]
        self.text = program_fields(program)
        self.errors: dict[str, str] = {}
        self.selected = 0
        self.look: dict[str, Any] = {"by": "mesh", "colour": "block", "dims": None, "at": None}
        self.target = ""
        self.revision = 0
        self.model: Leaves | None = None
        self.brief = False
        self._listeners: list[Callable[[], None]] = []
        self._past: list[_Step] = []
        self._future: list[_Step] = []
        self._burst = ""  # the edits that are undone together with the last one
        self._last_revision = 0
        self._audit: tuple[Program, Leaves | None, Audit] | None = None

    @property
    def audit(self) -> Audit:
        """The whole model, or else the arrays, under the rules as they are."""
        known = self._audit
        if known is None or known[0] is not self.program or known[1] is not self.model:
            known = (self.program, self.model, audit_of(self.program, self.model))
            self._audit = known
        return known[2]

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

    def edit(self, name: str, value: Any, array: int | None = None, burst: str = "") -> None:
        """Makes one edit, as a field or button sends it. Never raises for what a person typed.

        Args:
            name: the field: `mesh`, `axis`, `hosts`, `types`, `target`, `fit`, `rules`, `dialect`,
                `program`, `select`, `by`, `dims`, `at`, `add`, `remove`, or one of ARRAY_FIELDS;
                or `double` or `halve`, whose value is a mesh axis.
            value: the text or choice.
            array: the index of the array, for its fields.
            burst: edits in a row with the same text here are undone together, as the characters
                that somebody types into one field; `""` for an edit of its own.
        """
        handler = _EDITS.get(name)
        before = self._snapshot()
        place = "mesh" if name in ("double", "halve", "axis") else name
        for known in tuple(self.errors):
            if known == place or known not in PLACED:  # what a button could not do is said once
                del self.errors[known]
        try:
            if name in ARRAY_FIELDS:
                self._edit_array(name, _text(value), self.selected if array is None else array)
            elif handler is not None:
                handler(self, value)
            else:
                raise ShardvizError(f"There is no field {shown(name)}.{suggestion(name, _EDITS)}")
        except ShardvizError as error:
            self.errors[place] = str(error)
        except Exception as error:  # noqa: BLE001  a fault of ours must not leave half an edit
            self._restore(before)
            said = error_text(error)
            self.errors[place] = f"The edit of {shown(name)} failed and changed nothing: {said}"
        if self.program is not before["program"]:
            self._last_revision += 1
            self.revision = self._last_revision
        self._remember(name, before, burst)
        self._tell()

    def _remember(self, name: str, before: dict[str, Any], burst: str) -> None:
        if _same(before, self._snapshot()):
            return
        self._future.clear()
        # A field is put in order when somebody leaves it, which is no edit of theirs.
        together = self._past and (name == "tidy" or (burst and burst == self._burst))
        if not together:
            self._past.append((name, before))
            del self._past[:-MOST_UNDONE]
            self._burst = burst

    @property
    def undoable(self) -> str:
        """The name of the edit that `undo` takes back; `""` where there is none."""
        return self._past[-1][0] if self._past else ""

    @property
    def redoable(self) -> str:
        """The name of the edit that `redo` makes again; `""` where there is none."""
        return self._future[-1][0] if self._future else ""

    def undo(self) -> bool:
        """Takes the last edit back, whatever it was; False where there is none."""
        return self._step(self._past, self._future)

    def redo(self) -> bool:
        """Makes the edit again that was undone last; False where there is none."""
        return self._step(self._future, self._past)

    def forget(self) -> None:
        """Begins anew: what was edited so far is how the session opens."""
        self._past.clear()
        self._future.clear()
        self.errors.clear()
        self.revision = self._last_revision = 0

    def _step(self, there: list[_Step], back: list[_Step]) -> bool:
        self._burst = ""
        if not there:
            return False
        name, known = there.pop()
        back.append((name, self._snapshot()))
        self._restore(known)
        self._tell()
        return True

    def _snapshot(self) -> dict[str, Any]:
        """What an edit can change; nothing in it ever changes itself."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return kept | {name: copy(getattr(self, name)) for name in _COPIED}

    def _restore(self, known: dict[str, Any]) -> None:
        vars(self).update(known)
        vars(self).update({name: copy(known[name]) for name in _COPIED})

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def open(self, program: Program, entry: str) -> None:
        """Opens another program, with its arrays, rules and mesh."""
        self.program, self.entry, self.missing_function = program, entry, ""
        self.model = None
        self.fields = [ArrayFields.of(a) for a in program.arrays]
        self.text = program_fields(program)
        self.errors.clear()
        self.selected = 0
        self._reset_view()

    def _write(self, **text: str) -> None:
        """Writes what is good into fields; what was wrong there is gone with it."""
        self.text.update(text)
        for name in text:
            self.errors.pop(name, None)

    def _reset_view(self) -> None:
        self.look = {**self.look, "dims": None, "at": None}

    def _edit_array(self, name: str, text: str, index: int) -> None:
        index = self._index(index)
        fields = self.fields[index].typed(name, text, self.mesh)
        if not fields.errors:
            others = [f.good.name for i, f in enumerate(self.fields) if i != index]
            if fields.good.name in others:
                message = f"Another array is called {shown(fields.good.name)}; names are unique."
                fields = ArrayFields(self.fields[index].good, fields.text, {name: message})
        self.fields[index] = fields
        self._free_names()
        self._rebuild()

    def _free_names(self) -> None:
        """Takes the names that were refused while another array had them, and has no more."""
        for i, fields in enumerate(self.fields):
            wanted = fields.text["name"].strip()
            taken = any(f.good.name == wanted for j, f in enumerate(self.fields) if j != i)
            if set(fields.errors) == {"name"} and not taken:
                self.fields[i] = fields.typed("name", fields.text["name"], self.mesh)

    def _rebuild(self) -> None:
        arrays = tuple(f.good for f in self.fields)
        if arrays == self.program.arrays:
            return
        self.program = self.program.replace(arrays=arrays)
        if self.model is not None:
            self.model = self.model.edited(arrays)

    def _index(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ShardvizError(f"An array is chosen by its number; got {shown(value)}.")
        if not 0 <= value < len(self.fields):
            raise ShardvizError(f"There is no array {value}; there are {len(self.fields)}.")
        return value

    def _edit_axis(self, value: Any) -> None:
        """Adds a mesh axis of size 2, with a name of its own."""
        shape = self.mesh.shape
        names = (*AXIS_NAMES, *(f"axis{i}" for i in range(len(shape) + 1)))
        self._edit_mesh(_axes_text({**shape, next(n for n in names if n not in shape): 2}))

    def _edit_mesh(self, value: Any) -> None:
        self.text["mesh"] = _text(value)
        old = self.mesh
        types = dict(zip(old.axis_names, old.axis_types, strict=True))
        shape = make_mesh(self.text["mesh"]).shape
        total = math.prod(shape.values())
        # As many hosts as before, or the most that still share the devices evenly.
        hosts = math.gcd(len(old.processes), total)
        ids = None if old.ids_are_positions or old.size != total else old.device_ids
        common = old.axis_types[0] if len(set(old.axis_types)) == 1 else "Auto"
        kinds = [types.get(name, common) for name in shape]
        self._set_mesh(make_mesh(shape, axis_types=kinds, device_ids=ids, processes=hosts))
        self._write(hosts=str(hosts))

    def _edit_double(self, value: Any) -> None:
        self._resize(value, lambda size: 2 * size)

    def _edit_halve(self, value: Any) -> None:
        self._resize(value, lambda size: max(1, size // 2))

    def _resize(self, value: Any, resized: Callable[[int], int]) -> None:
        shape, name = self.mesh.shape, _text(value)
        if name not in shape:
            raise ShardvizError(f"There is no mesh axis {shown(name)}.{suggestion(name, shape)}")
        self._edit_mesh(_axes_text({**shape, name: resized(shape[name])}))

    def _edit_hosts(self, value: Any) -> None:
        self.text["hosts"] = _text(value)
        hosts = _positive_int(self.text["hosts"], "The number of hosts")
        self._change_mesh(self.mesh.axis_types, hosts)

    def _edit_types(self, value: Any) -> None:
        mesh = self.mesh
        self._change_mesh(value, mesh.even_hosts or mesh.process_indices)

    def _change_mesh(self, types: Any, processes: Any) -> None:
        """Changes axis types or hosts; axes and devices stay."""
        old = self.mesh
        ids = None if old.ids_are_positions else old.device_ids
        self._set_mesh(make_mesh(old.shape, axis_types=types, device_ids=ids, processes=processes))

    def _set_mesh(self, mesh: MeshSpec) -> None:
        self.program = self.program.replace(mesh=mesh)
        for index, fields in enumerate(self.fields):
            # A ShardingSpec names devices, not axes: on another mesh it means something else.
            if is_sharding_spec(fields.text["spec"]):
                self.fields[index] = fields.typed("spec", fields.text["spec"], mesh)
        self._rebuild()

    def _edit_rules(self, value: Any) -> None:
        self.text["rules"] = _text(value)
        self.program = self.program.replace(rules=Rules.parse(self.text["rules"]))

    def _edit_tidy(self, value: Any) -> None:
        """Writes the table with one rule per line, once the user has left the field."""
        if "rules" not in self.errors:
            self.text["rules"] = self.rules.text()

    def _edit_move(self, value: Any) -> None:
        """Moves a rule: from its place in the table, to the place it has afterwards."""
        rules = list(self.rules)
        places = value if isinstance(value, (list, tuple)) else ()
        known = all(type(v) is int and 0 <= v < len(rules) for v in places)
        if len(places) != 2 or not known or "rules" in self.errors:
            raise ShardvizError(f"A rule is moved from one place to another; got {shown(value)}.")
        rules.insert(places[1], rules.pop(places[0]))
        self._take_rules(Rules(tuple(rules)))

    def _take_rules(self, rules: Rules) -> None:
        self.program = self.program.replace(rules=rules)
        self._write(rules=rules.text())

    def _edit_remedy(self, value: Any) -> None:
        """Takes a remedy: its rules, and the names and the shape of the arrays that it is for."""
        index, remedy = value
        changed = {self.fields[self._index(index)].good.name, *remedy.alike}
        new = {"logical": remedy.names, "shape": remedy.shape}
        for number, fields in enumerate(self.fields):
            array = fields.good
            if array.name in changed and array != (array := array.replace(**new)):
                self.fields[number] = ArrayFields.of(array)
        if self.model is not None:
            leaves = (leaf for leaf in self.model.arrays if leaf.name in changed)
            self.model = self.model.edited(leaf.replace(**new) for leaf in leaves)
        self._rebuild()
        self._take_rules(remedy.rules)

    def _edit_dialect(self, value: Any) -> None:
        self.program = self.program.replace(dialect=Dialect.of(value, paths=False))

    def _edit_target(self, value: Any) -> None:
        self.target = checked_target(_text(value))

    def _edit_fit(self, value: Any) -> None:
        """Resizes the mesh to the target, with as many hosts."""
        if (fitting := fitting_mesh(self.mesh, self.target, self.accepts)) is not None:
            self._set_mesh(fitting)
            text = program_fields(self.program)
            self._write(mesh=text["mesh"], hosts=text["hosts"])

    def accepts(self, mesh: MeshSpec) -> bool:
        """Whether another mesh will do: it divides the arrays, and the target can hold it."""
        described = topology_of(self.target) is not None
        if described and why_no_placement(mesh, self.target):
            return False
        return len(self.program.replace(mesh=mesh).problems) <= len(self.program.problems)

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
            self._set_mesh(gallery_meshes.get(name))
            self._write(**program_fields(self.program))
        elif kind == "rules":
            self._take_rules(gallery_rules.get(name))
        elif kind == "arrays":
            self.fields = [ArrayFields.of(a) for a in gallery_arrays.get(name)]
            self.model = None
            self.selected = 0
            self._reset_view()
            self._detach()
        else:
            raise ShardvizError(f"There is no preset {shown(value)}.")

    def _detach(self) -> None:
        """From here on the arrays are only placed: no function takes this number of arrays."""
        arrays = tuple(f.good for f in self.fields)
        self.entry, self.missing_function = DEVICE_PUT, ""
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
                f"Devices are arranged by 'mesh', 'host' or 'position'; got {shown(value)}."
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
        """Chooses a block of each dimension that is not shown; None shows all of them."""
        numbers = value if isinstance(value, (list, tuple)) else ()
        good = all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in numbers)
        if value is not None and not (numbers and good and len(numbers) <= MAX_RANK):
            raise ShardvizError(f"The block of a dimension is a number; got {shown(value)}.")
        self.look = {**self.look, "at": None if value is None else tuple(numbers)}

    def _edit_add(self, value: Any) -> None:
        if len(self.fields) >= MAX_ARRAYS:
            raise LayoutError(f"The Explorer holds at most {MAX_ARRAYS} arrays.")
        taken = {f.good.name for f in self.fields}
        name = next(n for n in (f"a{i}" for i in range(len(taken) + 1)) if n not in taken)
        last = self.fields[self.selected].good if self.fields else ArraySpec(name, (64, 64))
        self.fields.append(ArrayFields.of(replace(last, name=name)))
        self.selected = len(self.fields) - 1
        self._reset_view()
        self._detach()

    def _edit_open(self, value: Any) -> None:
        """Opens a leaf of the model among the arrays, or the array where there is no model."""
        if self.model is None:
            self._edit_select(value)
            return
        if type(value) is not int or not 0 <= value < len(self.model.arrays):
            raise ShardvizError(f"A leaf is opened by its number; got {shown(value)}.")
        leaf = self.model.arrays[value]
        names = [fields.good.name for fields in self.fields]
        if leaf.name not in names:
            if len(names) >= MAX_ARRAYS:
                raise LayoutError(f"The Explorer holds at most {MAX_ARRAYS} arrays.")
            names.append(leaf.name)
            self.fields.append(ArrayFields.of(leaf))
            self._detach()
        self.selected = names.index(leaf.name)
        self._reset_view()

    def _edit_remove(self, value: Any) -> None:
        index = self._index(value)
        if len(self.fields) == 1:
            raise LayoutError("The last array cannot be removed; edit it instead.")
        del self.fields[index]
        self.selected = min(self.selected, len(self.fields) - 1)
        self._reset_view()
        self._detach()


_KEPT = ("program", "model", "entry", "missing_function", "selected", "target", "revision")
_COPIED = ("fields", "text", "errors", "look")
# Edits with a field of their own, where their errors are shown; those of others are notes.
PLACED = ("mesh", "hosts", "target", "rules")
_EDITS: dict[str, Callable[[Session, Any], None]] = {
    name: getattr(Session, f"_edit_{name}")
    for name in (
        "mesh", "axis", "double", "halve", "hosts", "types", "target", "fit", "rules", "tidy",
        "move", "dialect", "program", "preset", "select", "by", "colour", "dims", "at", "add",
        "remove", "open", "remedy",
    )
}  # fmt: skip


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two snapshots hold the same, without a comparison of whole programs."""
    return one["program"] is other["program"] and one | {"program": other["program"]} == other


def program_fields(program: Program) -> dict[str, str]:
    """The text of the fields that belong to no array."""
    return {
        "mesh": _axes_text(program.mesh.shape),
        "hosts": str(len(program.mesh.processes)),
        "rules": "" if program.rules is None else program.rules.text(),
    }


def _axes_text(shape: Mapping[str, int]) -> str:
    return ", ".join(f"{format_names((name,))}={size}" for name, size in shape.items())


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ShardvizError(f"The field holds text; got {shown(value)}.")
    return value


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return ", ".join(map(str, shape or ()))


def _positive_int(text: str, what: str) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or len(text) > 12:
        raise ShardvizError(f"{what} must be a whole number of 1 or more; got {shown(text)}.")
    return int(text)
