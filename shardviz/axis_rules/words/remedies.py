"""Sentences on remedies: the edit, its effect, or why there is no remedy."""

from __future__ import annotations

from shardviz.axis_rules.remedies import (
    Action,
    AddLine,
    AlreadySplit,
    BreaksOthers,
    BytesUnknown,
    BytesWish,
    KeepParameterNames,
    Line,
    MoveLine,
    NameDimension,
    NoAxes,
    NoEdit,
    NoLayout,
    NoNames,
    NoRemedy,
    OwnSpec,
    Remedies,
    Remedy,
    RemoveLine,
    RenameLine,
    RetargetLine,
    SpecWish,
    SplitWish,
    TooSmall,
    UnsplitWish,
    Wish,
)
from shardviz.axis_rules.rules import PathRule, Rule
from shardviz.base.format import (
    by_count,
    bytes_text,
    clause,
    fold,
    joined,
    listed,
    plural,
    shown,
)


def decapitalised(text: str) -> str:
    """Returns a sentence with a lower-case start, for use inside another sentence.

    >>> decapitalised("Remove rule 1")
    'remove rule 1'
    """
    return text[:1].lower() + text[1:]


def wish(fact: Wish) -> str:
    """Formats the request so that it can follow "to"."""
    title = fact.path or "the array"
    match fact:
        case SpecWish(spec=spec):
            return f"split {title} as {spec}"
        case BytesWish(limit=limit):
            return f"keep {title} to at most {bytes_text(limit)} per device"
        case SplitWish(dim=int(dim)):
            return f"split dimension {dim} of {title}"
        case UnsplitWish(dim=int(dim)):
            return f"leave dimension {dim} of {title} unsplit"
        case UnsplitWish():
            return f"leave {title} unsplit"
    return f"split {title}"


def action(fact: Action) -> str:
    """Formats an edit as an instruction, without a full stop.

    >>> table = (Rule("embed", ("data",)), Rule("mlp", ()))
    >>> action(MoveLine(table, 1, 0))
    'Move rule 2 (mlp → None) before rule 1'
    """
    match fact:
        case KeepParameterNames(names=names, path=path):
            # Flax's wrappers hold the names; some optimizers keep the wrappers.
            return (
                "Create the optimizer state from parameters that still have their names"
                f" ({joined(map(shown, names))} for {path}), not from bare arrays"
            )
        case NameDimension():
            return _name_dimension(fact)
        case AddLine(table, place, new):
            noun = "pattern" if isinstance(new, PathRule) else "rule"
            return f"Add the {noun} {_line(new)} {_position(table, place, 'before')}"
        case RemoveLine(table, index):
            return f"Remove {_numbered(table, index)}"
        case MoveLine(table, index, place):
            # A line that moves down goes after the line at `place`.
            side = "before" if place < index else "after"
            return f"Move {_numbered(table, index)} {_position(table, place, side)}"
        case RenameLine(table, index, Rule(logical=name)):
            old = table[index]
            assert isinstance(old, Rule)
            line = _numbered(table, index)
            return f"Rename {shown(old.logical)} to {shown(name)} in {line}"
        case RenameLine(table, index, PathRule(pattern=pattern)):
            return f"Change {_numbered(table, index)} to {shown(pattern)}"
        case RetargetLine():
            return _retarget(fact)
    raise TypeError(type(fact))


def _name_dimension(fact: NameDimension) -> str:
    array, alike = clause("array {}", fact.path) or "the array", len(fact.alike)
    layers = fold([fact.path or "", *fact.alike], str)[0]
    if layers.in_layers is not None:
        array = "array {} in {}".format(*layers.in_layers)
        alike -= len(layers.items) - 1
    array += clause(" (and {:,} like it)", alike)
    if fact.old is None:
        return f"Name dimension {fact.dim} of {array} {shown(fact.new)}"
    return f"Rename {shown(fact.old)} to {shown(fact.new)} in {array}"


def _retarget(fact: RetargetLine) -> str:
    old, new = fact.table[fact.index], fact.new
    if isinstance(new, PathRule):
        return f"Give {_numbered(fact.table, fact.index)} the spec {new.spec}"
    assert isinstance(old, Rule)
    return f"In rule {fact.index + 1} ({old.logical}), {new_target(old, new)}"


def new_target(old: Rule, new: Rule) -> str:
    """Formats the change of a rule's mesh axes, as an instruction.

    >>> new_target(Rule("embed", ()), Rule("embed", ("data",)))
    "split over 'data' instead of None"
    """
    verb, target = (
        ("split over", listed(new.axes)) if new.axes else ("write", new.target)
    )
    return f"{verb} {target} instead of {listed(old.axes) or old.target}"


