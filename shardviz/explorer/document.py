"""Document: everything that an Explorer edits and shows, as one frozen value.

An edit creates a new Document, so undo just restores an old one. This module uses
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
    """Returns the arrays unchanged: the function of a program that only places arrays."""
    return arrays


@dataclass(frozen=True)
class ArrayFields:
    """The text fields of one array, and the last valid ArraySpec typed into them.

    Attributes:
        good: the last valid ArraySpec.
        text: field name -> the text in it.
        errors: field name -> error message, for fields with invalid text.
    """

    good: ArraySpec
    text: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(array: ArraySpec) -> ArrayFields:
        """Returns the fields filled from an array."""
        return ArrayFields(array, array_fields(array))

    def typed(self, name: str, text: str, mesh: MeshSpec) -> ArrayFields:
        """Returns the fields after the user typed `text` into the field `name`.

        An error is stored under the field that causes it. If each field is valid but
        they are inconsistent, such as 2 sizes and 3 names, the error is stored under
        `name`.
        """
        # Parse all fields again: a field that was invalid may be valid now.
        texts = {**self.text, name: text}
        if name == "shape" and ":" in text:
            try:
                shape, names = read_named_shape(text)
            except ShardvizError as error:
                return ArrayFields(self.good, texts, {**self.errors, name: str(error)})
            # Text such as `batch:8 embed:512` fills both the shape and the names field.
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
            # The page has no field for the memory kind, so keep it.
            good = ArraySpec(**values, memory_kind=self.good.memory_kind)
        except ShardvizError as error:
            return ArrayFields(self.good, texts, {name: str(error)})
        return ArrayFields(good, texts)


def _parse_spec(text: str, mesh: MeshSpec) -> Spec | None:
    # Convert a legacy ShardingSpec to the equivalent PartitionSpec on this mesh.
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
    """Formats a shape as a user types it."""
    return ", ".join(map(str, shape))


def array_fields(array: ArraySpec) -> dict[str, str]:
    """Returns field name -> text for an array."""
    return {
        "name": array.name,
        "shape": shape_text(array.shape),
        "dtype": array.dtype,
        "logical": format_names(array.logical),
        "spec": str(array.spec or ""),
    }


def program_fields(program: Program) -> dict[str, str]:
    """Returns the text of the mesh, hosts and rules fields."""
    return {
        "mesh": axes_text(program.mesh.shape),
        "hosts": str(len(program.mesh.processes)),
        "rules": "" if program.rules is None else program.rules.text(),
    }


@dataclass(frozen=True, eq=False)
class Document:
    """Everything that an Explorer edits and shows.

    Attributes:
        program: the last valid Program.
        entry: the program's name in the gallery, `DEVICE_PUT`, or `""` for a user's
            function.
        fields: the text fields of each array.
        text: the text of the fields `mesh`, `hosts` and `rules`.
        errors: name of the field or edit -> error message.
        missing_function: the name of the user's function that a saved state lacks.
        selected: the index of the array in the main picture.
        by: how devices are arranged: by `mesh`, `host` or `position`.
        dims: the selected array's dimensions shown as rows and columns; None for the
            default.
        at: the selected block of each other dimension; None shows all blocks.
        target: the target of Compile and Run; `""` lets shardviz choose.
        model: the leaves of the opened model; None if only arrays were opened.
        own: the program that the user opened, listed in the program menu; or None.
        view: the view that the page opens in; `""` for Layout.
        revision: identifies the program; each new program in the session increases it.
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
        """Returns the Document of a program, with its fields filled in."""
        fields = tuple(ArrayFields.of(array) for array in program.arrays)
        return Document(program, entry, fields, program_fields(program), **parts)

    @property
    def mesh(self) -> MeshSpec:
        """The last valid mesh."""
        return self.program.mesh

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The last valid arrays."""
        return self.program.arrays

    @property
    def rules(self) -> Rules:
        """The last valid rules."""
        return self.program.rules or Rules()

    def replace(self, **changes: Any) -> Document:
        """Returns a copy with some attributes changed."""
        return replace(self, **changes)

    def written(self, **text: str) -> Document:
        """Returns a copy with valid text in some fields, and without their errors."""
        errors = {name: e for name, e in self.errors.items() if name not in text}
        return replace(self, text={**self.text, **text}, errors=errors)

    def same_as(self, document: Document) -> bool:
        """Whether two documents are equal; programs are compared by identity."""
        # Programs are immutable, and every edit of a program creates a new one.
        if self.program is not document.program:
            return False
        return {**vars(self), "program": 0} == {**vars(document), "program": 0}
