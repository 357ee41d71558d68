"""Where in a jaxpr its effects and host calls stand, and which meshes it names itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

TOP = "top level"


@dataclass(frozen=True)
class EffectOperation:
    """One operation of a jaxpr: what it is, the loops and calls around it, outermost first."""

    equation: Any
    around: tuple[str, ...]

    @property
    def stands(self) -> str:
        """Where, in words: `"top level"` or `"shard_map > scan"`."""
        return " > ".join(self.around) or TOP


def effect_operations(jaxpr: Any, around: tuple[str, ...] = ()) -> Iterator[EffectOperation]:
    """Every operation of a jaxpr, those inside loops and calls included, in program order."""
    for equation in plain_jaxpr(jaxpr).eqns:
        inner = list(inner_jaxprs(equation.params))
        name = equation.primitive.name
        if not inner:
            yield EffectOperation(equation, around)
        deeper = around if name in ("jit", "pjit", "closed_call") else (*around, name)
        for one in inner:
            yield from effect_operations(one, deeper)


def inner_jaxprs(value: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an operation, as they stand there."""
    if hasattr(value, "eqns"):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from inner_jaxprs(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from inner_jaxprs(one)


def plain_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr itself, of one that carries its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def from_host(jaxpr: Any, calls: Collection[str]) -> bool:
    """Whether a result is computed from what a call of the host returned, outside `shard_map`.

    Args:
        jaxpr: the program.
        calls: the names of the operations that call the host.
    """
    body, told = plain_jaxpr(jaxpr), set()
    for equation in body.eqns:
        reads = any(id(v) in told for v in equation.invars)
        if reads or any(s.equation.primitive.name in calls for s in _inside(equation)):
            told |= {id(v) for v in equation.outvars}
    return any(id(v) in told for v in body.outvars)


def _inside(equation: Any) -> list[EffectOperation]:
    within = [s for one in inner_jaxprs(equation.params) for s in effect_operations(one)]
    return within or [EffectOperation(equation, ())]


def names_shardings(jaxpr: Any) -> bool:
    """Whether the program says anywhere how an array is split."""
    for equation in plain_jaxpr(jaxpr).eqns:
        if equation.primitive.name in ("shard_map", "sharding_constraint", "reshard"):
            return True
        if any(names_shardings(one) for one in inner_jaxprs(equation.params)):
            return True
    return False


def named_devices(jaxpr: Any) -> int | None:
    """How many devices the meshes have that the program names itself; None where it names none."""
    return max((mesh.size for mesh, _ in named_meshes(jaxpr)), default=None)


def named_meshes(jaxpr: Any) -> Iterator[tuple[Mesh, Any]]:
    """Every mesh of real devices that the program names itself, with the operation that does."""
    for equation in plain_jaxpr(jaxpr).eqns:
        for value in equation.params.values():
            mesh: Any = value if isinstance(value, Mesh) else getattr(value, "mesh", None)
            if isinstance(mesh, Mesh) and mesh.size:  # outside of any mesh, jax names an empty one
                yield mesh, equation
        for one in inner_jaxprs(equation.params):
            yield from named_meshes(one)
