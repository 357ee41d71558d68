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
from shardviz.core.program.program import Program


def without_pmap(program: Program) -> tuple[str, Program]:
    """A program of `jax.pmap` as one of `jax.shard_map`, and how to write it.

    Without the check of what varies each device has a gradient of its own, as under
    `pmap`. With it, jax would sum the gradient of what is the same on all devices, and
    a mean after that would be as many times too large as there are devices.

    Raises:
        ProgramError: for another program, static arguments, or `in_axes` in trees.
    """
    bound, fn = program.fn, getattr(program.fn, "fn", program.fn)
    settings = read_pmap(fn) if is_pmapped(fn) else None
    given = None if settings is None else settings.in_axes
    if not isinstance(given, (tuple, list)):
        given = (given,)
    numbers = all(axis is None or isinstance(axis, int) for axis in given)
    if settings is None or settings.static or not numbers:
        raise ProgramError(
            "This is for a function of jax.pmap without static arguments, whose in_axes"
            f" are numbers or None; got {shown(fn)}."
        )
    outs = settings.out_axes

    def rows(*shards: Any) -> Any:
        # A shard keeps the mapped dimension, which has size 1.
        axes = given if len(given) > 1 else given * len(shards)
        taken = []
        for axis, shard in zip(axes, shards, strict=True):
            if axis is not None:
                shard = jax.tree.map(partial(jax.numpy.squeeze, axis=axis), shard)
            taken.append(shard)

        def put_back(axis: int | None, result: Any) -> Any:
            if axis is None:
                return result
            return jax.tree.map(partial(jax.numpy.expand_dims, axis=axis), result)

        results = fn.__wrapped__(*taken)
        return jax.tree.map(put_back, outs, results, is_leaf=lambda a: a is None)

    def moved(*arguments: Any) -> Any:
        axes = given if len(given) > 1 else given * len(arguments)
        specs = {
            "in_specs": settings.specs(tuple(axes)),
            "out_specs": settings.specs(outs),
        }
        return jax.shard_map(rows, check_vma=False, **specs)(*arguments)

    code = (
        f"jax.jit(jax.shard_map(rows, in_specs={settings.specs(tuple(given))},"
        f" out_specs={settings.specs(outs)}, check_vma=False))"
    )
    made: Any = moved
    if isinstance(bound, BoundCall):
        made = copy.copy(bound)
        made.fn = moved
    return code, program.replace(fn=made)
