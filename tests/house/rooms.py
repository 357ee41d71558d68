"""The import table of docs/architecture.md: which room may import what."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tests.house.imports import COMPUTED, PACKAGE, Import, imports_of, module_name


@dataclass(frozen=True)
class Room:
    """A part of the package and what its files may import.

    Attributes:
        prefix: the modules that belong to it: this one and those below.
        own: the modules of the package it may import, itself included, by prefix.
        foreign: the packages beside the standard library.
        dynamic: whether it may import a module whose name is made at run time.
    """

    prefix: str
    own: tuple[str, ...]
    foreign: tuple[str, ...] = ("numpy",)
    dynamic: bool = False


_ERRORS = ("core.errors", "core.display")
_LAYOUT = (*_ERRORS, "core.layout")
_PROGRAM = (*_LAYOUT, "core.program")
# What a picture or a plot may take from the program floor: values that hold no jax.
_VALUES = (
    "core.program.report",
    "core.program.program",
    "core.program.propagation.plan",
    "core.program.propagation.planned",
    "core.program.propagation.record",
    "core.program.propagation.explicit.answers",
    "core.program.propagation.story",
    "core.program.propagation.difference",
    "core.program.stages",
    "core.program.costs.roofline",
    "core.program.devices.target",
    "core.program.effects.values",
    "core.program.effects.events",
)
# Doors lead everywhere; `adopting` makes ours of what people bring to them.
_DOORS = (*_PROGRAM, "picture", "plots", "widgets", "gallery")
_WIDGETS = ("ipywidgets", "anywidget", "traitlets", "IPython")

# The first room whose prefix fits a module is its room.
ROOMS = (
    Room("core.errors", ()),
    Room("core.display", ()),
    Room("core.layout", _LAYOUT),
    Room(
        "core.program",
        _PROGRAM,
        ("numpy", "jax", "jaxlib", "ml_dtypes", "loky"),
    ),
    Room("core", ()),
    Room("picture", (*_LAYOUT, *_VALUES, "picture")),
    Room("gallery", (*_PROGRAM, "gallery"), ("numpy", "jax", "flax"), dynamic=True),
    Room("plots", (*_LAYOUT, *_VALUES, "picture", "plots"), ("numpy", "matplotlib")),
    Room("widgets.session", (*_PROGRAM, "gallery", "widgets")),
    Room("widgets", (*_PROGRAM, "gallery", "picture", "widgets"), ("numpy", *_WIDGETS)),
    Room("api", (*_DOORS, "api"), dynamic=True),
    Room("_version", ()),
    Room("", (*_LAYOUT, "api"), dynamic=True),
)

# The one import of jax below the program floor, made when somebody asks for jax's own object.
EXCEPTIONS = {("core/layout/spec.py", "_partition_spec", "jax.sharding")}
# Rooms that lie above whoever asks for them: imported in a call, never at module level.
LAZY = {("__init__.py", f"{PACKAGE}.api")}


def room_of(file: str) -> Room:
    """The room a file belongs to."""
    name = module_name(file).removeprefix(PACKAGE).removeprefix(".")
    return next(room for room in ROOMS if _below(name, room.prefix))


def violations(files: Mapping[str, ast.Module]) -> list[str]:
    """One sentence for every import that its room may not make."""
    return [f"{i}: {why}." for i in imports_of(files) if (why := _problem(i))]


def _problem(imported: Import) -> str:
    room = room_of(imported.file)
    place = room.prefix or PACKAGE
    if imported.module == COMPUTED:
        return "" if room.dynamic else f"{place} imports by name only"
    if (imported.file, imported.inside, imported.module) in EXCEPTIONS:
        return ""
    if imported.top == PACKAGE:
        return _problem_at_home(imported, room, place)
    if imported.top in sys.stdlib_module_names or imported.top in room.foreign:
        return ""
    allowed = ", ".join(room.foreign)
    return f"beside the standard library {place} may import {allowed}"


def _problem_at_home(imported: Import, room: Room, place: str) -> str:
    name = imported.module.removeprefix(PACKAGE).removeprefix(".")
    if is_lazy(imported) and not imported.inside:
        return "it may do so in a call only"
    if name == "_version" or any(_below(name, allowed) for allowed in room.own):
        return ""
    return f"{place} may import {', '.join(room.own) or 'nothing'} of {PACKAGE}"


def is_lazy(imported: Import) -> bool:
    """Whether a name lies above whoever imports it, so that only a call may."""
    return any(imported.file == file and _below(imported.module, room) for file, room in LAZY)


def _below(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")
