"""Why a call compiled again: under `sv.cached`, and on another mesh."""

from __future__ import annotations

from shardviz.base.format import clause, plural
from shardviz.runs.cache import ExecutableCache
from shardviz.runs.cached import (
    STAGES,
    Difference,
    MeshComparison,
    Miss,
)

# Settings of jax by the names that it gives them.
_SETTINGS = {
    "jax_enable_x64": "x64 mode",
    "mesh_context_manager": "the mesh of `with mesh:`",
    "abstract_mesh_context_manager": "the mesh of jax.set_mesh",
    "concrete_mesh": "the devices of the mesh in force",
}
_UNNAMED = "another setting of jax, which this version of it does not name"


def difference(fact: Difference) -> str:
    """One thing in which two calls differ.

    >>> difference(Difference("static", "n", "3", ""))
    'static argument n: 3 became not given'
    >>> difference(Difference("setting", "jax_enable_x64", "off", "on"))
    'x64 mode: off became on'
    """
    if fact.code == "dropped":
        return f"the same as entry {fact.name}, which was dropped"
    if fact.code == "added":
        return f"tree: came {fact.name}"
    if fact.code == "removed":
        return f"tree: went {fact.name}"
    before, after = fact.before, fact.after
    if fact.code == "static":
        before, after = before or "not given", after or "not given"
        if before == after:
            after = "another one that reads the same"
        return f"static argument {fact.name}: {before} became {after}"
    if fact.code == "tree":
        return f"tree: {before} became {after}"
    if fact.code == "setting":
        if not fact.name:
            return _UNNAMED
        name = _SETTINGS.get(fact.name)
        if name is None:
            name = fact.name.removeprefix("jax_").replace("_", " ")
        return f"{name}: {before} became {after}"
    return f"argument {fact.name}: {fact.code} {before} became {after}"


def miss(fact: Miss) -> str:
    """Why a call compiled, in one sentence.

    >>> change = Difference("dtype", "x", "float32", "int32")
    >>> miss(Miss("f", "(x: int32[])", 2, nearest=1, differences=(change,)))[-72:]
    'entry 2; the nearest is entry 1: argument x: dtype float32 became int32.'
    """
    if fact.entry == 0:
        return f"{fact.function} was never compiled."
    if fact.dropped is not None:
        held = plural(fact.size, "signature")
        same = difference(Difference("dropped", str(fact.dropped)))
        why = f"it is {same}: the cache holds {held}"
    elif fact.nearest is None:
        why = "nothing was compiled before"
    else:
        differences = "; ".join(difference(one) for one in fact.differences)
        why = f"the nearest is entry {fact.nearest}: {differences}"
    return (
        f"{fact.function} was compiled for {fact.signature}, entry {fact.entry}; {why}."
    )


_DONE = {"trace": "traced", "lower": "lowered", "compile": "compiled"}


def mesh_comparison(value: MeshComparison) -> str:
    """What jax did again for the second of two meshes."""
    again = value.second
    if again.error:
        return (
            f"The second mesh was refused: {again.error} A function that names devices"
            " runs on those alone; name an AbstractMesh in it and let the arguments"
            " bring the devices."
        )
    if not again.misses:
        return (
            "Nothing was done again for the second mesh: it has the devices of the"
            " first."
        )
    done = " and ".join(_DONE[stage] for stage in again.misses)
    kept = [_DONE[stage] for stage in STAGES if stage not in again.misses]
    return f"For the second mesh it was {done} again{clause(', not {}', ' and '.join(kept))}."


def executables(cache: ExecutableCache) -> str:
    """How many are kept, and how often one was found."""
    found = f"{plural(cache.hits, 'hit')}, {plural(cache.misses, 'miss', 'misses')}"
    return f"{len(cache)} of {cache.size} executables kept · {found}"


SENTENCES = {Difference: difference, Miss: miss}
EXPLANATIONS = {MeshComparison: mesh_comparison}
