"""ArrayDraft: one array as it is being typed, field by field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.layout.array import ArraySpec, format_names, read_names, read_shape
from shardviz.core.layout.array import dtype_name as read_dtype
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.sharding_spec_fit import on_mesh
from shardviz.core.layout.sharding_spec_text import is_sharding_spec, parse_sharding_spec
from shardviz.core.layout.spec import Spec

ARRAY_FIELDS = ("name", "shape", "dtype", "logical", "spec")


@dataclass(frozen=True)
class ArrayDraft:
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
    def of(array: ArraySpec) -> ArrayDraft:
        """A draft without mistakes."""
        return ArrayDraft(array, array_texts(array))

    def typed(self, name: str, text: str, mesh: MeshSpec) -> ArrayDraft:
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
            return ArrayDraft(self.good, texts, errors)
        try:
            # The memory that holds it has no field, and stays.
            return ArrayDraft(ArraySpec(**values, memory_kind=self.good.memory_kind), texts)
        except ShardvizError as error:
            return ArrayDraft(self.good, texts, {name: str(error)})


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


def array_texts(array: ArraySpec) -> dict[str, str]:
    """What stands in the fields of an array."""
    return {
        "name": array.name,
        "shape": ", ".join(map(str, array.shape)),
        "dtype": array.dtype,
        "logical": format_names(array.logical),
        "spec": "" if array.spec is None else str(array.spec),
    }
