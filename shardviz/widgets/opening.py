"""session_on(thing): whatever `shardviz.explore` was given, as a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardviz.core.errors import ShardvizError, shown
from shardviz.core.layout.array import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.shards import Layout
from shardviz.core.program.program import Program
from shardviz.gallery import programs as gallery_programs
from shardviz.widgets.session import PLACE, Session, place
from shardviz.widgets.state import open_state


def session_on(thing: Any) -> Session:
    """A session on a program, a mesh, arrays, a layout, a saved state, or nothing in particular.

    Raises:
        ShardvizError: for something else.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> session_on(None).entry, session_on(make_mesh(data=2)).mesh.size
    ('MLP', 2)
    """
    if thing is None:
        name = gallery_programs.DEFAULT
        return Session(gallery_programs.get(name), name)
    if isinstance(thing, Program):
        return Session(thing, own=thing)
    if isinstance(thing, MeshSpec):
        name = gallery_programs.DEFAULT
        return Session(gallery_programs.get(name).replace(mesh=thing), name)
    if isinstance(thing, Layout) and thing.spec is not None:
        array = ArraySpec("array", thing.shape, None, thing.dtype, thing.spec)
        return Session(Program(place, (array,), thing.mesh, name=PLACE), PLACE)
    if isinstance(thing, (dict, str)):
        return open_state(thing)
    arrays = (thing,) if isinstance(thing, ArraySpec) else thing
    if isinstance(arrays, Iterable):
        arrays = tuple(arrays)
        if arrays and all(isinstance(a, ArraySpec) for a in arrays):
            base = gallery_programs.get(gallery_programs.DEFAULT)
            return Session(Program(place, arrays, base.mesh, base.rules, name=PLACE), PLACE)
    raise ShardvizError(
        f"The Explorer opens on a program, a mesh, arrays, a layout or a saved state; got"
        f" {shown(thing)}."
    )
