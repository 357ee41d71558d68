"""MeshContext: the mesh in force at one point of a program, and the APIs that see it.

JAX keeps meshes in three slots per thread: the legacy stack, the mesh of devices and
the abstract mesh. `with mesh:` pushes on the legacy stack. `jax.set_mesh` sets a mesh
of devices and the matching abstract mesh. `use_abstract_mesh`, and `shard_map` inside
its body, set only the abstract mesh. `APIS` lists the slots that each API reads;
`tests/program/test_mesh_context.py` compares this list with JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardviz.base.display import Displayed, explanation
from shardviz.base.errors import MeshError
from shardviz.base.format import listed, shown
from shardviz.base.mesh import MeshSpec

#: APIs that accept a bare PartitionSpec (or no mesh at all), and the slots that they
#: read, in order. `explicit` is the abstract mesh if one of its axes is Explicit; jit
#: uses it if there is no mesh of devices.
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


@dataclass(frozen=True)
class MeshContext(Displayed):
    """The meshes in force; returned by `shardviz.mesh_context`.

    Attributes:
        legacy: the meshes entered by `with mesh:`, outermost first.
        current: the mesh of `jax.set_mesh`.
        abstract: the mesh that `jax.sharding.get_abstract_mesh` returns: the abstract
            form of `current`, unless `use_abstract_mesh` or an enclosing `shard_map`
            has set another mesh.
        traced: whether the call is in a function that is being traced.
        readable: whether this version of JAX reveals the meshes that `with mesh:` has
            entered.
        rules: the rules of flax's `nn.logical_axis_rules`, unchanged.

    >>> import shardviz as sv
    >>> from shardviz.types import MeshContext
    >>> context = MeshContext(legacy=(sv.mesh(x=2, y=4),))
    >>> context.in_force, str(context.sees("with_sharding_constraint"))
    ('with mesh', 'x=2, y=4')
    >>> print(context.sees("jit in_shardings"))
    None
    """

    legacy: tuple[MeshSpec, ...] = ()
    current: MeshSpec | None = None
    abstract: MeshSpec | None = None
    traced: bool = False
    readable: bool = True
    rules: Sequence[object] = ()

    @property
    def in_force(self) -> str:
        """The kind of mesh that a bare PartitionSpec would use.

        One of `"set_mesh"`, `"abstract mesh"`, `"with mesh"` and `"none"`.
        """
        if self.current is not None:
            return "set_mesh"
        if self.abstract is not None:
            return "abstract mesh"
        return "with mesh" if self.legacy else "none"

    @property
    def entered(self) -> MeshSpec | None:
        """The mesh of the innermost `with` statement for a mesh, or None."""
        return self.legacy[-1] if self.legacy else None

    @property
    def mesh(self) -> MeshSpec | None:
        """The mesh in force, or None."""
        return self.abstract or self.current or self.entered

    @property
    def overlaid(self) -> bool:
        """True if the abstract mesh differs from the mesh of `jax.set_mesh`."""
        if self.current is None:
            return False
        if self.abstract is None or self.abstract.shape != self.current.shape:
            return True
        return self.abstract.axis_types != self.current.axis_types

    def sees(self, api: str) -> MeshSpec | None:
        """The mesh that an API of JAX or flax uses in this context, or None.

        Args:
            api: a key of `APIS`.

        Raises:
            MeshError: for any other name.
        """
        if api not in APIS:
            raise MeshError(
                f"No API is called {shown(api)} here. Known: {listed(APIS)}."
            )
        # Some APIs use an abstract mesh only if it has an Explicit axis.
        explicit = None
        if self.abstract is not None and "Explicit" in self.abstract.axis_types:
            explicit = self.abstract
        slots = {
            "current": self.current,
            "abstract": self.abstract,
            "explicit": explicit,
            "legacy": self.entered,
        }
        for slot in APIS[api]:
            if slots[slot] is not None:
                return slots[slot]
        return None

    def table(self) -> dict[str, MeshSpec | None]:
        """The mesh that each API uses in this context."""
        return {api: self.sees(api) for api in APIS}

    def explain(self) -> str:
        """Sentences about the mesh in force and the APIs that see it."""
        return explanation(self)
