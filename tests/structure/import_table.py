"""Which module may import what: features depend downward, roles inside a feature too."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tests.structure.imports import COMPUTED, PACKAGE, Import, module_name

#: From the bottom up: a module imports its own feature and those before it.
FEATURES = (
    "base",
    "draw",
    "hardware",
    "axis_rules",
    "programs",
    "plans",
    "compiled",
    "runs",
    "move",
    "advise",
    "gallery",
    "legacy",
    "wording",
    "pictures",
    "figures",
    "explorer",
    "public",
    "commands",
    "types",
    "exercises",
    "pytest_plugin",
    "__main__",
    "",
)
#: The folders of a feature, and which of its other modules they may import. Modules that
#: lie in the feature itself are its values.
ROLES = {
    "values": ("values",),
    "words": ("values", "words"),
    "draw": ("values", "words", "draw"),
    "backend": ("values", "backend"),
    "panel": ("values", "words", "draw", "backend", "panel"),
    "public": ("values", "words", "draw", "backend", "panel", "public"),
}
#: Features whose modules may import every role of those below.
ABOVE = FEATURES[FEATURES.index("gallery") :]
_JAX = ("jax", "jaxlib", "ml_dtypes")
_WIDGETS = ("ipywidgets", "anywidget", "traitlets", "IPython")


@dataclass(frozen=True)
class Module:
    """Where a module stands.

    Attributes:
        name: its dotted name below the package.
        feature: the feature it belongs to; `""` for the package's own front.
        role: a key of ROLES.
    """

    name: str
    feature: str
    role: str

    @property
    def rank(self) -> int:
        """The place of its feature. Panels of all features stand with the Explorer, and
        public functions right above it."""
        levels = {"panel": "explorer", "public": "public"}
        return FEATURES.index(levels.get(self.role, self.feature))


def module_at(name: str) -> Module:
    """The module of a dotted name below the package.

    Raises:
        LookupError: for a name in no feature.
    """
    parts = name.split(".")
    if parts[0] not in FEATURES:
        raise LookupError(f"{name!r} belongs to no feature")
    role = parts[1] if len(parts) > 1 and parts[1] in ROLES else "values"
    # The drawing toolkit has no roles except its public functions.
    if parts[0] == "draw" and role != "public":
        role = "values"
    return Module(name, parts[0], role)


#: Packages that a module may import beside numpy and the standard library, by the longest
#: name that it begins with; those in CALLS only inside a call.
FOREIGN = {
    "axis_rules.rule_tables": ("yaml",),
    "draw.paint": ("matplotlib",),
    "draw.public.treescope_leaves": ("treescope",),
    "explorer": _WIDGETS,
    "explorer.ipykernel_compat": ("ipykernel",),
    "legacy": _JAX,
    "exercises": ("jax",),
    "pytest_plugin": ("pytest",),
    "move.backend.checkpoints": ("tensorstore",),  # it comes with orbax
    "runs.backend.hosts.cluster": (*_JAX, "ipyparallel", "psutil", "traitlets"),
}
CALLS = {
    "axis_rules.rule_tables": ("yaml",),
    "draw.public.treescope_leaves": ("treescope",),
    "explorer.ipykernel_compat": ("ipykernel",),
    "exercises": ("jax",),
    "legacy": _JAX,
    "move.backend.checkpoints": ("tensorstore",),
    "runs.backend.hosts.cluster": ("ipyparallel", "psutil", "traitlets"),
}
#: Modules that import by a name that is made at run time, and why.
BY_NAME = (
    "base.backend",  # private names of jax, which may be gone
    "gallery",
    "exercises",  # the modules that hold the exercises
    "__main__",
    "",
)
# The one import of jax below a backend, made when somebody asks for jax's own object.
EXCEPTIONS = {("base/partition_spec.py", "_jax_sharding", "jax")}


def violations(imports: Iterable[Import]) -> list[str]:
    """One sentence for every import that its module may not make."""
    return [f"{i}: {why}." for i in imports if (why := _problem(i))]


def _problem(imported: Import) -> str:
    try:
        module = module_at(_below_package(module_name(imported.file)))
    except LookupError as error:
        return str(error)
    if imported.module == COMPUTED:
        by_name = any(_below(module.name, name) for name in BY_NAME if name) or not module.name
        return "" if by_name else f"{module.name} imports by name only"
    if (imported.file, imported.inside, imported.module) in EXCEPTIONS:
        return ""
    if imported.top == PACKAGE:
        return _problem_inside(module, imported)
    if imported.top in sys.stdlib_module_names or imported.top == "numpy":
        return ""
    allowed = _foreign(FOREIGN, module)
    if module.role == "backend" and not allowed:
        allowed = _JAX
    if imported.top not in allowed:
        listed = ", ".join(("numpy", *allowed))
        return f"beside the standard library {module.name} may import {listed}"
    if not imported.inside and imported.top in _foreign(CALLS, module):
        return "it may do so in a call only"
    return ""


def _problem_inside(module: Module, imported: Import) -> str:
    name = _below_package(imported.module)
    if name == "" and module.feature in ("exercises", "gallery", "legacy"):
        return "the package's front is above it"
    try:
        other = module_at(name)
    except LookupError as error:
        return str(error)
    if other.rank > module.rank and other.name != "":
        above = FEATURES[other.rank]
        return f"{above} is above {module.feature}"
    if not imported.inside and _is_heavy(other) and not _is_heavy(module):
        return "it may do so in a call only"
    if other.role == "backend" and module.rank == FEATURES.index("explorer"):
        return "" if imported.inside else "it may do so in a call only"
    if module.feature in ABOVE or other.feature == module.feature == "draw":
        return ""
    if other.feature == "draw" and module.role not in ("draw", "panel"):
        return f"{module.role} may not import the drawing toolkit"
    if other.feature != "draw" and other.role not in ROLES[module.role]:
        return f"{module.role} may not import {other.role}"
    return ""


def _is_heavy(module: Module) -> bool:
    """Whether importing the module imports jax, matplotlib or widgets."""
    if module.role == "public":
        return False
    above = module.feature in ("figures", "explorer") or module.name == "draw.paint"
    return above or module.role in ("backend", "panel")


def _foreign(table: dict[str, tuple[str, ...]], module: Module) -> tuple[str, ...]:
    names = [name for name in table if _below(module.name, name)]
    return table[max(names, key=len)] if names else ()


def _below_package(name: str) -> str:
    return name.removeprefix(PACKAGE).removeprefix(".")


def _below(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")
