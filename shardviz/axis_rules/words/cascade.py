"""Explains how one dimension is split: a sentence, and a short note on each rule.

These texts are for the Explorer's Rules view. Only mesh axes are in quotes, so that the
page can show them in their colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardviz.axis_rules.remedies import Remedy, RetargetLine
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rule_uses import Idle, NoSuchName
from shardviz.axis_rules.rules import Rule
from shardviz.axis_rules.verdicts import (
    Applied,
    AxisShared,
    AxisTwice,
    DecidedBefore,
    Decision,
    Holder,
    Indivisible,
    MissingAxis,
    Overridden,
    SizeOne,
    Taken,
    Unsplit,
    Verdict,
)
from shardviz.axis_rules.words.remedies import new_target
from shardviz.axis_rules.words.rule_uses import in_layers
from shardviz.base.format import (
    by_count,
    bytes_text,
    clause,
    fold,
    joined,
    listed,
    plural,
    shown,
    suggestion,
)
from shardviz.base.layout import Misfit
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec, is_unconstrained

#: State -> text that a dimension's card shows in place of mesh axes.
STATES = {
    "fails": "does not fit",
    "axis missing": "no such axis",
    "axis twice": "axis used twice",
    "split": "",
    "size 1": "axis of size 1",
    "free": "compiler decides",
    "own spec": "not split",
    "no name": "no name",
    "no rule": "no rule",
    "axis taken": "axis in use",
    "kept whole": "left unsplit",
    "not split": "not split",
    "unknown": "not known",
}


def title(names: Sequence[object] | None, dim: int) -> str:
    """Returns a dimension's logical name, or else `dimension` and its number."""
    name = names[dim] if names and dim < len(names) else None
    if isinstance(name, str):
        return name
    return f"dimension {dim}"


def near(resolution: Resolution, dim: int) -> str | None:
    """Returns the table's name that an unknown name most likely means, or None."""
    name = resolution.names[dim]
    if not isinstance(name, str) or name in resolution.rules.by_name:
        return None
    close = resolution.rules.nearest(name)
    # Don't suggest a name that another dimension already has.
    return None if close in resolution.names else close


# --- the reason in a sentence ---------------------------------------------------------


def reason(request: Request, dim: int, by_path: bool = False) -> tuple[str, str]:
    """Returns how a dimension is split, and why; `by_path` if a path table decided.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.axis_rules.requests import request
    >>> from shardviz.axis_rules.rules import Rules
    >>> mesh, rules = make_mesh(data=2, tensor=4), Rules.of(("heads", "tensor"))
    >>> wq = ArraySpec("wq", (64, 34), "embed heads")
    >>> reason(request(wq, mesh, rules), 1)[0]
    'heads is not split.'
    >>> reason(request(wq, mesh, rules), 1)[1]
    "Rule 1 wins and asks for 'tensor', but 34 is not divisible by 4: 2 left over."
    """
    resolution, names = request.resolution, request.array.logical
    name = title(names, dim)
    lead = _lead(request, dim, name)
    if request.spec_wins:
        return lead, _own_spec(request, by_path)
    if resolution is None:
        return lead, _without_rules(request)
    decision = resolution.decisions[dim]
    if is_unconstrained(decision.logical):
        return lead, "Its logical name is P.UNCONSTRAINED."
    winner = decision.deciding
    if winner is None:
        return lead, _undecided(decision, resolution)
    words = f"Rule {winner.rule + 1} {_wins(winner, resolution)}"
    for lost in decision.verdicts:
        if isinstance(lost, Taken):
            causes = _holders(lost.taken, resolution)
            words += f" Rule {lost.rule + 1} comes first, but {causes}."
    return lead, words


def _lead(request: Request, dim: int, name: str) -> str:
    """Formats how a dimension is split."""
    spec = request.spec or Spec()
    axes = spec.padded(request.array.rank)[dim]
    if name == title(None, dim):
        name = name.capitalize()
    if dim in spec.unconstrained:
        return f"{name} is left to the compiler."
    parts = 1 if request.layout is None else request.layout.block_counts[dim]
    if parts == 1:
        return f"{name} is not split."
    return f"{name} is split {parts:,} ways over {listed(axes)}."


def _own_spec(request: Request, by_path: bool) -> str:
    words = "The array's own PartitionSpec decides this, and overrides the rules."
    if by_path:
        words = (
            "The audit's table of paths decides this, for all dimensions of an array"
            " together."
        )
    return words + clause(" {}", request.problem)


