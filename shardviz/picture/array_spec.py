"""Arrays that have no layout yet: their proportions, type, size and names."""

from __future__ import annotations

from shardviz.core.format import bytes_text
from shardviz.core.layout.array_spec import ArraySpec, format_names
from shardviz.picture.block_size import ASPECTS
from shardviz.picture.page import note, page, paragraphs, sentences, text_width, titled
from shardviz.picture.picture import Label, Picture
from shardviz.picture.tables import Rectangle, rectangle_tiles


def draw_array_spec(
    array: ArraySpec, title: str | None = None, problem: str = ""
) -> Picture:
    """An array without a layout: its proportions, type, size and logical names.

    Args:
        problem: a sentence on why it cannot be laid out.
    """
    aspect = 4.0
    if len(array.shape) > 1:
        high, wide = max(1, array.shape[0]), max(1, array.shape[1])
        aspect = min(max(wide / high, ASPECTS[0]), ASPECTS[1])
    width = min(300.0, 150.0 * aspect)
    about, *lines = _lines(array)
    width = max(width, text_width(about, 8.0) + 20)
    height = max(width / aspect, 40.0)
    notes: list[str | Label] = [*lines]
    if problem:
        notes.append(note(problem, "bad"))
        lines.append(problem)
    hint, text = f"{array.name} {about}", f"{array.name}\n{about}"
    tile = Rectangle(0, 0, width, height, 0, "\n".join([hint, *lines]), text)
    return page(
        rectangle_tiles([tile], radius=3.0),
        [],
        title=titled(title, f"array {array.name}"),
        notes=notes,
        size=(width, height),
        alt=sentences([f"Array {hint}", *lines]),
        facts={"kind": "arraySpec"},
    )


def array_spec_text(array: ArraySpec, width: int) -> str:
    """An array without a layout: its type, size, logical names and requested spec."""
    return paragraphs([f"{array.name} {' · '.join(_lines(array))}"], width)


def _lines(array: ArraySpec) -> list[str]:
    lines = [f"{array.short} · {bytes_text(array.bytes)}"]
    if array.logical is not None:
        lines.append(f"logical axes {format_names(array.logical)}")
    if array.spec is not None:
        lines.append(f"requested spec {array.spec}")
    return lines
