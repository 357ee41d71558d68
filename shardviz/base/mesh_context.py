"""MeshContext: which mesh is in force at a point of a program, and which API sees it.

JAX has three slots per thread. `with mesh:` pushes on the legacy stack. `jax.set_mesh`
sets a mesh of devices and its abstract twin. `use_abstract_mesh`, and `shard_map`
inside itself, set the abstract one alone. Each API looks into its own slot;
`tests/program/test_mesh_context.py` checks the table below against JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardviz.base.display import Displayed, explanation
from shardviz.base.errors import MeshError
from shardviz.base.format import listed, shown
from shardviz.base.mesh import MeshSpec

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


@dataclass(frozen=True)
class MeshContext(Displayed):
    """Which mesh is in force; made by `shardviz.mesh_context`.

    Attributes:
        legacy: the meshes entered by `with mesh:`, outermost first.
        current: the mesh of `jax.set_mesh`.
        abstract: what `jax.sharding.get_abstract_mesh` gives: the twin of `current`,
            unless `use_abstract_mesh` or a `shard_map` around the call has put another
            there.
        traced: whether the call is in a function that is being traced.
        readable: whether this JAX says which meshes `with mesh:` has entered.
        rules: the rules of flax's `nn.logical_axis_rules`, as they were written.

    >>> from shardviz.base.mesh import make_mesh
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
    readable: bool = True
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
        # Some APIs look at an abstract mesh only where it has an Explicit axis.
        explicit = None
        if self.abstract is not None and "Explicit" in self.abstract.axis_types:
            explicit = self.abstract
        slots = {
            "current": self.current,
            "abstract": self.abstract,
            "explicit": explicit,
            "legacy": self.entered,
        }
        found = [slots[slot] for slot in APIS[api] if slots[slot] is not None]
        return found[0] if found else None

    def table(self) -> dict[str, MeshSpec | None]:
        """Every API to the mesh that it finds here."""
        return {api: self.sees(api) for api in APIS}

    def explain(self) -> str:
        """Which mesh is in force and which API sees it, in sentences."""
        return explanation(self)
