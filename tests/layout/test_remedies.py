"""Remedies against flax: every table is resolved again by flax, every one-edit table is tried."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from flax.core.spmd import from_sharding_rules
from flax.linen.spmd import logical_to_mesh_axes
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import shardviz as sv
from shardviz.axis_rules.remedies import (
    AddLine,
    KeepParameterNames,
    MoveLine,
    NameDimension,
    RenameLine,
    RetargetLine,
)
from shardviz.axis_rules.words.remedies import decapitalised
from shardviz.base.mesh import make_mesh

SIZES = {"data": 4, "model": 2, "expert": 1}
MESH = make_mesh(**SIZES)
JAX_MESH = AbstractMesh((4, 2, 1), tuple(SIZES), axis_types=(AxisType.Auto,) * 3)
NAMES = ("batch", "embed", "mlp", "heads")
DIALECTS = ("linen", "nnx", "maxtext")


def by_flax(names, pairs, dialect) -> tuple | None:
    """The entries of the spec that the library makes, each a tuple; None where it raises."""
    try:
        if dialect == "nnx":
            spec = PartitionSpec(*from_sharding_rules(names, pairs))
        else:
            spec = logical_to_mesh_axes(names, pairs) or ()
    except (ValueError, TypeError):
        return None
    dims = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec)
    if dialect == "maxtext":
        dims = tuple(tuple(a for a in d if SIZES.get(a) != 1) for d in dims)
    return dims


def parts(axes) -> int:
    return math.prod(SIZES[a] for a in axes)


def lays_out(dims, shape) -> bool:
    if dims is None:
        return False
    axes = [a for d in dims for a in d]
    return (
        set(axes) <= set(SIZES)
        and len(set(axes)) == len(axes)
        and all(n % parts(d) == 0 for n, d in zip(shape, dims, strict=True))
    )


def jax_lays_out(dims, shape) -> bool:
    try:
        spec = PartitionSpec(*(d or None for d in dims))
        NamedSharding(JAX_MESH, spec).shard_shape(shape)
    except (ValueError, KeyError):
        return False
    return True


def bytes_per_device(dims, shape) -> int:
    return 4 * math.prod(shape) // math.prod(parts(d) for d in dims)


def met(want, dims, shape) -> bool:
    if isinstance(want, tuple):
        return dims == want
    if want == "split":
        return any(parts(d) > 1 for d in dims)
    if want.startswith("split"):
        return parts(dims[int(want.split()[1])]) > 1
    return bytes_per_device(dims, shape) <= int(want.split()[0])


def wish(want) -> object:
    return sv.Spec(want) if isinstance(want, tuple) else want


def good(pairs, names, shape, want, dialect) -> bool:
    dims = by_flax(names, pairs, dialect)
    return lays_out(dims, shape) and met(want, dims, shape)


def breaks(rows, before, after, dialect) -> bool:
    """Whether a row of which nothing but the table changes could be laid out before only."""
    return any(
        lays_out(by_flax(names, before, dialect), shape)
        and not lays_out(by_flax(names, after, dialect), shape)
        for _, shape, names in rows
    )


TARGETS = [(), *((a,) for a in ("data", "model")), ("data", "model")]


def target(axes) -> object:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def edited_tables(pairs, names, want):
    """Every table one edit away that the search may propose."""
    rules, count = list(pairs), len(pairs)
    targets = {}
    for d, name in enumerate(names):
        if name is not None:
            some = [want[d]] if isinstance(want, tuple) else TARGETS
            targets.setdefault(name, {}).update(dict.fromkeys(map(target, some)))
    for i, (name, _) in enumerate(rules):
        rest = rules[:i] + rules[i + 1 :]
        yield rest
        yield from ([*rest[:j], rules[i], *rest[j:]] for j in range(count) if j != i)
        yield from ([*rules[:i], (name, t), *rules[i + 1 :]] for t in targets.get(name, ()))
    for name, some in targets.items():
        for j, t in itertools.product(range(count + 1), some):
            yield [*rules[:j], (name, t), *rules[j:]]


def named_arrays(pairs, names):
    """The names of the array with one more, for a dimension that has none."""
    for d, (name, axes) in itertools.product(range(len(names)), pairs):
        if names[d] is None and name not in names and set(flat(axes)) & {"data", "model"}:
            yield (*names[:d], name, *names[d + 1 :])


def flat(axes):
    return () if axes is None else (axes,) if isinstance(axes, str) else axes


def one_edit_exists(pairs, row, rows, want, dialect) -> bool:
    _, shape, names = row
    others = [r for r in rows if r is not row]
    return any(good(pairs, new, shape, want, dialect) for new in named_arrays(pairs, names)) or any(
        good(after, names, shape, want, dialect) and not breaks(others, pairs, after, dialect)
        for after in edited_tables(pairs, names, want)
    )


def left_unsplit(dims, want) -> bool:
    """Whether the dimension that should be split, or the whole array, is not split."""
    if want == "split":
        return not any(dims)
    return not dims[int(want.split()[1])]


def unsplit_edit_exists(pairs, row, rows, want, dialect) -> bool:
    """Whether the array fails, and an edit of the table lets it pass without the split."""
    _, shape, names = row
    now, others = by_flax(names, pairs, dialect), [r for r in rows if r is not row]
    if lays_out(now, shape) or now is None or not str(want).startswith("split"):
        return False
    if want != "split" and not now[int(want.split()[1])]:
        return False
    for after in edited_tables(pairs, names, ((),) * len(names)):
        dims = by_flax(names, after, dialect)
        moves = len(after) == len(pairs) and all(rule in pairs for rule in after)
        if not moves and lays_out(dims, shape) and left_unsplit(dims, want):
            if not breaks(others, pairs, after, dialect):
                return True
    return False


def random_rule(rng):
    name = rng.choice(NAMES)
    kind = rng.random()
    if kind < 0.6:
        return name, rng.choice(tuple(SIZES))
    if kind < 0.75:
        return name, None
    if kind < 0.93:
        return name, tuple(rng.sample(tuple(SIZES), 2))
    return name, rng.choice(("modle", ("data", "data")))


def random_names(rng, most=3):
    names = rng.sample((*NAMES, None), rng.randint(1, most))
    return tuple(names)


def random_rows(rng, count, sizes=(2, 3, 4, 6, 8, 16)):
    rows = []
    for number in range(count):
        names = random_names(rng)
        rows.append((f"w{number}", tuple(rng.choice(sizes) for _ in names), names))
    return rows


def random_want(rng, row):
    _, shape, names = row
    kind = rng.random()
    if kind < 0.5:
        free = list(SIZES)
        rng.shuffle(free)
        dims: list[tuple[str, ...]] = [()] * len(names)
        for axis in free[: rng.randint(0, 2)]:
            d = rng.randrange(len(names))
            dims[d] = (*dims[d], axis)
        return tuple(dims)
    if kind < 0.65:
        return "split"
    if kind < 0.8:
        return f"split {rng.randrange(len(names))}"
    return f"{4 * math.prod(shape) // rng.choice((2, 4, 8))} B"


def check(remedy, row, rows, pairs, want, dialect) -> None:
    """What a remedy claims, by flax and jax."""
    after, (path, sizes, names) = remedy.rules.pairs(), row
    dims = by_flax(remedy.names, after, dialect)
    assert remedy.spec.dims == dims, remedy
    assert jax_lays_out(dims, sizes), remedy
    if remedy.leaves_unsplit:
        assert not lays_out(by_flax(names, pairs, dialect), sizes), remedy
        assert left_unsplit(dims, want), remedy
    else:
        assert met(want, dims, sizes), remedy
    changed = []
    for other, shape, logical in rows:
        if other == path:
            continue
        before, now = by_flax(logical, pairs, dialect), by_flax(logical, after, dialect)
        if lays_out(before, shape):
            assert jax_lays_out(now, shape), (remedy, other)
        if before != now:
            changed.append(other)
    renamed = remedy.names != names
    assert set(changed) <= set(remedy.others), remedy
    assert renamed or set(changed) == set(remedy.others), remedy


def without_ones(want, dialect):
    if dialect != "maxtext" or not isinstance(want, tuple):
        return want
    return tuple(tuple(a for a in d if SIZES[a] > 1) for d in want)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_edit_is_found_wherever_there_is_one(dialect):
    rng = random.Random(f"{dialect} all2")
    seen = Counter()
    for number in range(150):
        pairs = [random_rule(rng) for _ in range(rng.randint(0, 4))]
        rows = random_rows(rng, rng.choice((1, 2, 3, 4)))
        row = rows[0]
        want = without_ones(random_want(rng, row), dialect)
        found = sv.remedies(sv.audit(rows, pairs, MESH, dialect=dialect).rows[0], wish(want))
        case = f"case {number}: {rows} by {pairs}, want {want}: {found}"
        for remedy in found:
            check(remedy, row, rows, tuple(pairs), want, dialect)
        if good(pairs, row[2], row[1], want, dialect):
            assert (found.reason or "").startswith("Nothing to change"), case
            seen["as wanted"] += 1
        else:
            unsplit = [remedy for remedy in found if remedy.leaves_unsplit]
            may = unsplit_edit_exists(pairs, row, rows, want, dialect)
            assert len(unsplit) == may, case
            assert list(found)[len(found) - len(unsplit) :] == unsplit, case
            exists = one_edit_exists(pairs, row, rows, want, dialect)
            assert (len(found) > len(unsplit)) == exists, case
            assert found or found.reason, case
            seen["edits" if exists else "unsplit" if unsplit else "none"] += 1
            seen["last"] += exists and bool(unsplit)
            moved = [r.rules for r in found if type(r.action) is MoveLine]
            orders = [tuple(x for x in rules if x.logical in row[2]) for rules in moved]
            assert len(orders) == len(set(orders)), case
    assert min(seen.values()) >= 2, seen
    assert len(seen) == 5, seen


def random_state(rng):
    """The leaves of a random model with two layers of some, and a moment of each in float32."""
    rows = random_rows(rng, rng.choice((1, 2, 3)))
    if rng.random() < 0.2:  # names that cannot be resolved
        rows.append((f"w{len(rows)}", (8, 8), ("embed", "embed")))
    leaves = []
    for path, shape, names in rows:
        for layer in range(rng.choice((1, 2))):
            name = f"layers_{layer}/{path}"
            leaves.append(sv.array(f"params/{name}", shape, names, dtype="bfloat16"))
            leaves.append(sv.array(f"opt_state/0/mu/{name}", shape, names))
    return leaves


def held(audit) -> int:
    """Bytes per device of all arrays; those that cannot be laid out count as not split."""
    return sum(r.array.bytes if r.layout is None else r.bytes_per_device for r in audit.rows)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_remedy_says_is_what_an_audit_made_anew_finds(dialect):
    rng = random.Random(f"{dialect} anew")
    seen = Counter()
    for _ in range(150):
        leaves, pairs = random_state(rng), [random_rule(rng) for _ in range(rng.randint(0, 5))]
        before = sv.audit(leaves, pairs, MESH, dialect=dialect)
        row = rng.choice(before.rows)
        want = without_ones(random_want(rng, (row.path, row.shape, row.names)), dialect)
        for remedy in sv.remedies(row, wish(want)):
            edited = {row.path, *remedy.alike}
            anew = [
                leaf.replace(logical=remedy.names) if leaf.name in edited else leaf
                for leaf in leaves
            ]
            after = sv.audit(anew, remedy.rules, MESH, dialect=dialect)
            case = f"{leaves} by {pairs}: {remedy}"
            assert held(before) - held(after) == remedy.bytes_saved, case
            assert set(after.problems) <= set(before.problems), case
            was = {r.path: r.spec for r in before.rows}
            changed = {r.path for r in after.rows if r.spec != was[r.path]}
            assert changed - {row.path} == set(remedy.others), case
            seen[bool(remedy.alike)] += 1
    assert min(seen[True], seen[False]) >= 3, seen


WORDS = sv.rules("""
    mlp -> model
    heads -> (model, expert)
    embed -> model
    embed -> None
    embed -> data
    vocab -> modle