def _position(table: tuple[Line, ...], place: int, side: str) -> str:
    """Formats a line's new position, relative to the table before the edit."""
    if place == len(table):
        return "at the end"
    if isinstance(table[place], PathRule):
        return f"{side} {_numbered(table, place)}"
    return f"{side} rule {place + 1}"


def _line(line: Line) -> str:
    if isinstance(line, PathRule):
        return f"{shown(line.pattern)} → {line.spec}"
    return str(line)


def _numbered(table: tuple[Line, ...], index: int) -> str:
    line = table[index]
    noun = "pattern" if isinstance(line, PathRule) else "rule"
    return f"{noun} {index + 1} ({_line(line)})"


def edit(fact: Remedy) -> str:
    """Formats a remedy's edit, and notes if the array is then left unsplit."""
    words = action(fact.action)
    if fact.leaves_unsplit:
        return f"Leave it unsplit: {decapitalised(words)}"
    return words


def effect(fact: Remedy) -> str:
    """Formats a remedy's effect: the new spec, saved bytes, other changed arrays."""
    parts = [str(fact.spec)]
    if fact.leaf_bytes_saved is not None and fact.bytes_saved is not None:
        parts.append(_saved(fact.leaf_bytes_saved, fact.bytes_saved))
    if fact.fewer_shards is not None:
        now, after = fact.fewer_shards
        split = f"splits the array {after:,} ways instead of {now:,}"
        if after == 1:
            split = f"leaves the array unsplit instead of splitting it {now:,} ways"
        parts.append(split)
    if fact.others:
        verb = by_count(len(fact.others), "changes", "change")
        # Fold layers, because a rule often changes the same array in each layer.
        names = joined((layers.name for layers in fold(fact.others, str)), limit=4)
        parts.append(f"{plural(len(fact.others), 'other array')} {verb}: {names}")
    return "; ".join(parts)


def _saved(here: int, everywhere: int) -> str:
    words = f"{_saving(here)} per device"
    if here == everywhere:
        return words
    in_all = _saving(everywhere)
    # Avoid repeating "saves".
    if here > 0 and everywhere > 0:
        in_all = bytes_text(everywhere)
    return f"{words} for this array and {in_all} in total"


def _saving(count: int) -> str:
    if not count:
        return "saves nothing"
    if count < 0:
        return f"costs {bytes_text(-count)}"
    return f"saves {bytes_text(count)}"


def remedy(fact: Remedy) -> str:
    """Formats a remedy's edit and effect as one sentence."""
    return f"{edit(fact)}: {effect(fact)}."


def no_remedy(fact: NoRemedy) -> str:
    """Explains why there is no remedy."""
    title = fact.wish.path or "the array"
    match fact:
        case AlreadySplit(spec=spec, bytes=size):
            takes = ""
            if size is not None:
                takes = f" and takes {bytes_text(size)} per device"
            return f"Nothing to change: {title} is already split as {spec}{takes}."
        case OwnSpec(spec=spec):
            return (
                f"{title} has its own PartitionSpec, {spec}, which overrides all rules."
                " Change that spec."
            )
        case NoLayout(error=error):
            return f"No rule table can {wish(fact.wish)}. {error}"
        case NoNames(error=error):
            error = error or "Rules are for logical names, and it has none."
            return f"No rule splits {title}. {error}"
        case BytesUnknown():
            return (
                f"The size of {title} per device is unknown: its shape or the mesh is"
                " missing."
            )
        case NoAxes():
            return (
                f"No rule table can split {title}: the mesh has no axis of more than"
                " one device."
            )
        case TooSmall(bytes=size):
            return (
                f"No rule table can do that: even if {title} is split as far as its sizes"
                f" allow, it takes {bytes_text(size)} per device."
            )
        case BreaksOthers(action=broken_by, path=path, error=error):
            return (
                f"No edit that was tried can {wish(fact.wish)} without breaking another"
                f" array. For example, “{decapitalised(action(broken_by))}” breaks {path}:"
                f" {error}"
            )
        case NoEdit():
            return f"No edit that was tried can {wish(fact.wish)}."
    raise TypeError(type(fact))


def remedies(value: Remedies) -> str:
    """Lists all remedies, one per line, or explains why there is none."""
    if value.why is not None:
        return no_remedy(value.why)
    lines = [f"To {wish(value.want)}:"]
    for number, fact in enumerate(value, 1):
        lines.append(f"{number}. {remedy(fact)}")
    return "\n".join(lines)


SENTENCES = {Wish: wish, Action: action, Remedy: remedy, NoRemedy: no_remedy}

EXPLANATIONS = {Remedies: remedies, Remedy: edit}
