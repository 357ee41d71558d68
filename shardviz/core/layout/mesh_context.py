"""MeshContext: which mesh is in force at one point of a program, and which API sees
which.

JAX has three slots per thread. `with mesh:` pushes on the legacy stack. `jax.set_mesh`
sets a mesh of devices and its abstract twin. `use_abstract_mesh`, and `shard_map`
inside itself, set the abstract one alone. Each API looks into its own slot;
`tests/program/test_mesh_context.py` checks the table below against JAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardviz.core.display import Displayed, Fact, explanation
from shardviz.core.errors import MeshError
from shardviz.core.format import listed, shown
from shardviz.core.layout.mesh import MeshSpec

#: The APIs that take a bare PartitionSpec (or no mesh at all), and the slots they look
#: into. `explicit` is the abstract mesh where one of its axes is Explicit: then jit
#: takes it for lack of devices.
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
class Refused(Fact):
    """Why JAX refuses to enter a mesh.

    Attributes:
        code: `"traced"`, `"manual axes"`, `"with disabled"`, `"device count"`,
            `"no context manager"`, `"no devices"` or `"not abstract"`.
        meshes: for `"device count"`, the mesh that is there and the new one.

    >>> Refused("traced").meshes
    ()
    """

    code: str
    meshes: tuple[MeshSpec, ...] = ()


@dataclass(frozen=True)
class Shadow(Fact):
    """What no API would see until a new mesh is left.

    Attributes:
        code: `"replaced"`, `"taken away"` (the mesh of `set_mesh`), `"abstract
            replaced"`, `"abstract hidden"` (but for what looks for devices), `"outer
            with"`, `"with unseen"` (the new mesh itself, behind `mesh`), or `"with
            hidden from constraints"`.
        mesh: the mesh that this is about.

    >>> print(Shadow("replaced", MeshSpec(("x",), (2,))))
    The mesh x=2 of jax.set_mesh is replaced.
    """

    code: str
    mesh: MeshSpec


@dataclass(frozen=True)
class Unreadable(Fact):
    """What this JAX does not tell about the context.

    Attributes:
        code: `"set_mesh while tracing"` or `"entered meshes"`.
        version: that of jax.

    >>> Unreadable("entered meshes", "0.10").version
    '0.10'
    """

    code: str
    version: str


@dataclass(frozen=True)
class Entrance:
    """What entering one more mesh would do.

    Attributes:
        mesh: the mesh.
        way: `"set_mesh"`, `"with"` or `"use_abstract_mesh"`.
        shadows: everything that no API would see until it is left.
        refused: why JAX refuses it; None where it does not.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> Entrance(make_mesh(x=2), "with", (), None).ok
    True
    """

    mesh: MeshSpec | None
    way: str
    shadows: tuple[Shadow, ...]
    refused: Refused | None

    @property
    def ok(self) -> bool:
        """Whether JAX lets one enter."""
        return self.refused is None

    def explain(self) -> str:
        """The refusal, or what is shadowed, in sentences."""
        return explanation(self)


@dataclass(frozen=True)
class MeshContext(Displayed):
    """Which mesh is in force at one point of a program. Made by
    `shardviz.mesh_context`.

    Attributes:
        legacy: the meshes entered by `with mesh:`, outermost first.
        current: the mesh of `jax.set_mesh`.
        abstract: what `jax.sharding.get_abstract_mesh` gives: the twin of `current`,
            unless `use_abstract_mesh` or a `shard_map` around the call has put another
            there.
        traced: whether the call is in a function that is being traced.
        with_disabled: whether `jax_disallow_mesh_context_manager` forbids `with mesh:`.
        notes: what could not be found out on this JAX.
        rules: the rules of flax's `nn.logical_axis_rules`, as they were written.

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
    notes: tuple[Unreadable, ...] = ()
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
    def entered(self) -> MeshSpec | None:
        """The mesh that a `with` statement entered last, or None."""
        return self.legacy[-1] if self.legacy else None

    @property
    def mesh(self) -> MeshSpec | None:
        """The mesh in force, or None."""
        return self.abstract or self.current or self.entered

    @property
    def overlaid(self) -> bool:
        """Whether the abstract mesh is another one than that of `jax.set_mesh`."""
        if self.current is None:
            return False
        over = self.abstract
        if over is None or over.shape != self.current.shape:
            return True
        return over.axis_types != self.current.axis_types

    def sees(self, api: str) -> MeshSpec | None:
        """The mesh that one API of JAX or flax finds here; None where it finds none.

        Args:
            api: a name among `APIS`.

        Raises:
            MeshError: for another name.
        """
        if api not in APIS:
            raise MeshError(
                f"No API is called {shown(api)} here. Known: {listed(APIS)}."
            )
        slot = self.slot(api)
        return None if slot is None else self._slots[slot]

    def slot(self, api: str) -> str | None:
        """In which slot one API finds its mesh: `"abstract"`, `"current"`, …"""
        return next((s for s in APIS[api] if self._slots[s] is not None), None)

    @property
    def _slots(self) -> dict[str, MeshSpec | None]:
        explicit = None
        if self.abstract is not None and "Explicit" in self.abstract.axis_types:
            explicit = self.abstract
        return {
            "current": self.current,
            "abstract": self.abstract,
            "explicit": explicit,
            "legacy": self.entered,
        }

    def table(self) -> dict[str, MeshSpec | None]:
        """Every API to the mesh that it finds here."""
        return {api: self.sees(api) for api in APIS}

    def explain(self) -> str:
        """Which mesh is in force and which API sees it, in sentences."""
        return explanation(self)

    def entering(self, mesh: Any, way: str = "set_mesh") -> Entrance:
        """What entering `mesh` here would shadow, and why JAX refuses it, if it does.

        Names of axes are never the reason: a mesh may be inside another that has the
        same names.

        Args:
            mesh: a MeshSpec, jax's Mesh or AbstractMesh, or None, with which `set_mesh`
                takes the mesh away.
            way: `"set_mesh"`, `"with"` for `with mesh:`, or `"use_abstract_mesh"`.

        Raises:
            MeshError: for another way, or what is no mesh.

        >>> from shardviz.core.layout.mesh import make_mesh
        >>> set_already = MeshContext((), make_mesh(x=2), make_mesh(x=2))
        >>> [shadow.code for shadow in set_already.entering(make_mesh(y=2)).shadows]
        ['replaced']
        >>> print(MeshContext(traced=True).entering(make_mesh(y=2)).refused)
        jax.set_mesh works only outside of traced functions. Set the mesh around the call of the
        jitted function.
        """
        if way not in WAYS:
            raise MeshError(
                f"A mesh is entered by {listed(WAYS, 'or')}; got {shown(way)}."
            )
        kind, mesh = _read(mesh)
        if mesh is None and way != "set_mesh":
            raise MeshError("Only set_mesh takes None, which leaves no mesh in force.")
        refused = _WRONG_KIND.get((kind, way)) or self._refusal(mesh, way)
        shadows = () if refused else tuple(self._shadows(mesh, way))
        return Entrance(mesh, way, shadows, refused)

    def _refusal(self, mesh: MeshSpec | None, way: str) -> Refused | None:
        if way == "set_mesh" and self.traced:
            return Refused("traced")
        if way == "set_mesh" and mesh is not None and "Manual" in mesh.axis_types:
            return Refused("manual axes")
        if way == "with" and self.with_disabled:
            return Refused("with disabled")
        over = self.abstract
        if way == "use_abstract_mesh" and mesh and over and over.size != mesh.size:
            return Refused("device count", (over, mesh))
        return None

    def _shadows(self, mesh: MeshSpec | None, way: str) -> Iterator[Shadow]:
        entered, current, abstract = self.entered, self.current, self.abstract
        if way == "with":
            if entered is not None:
                yield Shadow("outer with", entered)
            if abstract is not None:
                yield Shadow("with unseen", abstract)
            return
        if way == "set_mesh" and current is not None:
            yield Shadow("replaced" if mesh is not None else "taken away", current)
        elif abstract is not None:
            # jit and device_put look for devices, which only set_mesh brings.
            hidden = way == "use_abstract_mesh" and current is not None
            yield Shadow("abstract hidden" if hidden else "abstract replaced", abstract)
        if mesh is not None and entered is not None and abstract is None:
            yield Shadow("with hidden from constraints", entered)


def _read(mesh: Any) -> tuple[str, MeshSpec | None]:
    """The kind of a mesh, by its class as jax may be missing, and the mesh as ours."""
    kind = type(mesh).__name__
    if mesh is None or isinstance(mesh, MeshSpec):
        return kind, mesh
    if kind in ("Mesh", "AbstractMesh") and getattr(mesh, "axis_names", None):
        types = tuple(t.name for t in mesh.axis_types)
        return kind, MeshSpec(mesh.axis_names, tuple(mesh.axis_sizes), types)
    raise MeshError(
        f"Entering takes a mesh; got {shown(mesh)}. Make one as sv.mesh(x=2)."
    )


# Kind of mesh and way to enter it, where JAX takes another kind.
_WRONG_KIND = {
    ("AbstractMesh", "with"): Refused("no context manager"),
    ("AbstractMesh", "set_mesh"): Refused("no devices"),
    ("Mesh", "use_abstract_mesh"): Refused("not abstract"),
}
