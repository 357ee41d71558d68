"""Which folder may import what: the table of docs/architecture.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tests.structure.imports import COMPUTED, PACKAGE, Import, module_name


@dataclass(frozen=True)
class Part:
    """A part of the package and what its files may import.

    Attributes:
        prefix: the modules that belong to it: this one and those below.
        own: the modules of the package it may import, itself included, by prefix.
        foreign: the packages beside the standard library.
        in_call: what of both it may import inside a call only, so that importing it is light.
        dynamic: whether it may import a module whose name is made at run time.
    """

    prefix: str
    own: tuple[str, ...]
    foreign: tuple[str, ...] = ("numpy",)
    in_call: tuple[str, ...] = ()
    dynamic: bool = False


_BASE = ("core.errors", "core.format", "core.files", "core.display", "core.source_lines")
_LAYOUT = (*_BASE, "core.layout")
_HARDWARE = (*_LAYOUT, "core.hardware")
_PROGRAM = (*_HARDWARE, "core.program")
_XLA = (*_PROGRAM, "core.xla")
_CORE = (*_XLA, "core.backend")
_WORDING = (*_XLA, "core.wording")
_WIDGETS = ("ipywidgets", "anywidget", "traitlets", "IPython")
_SHOWN = ("picture", "plots", "figures", "widgets")
_JAX = ("jax", "jaxlib")
# The subfolders of core.backend: its own files are below them and import none of them.
_BACKEND = (
    "core.backend.tracing",
    "core.backend.shardy",
    "core.backend.run.worker",
    "core.backend.run.hosts",
    "core.backend.run",
    "core.backend.candidates",
    "core.backend.call_cache",
)
_LAZY_BACKEND = ("core.backend",)

# The first part whose prefix fits a module is its part.
PARTS = (
    Part("core.errors", (), dynamic=True),  # it imports what may be missing, to say so
    Part("core.format", ("core.format",)),
    Part("core.files", ("core.errors", "core.format", "core.files")),
    Part("core.display", ()),
    Part("core.source_lines", ()),
    Part("core.layout.rules", _LAYOUT),
    Part("core.layout.trees", _LAYOUT),
    Part("core.layout.transfer", _LAYOUT),
    Part("core.layout", _LAYOUT),
    Part("core.hardware", _HARDWARE),
    Part("core.program", _PROGRAM),
    Part("core.xla", _XLA),
    Part("core.wording", _WORDING, dynamic=True),
    Part(
        "core.backend.run.hosts.cluster",
        _CORE,
        ("numpy", "ipyparallel", "psutil", "traitlets"),
        in_call=("ipyparallel", "psutil", "traitlets"),
    ),
    *(Part(name, _CORE, ("numpy", *_JAX, "ml_dtypes")) for name in _BACKEND),
    # It looks for private names of jax, which may be gone.
    Part("core.backend.jax_compat", ("core.backend.jax_compat",), _JAX, dynamic=True),
    Part(
        "core.backend.checkpoints",
        _LAYOUT,
        ("numpy", "tensorstore"),
        ("tensorstore",),  # it comes with orbax
    ),
    Part(
        "core.backend",
        (*_XLA, "core.backend"),
        ("numpy", *_JAX, "ml_dtypes"),
    ),
    Part("core", ()),
    Part(
        "legacy",
        (*_CORE, "core.wording", "picture", "legacy"),
        ("numpy", *_JAX),
        (*_LAZY_BACKEND, *_JAX),
    ),
    Part("picture", (*_WORDING, "picture")),
    Part("gallery.functions", (*_PROGRAM, "core.wording", "gallery"), ("numpy", "jax", "flax")),
    Part("gallery", (*_PROGRAM, "core.wording", "gallery"), dynamic=True),
    Part("plots", (*_WORDING, "picture", "plots"), ("numpy", "matplotlib")),
    Part("figures", (*_WORDING, "picture", "plots")),
    Part("widgets.session", (*_PROGRAM, "core.wording", "legacy", "gallery", "widgets")),
    Part("widgets.ipykernel_compat", (), ("ipykernel",), in_call=("ipykernel",)),
    Part(
        "widgets",
        (*_CORE, "core.wording", "legacy", "gallery", "picture", "widgets"),
        ("numpy", *_WIDGETS),
        _LAZY_BACKEND,
    ),
    Part(
        "api",
        (
            *_CORE,
            "core.wording",
            "legacy",
            "picture",
            "plots",
            "figures",
            "widgets",
            "gallery",
            "api",
        ),
        in_call=(*_LAZY_BACKEND, "plots", "figures", "widgets"),
        dynamic=True,
    ),
    Part(
        "exercises",
        (*_CORE, "core.wording", "widgets", "gallery", "api", "exercises"),
        ("numpy", "jax"),
        (*_LAZY_BACKEND, "widgets", "jax"),
    ),
    Part(
        "pytest_plugin",
        ("core.errors", "core.format", "core.program", "api"),
        ("pytest",),
        # A test run that does not use the fixture imports nothing more.
        ("core", "api"),
    ),
    Part(
        "__main__",
        (*_PROGRAM, "core.xla", "core.wording", "api"),
        dynamic=True,
    ),
    Part("types", (*_PROGRAM, "core", "picture")),
    Part("_version", ()),
    Part(
        "",
        (*_LAYOUT, "core", "picture", "api"),
        in_call=("api", "core.backend", "core.wording"),
        dynamic=True,
    ),
)

# The one import of jax below core.backend, made when somebody asks for jax's own object.
EXCEPTIONS = {("core/layout/partition_spec.py", "_partition_spec", "jax.sharding")}


def part_of(file: str) -> Part:
    """The part a file belongs to."""
    name = module_name(file).removeprefix(PACKAGE).removeprefix(".")
    return next(part for part in PARTS if _below(name, part.prefix))


def violations(imports: Iterable[Import]) -> list[str]:
    """One sentence for every import that its part may not make."""
    return [f"{i}: {why}." for i in imports if (why := _problem(i))]


def _problem(imported: Import) -> str:
    part = part_of(imported.file)
    name = part.prefix or PACKAGE
    if imported.module == COMPUTED:
        return "" if part.dynamic else f"{name} imports by name only"
    if (imported.file, imported.inside, imported.module) in EXCEPTIONS:
        return ""
    own = imported.top == PACKAGE
    module = imported.module.removeprefix(PACKAGE).removeprefix(".") if own else imported.module
    if not imported.inside and any(_below(module, lazy) for lazy in part.in_call):
        return "it may do so in a call only"
    if own:
        return _problem_inside(imported.file, module, part, name)
    if imported.top in sys.stdlib_module_names or imported.top in part.foreign:
        return ""
    return f"beside the standard library {name} may import {', '.join(part.foreign) or 'nothing'}"


def _problem_inside(file: str, module: str, part: Part, name: str) -> str:
    above = part.prefix == "core.backend" and any(_below(module, b) for b in _BACKEND)
    allowed = any(_below(module, own) for own in part.own)
    if module == "_version" or (allowed and not above):
        return ""
    return f"{name} may import {', '.join(part.own) or 'nothing'} of {PACKAGE}"


def _below(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")
