"""Constraint: one call in a program that may constrain a sharding, and what became of it.

Such calls are flax's `with_logical_constraint`, the `out_sharding` of an nnx Variable, a boxed
parameter of linen that is unboxed, and jax's own `with_sharding_constraint` and `reshard`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shardviz.core.format import plural, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import Decision, Resolution
from shardviz.core.layout.rules import Rules
from shardviz.core.layout.verdicts import Outcome, Verdict

CONSTRAINED, IDENTITY, ERROR = "constrained", "identity", "error"
NO_RULES, NO_MESH = "no rules in force", "no mesh in sight"
FALLBACK = "fallback: no constraint"
EFFECTS = (ERROR, NO_RULES, NO_MESH, FALLBACK, IDENTITY, CONSTRAINED)

LOGICAL, VARIABLE, UNBOX = "with_logical_constraint", "nnx.Variable", "unbox"


@dataclass(frozen=True, repr=False)
class Constraint:
    """One call that may constrain the sharding of one array, and what became of it.

    Attributes:
        call: what was called: `"with_logical_constraint"`, `"nnx.Variable"` (its `out_sharding`),
            `"unbox"` (a parameter in a box of linen), `"with_sharding_constraint"`, `"reshard"`.
        source: the line of the user's code, as `model.py:12`; `""` where none is known.
        shape: the shape of the array; None where it has none.
        names: its logical names, one per dimension; None for a call without names.
        rules: the rules in force there; None for none.
        rules_from: where the rules come from, such as `"argument"` or `"nn.logical_axis_rules"`.
        mesh: the mesh that the call sees; None for none.
        mesh_from: where it comes from: `"argument"`, `"sharding"` (a NamedSharding), `"context"`
            (of `jax.set_mesh`, or of a function around) or `"with mesh"`.
        fallback: flax's `RulesFallback` by name; `""` for a call that has none.
        effect: one of `EFFECTS`.
        spec: the Spec that the array is constrained to; None where it is not constrained.
        resolution: how the rules resolve the names, whether or not that took effect; None where
            there are no rules or names, and where they cannot be resolved.
        unseen: a mesh that only `with mesh:` has entered, which this call does not see.
        problem: what was wrong with the names or rules, or `""`.

    >>> from shardviz.core.layout.resolution import resolve
    >>> found = resolve("batch embed", [("batch", "data"), ("mlp", "model")])
    >>> call = Constraint(LOGICAL, "model.py:12", (8, 16), ("batch", "embed"), found.rules,
    ...                   "argument", effect=NO_MESH, resolution=found)
    >>> call
    Constraint(model.py:12 with_logical_constraint [8, 16] batch embed: no mesh in sight)
    >>> [verdict.kind for verdict in call.verdicts]
    ['applied', 'other name']
    """

    call: str
    source: str = ""
    shape: tuple[int, ...] | None = None
    names: tuple[object, ...] | None = None
    rules: Rules | None = None
    rules_from: str = ""
    mesh: MeshSpec | None = None
    mesh_from: str = ""
    fallback: str = ""
    effect: str = CONSTRAINED
    spec: Spec | None = None
    resolution: Resolution | None = field(default=None, compare=False)
    unseen: MeshSpec | None = None
    problem: str = ""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """How the rules decide each dimension; `()` where nothing was resolved."""
        return () if self.resolution is None else self.resolution.decisions

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One Verdict per rule, in table order: on the dimension whose name the rule is for.

        Those of every rule for every dimension are in `decisions`.
        """
        if self.resolution is None:
            return ()
        dims = {name: dim for dim, name in reversed(list(enumerate(self.resolution.names)))}
        return tuple(
            self.resolution.verdict(dims[rule.logical], index)
            if rule.logical in dims
            else Verdict(
                index,
                rule.logical,
                rule.axes,
                Outcome.OTHER_NAME,
                f"is for {shown(rule.logical)}, which no dimension has.",
                free=rule.free,
            )
            for index, rule in enumerate(self.resolution.rules)
        )

    @property
    def acts(self) -> bool:
        """Whether the program is another one for this call."""
        return self.effect == CONSTRAINED

    @property
    def wants_attention(self) -> bool:
        """Whether it does less than its names and rules seem to say."""
        asks = self.names is not None and any(map(_text, self.names))
        splits = self.spec is not None and bool(self.spec.axes)
        return not self.acts or bool(undecided(self)) or (asks and not splits)

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same for calls that need not be shown twice."""
        return self.effect, self.call, self.source, self.names, self.spec, self.shape

    @property
    def where(self) -> str:
        """The call in a few words: `with_logical_constraint at model.py:12 on (batch, embed)`."""
        at = f" at {self.source}" if self.source else ""
        names = "" if self.names is None else f" on ({', '.join(map(logical_name, self.names))})"
        return f"{self.call}{at}{names}"

    @property
    def sentence(self) -> str:
        """What became of the call, and what to do where it did nothing, in plain English."""
        return _SENTENCES[self.effect](self)

    def __str__(self) -> str:
        return f"{self.where}: {self.effect}. {self.sentence}"

    def __repr__(self) -> str:
        shape = "" if self.shape is None else f" [{', '.join(map(str, self.shape))}]"
        names = "" if self.names is None else " " + " ".join(map(logical_name, self.names))
        became = f"{self.spec}" if self.acts else self.effect
        return f"Constraint({f'{self.source} '.lstrip()}{self.call}{shape}{names}: {became})"


def logical_name(name: object) -> str:
    """A logical name in a list of them; `_` for a dimension without one.

    >>> logical_name("batch"), logical_name(None)
    ('batch', '_')
    """
    return "_" if name is None else str(name)


def _constrained(one: Constraint) -> str:
    if one.spec is None:
        return "It is constrained to a sharding that names no mesh axes."
    found = f"It is constrained to {one.spec}."
    if not one.spec.axes and not one.spec.unconstrained:
        found = f"It is constrained to {one.spec}: every device holds all of it."
    return " ".join([found, *_unsplit(one), *_problems(one)])


def _no_rules(one: Constraint) -> str:
    return (
        f"No rules are in force, so {one.call} returns its argument as it is. Call it within"
        " `with nn.logical_axis_rules(rules):`, or give it rules=; those of sv.program are for its"
        " arguments alone."
    )


def _no_mesh(one: Constraint) -> str:
    why = f"No mesh is in sight, so {one.call} returns its argument as it is."
    do = "Enter `with jax.set_mesh(mesh):` around the call of the function"
    if one.unseen is not None:
        why = (
            f"`with mesh:` has entered {one.unseen}, and flax looks for a mesh of jax.set_mesh"
            f" alone, so {one.call} returns its argument as it is."
        )
        do = "Enter `with jax.set_mesh(mesh):` in its place"
    other = "" if one.call == UNBOX else ", or give it mesh="
    return " ".join([f"{why} {do}{other}.", *_unsplit(one), *_problems(one)])


def _fallback(one: Constraint) -> str:
    return " ".join(
        [
            f"It has fallback {one.fallback}, and some names match no rule, so no dimension is"
            " constrained.",
            *_unsplit(one),
            _add_rules(one),
        ]
    )


def _identity(one: Constraint) -> str:
    if one.mesh is not None and "Explicit" in one.mesh.axis_types and one.spec is not None:
        return f"The axes of the mesh are Explicit and it is {one.spec} already: nothing changes."
    if one.call == VARIABLE or one.names == ():
        return "Its names are empty, so nothing is constrained."
    return "It has no names, so nothing is constrained."


def _error(one: Constraint) -> str:
    if one.fallback == "RAISE_ERROR" and (unmatched := _unsplit(one)):
        return " ".join(
            [f"It has fallback {one.fallback} and raises one.", *unmatched, _add_rules(one)]
        )
    problems = _problems(one)
    return " ".join(["It raises an error.", *problems] if problems else ["It raises an error."])


_SENTENCES = {
    CONSTRAINED: _constrained,
    NO_RULES: _no_rules,
    NO_MESH: _no_mesh,
    FALLBACK: _fallback,
    IDENTITY: _identity,
    ERROR: _error,
}


def undecided(one: Constraint) -> tuple[int, ...]:
    """The dimensions that have a name and that no rule decides: those a fallback is about.

    >>> from shardviz.core.layout.resolution import resolve
    >>> found = resolve("batch embed", [("batch", "data")])
    >>> undecided(Constraint(LOGICAL, resolution=found))
    (1,)
    """
    if one.resolution is None:
        return ()
    winners = zip(one.resolution.names, one.resolution.winners, strict=True)
    return tuple(d for d, (name, winner) in enumerate(winners) if winner is None and _text(name))


def _text(name: object) -> bool:
    return isinstance(name, str)


def _unsplit(one: Constraint) -> list[str]:
    """A sentence for each dimension whose name no rule decides."""
    if one.resolution is None:
        return []
    return [one.resolution.explain_dimension(dim) for dim in undecided(one)]


def _problems(one: Constraint) -> list[str]:
    found = [] if one.resolution is None else list(one.resolution.problems)
    return [*found, one.problem] if one.problem else found


def _add_rules(one: Constraint) -> str:
    names = [str(one.names[dim]) for dim in undecided(one)] if one.names else []
    if not names:
        return ""
    example = f"({names[0]!r}, None)"
    return f"Add a rule for {'it' if len(names) == 1 else 'each'}, such as {example}."


@dataclass(frozen=True)
class ConstraintFold:
    """Calls that differ in nothing that is shown, such as those of all layers.

    Attributes:
        first: the first of them.
        count: how many they are.
    """

    first: Constraint
    count: int


def fold_constraints(constraints: Iterable[Constraint]) -> list[ConstraintFold]:
    """The calls, those that did nothing first; alike ones are one.

    >>> calls = [Constraint(LOGICAL, "m.py:3"), Constraint(LOGICAL, "m.py:4", effect=NO_RULES)]
    >>> [(fold.first.source, fold.count) for fold in fold_constraints([*calls, *calls])]
    [('m.py:4', 2), ('m.py:3', 2)]
    """
    found: dict[tuple[object, ...], list[Constraint]] = {}
    for one in constraints:
        found.setdefault(one.key, []).append(one)
    folds = [ConstraintFold(some[0], len(some)) for some in found.values()]
    return sorted(folds, key=lambda fold: EFFECTS.index(fold.first.effect))


def constraints_in_words(constraints: Iterable[Constraint]) -> str:
    """How many calls there are, and what became of them.

    >>> constraints_in_words([Constraint(LOGICAL), Constraint(LOGICAL, effect=NO_MESH)])
    '2 calls: 1 no mesh in sight, 1 constrained'
    """
    effects = [one.effect for one in constraints]
    counts = [f"{effects.count(e):,} {e}" for e in EFFECTS if e in effects]
    return f"{plural(len(effects), 'call')}: {', '.join(counts)}"
