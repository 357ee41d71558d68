"""Document: everything that an Explorer edits and shows, as one frozen value.

An edit creates a new Document, so undo only has to keep the old ones. This module uses
neither widgets nor jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.axis_rules.panel.model_view import Leaves
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import (
    ArraySpec,
    format_names,
    read_named_shape,
    read_names,
    read_shape,
)
from shardviz.base.array_spec import dtype_name as read_dtype
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import JsonDict, PyTree
from shardviz.explorer.targets import axes_text
from shardviz.legacy.equivalents import on_mesh
from shardviz.legacy.typed import is_sharding_spec, parse_sharding_spec
from shardviz.programs.program import Program

ARRAY_FIELDS = ("name", "shape", "dtype", "logical", "spec")
MAX_ARRAYS = 200
DEVICE_PUT = "place the arrays"


def put_on_devices(*arrays: PyTree) -> tuple[PyTree, ...]:
    """The program that only places the arrays on their devices."""
    return arrays


@dataclass(frozen=True)
class ArrayFields:
    """The fields of one array: the text of each, and the last good ArraySpec.

    Attributes:
        good: the last valid ArraySpec.
        text: the text of each field.
        errors: a sentence for each field whose text is wrong.
    """

    good: ArraySpec
    text: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(array: ArraySpec) -> ArrayFields:
        """The fields of an array."""
        return ArrayFields(array, array_fields(array))

    def typed(self, name: str, text: str, mesh: MeshSpec) -> ArrayFields:
        """The fields after `text` was typed into one of them.

        Each error stays at its field. If every field is valid but they do not fit
        together (a shape of another rank than the names), the error is shown at the
        field that was typed last.
        """
        # All fields are parsed again: one that was refused may be valid now.
        texts = {**self.text, name: text}
        if name == "shape" and ":" in text:
            try:
                shape, names = read_named_shape(text)
            except ShardvizError as error:
                return ArrayFields(self.good, texts, {**self.errors, name: str(error)})
            # Shape and names go to separate fields, so that each can be edited.
            texts.update(shape=shape_text(shape), logical=format_names(names))
        values: JsonDict = {}
        errors: dict[str, str] = {}
        for key, parse in _PARSERS.items():
            try:
                values[key] = parse(texts[key], mesh)
            except ShardvizError as error:
                errors[key] = str(error)
        if errors:
            return ArrayFields(self.good, texts, errors)
        try:
            # The memory kind has no field, so it stays.
            good = ArraySpec(**values, memory_kind=self.good.memory_kind)
        except ShardvizError as error:
            return ArrayFields(self.good, texts, {name: str(error)})
        return ArrayFields(good, texts)


def _parse_spec(text: str, mesh: MeshSpec) -> Spec | None:
    # An older ShardingSpec becomes the PartitionSpec that it equals on this mesh.
    if is_sharding_spec(text):
        return on_mesh(parse_sharding_spec(text), mesh)
    if not text.strip():
        return None
    return Spec.parse(text)


_PARSERS: Mapping[str, Callable[[str, MeshSpec], object]] = {
    "name": lambda text, _: text.strip(),
    "shape": lambda text, _: read_shape(text),
    "dtype": lambda text, _: read_dtype(text),
    "logical": lambda text, _: read_names(text) if text.strip() else None,
    "spec": _parse_spec,
}


def shape_text(shape: Sequence[int]) -> str:
    """A shape as a user types it."""
    return ", ".join(map(str, shape))


def array_fields(array: ArraySpec) -> dict[str, str]:
    """The text of the fields of an array."""
    return {
        "name": array.name,
        "shape": shape_text(array.shape),
        "dtype": array.dtype,
        "logical": format_names(array.logical),
        "spec": str(array.spec or ""),
    }


def program_fields(program: Program) -> dict[str, str]:
    """The text of the mesh, hosts and rules fields."""
    return {
        "mesh": axes_text(program.mesh.shape),
        "hosts": str(len(program.mesh.processes)),
        "rules": "" if program.rules is None else program.rules.text(),
    }


@dataclass(frozen=True, eq=False)
class Document:
    """Everything that an Explorer edits and shows.

    Attributes:
        program: the last good Program.
        entry: the name of the program in the gallery, `DEVICE_PUT`, or `""` for a
            function of the user.
        fields: the fields of each array.
        text: the text of the fields `mesh`, `hosts` and `rules`.
        errors: a sentence for each wrong field, by its name.
        missing_function: the name of the function that a saved state left out.
        selected: the number of the array in the main picture.
        by: the arrangement of the devices: `mesh`, `host` or `position`.
        dims: the two dimensions of the selected array that are shown; None for the
            default.
        at: the chosen block of each dimension that is not shown; None for all of them.
        target: of Compile and Run; `""` lets shardviz choose.
        model: the leaves of the model that the Explorer opened on; None for the arrays
            alone.
        own: the program that the user opened, which the menu offers next to those of
            the gallery; or None.
        view: the view that the page opens in; `""` for Layout.
        revision: the number of the program in its session.
    """

    program: Program
    entry: str = ""
    fields: tuple[ArrayFields, ...] = ()
    text: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    missing_function: str = ""
    selected: int = 0
    by: str = "mesh"
    dims: tuple[int, ...] | None = None
    at: tuple[int, ...] | None = None
    target: str = ""
    model: Leaves | None = None
    own: Program | None = None
    view: str = ""
    revision: int = 0

    @staticmethod
    def of(program: Program, entry: str = "", **parts: Any) -> Document:
        """The Document of a program, its fields filled from it."""
        fields = tuple(ArrayFields.of(array) for array in program.arrays)
        return Document(program, entry, fields, program_fields(program), **parts)

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

    def replace(self, **changes: Any) -> Document:
        """A copy with some parts changed."""
        return replace(self, **changes)

    def written(self, **text: str) -> Document:
        """A copy with valid text in some fields, without their errors."""
        errors = {name: e for name, e in self.errors.items() if name not in text}
        return replace(self, text={**self.text, **text}, errors=errors)

    def same_as(self, document: Document) -> bool:
        """Whether both are equal, with programs compared by identity."""
        # An edit creates a new Program, so the same object is unchanged.
        if self.program is not document.program:
            return False
        return {**vars(self), "program": 0} == {**vars(document), "program": 0}
