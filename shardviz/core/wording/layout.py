"""Meshes, specs and layouts: what does not fit, and which mesh is in force."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.core.format import joined, listed, plural
from shardviz.core.layout.layout import Misfit
from shardviz.core.layout.mesh_context import (
    Entrance,
    MeshContext,
    Refused,
    Shadow,
    Unreadable,
)
from shardviz.core.layout.partition_spec import WrongRank


def misfit(fact: Misfit) -> str:
    """What is left over, and which sizes or axes would do.

    >>> misfit(Misfit(510, ("data",), 4, ("model",)))
    "510 does not divide by 4 (data): 2 left over. Sizes that do: 508 and 512; or pad by 2. It would divide over 'model'."
    """  # noqa: E501
    over = f" ({' × '.join(fact.axes)})" if fact.axes else ""
    fits = joined(f"{size:,}" for size in fact.sizes)
    words = (
        f"{fact.size:,} does not divide by {fact.parts:,}{over}: {fact.remainder:,} left"
        f" over. Sizes that do: {fits}; or pad by {fact.padding:,}."
    )
    if fact.other_axes:
        words += f" It would divide over {listed(fact.other_axes, 'or')}."
    return words


def wrong_rank(fact: WrongRank) -> str:
    """Which entries of a spec are too many.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> wrong_rank(WrongRank(Spec.parse("x, y"), 1))
    "The spec P('x', 'y') has 2 entries and the array has 1 dimension. Take away 'y'."
    """
    extra = joined(fact.spec.entry_strings[fact.rank :])
    return (
        f"The spec {fact.spec} has {plural(fact.spec.rank, 'entry', 'entries')} and the"
        f" array has {plural(fact.rank, 'dimension')}. Take away {extra}."
    )


#: Code to why JAX refuses to enter a mesh.
REFUSALS: Mapping[str, str] = {
    "traced": (
        "jax.set_mesh works only outside of traced functions. Set the mesh around the"
        " call of the jitted function."
    ),
    "manual axes": (
        "jax.set_mesh takes no mesh with Manual axes; shard_map makes axes Manual inside"
        " itself. Give Auto or Explicit axes."
    ),
    "with disabled": (
        "`with mesh:` is disabled here (jax_disallow_mesh_context_manager). Use"
        " jax.set_mesh."
    ),
    "no context manager": (
        "An AbstractMesh is no context manager. Use jax.sharding.use_abstract_mesh, or"
        " jax.set_mesh with a Mesh of devices."
    ),
    "no devices": (
        "jax.set_mesh takes a Mesh of devices, and an AbstractMesh has none. Give a Mesh."
    ),
    "not abstract": (
        "use_abstract_mesh takes an AbstractMesh. Give mesh.abstract_mesh."
    ),
}


def refused(fact: Refused) -> str:
    """Why JAX refuses to enter a mesh."""
    if fact.code != "device count":
        return REFUSALS[fact.code]
    over, mesh = fact.meshes
    return (
        f"use_abstract_mesh cannot change the number of devices: {over} has"
        f" {over.size:,} and {mesh} has {mesh.size:,}. Leave the first, or give a mesh of"
        " its size."
    )


#: Code to what no API would see any more; `{}` is the mesh.
SHADOWS: Mapping[str, str] = {
    "replaced": "The mesh {} of jax.set_mesh is replaced.",
    "taken away": "The mesh {} of jax.set_mesh is taken away.",
    "abstract replaced": "The abstract mesh {} is replaced.",
    "abstract hidden": (
        "The mesh {} is out of sight except for jit and device_put, which look for"
        " devices."
    ),
    "outer with": "The mesh {} of the `with mesh:` around it goes out of sight.",
    "with unseen": "Nothing sees the new mesh: {} goes before it.",
    "with hidden from constraints": (
        "with_sharding_constraint no longer sees the mesh {} of `with mesh:`."
    ),
}


def shadow(fact: Shadow) -> str:
    """What no API would see until a new mesh is left."""
    return SHADOWS[fact.code].format(fact.mesh)


def unreadable(fact: Unreadable) -> str:
    """What this JAX does not tell about the mesh context."""
    if fact.code == "entered meshes":
        return (
            f"jax {fact.version} does not say which meshes `with mesh:` has entered, so"
            " none is shown."
        )
    return (
        f"jax {fact.version} does not give the mesh of jax.set_mesh inside a traced"
        " function; only its AbstractMesh is known."
    )


def entrance(value: Entrance) -> str:
    """The refusal of a mesh, or what it shadows."""
    if value.refused is not None:
        return refused(value.refused)
    return " ".join(map(shadow, value.shadows)) or "It shadows nothing."


def mesh_context(value: MeshContext) -> str:
    """Which mesh is in force and which API sees it, one sentence per line."""
    lines = [_in_force(value)]
    if len(value.legacy) > 1:
        hidden = "; ".join(str(m) for m in value.legacy[:-1])
        lines.append(
            f"It was entered inside {hidden}, which nothing sees until it is left."
        )
    if value.legacy and value.in_force == "with mesh":
        lines.append(
            "Only with_sharding_constraint looks there. flax's with_logical_constraint"
            " does not, and then does nothing at all, silently; jit, device_put and"
            " shard_map refuse a bare PartitionSpec. Use jax.set_mesh(mesh) instead."
        )
    elif value.legacy:
        lines.append(
            f"The mesh of `with mesh:` ({value.entered}) is seen by nothing: what"
            " jax.set_mesh or use_abstract_mesh has set goes before it."
        )
    elif value.mesh is not None:
        blind = [api for api, mesh in value.table().items() if mesh is None]
        if blind:
            lines.append(f"There are no devices in it for {', '.join(blind)}.")
    if value.rules:
        count = plural(len(value.rules), "rule")
        lines.append(f"nn.logical_axis_rules has {count} in force.")
    return "\n".join([*lines, *map(unreadable, value.notes)])


def _in_force(value: MeshContext) -> str:
    an, no, where = "An", "No", ""
    if value.traced:
        an, no, where = "an", "no", "Inside a traced function, "
    words = {
        "set_mesh": f"jax.set_mesh put {value.current} in force.",
        "abstract mesh": (
            f"{an} abstract mesh is in force, {value.abstract}, with no devices."
        ),
        "with mesh": f"`with mesh:` put {value.mesh} in force.",
        "none": f"{no} mesh is in force: every PartitionSpec needs a mesh beside it.",
    }[value.in_force]
    words = where + words
    if value.overlaid:
        words += f" Over it lies an abstract mesh: {value.abstract or 'an empty one'}."
    return words


SENTENCES = {
    Misfit: misfit,
    WrongRank: wrong_rank,
    Refused: refused,
    Shadow: shadow,
    Unreadable: unreadable,
}

EXPLANATIONS = {Entrance: entrance, MeshContext: mesh_context}
