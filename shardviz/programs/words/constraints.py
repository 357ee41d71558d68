"""Describes the effect of a call that may constrain a sharding."""

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


def effect(constraint: Constraint) -> str:
    """Describes the effect of a call, and what to do if it had none.

    >>> print(effect(Constraint("unbox", effect=NO_RULES)))
    No rules are in force, so unbox returns its argument unchanged. Call it within ...
    """
    return _SENTENCES[constraint.effect](constraint)


def _constrained(constraint: Constraint) -> str:
    if constraint.spec is None:
        return "It is constrained to a sharding that names no mesh axes."
    end = "."
    # Such a constraint gathers the array on every device, which is rarely intended.
    if not constraint.spec.axes and not constraint.spec.unconstrained:
        end = ": every device holds all of it."
    first = f"It is constrained to {constraint.spec}{end}"
    return " ".join([first, *_unsplit(constraint), *_problems(constraint)])


def _no_rules(constraint: Constraint) -> str:
    return (
        f"No rules are in force, so {constraint.call} returns its argument unchanged. Call it"
        " within `with nn.logical_axis_rules(rules):`, or give it rules=; the rules of"
        " sv.program apply only to the program's arguments."
    )


def _no_mesh(constraint: Constraint) -> str:
    # Unboxing has no mesh argument.
    alternative = (
        "" if constraint.call == UNBOX else f", or pass mesh= to {constraint.call}"
    )
    first = (
        f"No mesh is in force, so {constraint.call} returns its argument unchanged. Call the"
        f" function within `with jax.set_mesh(mesh):`{alternative}; flax does not use the"
        " mesh of `with mesh:`."
    )
    return " ".join([first, *_unsplit(constraint), *_problems(constraint)])


def _fallback(constraint: Constraint) -> str:
    first = (
        f"Its fallback is {constraint.fallback}, and some of its names match no rule, so no"
        " dimension is constrained."
    )
    return " ".join([first, *_unsplit(constraint), _add_rules(constraint)])


def _identity(constraint: Constraint) -> str:
    explicit = constraint.mesh is not None and "Explicit" in constraint.mesh.axis_types
    if explicit and constraint.spec is not None:
        return (
            "The mesh axes are Explicit, and the value's sharding is already"
            f" {constraint.spec}, so nothing changes."
        )
    if constraint.call == VARIABLE or constraint.names == ():
        return "Its names are empty, so nothing is constrained."
    return "It has no names, so nothing is constrained."


def _error(constraint: Constraint) -> str:
    unmatched = _unsplit(constraint)
    # flax also reports a missing rule if a rule matched but its axis was already used.
    if constraint.fallback == "RAISE_ERROR" and unmatched:
        first = f"Its fallback is {constraint.fallback}, so it raises an error."
        return " ".join([first, *unmatched, _add_rules(constraint)])
    return " ".join(["It raises an error.", *_problems(constraint)])


_SENTENCES = {
    CONSTRAINED: _constrained,
    NO_RULES: _no_rules,
    NO_MESH: _no_mesh,
    FALLBACK: _fallback,
    IDENTITY: _identity,
    ERROR: _error,
}


def _unsplit(constraint: Constraint) -> list[str]:
    """Returns one sentence per dimension whose name no rule decides."""
    if constraint.resolution is None:
        return []
    sentences = []
    for dim in undecided(constraint):
        words = constraint.resolution.explain_dimension(dim)
        sentences.append(words[0].upper() + words[1:])
    return sentences


def _problems(constraint: Constraint) -> list[str]:
    problems = (
        [] if constraint.resolution is None else list(constraint.resolution.problems)
    )
    if constraint.problem:
        problems.append(constraint.problem)
    return problems


def _add_rules(constraint: Constraint) -> str:
    names = (
        [str(constraint.names[dim]) for dim in undecided(constraint)]
        if constraint.names
        else []
    )
    if not names:
        return ""
    pronoun = "it" if len(names) == 1 else "each"
    return f"Add a rule for {pronoun}, such as ({names[0]!r}, None)."


SENTENCES = {Constraint: effect}
