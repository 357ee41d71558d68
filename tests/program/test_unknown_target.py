"""An unknown target raises immediately, in every public function that takes one."""

from __future__ import annotations

import pytest

import shardviz as sv
from shardviz import __main__
from shardviz.base.errors import ProgramError, TargetError
from shardviz.hardware.targets import check_target, checked_text

X = sv.array("x", (64, 8), spec="data")
PROGRAM = sv.program(lambda x: x.sum(), X, mesh="data=4")
PLAN = sv.plan(PROGRAM)
AUDIT = sv.audit([X], [], "data=4")

WITH_TARGET = {
    "compile": lambda target: sv.compile(PROGRAM, target=target),
    "compile by position": lambda target: sv.compile(PROGRAM, target),
    "compile a function": lambda target: sv.compile(abs, X, mesh="data=4", target=target),
    "run": lambda target: sv.run(PROGRAM, target=target),
    "stages": lambda target: sv.stages(PROGRAM, target=target),
    "changes": lambda target: sv.changes(PROGRAM, target=target),
    "changes of a plan": lambda target: sv.changes(PLAN, 0, target=target),
    "search": lambda target: sv.search(PROGRAM, target=target),
    "expect": lambda target: sv.expect(PROGRAM, target=target),
    "fits": lambda target: sv.expect(PLAN).fits(target),
    "fits of an audit": lambda target: sv.expect(AUDIT).fits(target),
    "lock": lambda target: sv.lock(PROGRAM, target=target),
    "audit": lambda target: sv.audit([X], [], "data=4", target=target),
}


@pytest.mark.parametrize("call", WITH_TARGET.values(), ids=WITH_TARGET)
@pytest.mark.parametrize("target", ["tpu:v5f:4x4", "tpuv5e:4x4", "gpu:h1000:2x8", 5, X])
def test_an_unknown_target_raises(call, target):
    with pytest.raises(TargetError):
        call(target)


@pytest.mark.parametrize(
    ("typo", "name"),
    [
        ("atached", "'attached'"),
        ("cpus", "'cpu'"),
        ("cpu8", "'cpu:8'"),
        ("cpu:", "'cpu:8'"),
        ("gpus", "'gpu'"),
        ("2 hots x 4", "'2 hosts x 4'"),
        ("tpuv5e:4x4", "'tpu:v5e:4x4'"),
        ("tpu:v5f:4x4", "'v5p'"),
        ("gpu:h10:2x8", "'h100'"),
        ("moon", "'attached'"),
        ("moon", "'gpu:h100:2x8'"),
        ("h100", "'gpu:h100:1x8', with 8 devices"),
        ("h100x8", "'gpu:h100:1x8'"),
        ("TPU v5e", "'tpu:v5e:2x4'"),
    ],
)
def test_the_error_has_the_nearest_names(typo, name):
    with pytest.raises(TargetError, match=name):
        checked_text(typo)


def test_a_target_of_the_size_of_the_mesh_is_suggested():
    with pytest.raises(TargetError, match="'tpu:v5e:2x2', with 4 devices"):
        sv.compile(lambda x: x, X, mesh="data=4", target="v5e")


@pytest.mark.parametrize(
    "text",
    ["", " CPU ", "cpu:8", "gpu", "cuda", "rocm", "tpu", "attached", "2 hosts x 4",
     "3 hosts x 4, ipyparallel", "TPU:V5E:4x4", "v5p-64", "8xH100", "tpu:ironwood:4x4x4"],
)  # fmt: skip
def test_targets_that_may_be_missing_here_are_known(text):
    assert check_target(text) == text
    assert checked_text(checked_text(text)) == checked_text(text)


@pytest.mark.parametrize("target", ["gpu", "cpu:2", "3 hosts x 4, ipyparallel"])
def test_a_target_that_is_not_available_fails_in_the_report(target):
    report = sv.compile(PROGRAM, target=target)
    assert report.error is not None
    assert report.error.stage == "target"


def test_a_topology_is_a_target():
    assert check_target(sv.topology("tpu:v5e:2x2")) == "tpu:v5e:2x2"


def test_a_function_may_have_a_parameter_of_this_name():
    with pytest.raises(ProgramError):
        sv.compile(lambda x, target: x + target, X, target=X, mesh="data=4")


@pytest.mark.parametrize("command", ["audit", "check"])
def test_the_command_line_reports_an_unknown_target(command, capsys):
    options = ["--no", "all-gather"] if command == "check" else []
    name = f"{__name__}:PROGRAM"
    assert __main__.main([command, name, "--target", "tpuv5e:4x4", *options]) == 2
    assert "tpu:v5e:4x4" in capsys.readouterr().err
