"""Rule tables against flax, errors included. No differences."""

from __future__ import annotations

import pickle
import random
from collections import Counter

import jax
import pytest
from flax.core.spmd import apply_rules, from_sharding_rules
from flax.linen import logical_axis_rules, logical_to_mesh_axes

from shardviz.axis_rules.resolution import Resolution, resolve
from shardviz.axis_rules.rules import Rules
from shardviz.axis_rules.verdicts import Outcome
from shardviz.base.errors import RuleError
from shardviz.base.mesh import make_mesh

CASES, SEEDS = 8_000, 2
FREE = jax.sharding.PartitionSpec.UNCONSTRAINED
LOGICAL = ("batch", "embed", "mlp", "heads", "kv", "vocab", "_", "None", "two words")
AXES = ("data", "fsdp", "model", "expert", "seq")


def random_target(rng: random.Random):
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(AXES)
    if kind < 0.68:
        return rng.choice((None, (), [], None))
    if kind < 0.71:
        return FREE
    axes = [rng.choice(AXES) for _ in range(rng.choice((1, 2, 2, 3)))]
    return rng.choice((tuple, list))(axes)


def random_table(rng: random.Random, most: int = 14) -> list[tuple]:
    return [(rng.choice(LOGICAL), random_target(rng)) for _ in range(rng.randint(0, most))]


def random_names(rng: random.Random) -> tuple:
    pool = (*LOGICAL, "unknown", None, None, FREE)
    names = rng.sample(pool, rng.randint(0, 6))
    if names and rng.random() < 0.1:
        names.append(rng.choice(names))
    return tuple(names)


def answer(function, *args):
    """What comes out, or "refused"; anything but a refusal in words is a failure of its own."""
    try:
        return function(*args)
    except (ValueError, TypeError):
        return "refused"


def by_us(names, rules, dialect="linen"):
    return resolve(names, rules, dialect=dialect).partition_spec


