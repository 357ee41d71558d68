"""Locks: what they say, that they hold while nothing changes, and what they say where it does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardviz as sv
from shardviz.advise.lock import (
    Lock,
    LockedCollective,
    lock_plan,
    parse_lock,
)
from shardviz.axis_rules.audit import audit
from shardviz.base.collective import Collective
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Report
from shardviz.gallery import programs, puzzles
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp
from tests.program.rule_mutations import sample, verdict

LOCKS = Path(__file__).parent / "locks"
MESH = make_mesh(data=4, model=2)
RULES = [("batch", "data"), ("mlp", "model"), ("embed", None)]
ROWS = [
    *((f"layers_{n}/wi", (512, 2048), "embed mlp") for n in range(32)),
    ("embedding", (1000, 512), "vocab embed"),
]


def rows_locked(rows, rules=RULES, mesh=MESH) -> Lock:
    return sv.lock(audit(rows, rules, mesh))


def test_the_text_of_an_audit():
    assert rows_locked(ROWS).text == (
        "{\n"
        '  "shardviz_lock": 2,\n'
        '  "name": "audit",\n'
        '  "mesh": "data=4, model=2",\n'
        '  "made_with": {},\n'
        '  "bytes_per_device": 69156864,\n'
        '  "arrays": {\n'
        '    "embedding": "float32[1000, 512] P()",\n'
        '    "layers_{0..31}/wi": "float32[512, 2048] P(None, \'model\')"\n'
        "  }\n"
        "}\n"
    )


def plan_of(collectives=(), line=31, function="mlp", specs_=("data", "")) -> tuple[Plan, Report]:
    """A plan with two ends and an operation at a line, and a report with these collectives."""
    ends = [PlannedOp(n, "argument", shape=(8, 4), dtype="float32", spec=Spec.parse(s))
            for n, s in zip("xy", specs_, strict=True)]  # fmt: skip
    op = PlannedOp("dot", "op", source=f"model.py:{line}", calls=("step", function))
    report = Report("step", "CPU × 8, simulated", partitioned=tuple(collectives))
    return Plan("step", MESH, (*ends, op)), report


def gather(layer=0, size=1024, line=31, kind="all-gather", trips=1, name="mlp") -> Collective:
    op = f"jit(step)/jvp(layers_{layer})/{name}/dot_general"
    return Collective(kind, ("data",), size, op, f"model.py:{line}", trips=trips)


def moves_locked(*collectives, line=31, function="mlp") -> Lock:
    return lock_plan(*plan_of(collectives, line, function))


def test_collectives_of_all_layers_are_one_line():
    lock = moves_locked(*map(gather, range(12)))
    assert lock.collectives == (
        LockedCollective(
            "all-gather", ("data",), 1024, 1, 12,
            "layers_{0..11}/mlp/dot_general (mlp in model.py)",
        ),
    )  # fmt: skip
    assert ":31" not in lock.text


@pytest.mark.parametrize(
    "other",
    [
        moves_locked(gather(0, line=99), gather(1, line=99), line=99),
        moves_locked(gather(0), gather(1), function="renamed"),
        moves_locked(gather(0, name="ffn"), gather(1, name="ffn")),
        moves_locked(gather(1), gather(0)),
    ],
    ids=["other lines", "function renamed", "module renamed", "other order"],
)
def test_code_that_is_moved_or_renamed_leaves_the_lock_as_it_is(other):
    assert moves_locked(gather(0), gather(1)).diff(other).same


@pytest.mark.parametrize(
    ("now", "gained", "lost"),
    [
        ([gather(0)], [], [(1024, 1)]),
        ([gather(0, 2048), gather(1, 2048)], [(2048, 2)], [(1024, 2)]),
        ([gather(0), gather(1), gather(7, 64, kind="all-reduce", trips=12, line=5)], [(64, 1)], []),
        ([gather(0), gather(1, trips=12)], [(1024, 1)], [(1024, 1)]),
    ],
    ids=["lost", "of another size", "gained", "in a loop now"],
)
def test_changes_of_collectives(now, gained, lost):
    found = moves_locked(gather(0), gather(1)).diff(moves_locked(*now))
    assert [(c.bytes, c.count) for c in found.gained] == gained
    assert [(c.bytes, c.count) for c in found.lost] == lost
    assert len(found.lines) == 2 + len(gained) + len(lost)


@pytest.mark.parametrize(
    ("rows", "mesh", "counts"),
    [
        ([("w", (8, 8), "embed mlp")], MESH, (0, 0, 1)),
        ([("w", (8, 8), "mlp embed"), ("b", (8,), "mlp"), ("c", (), None)], MESH, (1, 1, 0)),
        ([("w", (8, 16), "embed mlp"), ("b", (8,), "mlp")], MESH, (1, 0, 0)),
        ([("w", (8, 8), "embed mlp"), ("b", (8,), "mlp")], make_mesh(data=2, model=4), (0, 0, 0)),
    ],
    ids=["gone", "changed and new", "shape", "mesh"],
)
def test_changes_of_arrays(rows, mesh, counts):
    before = rows_locked([("w", (8, 8), "embed mlp"), ("b", (8,), "mlp")])
    found = before.diff(rows_locked(rows, mesh=mesh))
    assert tuple(map(len, (found.changed, found.added, found.removed))) == counts
    assert found.remeshed == (mesh is not MESH)
    assert not found.same


def test_the_version_of_jax_is_named_where_something_changed_and_only_there():
    old = moves_locked(gather(0))
    new = Lock(**{**vars(moves_locked(gather(0, 512))), "made_with": {"jax": "9.9"}})
    words = f"jax {old.made_with['jax']}, but this is jax 9.9"
    assert words in old.diff(new).lines[-1]
    same = Lock(**{**vars(moves_locked(gather(0))), "made_with": {"jax": "9.9", "target": "TPU"}})
    assert old.diff(same).lines == ("Nothing changed.",)


NAME = r"(layers|w|b|\{|\}|\.\.|[0-9]{1,2}|/|,|é){1,6}"
ARRAYS = st.sampled_from(
    ["float32[8] P()", "key<fry>[8, 8] P('data') in pinned_host, donated", "int4[] unknown"]
)


@given(st.dictionaries(st.from_regex(NAME, fullmatch=True), ARRAYS, max_size=30), st.randoms())
def test_any_names_come_back_in_any_order(arrays, rng):
    lock = Lock("f", "data=4, model=2", arrays)
    shuffled = list(arrays.items())
    rng.shuffle(shuffled)
    assert Lock("f", "data=4, model=2", dict(shuffled)).text == lock.text
    read = parse_lock(lock.text)
    assert read.arrays == arrays
    assert read.text == lock.text
    assert lock.diff(read).same


def test_arrays_of_one_name_are_kept_apart():
    lock = rows_locked([("w", (8,), "mlp"), ("w", (8,), None)])
    assert set(lock.arrays) == {"w", "w (2)"}


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2",
        "[]",
        '{"a": 1}',
        '{"shardviz_lock": 1}',
        '{"shardviz_lock": 2, "arrays": [1]}',
        '{"shardviz_lock": 2, "arrays": {}, "collectives": [{"kind": "x"}]}',
    ],
)
def test_what_is_no_lock_is_refused_with_the_name_of_its_file(text):
    with pytest.raises(sv.ShardvizError, match=r"step\.json"):
        parse_lock(text, "step.json")


HUGE = 10**400
DAMAGES = [
    {"name": 1}, {"mesh": None}, {"made_with": [1]}, {"made_with": {"jax": 1}},
    {"bytes_per_device": HUGE}, {"bytes_per_device": True}, {"device_order": 5},
    {"arrays": {"x": 1}}, {"arrays": []}, {"arrays": {"x{0..99999999}": "P()"}},
    {"arrays": {"x{0..999}" * 10: "P()"}}, {"arrays": {"x{1..2..3}": "P()"}},
    {"arrays": {"x" * 1000 + "{0..20000}": "P()"}}, {"arrays": {f"x{{0..{HUGE}}}": "P()"}},
    {"collectives": {}, "bytes_per_device": -1},
    *({"collectives": [{"kind": "all-reduce", "over": ["data"], "bytes": 1, "executions": 1,
                        "count": 1, "where": "", **wrong}]}
      for wrong in ({"bytes": [1]}, {"bytes": HUGE}, {"kind": {}}, {"count": "1"}, {"over": "data"},
                    {"over": [1]}, {"executions": 1.5}, {"where": None})),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage)[:50])
def test_a_damaged_lock_is_refused_when_it_is_read(damage):
    whole = json.loads(rows_locked(ROWS).text)
    assert parse_lock(json.dumps(whole)).arrays
    with pytest.raises(sv.ShardvizError, match=r"step\.json"):
        parse_lock(json.dumps({**whole, **damage}), "step.json")


def test_a_lock_that_nests_too_deeply_is_refused():
    with pytest.raises(sv.ShardvizError, match=r"step\.json"):
        parse_lock('{"shardviz_lock": 2, "x": ' + "[" * 50_000 + "]" * 50_000 + "}", "step.json")


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n{}", rows_locked(ROWS).text[:100]])
def test_a_file_that_is_no_json_is_named_as_such(text):
    with pytest.raises(sv.ShardvizError, match=r"step\.json' is not a lock, .* not valid JSON"):
        parse_lock(text, "step.json")


def test_a_lock_is_compared_with_a_lock_alone():
    with pytest.raises(sv.ShardvizError, match=r"got 'step\.json'.*sv\.lock\(path\)"):
        rows_locked(ROWS).diff("step.json")


def test_files_that_are_not_there_or_no_text(tmp_path):
    with pytest.raises(sv.ShardvizError, match="No such file"):
        sv.lock(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(sv.ShardvizError, match="not UTF-8 text"):
        sv.lock(str(tmp_path / "bytes.json"))
    with pytest.raises(sv.ShardvizError, match="Cannot write a lock"):
        rows_locked(ROWS).write(tmp_path / "bytes.json" / "x.json")


def test_a_lock_without_collectives_is_not_compared_with_one_that_has_them():
    plan, report = plan_of([gather()])
    with pytest.raises(sv.ShardvizError, match="locked without them"):
        lock_plan(plan, report).diff(lock_plan(plan))
    assert lock_plan(plan).diff(lock_plan(plan, report)).same


def test_collectives_that_are_not_known_are_not_locked_as_none():
    plan, report = plan_of()
    known = report.replace(partitioned=None, collectives=report.partitioned)
    with pytest.raises(sv.ShardvizError, match="is unknown, so they can be neither locked"):
        lock_plan(plan, known)


# Where the devices are, which memory holds an argument, and whether it is donated.


def placed(mesh="data=4", kind=None, donate=()):
    x = sv.array("x", (8, 4), spec="data").replace(memory_kind=kind)
    options = {"donate": donate} if donate else {}
    return sv.program(jnp.sin, x, mesh=mesh, name="f").replace(options=options)


SCRAMBLED = make_mesh("data=4", device_ids=[0, 2, 1, 3])
PLACED = {
    "device order": (placed(SCRAMBLED), "Order of the devices: by id -> 0, 2, 1, 3"),
    "memory": (placed(kind="pinned_host"), "x: P('data') -> P('data') in pinned_host"),
    "donation": (placed(donate=(0,)), "x: P('data') -> P('data'), donated"),
}


@pytest.mark.parametrize("name", PLACED)
def test_where_an_argument_is_and_whether_it_is_donated_are_locked(name):
    now, line = PLACED[name]
    before, after = (sv.lock(p, collectives=False) for p in (placed(), now))
    assert line in before.diff(after).lines
    for lock in (before, after):
        assert lock.diff(parse_lock(lock.text)).same
        assert parse_lock(lock.text).text == lock.text


# Programs.

EXAMPLES = {
    "mlp-gradient": lambda: programs.get("MLP, gradient"),
    "mixture-of-experts": lambda: programs.get("mixture of experts"),
    "fsdp-gradient": lambda: puzzles.get("fsdp, gradient"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_lock_of_one_version_of_jax_holds_on_the_other(name):
    file = LOCKS / f"{name}.json"
    stored = sv.lock(file)
    assert stored.made_with["jax"] == "0.10.2"
    assert sv.expect(EXAMPLES[name]()).matches(stored)


def test_a_lock_of_a_program_says_the_same_when_it_is_made_again():
    program = programs.get("MLP, gradient")
    first = sv.lock(program)
    sv.cache.clear()
    assert sv.lock(programs.get("MLP, gradient")).text == first.text
    counts = Counter({c.traffic: c.count for c in first.collectives})
    assert counts[("all-reduce", ("data",), 2 << 20, 1)] == 2
    assert str(Path.cwd()) not in first.text


def test_code_that_was_compiled_before_on_other_lines_says_where_all_the_same():
    arrays = sv.array("x", (8, 4), spec="data"), sv.array("y", (8, 4), spec="data")

    def first(x, y):
        return (x * y).sum()

    def second(x, y):
        return (x * y).sum()

    second.__name__ = second.__qualname__ = "first"
    locks = [sv.lock(sv.program(f, *arrays, mesh="data=4", name="f")) for f in (first, second)]
    assert all("in test_lock.py)" in lock.collectives[0].where for lock in locks)


def test_specs_alone_are_locked_without_a_compile(monkeypatch):
    program = sv.program(jnp.dot, sv.array("x", (8, 4), spec="data"), sv.array("w", (4, 8)),
                         mesh="data=4")  # fmt: skip
    monkeypatch.setattr("shardviz.advise.public._compile_for", lambda *a: pytest.fail("compiled"))
    lock = sv.lock(program, collectives=False)
    assert lock.arrays == {
        "x": "float32[8, 4] P('data')",
        "w": "float32[4, 8] P()",
        "output": "float32[8, 8] P('data')",
    }
    assert sv.expect(program).matches(lock)
    assert lock.diff(sv.lock(sv.plan(program))).same


def test_sampled_mutations_of_rules_are_caught_where_flax_says_that_they_change_a_spec():
    found = Counter()
    locks: dict[int, Lock] = {}
    for program, words, table in sample(every=19):
        lock = locks.setdefault(id(program), sv.lock(program, collectives=False))
        said = verdict(program, lock, program.replace(rules=table))
        assert not said.isupper(), (words, said)
        found[said] += 1
    assert min(found["caught"], found["holds: no spec changes"]) >= 8
