"""What became of a call that may constrain a sharding, and what to do about it."""

from __future__ import annotations

from shardviz.programs.constraints import (
    CONSTRAINED,
    ERROR,
    FALLBACK,
    IDENTITY,
    NO_MESH,
    NO_RULES,
    UNBOX,
    VARIABLE,
    Constraint,
    undecided,
)


def effect(one: Constraint) -> str:
    """What became of a call, and what to do where it did nothing.

    >>> print(effect(Constraint("unbox", effect=NO_RULES)))
    No rules are in force, so unbox returns its argument as it is. Call it within ...
    """
    return _SENTENCES[one.effect](one)


def _constrained(one: Constraint) -> str:
    if one.spec is None:
        return "It is constrained to a sharding that names no mesh axes."
    end = "."
    # Such a constraint gathers the array, and seldom is meant.
    if not one.spec.axes and not one.spec.unconstrained:
        end = ": every device holds all of it."
    first = f"It is constrained to {one.spec}{end}"
    return " ".join([first, *_unsplit(one), *_problems(one)])


def _no_rules(one: Constraint) -> str:
    return (
        f"No rules are in force, so {one.call} returns its argument as it is. Call it"
        " within `with nn.logical_axis_rules(rules):`, or give it rules=; those of"
        " sv.program are for its arguments alone."
    )


def _no_mesh(one: Constraint) -> str:
    # Unboxing takes no mesh.
    other = "" if one.call == UNBOX else ", or give it mesh="
    first = (
        f"No mesh is in sight, so {one.call} returns its argument as it is. Enter `with"
        f" jax.set_mesh(mesh):` around the call of the function{other}; flax does not"
        " see `with mesh:`."
    )
    return " ".join([first, *_unsplit(one), *_problems(one)])


def _fallback(one: Constraint) -> str:
    first = (
        f"It has fallback {one.fallback}, and some names match no rule, so no dimension"
        " is constrained."
    )
    return " ".join([first, *_unsplit(one), _add_rules(one)])


def _identity(one: Constraint) -> str:
    explicit = one.mesh is not None and "Explicit" in one.mesh.axis_types
    if explicit and one.spec is not None:
        return (
            f"The axes of the mesh are Explicit and it is {one.spec} already: nothing"
            " changes."
        )
    if one.call == VARIABLE or one.names == ():
        return "Its names are empty, so nothing is constrained."
    return "It has no names, so nothing is constrained."


def _error(one: Constraint) -> str:
    unmatched = _unsplit(one)
    # flax's own error says that no rule matched, also where its axis was taken.
    if one.fallback == "RAISE_ERROR" and unmatched:
        first = f"It has fallback {one.fallback} and raises one."
        return " ".join([first, *unmatched, _add_rules(one)])
    return " ".join(["It raises an error.", *_problems(one)])


_SENTENCES = {
    CONSTRAINED: _constrained,
    NO_RULES: _no_rules,
    NO_MESH: _no_mesh,
    FALLBACK: _fallback,
    IDENTITY: _identity,
    ERROR: _error,
}


def _unsplit(one: Constraint) -> list[str]:
    """A sentence for each dimension whose name no rule decides."""
    if one.resolution is None:
        return []
    return [one.resolution.explain_dimension(dim) for dim in undecided(one)]


def _problems(one: Constraint) -> list[str]:
    problems = [] if one.resolution is None else list(one.resolution.problems)
    if one.problem:
        problems.append(one.problem)
    return problems


def _add_rules(one: Constraint) -> str:
    names = [str(one.names[dim]) for dim in undecided(one)] if one.names else []
    if not names:
        return ""
    which = "it" if len(names) == 1 else "each"
    return f"Add a rule for {which}, such as ({names[0]!r}, None)."


SENTENCES = {Constraint: effect}