def by_variable(names, table):
    return jax.sharding.PartitionSpec(*from_sharding_rules(names, table))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_tables_equal_linen(seed):
    rng = random.Random(seed)
    seen = Counter()
    for number in range(CASES // SEEDS):
        table, names = random_table(rng), random_names(rng)
        rules = Rules.of(table)
        theirs = answer(logical_to_mesh_axes, names, table)
        ours = answer(by_us, names, rules)
        assert theirs == ours, f"case {number}: {names} by {table}: flax {theirs}, we {ours}"
        assert answer(by_us, names, rules) == ours, "remembered otherwise"
        seen["refused" if ours == "refused" else "found"] += 1
    assert seen["refused"] > 100, seen
    assert seen["found"] > 3000, seen


def test_random_tables_equal_nnx():
    rng = random.Random(21)
    for number in range(3_000):
        table, names = random_table(rng), random_names(rng)
        rules = Rules.of(table)
        theirs = answer(by_variable, names, table)
        applied = answer(apply_rules, names, table)  # flax's other reader
        ours = answer(by_us, names, rules, "nnx")
        assert theirs == ours == applied, f"case {number}: {names} by {table}: {theirs}, {ours}"


def test_pairs_lead_flax_to_the_same_answer():
    rng = random.Random(5)
    for _ in range(1_000):
        rules, names = Rules.of(random_table(rng)), random_names(rng)
        ours = answer(by_us, names, rules)
        if ours != "refused":
            assert logical_to_mesh_axes(names, rules.pairs()) == ours


MESH = make_mesh(data=4, fsdp=2, model=2, expert=1)  # no seq
SIZES = (0, 1, 2, 3, 4, 6, 8, 510, 512)


def expected_verdicts(found: Resolution, table: list[tuple]) -> list[list[str]]:
    """Reads the table once more, in another way, and says what became of every rule."""
    expected: list[list[str]] = [[] for _ in found.names]
    used: dict[str, tuple[int, int]] = {}  # mesh axis -> (dimension, rule)
    done: dict[int, int] = {}
    for index, (logical, target) in enumerate(table):
        axes = _flat(target)
        for dim, name in enumerate(found.names):
            if name != logical or name is None:
                expected[dim].append("other")
            elif dim in done:
                expected[dim].append(f"decided by {done[dim]}")
            elif any(a in used for a in axes):
                used_by = sorted((a, *used[a]) for a in set(axes) if a in used)
                every = all(a in used for a in axes)
                expected[dim].append(f"{'taken' if every else 'part'} {used_by}")
            else:
                expected[dim].append("won")
                done[dim] = index
                used.update((a, (dim, index)) for a in axes)
    return expected


def _flat(target) -> list[str]:
    if target is None or target is FREE:
        return []
    if isinstance(target, str):
        return [target]
    return [axis for inner in target for axis in _flat(inner)]


def check_verdicts(found: Resolution, table: list[tuple]) -> Counter:
    seen: Counter = Counter()
    expected = expected_verdicts(found, table)
    for dim, decision in enumerate(found.decisions):
        outcomes = [v.outcome for v in decision.verdicts]
        deciding = [v for v in decision.verdicts if v.decides]
        assert len(deciding) == (decision.rule is not None)
        assert decision.deciding is (deciding[0] if deciding else None)
        assert len(outcomes) == len(table)
        for index, verdict in enumerate(decision.verdicts):
            assert verdict.rule == index
            assert verdict.line.logical == table[index][0]
            assert list(verdict.axes) == _flat(table[index][1])
            assert verdict == found.verdict(dim, index)
            assert "\n" not in verdict.reason
            assert verdict.reason.endswith((".", "?"))
            seen[verdict.outcome] += 1
            check_one(expected[dim][index], verdict, table, found, dim)
    return seen


def check_one(truth: str, verdict, table, found: Resolution, dim: int) -> None:
    if truth == "other":
        assert verdict.outcome is Outcome.OTHER_NAME
    elif truth.startswith("decided"):
        assert verdict.outcome is Outcome.DECIDED
        assert truth == f"decided by {verdict.by_rule}"
    elif truth.startswith(("taken", "part")):
        word = {Outcome.TAKEN: "taken", Outcome.PART_TAKEN: "part"}[verdict.outcome]
        assert truth == f"{word} {sorted(verdict.taken)}"
    else:
        assert verdict.decides
        check_deciding(verdict, found, dim)


def check_deciding(verdict, found: Resolution, dim: int) -> None:
    axes, size = verdict.axes, None if found.shape is None else found.shape[dim]
    parts = 1
    for axis in axes:
        parts *= MESH.shape.get(axis, 1)
    if verdict.line.free or not axes:
        assert verdict.outcome is (Outcome.APPLIED if verdict.line.free else Outcome.UNSPLIT)
        assert (dim in found.spec.unconstrained) == verdict.line.free
    elif len(set(axes)) < len(axes):
        assert verdict.outcome is Outcome.REPEATED
    elif not all(a in MESH.shape for a in axes):
        assert verdict.outcome is Outcome.MISSING_AXIS
        assert verdict.absent == tuple(a for a in axes if a not in MESH.shape)
    elif size is not None and size % parts:
        assert verdict.outcome is Outcome.INDIVISIBLE
        misfit = verdict.misfit
        sizes, padding = misfit.sizes, misfit.padding
        assert misfit.remainder == size % parts
        assert all(s % parts == 0 and 0 < abs(s - size) < parts for s in sizes)
        assert (size + padding) % parts == 0
        fits = [a for a, n in MESH.shape.items() if n > 1 and size % n == 0]
        assert misfit.other_axes == tuple(a for a in fits if a not in found.spec.axes)
    elif parts == 1:
        assert verdict.outcome is Outcome.SIZE_ONE
    else:
        assert verdict.outcome is Outcome.APPLIED


@pytest.mark.parametrize("dialect", ["linen", "maxtext"])
def test_every_verdict_is_true(dialect):
    rng = random.Random(31)
    seen: Counter = Counter()
    for _ in range(2_500):
        table, names = random_table(rng, 9), random_names(rng)
        shape = None if rng.random() < 0.2 else tuple(rng.choice(SIZES) for _ in names)
        try:
            found = resolve(names, Rules.of(table), mesh=MESH, shape=shape, dialect=dialect)
        except RuleError:
            continue
        seen += check_verdicts(found, table)
        if dialect == "maxtext":
            linen = resolve(names, Rules.of(table)).spec.dims
            kept = tuple(tuple(a for a in dim if a != "expert") for dim in linen)
            assert found.spec.dims == kept
    assert len(seen) == 10, seen  # all that a table of names has, but OVERRIDDEN of nnx
    assert min(seen.values()) > 20, seen


def test_every_nnx_verdict_is_true():
    rng = random.Random(32)
    for _ in range(1_000):
        table, names = random_table(rng, 9), random_names(rng)
        try:
            found = resolve(names, Rules.of(table), mesh=MESH, dialect="nnx")
        except RuleError:
            continue
        last = {logical: index for index, (logical, _) in enumerate(table)}
        for decision in found.decisions:
            name = decision.logical
            assert decision.rule == last.get(name)
            assert decision.passed_through == (isinstance(name, str) and name not in last)
            for index, verdict in enumerate(decision.verdicts):
                if table[index][0] != name:
                    assert verdict.outcome is Outcome.OTHER_NAME
                elif index == last[name]:
                    assert verdict.decides
                else:
                    assert verdict.outcome is Outcome.OVERRIDDEN
                    assert verdict.by_rule == last[name]


def test_flax_takes_rules_as_they_are():
    pairs = (("batch", "data"), ("mlp", ("model", "data")), ("mlp", None), ("embed", FREE))
    table = Rules.of(*pairs)
    assert table.pairs() == tuple(tuple(rule) for rule in table) == pairs
    for names in (("batch", "mlp"), ("mlp", "embed"), ("embed", "batch", "other")):
        with logical_axis_rules(table):
            assert logical_to_mesh_axes(names) == logical_to_mesh_axes(names, pairs)
        assert from_sharding_rules(names, table) == from_sharding_rules(names, pairs)
    assert pickle.loads(pickle.dumps(table)) == table
    assert jax.tree.leaves([table]) == [table]
