"""without_pmap(): a program of `jax.pmap` as one of `jax.shard_map`."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import jax

from shardviz.core.backend.jax_compat import is_pmapped
from shardviz.core.backend.tracing.calls import BoundCall
from shardviz.core.backend.tracing.pmapped import read_pmap
from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.core.program.candidates import Edit
from shardviz.core.program.program import Program


def without_pmap(program: Program) -> tuple[Edit, Program]:
    """A program of `jax.pmap` as one of `jax.shard_map`, and how to write it.

    Without the check of what varies each device has a gradient of its own, as under
    `pmap`. With it, jax would sum the gradient of what is the same on all devices, and
    a mean after that would be as many times too large as there are devices.

    Raises:
        ProgramError: for another program, or one with static arguments.
    """
    fn: Any = getattr(program.fn, "fn", program.fn)
    settings = read_pmap(fn) if is_pmapped(fn) else None
    if settings is None or settings.static:
        raise ProgramError(
            "This is for a function of jax.pmap without static arguments; got"
            f" {shown(fn)}."
        )
    ins, outs = settings.in_axes, settings.out_axes
    ins = tuple(ins) if isinstance(ins, list) else ins  # as arguments come

    def rows(*shards: Any) -> Any:
        # A shard keeps the mapped dimension, which has size 1.
        results = fn.__wrapped__(*_along(ins, jax.numpy.squeeze, shards))
        return _along(outs, jax.numpy.expand_dims, results)

    in_specs, out_specs = settings.specs(ins), settings.specs(outs)
    # jax binds a shard_map without a mesh for good, so each call makes one.
    call = lambda *arguments: jax.shard_map(  # noqa: E731
        rows, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )(*arguments)
    made: Any = call
    if isinstance(program.fn, BoundCall):
        made = copy.copy(program.fn)
        made.fn = call
    specs = f"in_specs={in_specs}, out_specs={out_specs}"
    code = f"jax.jit(jax.shard_map(rows, {specs}, check_vma=False))"
    return Edit("pmap", {"code": code}), program.replace(fn=made)


def _along(axes: Any, change: Any, tree: Any) -> Any:
    """A tree of arrays changed along `axes`, a prefix of it with None for no change."""

    def changed(axis: int | None, part: Any) -> Any:
        if axis is None:
            return part
        return jax.tree.map(partial(change, axis=axis), part)

    return jax.tree.map(changed, axes, tree, is_leaf=lambda axis: axis is None)
