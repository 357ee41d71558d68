"""sv.expect: what is asked, what is found, and the words of what is not so."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.core.errors import ContractError, MissingPackage
from shardviz.core.layout.fit import Fit
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.parse import parse_bytes
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.contracts import Expectation, crosses
from shardviz.core.program.report import Collective, Failure, Memory, Report
from shardviz.core.program.stages import Stages
from shardviz.gallery import programs

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


STEP = report(gather(0), gather(1), REDUCE, BOTH, compiled=[REDUCE])

HOLDS = {
    "no such kind": (STEP, lambda e: e.no("reduce-scatter")),
    "no such kind over that axis": (STEP, lambda e: e.no("all-gather", over="model")),
    "none of a kind over two axes": (STEP, lambda e: e.no("all-reduce", over=("data",))),
    "a limit that is just reached": (STEP, lambda e: e.at_most(2 * MIB + 4096 + 512)),
    "a limit for each": (STEP, lambda e: e.at_most("1 MiB", per="collective")),
    "a limit for a kind": (STEP, lambda e: e.at_most("4 KiB", per="all-reduce")),
    "a limit over an axis": (STEP, lambda e: e.at_most("4.5 KiB", over="model")),
    "memory": (report(memory={"arguments": 5}), lambda e: e.at_most(5, per="device")),
    "nothing at all": (report(), lambda e: e.no().no(over="data").at_most(0)),
    "one after another": (STEP, lambda e: e.no("reduce-scatter").at_most("3 MiB")),
}
BROKEN = {
    "no": (STEP, lambda e: e.no("all-gather", over="data"), [
        "Expected no all-gather over data in step, and there are 2, 2 MiB per device, as XLA's"
        " partitioner put in for CPU × 8, simulated:",
        "  2 × 1 MiB all-gather over data · model.py:31 · layers_{0..1}/dot_general. dot_general"
        " needs all of argument w.",
        "sv.plan(program).why(value) says how an axis got to a value. Change that rule or spec, or"
        " constrain the value; or, if it should be there, the expectation.",
    ]),
    "one that is over more axes": (STEP, lambda e: e.no("all-to-all", over="model"), [
        "Expected no all-to-all over model in step, and there is 1, 512 B per device,",
    ]),
    "no collective": (report(REDUCE), lambda e: e.no(), ["Expected no collective in step,"]),
    "over any of two": (STEP, lambda e: e.no(over="data, model"), [
        "Expected no collective over data or model in step, and there are 4,",
    ]),
    "groups that are not known": (report(UNKNOWN), lambda e: e.no("all-gather", over="data"), [
        "  64 B all-gather · jit(step)/odd (its groups are those of no mesh axes)",
    ]),
    "per step": (STEP, lambda e: e.at_most("1 MiB"), [
        "Expected at most 1 MiB for all collectives of one step in step, and there are 2 MiB per",
    ]),
    "per collective": (STEP, lambda e: e.at_most("512 KiB", per="collective"), [
        "Expected at most 512 KiB for each collective in step, and there are 2 MiB per device,",
    ]),
    "per kind": (STEP, lambda e: e.at_most(4095, per="all-reduce"), [
        "Expected at most 4 KiB for all all-reduces of one step in step, and there are 4 KiB",
    ]),
    "a loop counts as often as it runs": (
        report(gather(size=1024, trips=100, in_loop=True)),
        lambda e: e.at_most("64 KiB", over="data"), [
            "Expected at most 64 KiB for all collectives of one step over data in step, and there"
            " are 100 KiB per device,",
            "  1 KiB × 100 all-gather over data",
        ],
    ),
    "of the final program": (
        STEP, lambda e: Expectation(e.subject, stage="compiled").no("all-reduce"), [
            "Expected no all-reduce in step, and there is 1, 4 KiB per device, as compiled for CPU",
        ],
    ),
    "memory": (
        report(memory={"arguments": 3 * MIB, "temporaries": MIB},
               layouts={"w": lay_out((1024, 1024), Spec(), MESH)}),
        lambda e: e.at_most("3 MiB", per="device"), [
            "Expected step to take at most 3 MiB of each device's memory, and as compiled for CPU"
            " × 8, simulated it takes 4 MiB.",
            "The largest arrays: w 4 MiB.",
            "Split the largest arrays over more axes, or raise the limit.",
        ],
    ),
    "not split": (
        report(layouts={"w": lay_out((1024, 1024), Spec(), MESH),
                        "x": lay_out((1024, 1024), Spec.parse("data"), MESH)}),
        lambda e: e.sharded(0.51), [
            "Expected 51 % of the bytes of step to be split, and 50 % are: 4 MiB of 8 MiB are not,"
            " in 1 array.",
            "  w (4 MiB): its spec is P().",
            "Give each of them an axis by a rule or a spec, or lower the share.",
        ],
    ),
    "does not fit": (
        report(memory={"arguments": 17 << 30}), lambda e: e.fits("tpu:v5e:2x4"), [
            "Expected step to fit on TPU v5e 2×4; as compiled for CPU × 8, simulated it takes"
            f" 17 GiB on each device. {Fit(17 << 30, 16 << 30, 'TPU v5e 2×4')}",
        ],
    ),
    "a program that does not compile": (
        report(error=Failure("compile", "It is too large.", "model.py:3")), lambda e: e.no(), [
            "There is nothing to check or lock of step. compile: It is too large. (model.py:3)",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("subject", "ask"), HOLDS.values(), ids=HOLDS)
def test_what_holds_returns_the_expectation(subject, ask):
    expected = sv.expect(subject)
    assert ask(expected) is expected


@pytest.mark.parametrize(("subject", "ask", "lines"), BROKEN.values(), ids=BROKEN)
def test_what_does_not_hold_says_so_in_words(subject, ask, lines):
    with pytest.raises(ContractError) as caught:
        ask(sv.expect(subject))
    said = str(caught.value).splitlines()
    at = 0
    for line in lines:  # in this order
        at = next((n for n in range(at, len(said)) if said[n].startswith(line)), len(said))
        assert at < len(said), (line, said)


@pytest.mark.parametrize(
    ("subject", "ask", "words"),
    [
        (STEP, lambda e: e.no("all-gathr"), "no kind of collective. Did you mean 'all-gather'?"),
        (STEP, lambda e: e.no(over="modle"), "has no axis 'modle'. Did you mean 'model'?"),
        (STEP, lambda e: e.no(over=()), "over= names mesh axes"),
        (STEP, lambda e: e.at_most("many"), "text such as '1 MiB' or '1.5 GB'; got 'many'"),
        (STEP, lambda e: e.at_most(-1), "The limit is a number of bytes"),
        (STEP, lambda e: e.at_most(1, per="stp"), "cannot be per 'stp'. Did you mean 'step'?"),
        (STEP, lambda e: e.sharded(98), "from 0 to 1; got 98"),
        (STEP, lambda e: e.sharded(float("nan")), "from 0 to 1; got nan"),
        (STEP, lambda e: e.fits(), "Whether something fits is known for described hardware"),
        (STEP, lambda e: e.fits("cpu:8"), "such as 'tpu:v5p:8x8x16'"),
        (STEP, lambda e: e.fits("tpu:v5e:4x4"), "has 8 devices and tpu:v5e:4x4 has 16"),
        (STEP, lambda e: e.fits("tpu:v5e:2x4"), "did not say how much memory"),
        (STEP, lambda e: e.matches("no.json"), "No such file"),
        (STEP, lambda e: e.locked(), "A report does not know all that a lock holds"),
        ("x", lambda e: e, "sv.expect takes a program, plan, report, stages or audit"),
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
    # On one device no partitioner runs.
    assert sv.expect(unknown.replace(partitioned=(), collectives=()), stage=stage).no()


def test_the_final_collectives_are_not_taken_for_the_partitioners():
    unknown = STEP.replace(partitioned=None, notes=("XLA could not write its dump.",))
    with pytest.raises(sv.ShardvizError, match=r"is unknown, .* XLA could not write its dump\."):
        sv.expect(unknown).no("all-gather")
    with pytest.raises(sv.ShardvizError, match="is unknown"):
        sv.expect(unknown).at_most("1 GiB")
    assert sv.expect(unknown, stage="compiled").no("all-gather")


def test_a_stage_that_is_not_compiled():
    with pytest.raises(sv.ShardvizError, match="no stage that is compiled"):
        sv.expect(STEP, stage="propagated")


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("1 KiB", 1024), ("1.5GB", 1_500_000_000), ("2gib", 2 << 30), (7, 7),
     ("3 B", 3)],
)  # fmt: skip
def test_sizes_as_people_write_them(text, size):
    assert parse_bytes(text, "It", sv.ShardvizError) == size


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
    head, embedding, norm, _ = str(caught.value).splitlines()
    assert "and 66.6 % are: 8 MiB of 24 MiB are not, in 2 arrays." in head
    assert embedding.startswith("  embedding (8 MiB): Dimension 0 is to be split over 'pipe'")
    assert norm == "  norm (4 KiB): it has no names and no spec."


def test_layers_are_one_line_and_a_typo_is_named():
    audit = sv.audit(ROWS, [("embed", "data")], MESH)
    with pytest.raises(ContractError) as caught:
        sv.expect(audit).sharded(0.9)
    said = str(caught.value)
    assert "  4 × layers_{0..3}/w (4 MiB): dimension 0 “embd” is not split: no rule knows" in said
    assert "Did you mean “embed”?" in said


@pytest.mark.parametrize(
    ("rows", "rules", "reason"),
    [
        ([("w", (8, 8), "a b")], [("a", None)], "rule 1 (a → None) leaves the dimension unsplit"),
        ([sv.array("w", (8, 8), spec="None")], [], "its spec is P(None)."),
        ([("w", (8, 8), "a b")], [("a", "one")], "its spec is P('one', None), over axes of size 1"),
        ([("w", (9, 8), "a b")], [("a", "data")], "9 does not divide by 4"),
        ([("w", (8,), "_")], [("a", "data")], "its dimensions have no names."),
    ],
)  # fmt: skip
def test_why_an_array_is_not_split(rows, rules, reason):
    with pytest.raises(ContractError) as caught:
        sv.expect(sv.audit(rows, rules, "data=4, one=1")).sharded(0.1)
    assert reason in str(caught.value)


def test_an_audit_of_nothing_and_a_share_of_none():
    assert sv.expect(sv.audit([], [], MESH)).sharded()
    assert sv.expect(sv.audit(ROWS, [], MESH)).sharded(at_least=0)


def test_an_audit_fits_or_not_and_has_no_collectives():
    large = sv.audit([("w", (1 << 20, 1 << 13), "a b", "bfloat16")], [("b", "model")], MESH)
    assert sv.expect(large).fits("tpu:v5p:2x2x2").at_most("8 GiB", per="device")
    larger = sv.audit([("w", (1 << 20, 3 << 12), "a b", "bfloat16")], [], MESH)
    with pytest.raises(ContractError, match="24 GiB"):
        sv.expect(larger).fits("tpu:v5e:2x4")
    with pytest.raises(sv.ShardvizError, match="An audit knows arrays and no collectives"):
        sv.expect(large).no("all-gather")


def test_an_audit_is_as_locked_or_not(tmp_path):
    sv.lock(sv.audit(ROWS, RULES, MESH)).write(tmp_path / "locks" / "model.json")
    file = tmp_path / "locks" / "model.json"
    assert sv.expect(sv.audit(ROWS, RULES, MESH)).matches(file)
    with pytest.raises(ContractError) as caught:
        sv.expect(sv.audit(ROWS, [("mlp", "data")], MESH)).matches(file)
    said = str(caught.value).splitlines()
    assert said[0] == "the audit on data=4, model=2 is no longer as locked in model.json:"
    assert "  layers_{0..3}/w: P(None, 'model') -> P(None, 'data')" in said
    assert said[-1].startswith("If this is as it should be, write the lock again")


# Programs and plans.


def test_a_plan_says_that_it_is_an_estimate():
    plan = sv.plan(programs.get("matmul, inner dimension split on one side"))
    sv.expect(plan).no("all-reduce").sharded(0.3).at_most("4 MiB", per="device")
    with pytest.raises(ContractError) as caught:
        sv.expect(plan).no("all-gather")
    assert "as Shardy estimates:" in str(caught.value)
    assert "This is an estimate, and XLA's partitioner may choose otherwise" in str(caught.value)


def test_a_program_is_compiled_once_and_what_brought_the_axis_is_named(monkeypatch):
    program = programs.get("matmul, inner dimension split on one side")
    made = []
    compile_ = sv.compile
    monkeypatch.setattr("shardviz.api.programs.compile", lambda *a: made.append(a) or compile_(*a))
    expected = sv.expect(program).sharded(at_least=1)
    assert made == []
    expected.no("all-reduce").at_most("128 KiB").at_most("10 MiB", per="device")
    with pytest.raises(ContractError) as caught:
        expected.no("all-gather", over="model")
    assert [a[1] for a in made] == ["cpu"]
    said = str(caught.value)
    assert "model splits x (dimension 1: rule 3, inner → model) and w (dimension" in said
    assert "functions.py:" in said
    assert "needs" in said or "splits" in said


def test_the_compile_and_not_the_estimate_counts_for_a_program():
    # A running sum along a split dimension: Shardy plans nothing, and XLA's partitioner gathers.
    x = sv.array("x", (64, 8), spec="data, None")
    program = sv.program(lambda x: jnp.cumsum(x, 0), x, mesh="data=4")
    assert sv.expect(sv.plan(program)).no("all-gather")
    with pytest.raises(ContractError, match="as XLA's partitioner put in"):
        sv.expect(program).no("all-gather")


def test_arguments_that_alone_do_not_fit_need_no_compile(monkeypatch):
    x = sv.array("x", (1 << 21, 3 << 12), spec="data, None")
    program = sv.program(jnp.sin, x, mesh="data=4, model=2")
    monkeypatch.setattr("shardviz.api.programs.compile", lambda *a: pytest.fail("compiled"))
    with pytest.raises(ContractError, match="its arguments alone take 24 GiB on each device"):
        sv.expect(program).fits("tpu:v5e:2x4")


def test_stages_know_their_report():
    stages = Stages(programs.get("MLP"), None, STEP)
    with pytest.raises(ContractError, match="Expected no all-gather over data"):
        sv.expect(stages).no("all-gather", over="data")
    assert sv.expect(stages).sharded(0.1)


def test_a_target_that_cannot_be_used_is_no_broken_contract():
    with pytest.raises(sv.ShardvizError) as caught:
        sv.expect(programs.get("MLP"), target="cpu:2").no("all-gather")
    assert "The mesh has 8 devices" in str(caught.value)
    assert not isinstance(caught.value, MissingPackage)


def test_a_program_that_no_longer_traces_breaks_its_contract():
    x = sv.array("x", (8, 4), spec="data")
    program = sv.program(lambda x: x @ x, x, mesh="data=4")
    with pytest.raises(ContractError, match=r"nothing to check or lock of <lambda>\. trace"):
        sv.expect(program).no("all-gather")
    with pytest.raises(sv.ShardvizError, match=r"nothing to check or lock of <lambda>\. trace"):
        sv.lock(program)
