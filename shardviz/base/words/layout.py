"""Sentences about sizes and specs that do not fit an array, and the mesh in force."""

from __future__ import annotations

from shardviz.base.format import joined, listed, plural
from shardviz.base.layout import Misfit
from shardviz.base.mesh_context import MeshContext
from shardviz.base.partition_spec import WrongRank


def misfit(fact: Misfit) -> str:
    """The remainder of an uneven dimension, and sizes or axes that would divide evenly.

    >>> misfit(Misfit(510, ("data",), 4, ("model",)))
    "510 is not divisible by 4 (data): 2 left over. Sizes that are: 508 and 512; or pad by 2. It would divide over 'model'."
    """  # noqa: E501
    # A legacy ShardingSpec has no mesh axes.
    over = f" ({' × '.join(fact.axes)})" if fact.axes else ""
    sizes = joined(f"{size:,}" for size in fact.sizes)
    words = (
        f"{fact.size:,} is not divisible by {fact.parts:,}{over}: {fact.remainder:,} left"
        f" over. Sizes that are: {sizes}; or pad by {fact.padding:,}."
    )
    if fact.other_axes:
        words += f" It would divide over {listed(fact.other_axes, 'or')}."
    return words


def wrong_rank(fact: WrongRank) -> str:
    """A sentence about a spec with more entries than the array has dimensions.

    >>> from shardviz.base.partition_spec import Spec
    >>> wrong_rank(WrongRank(Spec.parse("x, y"), 1))
    "The spec P('x', 'y') has 2 entries, but the array has 1 dimension. Remove 'y'."
    """
    # The last entries are most likely the surplus ones.
    extra = joined(fact.spec.entry_strings[fact.rank :])
    return (
        f"The spec {fact.spec} has {plural(fact.spec.rank, 'entry', 'entries')}, but the"
        f" array has {plural(fact.rank, 'dimension')}. Remove {extra}."
    )


def mesh_context(value: MeshContext) -> str:
    """The mesh in force and the APIs that see it, one sentence per line."""
    lines = [_in_force(value)]
    if len(value.legacy) > 1:
        hidden = "; ".join(str(m) for m in value.legacy[:-1])
        lines.append(
            f"It was entered inside {hidden}, which no API uses until the inner `with`"
            " block ends."
        )
    if value.legacy and value.in_force == "with mesh":
        lines.append(
            "Only with_sharding_constraint uses this mesh. flax's with_logical_constraint"
            " does not use it, and silently does nothing; jit, device_put and shard_map"
            " refuse a bare PartitionSpec. Use jax.set_mesh(mesh) instead."
        )
    elif value.legacy:
        lines.append(
            f"No API uses the mesh of `with mesh:` ({value.entered}), because the mesh of"
            " jax.set_mesh or use_abstract_mesh takes precedence."
        )
    elif value.mesh is not None:
        blind = [api for api, mesh in value.table().items() if mesh is None]
        if blind:
            lines.append(f"These APIs get no mesh from it: {', '.join(blind)}.")
    if value.rules:
        count = plural(len(value.rules), "rule")
        lines.append(f"nn.logical_axis_rules has {count} in force.")
    if not value.readable:
        lines.append(
            "This version of jax does not report which meshes `with mesh:` has entered, so"
            " none is shown."
        )
    return "\n".join(lines)


def _in_force(value: MeshContext) -> str:
    the, an, no, where = "The", "An", "No", ""
    if value.traced:
        the, an, no, where = "the", "an", "no", "Inside a traced function, "
    words = {
        "set_mesh": f"{the} mesh in force is {value.current}, from jax.set_mesh.",
        "abstract mesh": (
            f"{an} abstract mesh, {value.abstract}, is in force; it has no devices."
        ),
        "with mesh": f"{the} mesh in force is {value.mesh}, from `with mesh:`.",
        "none": f"{no} mesh is in force, so give a mesh with every PartitionSpec.",
    }[value.in_force]
    words = where + words
    if value.overlaid:
        words += f" An abstract mesh overrides it: {value.abstract or 'an empty one'}."
    return words


SENTENCES = {
    Misfit: misfit,
    WrongRank: wrong_rank,
}

EXPLANATIONS = {MeshContext: mesh_context}