def _without_rules(request: Request) -> str:
    """Explains why an array without its own spec has no resolution."""
    if request.problem:
        return request.problem
    if request.array.logical is None:
        return (
            "Rules are for names, and the array's dimensions have none. Name them in the"
            " Layout view."
        )
    return f"There are no rules. {HOW_TO_WRITE}"


def _undecided(decision: Decision, resolution: Resolution) -> str:
    """Explains why no rule decides a dimension."""
    name = decision.logical
    if name is None:
        return "It has no logical name, and rules are for names."
    if decision.passed_through:
        words = f"No rule names {name}, so {resolution.dialect.library} uses {name} as a mesh axis"
        if resolution.mesh is not None and name not in resolution.mesh.shape:
            return f"{words}, which the mesh does not have."
        return f"{words}."
    if not resolution.rules:
        return f"There are no rules. {HOW_TO_WRITE}"
    if decision.unknown:
        hint = clause(" Did you mean {}?", near(resolution, decision.dimension))
        return f"No rule names {name}.{hint}"
    sentences = []
    for lost in decision.verdicts:
        if isinstance(lost, Taken):
            causes = _holders(lost.taken, resolution)
            asks = f"Rule {lost.rule + 1} asks for {listed(lost.axes)}"
            sentences.append(f"{asks}, but {causes}.")
    return " ".join(sentences)


def _wins(fact: Verdict, resolution: Resolution) -> str:
    """Formats the deciding rule's effect, as the rest of a sentence."""
    wants = f"wins and asks for {listed(fact.axes)}"
    match fact:
        case Indivisible(misfit=misfit):
            return f"{wants}, but {_left_over(misfit)}."
        case MissingAxis():
            return f"{wants}, and {_missing(fact)}"
        case AxisTwice() | AxisShared():
            return f"{wants}, but {_twice(fact, resolution)}."
        case SizeOne():
            verbs = "has size 1 and splits", "have size 1 and split"
            return f"{wants}, which {by_count(len(fact.axes), *verbs)} nothing."
        case Applied(line=Rule(free=True)):
            return "wins and leaves it to the compiler."
        case Unsplit():
            return "wins and leaves it unsplit."
    if resolution.problems:
        return f"{wants}, but another dimension of the array has a problem."
    return "decides."


def _left_over(fact: Misfit) -> str:
    return f"{fact.size:,} is not divisible by {fact.parts:,}: {fact.remainder:,} left over"


def _missing(fact: MissingAxis) -> str:
    hint = suggestion(fact.absent[0], fact.mesh.axis_names)
    return f"the mesh has no axis {listed(fact.absent, 'or')}.{hint}"


def _twice(fact: AxisTwice | AxisShared, resolution: Resolution) -> str:
    if isinstance(fact, AxisTwice):
        return "names an axis twice, and an axis can split only one dimension"
    causes = []
    for axis, dim, _ in fact.taken:
        causes.append(f"{title(resolution.names, dim)} also uses {shown(axis)}")
    return joined(causes)


def _holders(taken: tuple[Holder, ...], resolution: Resolution) -> str:
    """Lists the rules that assigned these axes to other dimensions."""
    axes_of: dict[tuple[int, int], list[str]] = {}
    for axis, dim, by in taken:
        axes_of.setdefault((dim, (by or 0) + 1), []).append(shown(axis))
    causes = []
    for (dim, rule), axes in axes_of.items():
        causes.append(
            f"rule {rule} gave {joined(axes)} to {title(resolution.names, dim)}"
        )
    return joined(causes)


# --- a short note on each rule --------------------------------------------------------


def verdict(fact: Verdict, resolution: Resolution) -> str:
    """Formats the effect of one rule on a dimension with the rule's name.

    >>> from shardviz.axis_rules.resolution import resolve
    >>> found = resolve("embed mlp", [("mlp", "model"), ("embed", "model")])
    >>> verdict(found.verdict(0, 1), found)
    "axis in use: rule 1 gave 'model' to mlp"
    """
    match fact:
        case Indivisible():
            return f"does not fit: {misfit(fact.misfit)}"
        case MissingAxis():
            return _missing(fact).removesuffix(".")
        case AxisTwice() | AxisShared():
            return f"decides, but {_twice(fact, resolution)}"
        case DecidedBefore(by_rule=by):
            return f"too late: rule {by + 1} decided"
        case Overridden(by_rule=by, library=library):
            return (
                f"replaced by rule {by + 1}: in {library} the last rule for a name wins"
            )
        case Taken(taken=taken):
            return f"axis in use: {_holders(taken, resolution)}"
        case SizeOne():
            return "decides, but an axis of size 1 splits nothing"
        case Applied(line=Rule(free=True)):
            return "leaves it to the compiler"
        case Unsplit():
            return "leaves it unsplit"
        case Applied(mesh=MeshSpec() as mesh):
            return f"splits {math.prod(mesh.shape[a] for a in fact.axes):,} ways"
        case Applied():
            return "splits"
    raise TypeError(type(fact))


