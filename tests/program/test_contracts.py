"""sv.expect: what is asked, what is found, and the words of what is not so."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.advise import public
from shardviz.advise.contracts import Expectation, crosses
from shardviz.axis_rules.fit import Fit
from shardviz.base.collective import Collective
from shardviz.base.errors import ContractError
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Memory, Report
from shardviz.compiled.stages import Stages
from shardviz.gallery import programs
from shardviz.programs.failure import Failure

MESH = make_mesh(data=4, model=2)
MIB = 1 << 20


def gather(layer=0, size=MIB, **more) -> Collective:
    facts = {
        "op": f"jit(step)/layers_{layer}/dot_general",
        "source": "model.py:31",
        "group_size": 4,
        "cause": "dot_general needs all of argument w.",
    }
    return Collective("all-gather", ("data",), size, **(facts | more))


REDUCE = Collective("all-reduce", ("model",), 4096, "jit(step)/sum", "model.py:40", group_size=2)
BOTH = Collective("all-to-all", ("data", "model"), 512, "jit(step)/swap", "model.py:41")
UNKNOWN = Collective("all-gather", (), 64, "jit(step)/odd")


def report(*collectives, compiled=(), memory=(), layouts=(), error=None) -> Report:
    return Report(
        "step", "CPU × 8, simulated", partitioned=collectives, collectives=tuple(compiled),
        memory=Memory(**dict(memory)), in_layouts=dict(layouts), mesh=MESH, error=error,
    )  # fmt: skip


DOUBLE = jax.jit(lambda x: x * 2)
STEP = report(gather(0), gather(1), REDUCE, BOTH, compiled=[REDUCE])
WHILE_GATHER = gather(size=1024, trips=None, in_loop=True)
WHILE = report(WHILE_GATHER, REDUCE)

HOLDS = {
    "no such kind": (STEP, lambda e: e.no("reduce-scatter")),
    "no such kind over that axis": (STEP, lambda e: e.no("all-gather", over="model")),
    "none of a kind over two axes": (STEP, lambda e: e.no("all-reduce", over=("data",))),
    "a limit that is just reached": (STEP, lambda e: e.at_most(2 * MIB + 4096 + 512)),
    "a limit for each": (STEP, lambda e: e.at_most("1 MiB", per="collective")),
    "a limit for a kind": (STEP, lambda e: e.at_most("4 KiB", per="all-reduce")),
    "a limit over an axis": (STEP, lambda e: e.at_most("4.5 KiB", over="model")),
    "each in a loop of unknown length": (WHILE, lambda e: e.at_most("4 KiB", per="collective")),
    "a loop of unknown length has none of the kind": (
        WHILE,
        lambda e: e.at_most("4 KiB", per="all-reduce").at_most("4 KiB", over="model"),
    ),
    "memory": (report(memory={"arguments": 5}), lambda e: e.at_most(5, per="device")),
    "nothing at all": (report(), lambda e: e.no().no(over="data").at_most(0)),
    "one after another": (STEP, lambda e: e.no("reduce-scatter").at_most("3 MiB")),
}
W = lay_out((1024, 1024), Spec(), MESH)
LOOP = report(gather(size=1024, trips=100, in_loop=True))
NO_PROGRAM = report(error=Failure("compile", "It is too large.", "model.py:3"))
# Subject, what is asked, the code, and fields of what is not so.
BROKEN = {
    "no": (STEP, lambda e: e.no("all-gather", over="data"), "collectives",
           {"collectives": STEP.partitioned[:2], "kind": "all-gather", "over": ("data",)}),
    "over any of two": (
        STEP, lambda e: e.no(over="data, model"), "collectives",
        {"collectives": STEP.partitioned, "over": ("data", "model")}),
    "groups that are not known": (
        report(UNKNOWN), lambda e: e.no("all-gather", over="data"), "collectives", {}),
    "per step": (
        STEP, lambda e: e.at_most("1 MiB"), "too much", {"limit": MIB, "per": "step"}),
    "per kind": (
        STEP, lambda e: e.at_most(4095, per="all-reduce"), "too much", {"collectives": (REDUCE,)}),
    "a loop counts as often as it runs": (
        LOOP, lambda e: e.at_most("64 KiB", over="data"), "too much", {"limit": 64 << 10}),
    "a loop of unknown length": (
        WHILE, lambda e: e.at_most("1 GiB"), "unknown", {"collectives": (WHILE_GATHER,)}),
    "a loop of unknown length, but one iteration is too much": (
        WHILE, lambda e: e.at_most("4 KiB"), "too much", {"collectives": (WHILE_GATHER, REDUCE)}),
    "of the final program": (
        STEP, lambda e: Expectation(e.subject, stage="compiled").no("all-reduce"), "collectives",
        {"stage": "compiled", "target": STEP.target}),
    "memory": (
        report(memory={"arguments": 3 * MIB, "temporaries": MIB}, layouts={"w": W}),
        lambda e: e.at_most("3 MiB", per="device"), "too large",
        {"fit": Fit(4 * MIB, 3 * MIB), "counted": "compiled"}),
    "not split": (
        report(layouts={"w": W, "x": lay_out((1024, 1024), Spec.parse("data"), MESH)}),
        lambda e: e.sharded(0.51), "not split", {"share": 0.51, "total": 8 * MIB}),
    "does not fit": (
        report(memory={"arguments": 17 << 30}), lambda e: e.fits("tpu:v5e:2x4"), "too large",
        {"fit": Fit(17 << 30, 16 << 30, "TPU v5e 2×4")}),
    "a program that does not compile": (
        NO_PROGRAM, lambda e: e.no(), "nothing", {"error": NO_PROGRAM.error}),
}  # fmt: skip


@pytest.mark.parametrize(("subject", "ask"), HOLDS.values(), ids=HOLDS)
def test_what_holds_returns_the_expectation(subject, ask):
    expected = sv.expect(subject)
    assert ask(expected) is expected


@pytest.mark.parametrize(("subject", "ask", "code", "fields"), BROKEN.values(), ids=BROKEN)
def test_what_does_not_hold_says_what_is_so(subject, ask, code, fields):
    with pytest.raises(ContractError) as caught:
        ask(sv.expect(subject))
    found = caught.value.broken
    assert (found.code, found.name) == (code, "step")
    assert {name: getattr(found, name) for name in fields} == fields
    assert str(caught.value).startswith("step cannot" if code == "nothing" else "Expected ")


def test_a_limit_for_each_collective_is_compared_with_the_largest():
    with pytest.raises(
        ContractError, match=r"at most 3\.999 KiB .* 1 larger result, of up to 4 KiB"
    ):
        sv.expect(WHILE).at_most(4095, per="collective")


def test_what_does_not_hold_is_said_with_the_place_the_cause_and_a_way_on():
    with pytest.raises(ContractError) as caught:
        sv.expect(STEP).no("all-gather", over="data")
    head, line, advice = str(caught.value).splitlines()
    assert "1.5 MiB sent per device" in head
    for part in ("2 × 768 KiB", "model.py:31", "layers_{0..1}/dot_general", str(gather().cause)):
        assert part in line
    assert "sv.plan(program).why(value)" in advice


@pytest.mark.parametrize(
    ("subject", "ask", "words"),
    [
        (STEP, lambda e: e.no("all-gathr"), "Did you mean 'all-gather'?"),
        (STEP, lambda e: e.no("all-gather over data"), ".no('all-gather', over='data')"),
        (STEP, lambda e: e.no("over model"), ".no(over='model')"),
        (STEP, lambda e: e.no(over="modle"), "'modle' is not an axis"),
        (STEP, lambda e: e.no(over="modle"), "Did you mean 'model'?"),
        (STEP, lambda e: e.no(over=()), "over="),
        (STEP, lambda e: e.at_most("many"), "got 'many'"),
        (STEP, lambda e: e.at_most("30 MiB per step"), ".at_most('30 MiB', per='step')"),
        (STEP, lambda e: e.at_most("1 MiB over data"), ".at_most('1 MiB', over='data')"),
        (STEP, lambda e: e.at_most(-1), "The limit"),
        (STEP, lambda e: e.at_most(1, per="stp"), "Did you mean 'step'?"),
        (STEP, lambda e: e.sharded(98), "got 98"),
        (STEP, lambda e: e.sharded("1 KiB"), "got '1 KiB'"),
        (STEP, lambda e: e.sharded("98%"), "such as 0.98 for 98 %; got '98%'"),
        (STEP, lambda e: e.sharded(float("nan")), "got nan"),
        (STEP, lambda e: e.fits(), "described hardware"),
        (STEP, lambda e: e.fits("cpu:8"), "'tpu:v5p:8x8x16'"),
        (STEP, lambda e: e.fits("tpu:v5e:4x4"), "has 8 devices and tpu:v5e:4x4 has 16"),
        (STEP, lambda e: e.fits("tpu:v5e:2x4"), "how much memory"),
        (STEP, lambda e: e.matches("no.json"), "No such file"),
        (STEP, lambda e: e.locked(), "report"),
        (STEP, lambda e: e.locked("no.json"), "Write .matches(...)"),
        (STEP, lambda e: sv.expect(e.subject, stage="propagated"), "'propagated'"),
        (report().replace(partitioned=None, collectives=()), lambda e: e.no(), "stage='compiled'"),
        ("x", lambda e: e, "sv.expect takes"),
        (STEP, lambda e: sv.lock({"w": 1}), "sv.lock takes"),
        (DOUBLE.lower(1.0), lambda e: e, "sv.expect(sv.plan(lowered))"),
        (DOUBLE.lower(1.0).compile(), lambda e: e, "sv.expect(sv.report(compiled), stage="),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_no_broken_contract(subject, ask, words):
    with pytest.raises(sv.ShardvizError) as caught:
        ask(sv.expect(subject))
    assert words in str(caught.value)


@pytest.mark.parametrize("stage", ["partitioned", "compiled"])
def test_what_a_report_does_not_know_is_not_taken_for_nothing(stage):
    unknown = Report("step", "CPU × 8, simulated", mesh=MESH)
    with pytest.raises(sv.ShardvizError, match=f"ends before its {stage} stage"):
        sv.expect(unknown, stage=stage).no("all-gather")
    with pytest.raises(sv.ShardvizError, match="arguments of step are split is unknown"):
        sv.expect(unknown, stage=stage).sharded()
    # On one device no partitioner runs.
    assert sv.expect(unknown.replace(partitioned=(), collectives=()), stage=stage).no()


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (((0, 1), (2, 3), (4, 5), (6, 7)), ["model"]),
        (((0, 2, 4, 6), (1, 3, 5, 7)), ["data"]),
        (((0, 3), (1, 2)), ["data", "model"]),
        (((0,), (5,)), []),
        ((), ["data", "model"]),
    ],
)
def test_groups_that_are_of_no_axes_cross_those_along_which_they_differ(groups, axes):
    odd = Collective("all-reduce", (), 4, groups=groups)
    assert [a for a in MESH.axis_names if crosses(odd, a, MESH)] == axes


def test_a_part_of_an_axis_counts_as_the_axis():
    assert crosses(Collective("all-gather", ("data:(1)2",), 4), "data", MESH)


# Audits.

ROWS = [
    *((f"layers_{n}/w", (1024, 1024), "embd mlp") for n in range(4)),
    ("embedding", (2048, 1024), "vocab embed"),
    ("norm", (1024,), None),
]
RULES = [("mlp", "model"), ("embed", None), ("vocab", "pipe")]


def test_the_arrays_of_an_audit_that_are_not_split_are_named_with_the_reason():
    audit = sv.audit(ROWS, RULES, MESH)
    sv.expect(audit).sharded(at_least=0.6)
    with pytest.raises(ContractError) as caught:
        sv.expect(audit).sharded(at_least=0.98)
    assert [row.name for row in caught.value.broken.arrays] == ["embedding", "norm"]
    _, embedding, norm, _ = str(caught.value).splitlines()
    assert str(audit.problems["embedding"]) in embedding
    assert norm.startswith("  norm (4 KiB): ")


@pytest.mark.parametrize(
    ("rows", "rules", "reason"),
    [
        ([("w", (8, 8), "a b")], [("a", None)], "rule 1 (a → None)"),
        ([sv.array("w", (8, 8), spec="None")], [], "P(None)"),
        ([("w", (8, 8), "a b")], [("a", "one")], "P('one', None), but all its axes have size 1"),
        ([("w", (9, 8), "a b")], [("a", "data")], "9 is not divisible by 4"),
        ([("w", (8,), "_")], [("a", "data")], "P(None)"),
    ],
)  # fmt: skip
def test_why_an_array_is_not_split(rows, rules, reason):
    with pytest.raises(ContractError) as caught:
        sv.expect(sv.audit(rows, rules, "data=4, one=1")).sharded(0.1)
    assert reason in str(caught.value)


def test_an_audit_that_leaves_arrays_out_does_not_fit_for_sure():
    audit = sv.audit([("w", (8, 8), "a b"), ("x", (9,), "a")], [("a", "data")], "data=8")
    assert audit.uncounted.arrays == 1
    for ask in (lambda e: e.fits("tpu:v5e:2x4"), lambda e: e.at_most("1 GiB", per="device")):
        with pytest.raises(ContractError) as caught:
            ask(sv.expect(audit))
        assert caught.value.broken.fit.code == "unknown"
        assert "unknown" in str(caught.value)


def test_an_audit_fits_or_not_and_has_no_collectives():
    large = sv.audit([("w", (1 << 20, 1 << 13), "a b", "bfloat16")], [("b", "model")], MESH)
    assert sv.expect(large).fits("tpu:v5p:2x2x2").at_most("8 GiB", per="device")
    larger = sv.audit([("w", (1 << 20, 3 << 12), "a b", "bfloat16")], [], MESH)
    with pytest.raises(ContractError, match="24 GiB"):
        sv.expect(larger).fits("tpu:v5e:2x4")
    with pytest.raises(sv.ShardvizError, match="An audit has arrays but no collectives"):
        sv.expect(large).no("all-gather")


def test_an_audit_is_as_locked_or_not(tmp_path):
    sv.lock(sv.audit(ROWS, RULES, MESH)).write(tmp_path / "locks" / "model.json")
    file = tmp_path / "locks" / "model.json"
    assert sv.expect(sv.audit(ROWS, RULES, MESH)).matches(file)
    with pytest.raises(ContractError) as caught:
        sv.expect(sv.audit(ROWS, [("mlp", "data")], MESH)).matches(file)
    assert (caught.value.broken.code, caught.value.broken.lock) == ("differs", "model.json")
    said = str(caught.value).splitlines()
    assert "  layers_{0..3}/w: P(None, 'model') -> P(None, 'data')" in said


# Programs and plans.


def test_a_plan_says_that_it_is_an_estimate():
    plan = sv.plan(programs.get("matmul, inner dimension split on one side"))
    sv.expect(plan).no("all-reduce").sharded(0.3).at_most("4 MiB", per="device")
    with pytest.raises(ContractError) as caught:
        sv.expect(plan).no("all-gather")
    assert caught.value.broken.stage == "propagated"


def test_a_program_is_compiled_once_and_what_brought_the_axis_is_named(monkeypatch):
    program = programs.get("matmul, inner dimension split on one side")
    made = []
    compile_ = public._compile_for
    monkeypatch.setattr(
        "shardviz.advise.public._compile_for", lambda *a: made.append(a) or compile_(*a)
    )
    expected = sv.expect(program).sharded(at_least=1)
    assert made == []
    expected.no("all-reduce").at_most("128 KiB").at_most("10 MiB", per="device")
    with pytest.raises(ContractError) as caught:
        expected.no("all-gather", over="model")
    assert [a[1] for a in made] == [None]
    said = str(caught.value)
    assert "model splits x (dimension 1: rule 3, inner → model) and w (dimension" in said
    assert "functions.py:" in said
    assert "needs" in said or "splits" in said


def test_the_compile_and_not_the_estimate_counts_for_a_program():
    # A running sum along a split dimension: Shardy plans nothing, and XLA's partitioner gathers.
    x = sv.array("x", (64, 8), spec="data, None")
    program = sv.program(lambda x: jnp.cumsum(x, 0), x, mesh="data=4")
    assert sv.expect(sv.plan(program)).no("all-gather")
    with pytest.raises(ContractError) as caught:
        sv.expect(program).no("all-gather")
    assert caught.value.broken.stage == "partitioned"


def test_arguments_that_alone_do_not_fit_need_no_compile(monkeypatch):
    x = sv.array("x", (1 << 21, 3 << 12), spec="data, None")
    program = sv.program(jnp.sin, x, mesh="data=4, model=2")
    monkeypatch.setattr("shardviz.advise.public._compile_for", lambda *a: pytest.fail("compiled"))
    with pytest.raises(ContractError, match="its arguments alone take 24 GiB on each device"):
        sv.expect(program).fits("tpu:v5e:2x4")


def test_stages_know_their_report():
    stages = Stages(programs.get("MLP"), None, STEP)
    with pytest.raises(ContractError) as caught:
        sv.expect(stages).no("all-gather", over="data")
    assert caught.value.broken.stage == "partitioned"
    assert sv.expect(stages).sharded(0.1)


def test_a_program_that_no_longer_traces_breaks_its_contract():
    x = sv.array("x", (8, 4), spec="data")
    program = sv.program(lambda x: x @ x, x, mesh="data=4")
    with pytest.raises(ContractError, match=r"<lambda> cannot be checked or locked\. trace"):
        sv.expect(program).no("all-gather")
    with pytest.raises(sv.ShardvizError, match=r"<lambda> cannot be checked or locked\. trace"):
        sv.lock(program)