""")


def first(names, shape, want, mesh=MESH, dialect="linen") -> tuple:
    """The class of the first action, its line or dimension, its place or new value; or a code."""
    found = sv.remedies(sv.resolve(names, WORDS, mesh=mesh, shape=shape, dialect=dialect), want)
    assert found.explain()
    if not found:
        return (found.why.code,)
    match found[0].action:
        case MoveLine(_, index, place):
            return MoveLine, index, place
        case RetargetLine(_, index, new):
            return RetargetLine, index, new.target
        case AddLine(_, place, new):
            return AddLine, place, new.target
        case NameDimension(dim, new):
            return NameDimension, dim, new
    raise AssertionError(found[0])


@pytest.mark.parametrize(
    ("names", "shape", "want", "action"),
    [
        ("embed mlp", (8, 8), "split embed", (MoveLine, 4, 3)),
        ("embed mlp", (8, 8), "P('model')", (MoveLine, 2, 0)),
        ("mlp batch", (8, 8), "split 1", (AddLine, 6, "data")),
        ("mlp batch", (8, 8), "64 B", (RetargetLine, 0, "data")),
        ("vocab", (8,), "P('model')", (RetargetLine, 5, "model")),
        ("vocab", (8,), "P(None)", (RetargetLine, 5, "None")),
        ("haeds _", (8, 8), "P(('model', 'expert'))", (NameDimension, 0, "heads")),
        ("mlp", (7,), "split", (RetargetLine, 0, "None")),
        ("mlp", (7,), "P()", (RetargetLine, 0, "None")),
        ("_ mlp", (8, 8), "P('data', 'model')", ("no edit",)),
        ("mlp batch", (8, 8), "P('model', 'tensor')", ("no layout",)),
        ("mlp batch", (7, 8), "P('data', 'model')", ("no layout",)),
        ("_ batch", (7, 8), "split 0", ("no layout",)),
        ("mlp batch", (8, 8), "1 B", ("too small",)),
        ("mlp batch", (8, 8), "split mlp", ("split already",)),
        ("mlp", None, "1 KiB", ("bytes unknown",)),
        ("mlp embed vocab", (8, 8, 8), "P('data', 'expert', 'model')", ("no edit",)),
        ("_", (8,), "split", (NameDimension, 0, "mlp")),
    ],
)  # fmt: skip
def test_the_first_remedy(names, shape, want, action):
    assert first(names, shape, want) == action


def test_sizes_that_no_axis_divides_are_named():
    for want in ("P('data')", "split 0"):
        reason = sv.remedies(sv.resolve("_ batch", WORDS, mesh=MESH, shape=(7, 8)), want).reason
        assert "7 is not divisible by" in reason


def test_an_array_that_fails_may_be_left_unsplit():
    found = sv.resolve("mlp batch", WORDS, mesh=MESH, shape=(7, 8))
    *splits, last = sv.remedies(found, "split")
    assert [remedy.leaves_unsplit for remedy in splits] == [False] * len(splits)
    assert (last.leaves_unsplit, last.action.new) == (True, WORDS[0].__class__("mlp", ()))
    assert last.edit == "Leave it unsplit: in rule 1 (mlp), write None instead of 'model'"
    (only,) = sv.remedies(found, "split 0")
    assert only.leaves_unsplit
    assert sv.remedies(found, "split 1")[-1].leaves_unsplit is False


@pytest.mark.parametrize(
    ("shape", "dim", "remedy", "fewer"),
    [
        # 6 is not divisible by model=4, and data and x already split the embed dimension.
        ((512, 6), 1, "Leave it unsplit: in rule 1 (heads), write None instead of 'model'", (4, 2)),
        ((512, 8), 1, None, None),
        ((511, 8), 0, "Leave it unsplit: in rule 2 (embed), write None instead of 'data' and 'x'",
         None),
    ],
)  # fmt: skip
def test_an_edit_that_makes_the_shards_larger_is_not_suggested(shape, dim, remedy, fewer):
    table = [("heads", "model"), ("embed", ("data", "x"))]
    mesh = sv.mesh(data=2, x=2, model=4)
    found = sv.resolve("embed heads", table, mesh=mesh, shape=shape)
    remedies = sv.remedies(found, f"split {dim}")
    assert (remedies[0].edit if remedies else None) == remedy
    assert not remedies or remedies[0].fewer_shards is None
    if fewer:
        assert remedies[1].edit == "In rule 1 (heads), split over 'data' instead of 'model'"
        assert remedies[1].fewer_shards == fewer
        assert "splits the array 2 ways instead of 4" in str(remedies[1])
        assert found.explain().endswith(
            "No edit of the table splits dimension 1 without making the shards larger."
            " To leave it unsplit: in rule 1 (heads), write None instead of 'model'."
        )


@pytest.mark.parametrize(
    ("axes", "kept"),
    [
        # The mesh has only data, fsdp and tensor.
        (("fsdp_transpose", "tensor", "autoregressive"), "'tensor'"),
        (("fsdp", "sequence", "tensor"), "'fsdp' and 'tensor'"),
        (("tensr", "tensor"), "'tensor'"),
    ],
)
def test_only_axes_that_the_mesh_lacks_are_dropped(axes, kept):
    mesh = sv.mesh(data=8, fsdp=4, tensor=4)
    found = sv.resolve("embeds mlp", [("embed", "data"), ("mlp", axes)], mesh=mesh)
    edit = found.remedies("split mlp")[0].edit
    assert edit.startswith(f"In rule 2 (mlp), split over {kept} instead of"), edit
    assert decapitalised(edit) in found.explain()
    table = sv.rules([("w$", ((), axes))], dialect="regex")
    remedy = sv.resolve("w", table, mesh=mesh, shape=(8, 16)).first_remedy()
    assert remedy.spec == found.remedies("split mlp")[0].spec


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_suggestion_makes_the_shards_larger(dialect):
    rng = random.Random(f"{dialect} larger")
    seen = Counter()
    for _ in range(300):
        pairs = [random_rule(rng) for _ in range(rng.randint(1, 5))]
        ((_, shape, names),) = random_rows(rng, 1)
        first = sv.resolve(names, pairs, mesh=MESH, shape=shape, dialect=dialect).first_remedy()
        now = by_flax(names, pairs, dialect)
        if first is None or now is None:
            continue
        after = by_flax(first[1].names, first[1].rules.pairs(), dialect)
        # Without the dimensions that fail, in every combination that can be laid out.
        kept = itertools.product(*({(), dim} for dim in now))
        most = max(math.prod(map(parts, dims)) for dims in kept if lays_out(dims, shape))
        assert math.prod(map(parts, after)) >= most, (pairs, names)
        seen[lays_out(now, shape)] += 1
    assert min(seen[True], seen[False]) >= 5, seen


def test_one_of_two_moves_that_do_the_same_is_shown():
    table = [("a", None), ("mlp", "model"), ("embed", "model"), ("b", None)]
    found = sv.remedies(sv.resolve("embed mlp", table, mesh=MESH, shape=(8, 8)), "split embed")
    moves = [remedy.action for remedy in found if type(remedy.action) is MoveLine]
    assert [(move.index, move.place) for move in moves] == [(2, 1)]


def test_one_device():
    assert first("mlp", (8,), "split", sv.mesh(data=1)) == ("no axes",)


@pytest.mark.parametrize(
    "want", ["split 3", "split heads", "P('data', None, None)", "8 XB", 3.5, "P("]
)
def test_a_wish_that_cannot_be_read(want):
    with pytest.raises(sv.ShardvizError):
        first("mlp batch", (8, 8), want)


def test_an_array_that_no_rule_splits():
    rows = sv.audit([sv.array("w", (8,), spec="data"), sv.array("v", (8,))], (), MESH).rows
    assert [sv.remedies(row, "split").why.code for row in rows] == ["own spec", "no names"]
    with pytest.raises(sv.ShardvizError):
        sv.remedies(rows, "split")


LAYERS = [
    *[(f"layers/{i}/wi", (512, 2048), "embed mlp") for i in range(3)],
    *[(f"layers/{i}/wo", (2048, 512), "mpl embed") for i in range(3)],
    ("head", (512, 510), "embed vocab"),
]


def test_a_misspelt_name_is_corrected_in_every_layer():
    rules = [("mlp", "model"), ("embed", "data")]
    rows = sv.audit(LAYERS, rules, MESH).rows
    remedy = sv.remedies(rows[3], "split 0")[0]
    assert remedy.action == NameDimension(
        0, "mlp", "mpl", "layers/0/wo", ("layers/1/wo", "layers/2/wo")
    )
    assert remedy.others == ("layers/1/wo", "layers/2/wo")
    assert remedy.leaf_bytes_saved == 2048 * 512 * 4 // 4 // 2
    assert remedy.bytes_saved == 3 * remedy.leaf_bytes_saved
    misspelt = [("mpl", "data"), ("embed", None)]
    rows = sv.audit(LAYERS[:3], misspelt, MESH).rows
    action = sv.remedies(rows[0], "split")[0].action
    assert (type(action), action.index, action.new.logical) == (RenameLine, 0, "mlp")


STATE = {
    "params": {"wi": ((512, 2048), "embed mlp"), "wo": ((2048, 512), "mpl embed")},
    "opt_state": {
        "mu": {"wi": ((512, 2048), "embed mlp"), "wo": ((2048, 512), "mpl embed")},
        "nu": {"wi": ((512, 2048), None), "wo": ((2048, 512), None)},
    },
}


def test_an_optimizer_that_lost_its_names_gets_those_of_the_parameters():
    before = sv.audit(STATE, [("mlp", "model"), ("mpl", "model")], MESH)
    row = next(r for r in before.rows if r.path == "opt_state/nu/wi")
    (remedy,) = sv.remedies(row, "P(None, 'model')")
    assert remedy.action == KeepParameterNames(("embed", "mlp"), row.path)
    assert (remedy.names, str(remedy.spec)) == (("embed", "mlp"), "P(None, 'model')")
    assert remedy.others == ("opt_state/nu/wo",)
    kept = {**STATE["opt_state"], "nu": STATE["params"]}
    after = sv.audit({**STATE, "opt_state": kept}, before.rules, MESH)
    assert remedy.bytes_saved == before.bytes_per_device - after.bytes_per_device
    assert not after.differences


def test_no_remedy_breaks_another_array():
    rules = [("embed", None), ("vocab", None)]
    audit = sv.audit([*LAYERS, ("odd", (511, 8), "embed heads")], rules, MESH)
    found = sv.remedies(audit.rows[0], "P('data', None)")
    assert (found.why.code, found.why.path) == ("breaks others", "odd")
    even = sv.audit([*LAYERS, ("even", (512, 8), "embed heads")], rules, MESH)
    action = sv.remedies(even.rows[0], "P('data', None)")[0].action
    assert (type(action), action.index, action.new.axes) == (RetargetLine, 0, ("data",))
