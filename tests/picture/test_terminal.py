"""Text in a terminal: lines that fit, bold and red where there are colours."""

from __future__ import annotations

import io
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.__main__ import main
from shardviz.compiled.checks import Check
from shardviz.draw.terminal import FAILED, styled
from tests.picture.values import VALUES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colours(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("name", VALUES)
def test_no_line_is_longer_than_80_characters(name):
    assert max(map(len, sv.text(VALUES[name]).splitlines())) <= 80


DATA, MODEL = "fully_sharded_data_parallel_replica_axis", "tensor_model_parallel_contracting_axis"


def long_names() -> sv.Program:
    weight = jax.ShapeDtypeStruct((64, 64), "float32")
    params = {"decoder_layers_with_long_names": {"attention_module": {"query_kernel": weight}}}

    def a_train_step_with_a_name_that_is_longer_than_any_line_should_be(params_of_state, batch):
        return jax.tree.map(lambda p: jnp.sin(batch @ p), params_of_state)

    return sv.program(
        a_train_step_with_a_name_that_is_longer_than_any_line_should_be, {"transformer": params},
        weight, mesh={DATA: 4, MODEL: 2}, in_specs=(P(MODEL, DATA), P(DATA)),
    )  # fmt: skip


@pytest.mark.parametrize("full", [False, True])
def test_no_line_of_a_program_with_long_names_is_longer(full):
    program = long_names()
    plan = sv.plan(program)
    rows = [(f"{DATA}/{MODEL}/layers_{n}/kernel", (64, 64), "embed mlp") for n in range(3)]
    audit = sv.audit(rows, [("embed", DATA), ("mlp", MODEL)], program.mesh)
    for value in (program, audit, program.mesh, plan.why(plan.ops[-1].name), sv.lock(plan)):
        assert max(map(len, sv.text(value).splitlines())) <= 80
    for value in (plan, sv.compile(program, target="cpu:8")):
        assert max(map(len, sv.text(value, full=full).splitlines())) <= 80


def failed() -> sv.Report:
    checks = Check("indices", True, "all there"), Check("values", False, "w differs by 3")
    return sv.Report(program="step", target="", checks=checks)


def test_failed_checks_come_first():
    lines = sv.text(failed()).splitlines()
    assert lines[1].startswith("✗ values")


def test_a_title_is_bold_and_what_failed_is_red_where_there_are_colours(monkeypatch):
    text = "step: failed\n✗ values: w differs\n  by 3\n✓ indices"
    shown = styled(text, Terminal())
    assert shown == (
        "\x1b[1mstep: failed\x1b[0m\n"
        "\x1b[31m✗ values: w differs\x1b[0m\n\x1b[31m  by 3\x1b[0m\n✓ indices"
    )
    assert re.sub(r"\x1b\[\d*m", "", shown) == text
    for stream in (io.StringIO(), None, object()):
        assert styled(text, stream) == text
    for name, value in {"NO_COLOR": "1", "TERM": "dumb"}.items():
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert styled(text, Terminal()) == text


def test_text_is_plain_and_a_value_that_a_terminal_shows_is_not(monkeypatch):
    monkeypatch.setattr("sys.stdout", Terminal())
    assert "\x1b" not in sv.text(failed())
    assert "\x1b[31m✗ values" in failed()._repr_mimebundle_()["text/plain"]
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert "\x1b" not in failed()._repr_mimebundle_()["text/plain"]


def test_the_command_line_shows_what_is_broken_first_and_red(monkeypatch, tmp_path):
    (tmp_path / "rows_of.py").write_text("rows = lambda: [('w', (8, 8), 'embed mlp')]\n")
    asked = ["check", f"{tmp_path}/rows_of.py:rows", "--mesh", "data=2", "--rules", "mlp -> data",
             "--sharded", "1", "--at-most", "1 B per device"]  # fmt: skip
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stdout", stream)
        assert main(asked) == 1
        lines = stream.getvalue().splitlines()
        assert ("\x1b[31m" in lines[0]) == isinstance(stream, Terminal)
        assert FAILED[1] in lines[0]
        assert lines[-1].startswith("ok ")
