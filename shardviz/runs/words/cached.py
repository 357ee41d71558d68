"""English sentences on why `sv.cached`, or jax on another mesh, compiled again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardviz.base.display import Fact, sentence
from shardviz.base.format import clause, plural
from shardviz.runs.cached import (
    STAGES,
    ArrayAdded,
    ArrayChanged,
    ArrayRemoved,
    DroppedSignature,
    MeshComparison,
    Miss,
    NeverCompiled,
    NewSignature,
    SameAsDropped,
    SettingChanged,
    StaticChanged,
    TreeChanged,
)

# jax's name of a setting -> its name in our sentences.
_SETTINGS = {
    "jax_enable_x64": "x64 mode",
    "mesh_context_manager": "the mesh of `with mesh:`",
    "abstract_mesh_context_manager": "the mesh of jax.set_mesh",
    "concrete_mesh": "the devices of the mesh in force",
}


def _added(fact: ArrayAdded) -> str:
    return f"tree: came {fact.name}"


def _removed(fact: ArrayRemoved) -> str:
    return f"tree: went {fact.name}"


def _tree(fact: TreeChanged) -> str:
    return f"tree: {fact.before} became {fact.after}"


def _array(fact: ArrayChanged) -> str:
    change = f"{fact.before} became {fact.after}"
    return f"argument {fact.name}: {fact.aspect} {change}"


def _static(fact: StaticChanged) -> str:
    """Describes the change of a static argument.

    >>> _static(StaticChanged("n", "3", None))
    'static argument n: 3 became not given'
    """
    before = "not given" if fact.before is None else fact.before
    after = "not given" if fact.after is None else fact.after
    if before == after:
        after = "another one that reads the same"
    return f"static argument {fact.name}: {before} became {after}"


def _setting(fact: SettingChanged) -> str:
    """Describes the change of a jax setting.

    >>> _setting(SettingChanged("jax_enable_x64", "off", "on"))
    'x64 mode: off became on'
    """
    if not fact.name:
        return "another setting of jax, which this version of it does not name"
    name = _SETTINGS.get(fact.name)
    if name is None:
        name = fact.name.removeprefix("jax_").replace("_", " ")
    return f"{name}: {fact.before} became {fact.after}"


def _same_as_dropped(fact: SameAsDropped) -> str:
    return f"the same as entry {fact.entry}, which was dropped"


def _never_compiled(fact: NeverCompiled) -> str:
    return f"{fact.function} was never compiled."


def _compiled(fact: Miss, reason: str) -> str:
    return f"{fact.function} was compiled for {fact.signature}, entry {fact.entry}; {reason}."


def _first_miss(fact: Miss) -> str:
    return _compiled(fact, "nothing was compiled before")


def _new_signature(fact: NewSignature) -> str:
    """Explains in one sentence why a call compiled.

    >>> change = ArrayChanged("x", "dtype", "float32", "int32")
    >>> _new_signature(NewSignature("f", "(x: int32[])", 2, 1, (change,)))[-72:]
    'entry 2; the nearest is entry 1: argument x: dtype float32 became int32.'
    """
    differences = "; ".join(map(sentence, fact.differences))
    return _compiled(fact, f"the nearest is entry {fact.nearest}: {differences}")


def _dropped_signature(fact: DroppedSignature) -> str:
    earlier_entry = _same_as_dropped(SameAsDropped(fact.dropped))
    size = plural(fact.size, "signature")
    return _compiled(fact, f"it is {earlier_entry}: the cache holds {size}")


_DONE = {"trace": "traced", "lower": "lowered", "compile": "compiled"}


def mesh_comparison(value: MeshComparison) -> str:
    """Names the stages that jax repeated for the second mesh."""
    second = value.second
    if second.error:
        return (
            f"The second mesh was refused: {second.error} A function that names devices"
            " runs on those alone; name an AbstractMesh in it and let the arguments"
            " bring the devices."
        )
    if not second.misses:
        return (
            "Nothing was done again for the second mesh: it has the devices of the"
            " first."
        )
    repeated = " and ".join(_DONE[stage] for stage in second.misses)
    reused = " and ".join(_DONE[s] for s in STAGES if s not in second.misses)
    return f"For the second mesh it was {repeated} again{clause(', not {}', reused)}."


SENTENCES: Mapping[type[Fact], Callable[[Any], str]] = {
    ArrayAdded: _added,
    ArrayRemoved: _removed,
    TreeChanged: _tree,
    ArrayChanged: _array,
    StaticChanged: _static,
    SettingChanged: _setting,
    SameAsDropped: _same_as_dropped,
    NeverCompiled: _never_compiled,
    Miss: _first_miss,
    NewSignature: _new_signature,
    DroppedSignature: _dropped_signature,
}
EXPLANATIONS = {MeshComparison: mesh_comparison}
