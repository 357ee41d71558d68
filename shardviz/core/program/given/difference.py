"""Why one program compiles anew although a like one was compiled: what differs, in words.

Knows no jax: it compares what programs were made of.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardviz.core.layout.request import Request
from shardviz.core.program.program import Program


def differences(old: Program, new: Program) -> tuple[str, ...]:
    """What `new` has that `old` had not, one phrase each; empty where nothing differs.

    >>> from shardviz.core.layout.array import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> old = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4))
    >>> differences(old, old.replace(mesh=make_mesh(data=8)))
    ('mesh: data=4 became data=8',)
    """
    found = []
    if old.fn is not new.fn:
        found.append(f"function: {old.name} became {new.name}")
    if old.mesh != new.mesh:
        changed = str(old.mesh) != str(new.mesh)
        words = f"{old.mesh} became {new.mesh}" if changed else "other devices, hosts or axis types"
        found.append(f"mesh: {words}")
    before = {asked.array.name: asked for asked in old.requests}
    for asked in new.requests:
        found += _array_differences(before.pop(asked.array.name, None), asked)
    found += [f"{name}: is gone" for name in before]
    if old.out_specs != new.out_specs:
        found.append("the specs of the outputs")
    if dict(old.options) != dict(new.options):
        found.append(f"options: {dict(old.options)} became {dict(new.options)}")
    return tuple(found)


def _array_differences(old: Request | None, new: Request) -> list[str]:
    name = new.array.name
    if old is None:
        return [f"{name}: is new"]
    pairs = (
        ("shape", list(old.array.shape), list(new.array.shape)),
        ("dtype", old.array.dtype, new.array.dtype),
        ("sharding", str(old.spec), str(new.spec)),
    )
    return [f"{name}: {what} {was} became {now}" for what, was, now in pairs if was != now]


def nearest_difference(earlier: Iterable[Program], new: Program) -> str:
    """What differs from the most alike of the earlier programs, as one sentence."""
    found = [differences(old, new) for old in earlier]
    if not found:
        return "Nothing was compiled before it."
    least = min(found, key=len)
    if not least:
        return "The same program: for another target, with a callback, or dropped since."
    more = f"; and {len(least) - 4} more" if len(least) > 4 else ""
    return "; ".join(least[:4]) + more + "."
