"""Constraint: a call in a program that may constrain a sharding, and its effect.

Such calls are flax's `with_logical_constraint`, the `out_sharding` of an nnx Variable,
the unboxing of a linen parameter, and JAX's `with_sharding_constraint` and `reshard`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shardviz.axis_rules.resolution import Decision, Resolution
from shardviz.axis_rules.rules import Rules
from shardviz.axis_rules.verdicts import Verdict
from shardviz.base import display
from shardviz.base.format import plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.plain import Plain

CONSTRAINED, IDENTITY, ERROR = "constrained", "identity", "error"
NO_RULES, NO_MESH = "no rules in force", "no mesh in sight"
FALLBACK = "fallback: no constraint"
#: All effects a call can have, ordered from error to constrained.
EFFECTS = (ERROR, NO_RULES, NO_MESH, FALLBACK, IDENTITY, CONSTRAINED)

LOGICAL, VARIABLE, UNBOX = "with_logical_constraint", "nnx.Variable", "unbox"


@dataclass(frozen=True, repr=False)
class Constraint(Plain):
    """A call that may constrain the sharding of one array, and its effect.

    Attributes:
        call: the function: `"with_logical_constraint"`, `"nnx.Variable"` (its
            `out_sharding`), `"unbox"` (a boxed linen parameter),
            `"with_sharding_constraint"` or `"reshard"`.
        source: the user's source line, such as `model.py:12`; `""` if unknown.
        shape: the array's shape; None if it has none.
        names: logical axis names, one per dimension; None for a call without names.
        rules: the axis rules in force at the call; None without rules.
        mesh: the mesh that the call sees; None without a mesh.
        fallback: the name of flax's `RulesFallback`; `""` for calls without a fallback.
        effect: one of `EFFECTS`.
        spec: the Spec that the array is constrained to; None if it isn't constrained.
        resolution: how the rules resolve the names, even if the call had no effect;
            None without rules or names, or if the names cannot be resolved.
        problem: the error in the names or rules; `""` if there is none.

    >>> import shardviz as sv
    >>> from shardviz.programs.constraints import LOGICAL, NO_MESH
    >>> from shardviz.types import Constraint
    >>> found = sv.resolve("batch embed", [("batch", "data"), ("mlp", "model")])
    >>> call = Constraint(LOGICAL, "model.py:12", (8, 16), ("batch", "embed"),
    ...                   found.rules, effect=NO_MESH, resolution=found)
    >>> call
    Constraint(model.py:12 with_logical_constraint [8, 16] batch embed: no mesh in sight)
    >>> [verdict.kind for verdict in call.verdicts]
    ['applied', 'other name']
    """

    _adds = ("verdicts",)

    call: str
    source: str = ""
    shape: tuple[int, ...] | None = None
    names: tuple[object, ...] | None = None
    rules: Rules | None = None
    mesh: MeshSpec | None = None
    fallback: str = ""
    effect: str = CONSTRAINED
    spec: Spec | None = None
    resolution: Resolution | None = field(default=None, compare=False)
    problem: str = ""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """How the rules decide each dimension; `()` without a resolution."""
        if self.resolution is None:
            return ()
        return self.resolution.decisions

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One Verdict per rule, in table order, for the dimension that the rule names.

        `decisions` has the verdicts of all rules on all dimensions.
        """
        if self.resolution is None or not self.resolution.names:
            return ()
        # Maps each name to its first dimension. Rules for other names use dimension 0.
        dims: dict[object, int] = {}
        for dim, name in enumerate(self.resolution.names):
            dims.setdefault(name, dim)
        verdicts = []
        for number, rule in enumerate(self.resolution.rules):
            dim = dims.get(rule.logical, 0)
            verdicts.append(self.resolution.verdict(dim, number))
        return tuple(verdicts)

    @property
    def acts(self) -> bool:
        """True if the call constrains its array."""
        return self.effect == CONSTRAINED

    @property
    def wants_attention(self) -> bool:
        """True if the call does less than its names and rules suggest."""
        if not self.acts or undecided(self):
            return True
        # If the names split no dimension, a rule may be missing.
        named = self.names is not None and any(isinstance(n, str) for n in self.names)
        splits = self.spec is not None and bool(self.spec.axes)
        return named and not splits

    @property
    def key(self) -> tuple[object, ...]:
        """The key for grouping: calls with equal keys are shown as one."""
        return self.effect, self.call, self.source, self.names, self.spec, self.shape

    @property
    def where(self) -> str:
        """The call with its source line and logical names."""
        at = self.source and f" at {self.source}"
        if self.names is None:
            return f"{self.call}{at}"
        return f"{self.call}{at} on ({', '.join(map(logical_name, self.names))})"

    @property
    def sentence(self) -> str:
        """The effect of the call, and what to do if it had none."""
        return display.sentence(self)

    def __str__(self) -> str:
        return f"{self.where}: {self.effect}. {self.sentence}"

    def __repr__(self) -> str:
        parts = [self.source, self.call]
        if self.shape is not None:
            parts.append(f"[{', '.join(map(str, self.shape))}]")
        if self.names is not None:
            parts += map(logical_name, self.names)
        became = self.spec if self.acts else self.effect
        return f"Constraint({' '.join(filter(None, parts))}: {became})"


def logical_name(name: object) -> str:
    """Formats a logical axis name; `_` stands for a dimension without a name.

    >>> logical_name("batch"), logical_name(None)
    ('batch', '_')
    """
    if name is None:
        return "_"
    return str(name)


def undecided(constraint: Constraint) -> tuple[int, ...]:
    """Returns the dimensions whose names no rule decides.

    >>> import shardviz as sv
    >>> found = sv.resolve("batch embed", [("batch", "data")])
    >>> undecided(Constraint(LOGICAL, resolution=found))
    (1,)
    """
    if constraint.resolution is None:
        return ()
    names, winners = constraint.resolution.names, constraint.resolution.winners
    dims = []
    for dim, (name, winner) in enumerate(zip(names, winners, strict=True)):
        if winner is None and isinstance(name, str):
            dims.append(dim)
    return tuple(dims)


def fold_constraints(
    constraints: Iterable[Constraint],
) -> list[tuple[Constraint, int]]:
    """Groups equal calls and counts them; calls that constrain nothing come first.

    >>> calls = [Constraint(LOGICAL, "m.py:3"), Constraint(LOGICAL, effect=NO_RULES)]
    >>> [(one.effect, count) for one, count in fold_constraints([*calls, *calls])]
    [('no rules in force', 2), ('constrained', 2)]
    """
    alike: dict[tuple[object, ...], list[Constraint]] = {}
    for constraint in constraints:
        alike.setdefault(constraint.key, []).append(constraint)
    folds = [(calls[0], len(calls)) for calls in alike.values()]
    # Calls with problems come first.
    return sorted(folds, key=lambda fold: EFFECTS.index(fold[0].effect))


def constraints_in_words(constraints: Iterable[Constraint]) -> str:
    """Summarizes how many calls have each effect.

    >>> constraints_in_words([Constraint(LOGICAL), Constraint(LOGICAL, effect=NO_MESH)])
    '2 calls: 1 no mesh in sight, 1 constrained'
    """
    effects = [constraint.effect for constraint in constraints]
    counts = [f"{effects.count(e):,} {e}" for e in EFFECTS if e in effects]
    return f"{plural(len(effects), 'call')}: {', '.join(counts)}"
