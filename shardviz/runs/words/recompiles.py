"""English sentences on why jax, on the same mesh or another, compiled again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardviz.base.display import Fact, sentence
from shardviz.base.format import (
    by_count,
    bytes_text,
    clause,
    cut,
    joined,
    plural,
    seconds_text,
)
from shardviz.runs.recompiles import (
    STAGES,
    AlreadyCompiled,
    ArrayAdded,
    ArrayChanged,
    ArrayRemoved,
    CachesCleared,
    Compile,
    CompiledAgain,
    CompiledBefore,
    Difference,
    MeshComparison,
    Miss,
    NeverCompiled,
    NewFunction,
    NewSignature,
    PassingChanged,
    SettingChanged,
    SignatureRow,
    StaticChanged,
    TreeChanged,
    Unexplained,
    WatchedAgain,
    WatchTable,
)

# jax's name of a setting -> its name in our sentences.
_SETTINGS = {
    "jax_enable_x64": "x64 mode",
    "mesh_context_manager": "the mesh of `with mesh:`",
    "abstract_mesh_context_manager": "the mesh of jax.set_mesh",
    "concrete_mesh": "the devices of the mesh in force",
}


def _added(fact: ArrayAdded) -> str:
    return f"array {fact.name} is new"


def _removed(fact: ArrayRemoved) -> str:
    return f"array {fact.name} is gone"


def _tree(fact: TreeChanged) -> str:
    return f"containers: {fact.before} became {fact.after}"


def _passing(fact: PassingChanged) -> str:
    """Describes arguments that are now passed by keyword, or by position.

    >>> _passing(PassingChanged(("x", "lr"), by_keyword=True))
    'x and lr are now passed by keyword'
    """
    verb = by_count(len(fact.names), "is", "are")
    how = "keyword" if fact.by_keyword else "position"
    return f"{joined(fact.names, limit=_MOST_REASONS)} {verb} now passed by {how}"


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
        after = "another value with the same repr"
    return f"static argument {fact.name}: {before} became {after}"


def _setting(fact: SettingChanged) -> str:
    """Describes the change of a jax setting.

    >>> _setting(SettingChanged("jax_enable_x64", "off", "on"))
    'x64 mode: off became on'
    """
    if not fact.name:
        return "another jax setting, which this version of jax does not name"
    name = _SETTINGS.get(fact.name)
    if name is None:
        name = fact.name.removeprefix("jax_").replace("_", " ")
    return f"{name}: {fact.before} became {fact.after}"


def _caches_cleared(fact: CachesCleared) -> str:
    return "jax no longer had the executable: its caches were cleared or full"


def _new_function(fact: NewFunction) -> str:
    return (
        f"another function object: an earlier {fact.function} from the same line was"
        " compiled for these arguments"
    )


def _watched_again(fact: WatchedAgain) -> str:
    return (
        f"another sv.watch of {fact.function} compiled it for these arguments, and watches"
        f" share executables only if they wrap jax.jit({fact.function}) with the same options,"
        " until jax clears its caches"
    )


def _unexplained(fact: Unexplained) -> str:
    return "nothing that shardviz compares has changed"


def _never_compiled(fact: NeverCompiled) -> str:
    if not fact.function:
        return "jax has compiled nothing."
    return f"No call has compiled {fact.function}."


def _compiled_before(fact: CompiledBefore) -> str:
    return f"No call had to compile {fact.function}: jax already had the executable."


# A large model has hundreds of arrays, and a new mesh changes all of them.
_MOST_LETTERS, _MOST_REASONS = 400, 6


def _compiled(fact: Miss, reason: str) -> str:
    signature = cut(fact.signature, _MOST_LETTERS)
    if fact.refused:
        return f"{fact.function} would be compiled for {signature}. {reason}."
    return (
        f"{fact.function} was compiled for {signature} (entry {fact.entry}). {reason}."
    )


def _reasons(differences: Sequence[Difference]) -> str:
    sentences = [*map(sentence, differences[:_MOST_REASONS])]
    if len(differences) > _MOST_REASONS:
        sentences.append(f"and {len(differences) - _MOST_REASONS} more")
    return "; ".join(sentences)


def _miss(fact: Miss) -> str:
    reason = _reasons(fact.differences) or "no earlier compile is known"
    return _compiled(fact, reason[0].upper() + reason[1:])


def _new_signature(fact: NewSignature) -> str:
    """Explains in one sentence why a call compiled.

    >>> change = ArrayChanged("x", "dtype", "float32", "int32")
    >>> _new_signature(NewSignature("f", "(x: int32[])", 2, (change,), 1))[-73:]
    '(entry 2). Compared with entry 1, argument x: dtype float32 became int32.'
    """
    differences = _reasons(fact.differences)
    return _compiled(fact, f"Compared with entry {fact.nearest}, {differences}")


def _compiled_again(fact: CompiledAgain) -> str:
    verb = "would be" if fact.refused else "was"
    return _compiled(fact, f"It {verb} compiled again: {_reasons(fact.differences)}")


def _already_compiled(fact: AlreadyCompiled) -> str:
    signature = cut(fact.signature, _MOST_LETTERS)
    return (
        f"{fact.function} was not compiled for {signature} (entry {fact.entry}): jax"
        " already had the executable."
    )


def _compile(fact: Compile) -> str:
    """Describes a compile, with jax's own explanation.

    >>> print(_compile(Compile("step", 0.1, 0.1, 0.3, "new function", "", "MainThread")))
    step: 500 ms, new function
    """
    seconds = seconds_text(fact.trace_s + fact.lower_s + fact.compile_s)
    line = f"{fact.function}: {seconds}{clause(', {}', fact.reason)}"
    return "\n".join([line, *(f"  {text}" for text in fact.message.splitlines()[1:])])


def why_compiled(row: SignatureRow) -> str:
    """Explains in a few words why a signature was compiled."""
    reason = _reasons(row.differences) or "the first call"
    if row.compiles == 0:
        return f"not compiled, since jax already had the executable ({reason})"
    if row.compiles > 1:
        return f"{reason} (compiled {row.compiles} times)"
    return reason


def communication(row: SignatureRow) -> str:
    """Names the collectives of a signature, and how they differ from the row before."""
    if row.collectives is None:
        return ""
    if not row.collectives:
        return "none"
    text = f"{row.collectives}, {bytes_text(row.sent_bytes)} sent"
    if row.comparison is not None and not row.comparison.same:
        text += f" ({row.comparison.short})"
    return text


def peak(row: SignatureRow) -> str:
    """The peak memory of a signature."""
    return "" if row.collectives is None else bytes_text(row.peak_bytes)


def watch_table(table: WatchTable) -> str:
    """Describes each signature of a watched function in a few lines."""
    if not table.rows:
        return _never_compiled(NeverCompiled(table.function))
    lines = [headline(table)]
    for row in table.rows:
        parts = (
            plural(row.calls, "call"),
            f"compiled in {seconds_text(row.seconds)}" if row.compiles else "",
            clause("collectives: {}", communication(row)),
            clause("peak {} per device", peak(row)),
        )
        lines.append(f"{row.entry}. {' · '.join(filter(None, parts))}")
        lines.append(f"   {cut(row.signature, 200)}")
        lines.append(f"   {why_compiled(row)}")
    return "\n".join(lines)


def headline(table: WatchTable) -> str:
    """Sums up the calls and compiles of a watched function."""
    seconds = seconds_text(sum(row.seconds for row in table.rows))
    return (
        f"{table.function}: {plural(sum(row.calls for row in table.rows), 'call')},"
        f" {plural(sum(row.compiles for row in table.rows), 'compile')} in {seconds}"
    )


_DONE = {"trace": "traced", "lower": "lowered", "compile": "compiled"}


def mesh_comparison(value: MeshComparison) -> str:
    """Names the stages that jax repeated for the second mesh."""
    second = value.second
    if second.error:
        return (
            f"The second mesh was refused: {second.error} A function that names devices"
            " runs only on those. Name an AbstractMesh in it, and let the arguments"
            " determine the devices."
        )
    if not second.misses:
        return (
            "jax repeated nothing for the second mesh, because both meshes have the same"
            " devices."
        )
    repeated = " and ".join(_DONE[stage] for stage in second.misses)
    reused = " and ".join(_DONE[s] for s in STAGES if s not in second.misses)
    not_again = clause(", but not {}", reused)
    return f"For the second mesh, the function was {repeated} again{not_again}."


SENTENCES: Mapping[type[Fact], Callable[[Any], str]] = {
    ArrayAdded: _added,
    ArrayRemoved: _removed,
    TreeChanged: _tree,
    PassingChanged: _passing,
    ArrayChanged: _array,
    StaticChanged: _static,
    SettingChanged: _setting,
    CachesCleared: _caches_cleared,
    Compile: _compile,
    NewFunction: _new_function,
    WatchedAgain: _watched_again,
    Unexplained: _unexplained,
    NeverCompiled: _never_compiled,
    CompiledBefore: _compiled_before,
    Miss: _miss,
    NewSignature: _new_signature,
    CompiledAgain: _compiled_again,
    AlreadyCompiled: _already_compiled,
}
EXPLANATIONS = {MeshComparison: mesh_comparison, WatchTable: watch_table}