def misfit(fact: Misfit) -> str:
    """Formats the remainder of a division, and the nearest sizes that divide.

    >>> misfit(Misfit(34, ("tensor",), 4))
    '34 = 4 × 8 + 2; 32 and 36 would fit'
    """
    fits = joined(f"{size:,}" for size in fact.sizes)
    count = fact.size // fact.parts
    return f"{fact.size:,} = {fact.parts:,} × {count:,} + {fact.remainder:,}; {fits} would fit"


#: Shown next to each rule, if the array's own spec overrides the rules.
OVERRULED = "not used: the array's own PartitionSpec takes precedence"
#: Shown above the rules, if the array's own spec overrides the rules.
OWN_SPEC = "its own PartitionSpec, which overrides every rule"
BY_PATH = "from the audit's table of paths"


def idle(fact: Idle) -> str:
    """Formats a short note on a rule that decides nothing."""
    if isinstance(fact, NoSuchName):
        return f"matches no array here{clause('; the nearest name is {}', fact.near)}"
    return "decides nothing here"


# --- texts for empty views and for the last edit --------------------------------------

HOW_TO_WRITE = (
    "Write one: “batch -> data” splits every dimension called batch over the mesh axis"
    " data."
)
NO_ARRAYS = "There are no arrays. Add one in the Layout view."
SCALAR = "It is a scalar and has no dimension to split."
CHOOSE = "Choose a dimension to see which rule decided it."


def applied(remedy: Remedy, name: str, memory: str) -> str:
    """Reports the change by a remedy that was just applied."""
    return f"Done: {name} is now {remedy.spec}{clause(', {}', memory)}."


#: Explains why an array with its own spec has no remedies.
SPEC_NOT_EDITED = (
    "Rules cannot change that. Edit the array's PartitionSpec in the Layout view, or remove"
    " it to let the rules decide."
)
#: Explains why a leaf whose spec comes from a path table has no remedies.
PATHS_NOT_EDITABLE = (
    "The Explorer cannot edit a table of paths."
    " sv.remedies(audit.rows[{}], 'split {}') finds edits of the table."
)


def remedy_edit(remedy: Remedy) -> str:
    """Formats a remedy's edit; rules are listed above it, so their numbers are enough.

    >>> from shardviz.axis_rules.rules import Rules
    >>> old, new = Rule("embed", ()), Rule("embed", ("data",))
    >>> edit = RetargetLine((old,), 0, new)
    >>> remedy_edit(Remedy(edit, Rules((new,)), ("embed",), Spec.parse("data")))
    "Rule 1: split over 'data' instead of None"
    """
    match remedy.action:
        case RetargetLine(table, index, Rule() as new) if new.axes:
            old = table[index]
            assert isinstance(old, Rule)
            return f"Rule {index + 1}: {new_target(old, new)}"
    return remedy.edit


def remedy_memory(remedy: Remedy, row: Request) -> str:
    """Formats a remedy's effect on the memory of each device."""
    saved = remedy.bytes_saved
    if row.layout is None and remedy.leaf_bytes_saved is not None:
        # The array has no layout yet, so show its new size instead of a saving.
        size = row.array.bytes - remedy.leaf_bytes_saved
        return f"takes {bytes_text(size)} on every device"
    if saved is None:
        return ""
    if not saved:
        return "same memory"
    sign = "−" if saved > 0 else "+"
    return f"{sign}{bytes_text(abs(saved))} stored per device"


PLANNING = "planning the step …"


def remedy_refused(message: str) -> str:
    """Reports that the program cannot be planned with a remedy."""
    return f"The step cannot be planned with this change: {message}"


def remedy_others(remedy: Remedy, row: Request) -> str:
    """Lists the other arrays that a remedy changes.

    If the array's equal layers or moments are among them, the list names it, too.
    """
    if not remedy.others:
        return "changes no other array"
    parameters: dict[str, str] = {}
    for other in () if row.audit is None else row.audit.rows:
        if other.group == "optimizer state" and other.partner is not None:
            parameters[other.path] = other.partner
    paths = [row.path, *remedy.others]
    alike = fold(paths, str)[0].in_layers is not None
    related = {parameters.get(path) for path in remedy.others}
    if not alike and row.path not in related:
        paths = paths[1:]
    names = in_layers(paths, parameters)
    return f"changes {plural(len(remedy.others), 'other array')}: {names}"
