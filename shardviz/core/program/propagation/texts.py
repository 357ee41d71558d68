"""What stands in a module, read once: the texts of locations, types and attributes.

MLIR keeps one object for all that are equal, and writing one out costs more than all else that is
done with it. So each is written out once a module, and copies of the module share what was read.
"""

from __future__ import annotations

from typing import Any

from shardviz.core.program.propagation import attributes, locations
from shardviz.core.program.propagation.locations import Frame, Place

Tensor = tuple[tuple[int, ...], str]


class Texts:
    """What was read of one module and its copies; lives no longer than they do."""

    def __init__(self) -> None:
        self._places: dict[Any, Place] = {}
        self._frames: dict[Any, tuple[Frame, ...] | None] = {}
        self._tensors: dict[Any, Tensor | None] = {}
        self._attributes: dict[Any, str] = {}

    def place(self, op: Any) -> Place:
        """Where an operation, or a value, comes from."""
        location = op.location
        key = location.attr
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = self._placed(location) or locations.place(str(location))
        return found

    def _placed(self, location: Any) -> Place | None:
        """The place that a location tells of, unless its parts do not say what they are."""
        if hasattr(location, "is_a_name"):
            # jaxlib 0.10.0 has one class for all kinds, and crashes where one is asked for what
            # another has; its text is read.
            return None
        name = getattr(location, "name_str", "")
        inner = location.child_loc if name else location
        file = getattr(inner, "filename", None)
        # A name around a file alone is that of the operation, not of a function.
        frames = (
            self._frames_of(inner) if file is None else locations.frame("", file, inner.start_line)
        )
        return None if frames is None else Place.told(name, frames)

    def _frames_of(self, location: Any) -> tuple[Frame, ...] | None:
        key = location.attr
        if key not in self._frames:
            self._frames[key] = self._read_frames(location)
        return self._frames[key]

    def _read_frames(self, location: Any) -> tuple[Frame, ...] | None:
        # jaxlib gives each kind of location a class; where one has none of these, its text is read.
        if (callee := getattr(location, "callee", None)) is not None:
            inner, outer = self._frames_of(callee), self._frames_of(location.caller)
            return None if inner is None or outer is None else inner + outer
        if (child := getattr(location, "child_loc", None)) is not None:
            file = getattr(child, "filename", None)
            if file is None:
                return self._frames_of(child)
            return locations.frame(location.name_str, file, child.start_line)
        file = getattr(location, "filename", None)
        return None if file is None else locations.frame("", file, location.start_line)

    def tensor(self, value: Any) -> Tensor | None:
        """Shape and dtype of a value, or None where it is no tensor."""
        key = value.type
        if key in self._tensors:
            return self._tensors[key]
        found = self._tensors[key] = attributes.tensor(str(key))
        return found

    def attribute(self, op: Any, name: str) -> str:
        """The text of an attribute; `""` where the operation has none of that name."""
        given = op.attributes.get(name)
        return "" if given is None else self.text(given)

    def text(self, attribute: Any) -> str:
        """The text of an attribute itself."""
        found = self._attributes.get(attribute)
        if found is None:
            found = self._attributes[attribute] = str(attribute)
        return found
