"""MeshContext: which mesh is in force at one point of a program, and which API sees which.

JAX has three slots per thread. `with mesh:` pushes on the legacy stack. `jax.set_mesh` sets a mesh
of devices and its abstract twin. `use_abstract_mesh`, and `shard_map` inside itself, set the
abstract one alone. Each API looks into its own slot;
`tests/program/test_mesh_context.py` checks the table below against JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardviz.core.display import Displayed
from shardviz.core.errors import MeshError
from shardviz.core.format import listed, plural, shown
from shardviz.core.layout.mesh import MeshSpec

#: The APIs that take a bare PartitionSpec (or no mesh at all), and the slots they look into.
#: `explicit` is the abstract mesh where one of its axes is Explicit: then jit takes it for lack
#: of devices.
APIS = {
    "with_sharding_constraint": ("abstract", "legacy"),
    "jit in_shardings": ("current", "explicit"),
    "device_put": ("current",),
    "shard_map": ("abstract",),
    "reshard": ("abstract",),
    "flax with_logical_constraint": ("abstract",),
    "get_mesh": ("current",),
    "get_abstract_mesh": ("abstract",),
}
WAYS = ("set_mesh", "with", "use_abstract_mesh")


@dataclass(frozen=True)
class Entrance:
    """What entering one more mesh would do.

    Attributes:
        mesh: the mesh.
        way: `"set_mesh"`, `"with"` or `"use_abstract_mesh"`.
        shadows: a sentence for everything that no API would see until it is left.
        refused: why JAX refuses it; None where it does not.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> Entrance(make_mesh(x=2), "with", (), None).ok
    True
    """

    mesh: MeshSpec | None
    way: str
    shadows: tuple[str, ...]
    refused: str | None

    @property
    def ok(self) -> bool:
        """Whether JAX lets one enter."""
        return self.refused is None

    def explain(self) -> str:
        """The refusal, or what is shadowed, in sentences."""
        if self.refused is not None:
            return self.refused
        return " ".join(self.shadows) or "It shadows nothing."


@dataclass(frozen=True)
class MeshContext(Displayed):
    """Which mesh is in force at one point of a program. Made by `shardviz.mesh_context`.

    Attributes:
        legacy: the meshes entered by `with mesh:`, outermost first.
        current: the mesh of `jax.set_mesh`.
        abstract: what `jax.sharding.get_abstract_mesh` gives: the twin of `current`, unless
            `use_abstract_mesh` or a `shard_map` around the call has put another there.
        traced: whether the call is in a function that is being traced (`jit`, `shard_map`, …).
        with_disabled: whether `jax_disallow_mesh_context_manager` forbids `with mesh:`.
        notes: what could not be found out on this JAX, in sentences.
        rules: the rules of flax's `nn.logical_axis_rules`, as they were written; `()` for none.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> context = MeshContext(legacy=(make_mesh(x=2, y=4),))
    >>> context.in_force, str(context.sees("with_sharding_constraint"))
    ('with mesh', 'x=2, y=4')
    >>> print(context.sees("jit in_shardings"))
    None
    """

    legacy: tuple[MeshSpec, ...] = ()
    current: MeshSpec | None = None
    abstract: MeshSpec | None = None
    traced: bool = False
    with_disabled: bool = False
    notes: tuple[str, ...] = ()
    rules: Any = ()

    @property
    def in_force(self) -> str:
        """Which mesh a bare PartitionSpec would be for.

        One of `"set_mesh"`, `"abstract mesh"`, `"with mesh"` and `"none"`.
        """
        if self.current is not None:
            return "set_mesh"
        if self.abstract is not None:
            return "abstract mesh"
        return "with mesh" if self.legacy else "none"

    @property
    def mesh(self) -> MeshSpec | None:
        """The mesh in force, or None."""
        return self.abstract or self.current or (self.legacy[-1] if self.legacy else None)

    def sees(self, api: str) -> MeshSpec | None:
        """The mesh that one API of JAX or flax finds here; None where it finds none.

        Args:
            api: a name among `APIS`.

        Raises:
            MeshError: for another name.
        """
        if api not in APIS:
            raise MeshError(f"No API is called {shown(api)} here. Known: {listed(APIS)}.")
        found = self.slot(api)
        return None if found is None else self._slots[found]

    def slot(self, api: str) -> str | None:
        """In which slot one API finds its mesh: `"abstract"`, `"current"`, `"explicit"`, …"""
        return next((s for s in APIS[api] if self._slots[s] is not None), None)

    @property
    def _slots(self) -> dict[str, MeshSpec | None]:
        explicit = self.abstract is not None and "Explicit" in self.abstract.axis_types
        return {
            "current": self.current,
            "abstract": self.abstract,
            "explicit": self.abstract if explicit else None,
            "legacy": self.legacy[-1] if self.legacy else None,
        }

    def table(self) -> dict[str, MeshSpec | None]:
        """Every API to the mesh that it finds here."""
        return {api: self.sees(api) for api in APIS}

    def explain(self) -> str:
        """Which mesh is in force and which API sees it, in sentences."""
        lines = [self._headline()]
        if len(self.legacy) > 1:
            hidden = "; ".join(str(m) for m in self.legacy[:-1])
            lines.append(f"It was entered inside {hidden}, which nothing sees until it is left.")
        blind = [api for api, mesh in self.table().items() if mesh is None]
        if self.legacy and not self.current and not self.abstract:
            lines.append(
                "Only with_sharding_constraint looks there. flax's with_logical_constraint does"
                " not, and then does nothing at all, silently; jit, device_put and shard_map refuse"
                " a bare PartitionSpec. Use jax.set_mesh(mesh) instead."
            )
        elif self.legacy:
            lines.append(
                f"The mesh of `with mesh:` ({self.legacy[-1]}) is seen by nobody: what jax.set_mesh"
                " or use_abstract_mesh has set goes before it."
            )
        elif blind and self.mesh is not None:
            lines.append(f"There are no devices in it for {', '.join(blind)}.")
        if self.rules:
            lines.append(f"nn.logical_axis_rules has {plural(len(self.rules), 'rule')} in force.")
        return "\n".join([*lines, *self.notes])

    def _headline(self) -> str:
        where = "Inside a traced function, " if self.traced else ""
        words = {
            "set_mesh": f"jax.set_mesh put {self.current} in force",
            "abstract mesh": f"an abstract mesh is in force, {self.abstract}, with no devices",
            "with mesh": f"`with mesh:` put {self.mesh} in force",
            "none": "no mesh is in force: every PartitionSpec needs a mesh beside it",
        }[self.in_force]
        said = f"{where}{words}."
        if self.current is not None and not _alike(self.current, self.abstract):
            said += f" Over it lies an abstract mesh: {self.abstract or 'an empty one'}."
        return said[0].upper() + said[1:] if said[0] not in "`j" else said

    def entering(self, mesh: Any, way: str = "set_mesh") -> Entrance:
        """What entering `mesh` here would shadow, and why JAX refuses it, if it does.

        Names of axes are never the reason. The resource environment of JAX refused a mesh whose
        axes had names that loops (`xmap`) had taken; those loops are gone, and a mesh may always
        be inside another that has the same names.

        Args:
            mesh: a MeshSpec, jax's Mesh or AbstractMesh, or None, with which `set_mesh` takes the
                mesh away.
            way: `"set_mesh"`, `"with"` for `with mesh:`, or `"use_abstract_mesh"`.

        Raises:
            MeshError: for another way, or what is no mesh.

        >>> from shardviz.core.layout.mesh import make_mesh
        >>> set_already = MeshContext((), make_mesh(x=2), make_mesh(x=2))
        >>> print(set_already.entering(make_mesh(y=2)).explain())
        The mesh x=2 of jax.set_mesh is replaced.
        >>> print(MeshContext(traced=True).entering(make_mesh(y=2)).refused)
        jax.set_mesh works only outside of traced functions. Set the mesh around the call of the
        jitted function.
        """
        if way not in WAYS:
            raise MeshError(f"A mesh is entered by {listed(WAYS, 'or')}; got {shown(way)}.")
        kind, mesh = _read(mesh)
        if mesh is None and way != "set_mesh":
            raise MeshError("Only set_mesh takes None, which leaves no mesh in force.")
        refused = _wrong_kind(kind, way) or self._refusal(mesh, way)
        shadows = () if refused else tuple(self._shadows(mesh, way))
        return Entrance(mesh, way, shadows, refused)

    def _refusal(self, mesh: MeshSpec | None, way: str) -> str | None:
        if way == "set_mesh":
            if self.traced:
                return (
                    "jax.set_mesh works only outside of traced functions. Set the mesh around the"
                    " call of the jitted function."
                )
            if mesh is not None and "Manual" in mesh.axis_types:
                return (
                    "jax.set_mesh takes no mesh with Manual axes; shard_map makes axes Manual"
                    " inside itself. Give Auto or Explicit axes."
                )
        if way == "with" and self.with_disabled:
            return (
                "`with mesh:` is disabled here (jax_disallow_mesh_context_manager). Use"
                " jax.set_mesh."
            )
        over = self.abstract
        if way == "use_abstract_mesh" and mesh and over and over.size != mesh.size:
            return (
                f"use_abstract_mesh cannot change the number of devices: {over} has {over.size:,}"
                f" and {mesh} has {mesh.size:,}. Leave the first, or give a mesh of its size."
            )
        return None

    def _shadows(self, mesh: MeshSpec | None, way: str) -> list[str]:
        lines = []
        top = self.legacy[-1] if self.legacy else None
        if way == "with":
            if top is not None:
                lines.append(f"The mesh {top} of the `with mesh:` around it goes out of sight.")
            if self.abstract is not None:
                lines.append(f"Nobody sees the new mesh: {self.abstract} goes before it.")
        elif way == "set_mesh":
            if self.current is not None:
                gone = "replaced" if mesh is not None else "taken away"
                lines.append(f"The mesh {self.current} of jax.set_mesh is {gone}.")
            elif self.abstract is not None:
                lines.append(f"The abstract mesh {self.abstract} is replaced.")
        elif self.abstract is not None:
            lines.append(
                f"The mesh {self.abstract} is out of sight for all but jit and device_put, which"
                " look for devices."
                if self.current is not None
                else f"The abstract mesh {self.abstract} is replaced."
            )
        if way != "with" and mesh is not None and top is not None and self.abstract is None:
            lines.append(f"with_sharding_constraint no longer sees the mesh {top} of `with mesh:`.")
        return lines


def _alike(one: MeshSpec, other: MeshSpec | None) -> bool:
    return other is not None and (one.shape, one.axis_types) == (other.shape, other.axis_types)


def _read(mesh: Any) -> tuple[str, MeshSpec | None]:
    """The kind of a mesh, by the name of its class as jax may be missing, and the mesh as ours."""
    kind = type(mesh).__name__
    if mesh is None or isinstance(mesh, MeshSpec):
        return kind, mesh
    if kind in ("Mesh", "AbstractMesh") and getattr(mesh, "axis_names", None):
        types = tuple(t.name for t in mesh.axis_types)
        return kind, MeshSpec(mesh.axis_names, tuple(mesh.axis_sizes), types)
    raise MeshError(f"Entering takes a mesh; got {shown(mesh)}. Make one as sv.mesh(x=2).")


def _wrong_kind(kind: str, way: str) -> str | None:
    if kind == "AbstractMesh" and way == "with":
        return (
            "An AbstractMesh is no context manager. Use jax.sharding.use_abstract_mesh, or"
            " jax.set_mesh with a Mesh of devices."
        )
    if kind == "AbstractMesh" and way == "set_mesh":
        return "jax.set_mesh takes a Mesh of devices, and an AbstractMesh has none. Give a Mesh."
    if kind == "Mesh" and way == "use_abstract_mesh":
        return "use_abstract_mesh takes an AbstractMesh. Give mesh.abstract_mesh."
    return None
