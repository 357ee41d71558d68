import re

import jax
import numpy as np
import pytest

import shardviz as sv
from shardviz.axis_rules.rules import Rules
from shardviz.base.errors import ShardvizError
from shardviz.explorer import html_page, jax_code
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.gallery.programs import known_names, known_program
from shardviz.runs.backend.worker.run import run_program
from shardviz.runs.cache import ExecutableCache

REFUSED = "two orders of devices"  # jax itself refuses this puzzle
UNEVEN = "a constraint that replicates"  # jax 0.12 refuses the result of this one


def executed(code: str) -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec(compile(code, "pasted", "exec"), namespace)  # noqa: S102  what a person does with it
    return namespace


@pytest.mark.parametrize("name", [n for n in known_names() if n not in (REFUSED, UNEVEN)])
def test_the_code_of_every_program_runs_and_lays_out_the_same(name, eight_devices, capsys):
    session = Session(known_program(name), name)
    assert_laid_out(session, executed(jax_code.code(session.now)))
    assert capsys.readouterr().out


def assert_laid_out(session: Session, namespace: dict[str, object]) -> None:
    for request in session.program.requests:
        array = namespace[request.array.name]
        shards = {s.device.id: s.index for s in array.addressable_shards}
        assert shards == request.layout.indices()
    assert "outputs" in namespace


def test_the_code_of_the_uneven_puzzle_does_what_its_program_does(eight_devices):
    session = Session(known_program(UNEVEN), UNEVEN)
    report = run_program(session.program, cache=ExecutableCache())
    if report.error is None:
        assert_laid_out(session, executed(jax_code.code(session.now)))
        return
    with pytest.raises(Exception, match="is not divisible by") as refused:
        executed(jax_code.code(session.now))
    assert str(refused.value).splitlines()[0] in report.error.message


def test_a_multiline_name_cannot_leave_its_comment():
    session = Session(programs.get(), programs.DEFAULT)
    session.edit("rules", "embed -> 'x\\\nimport os'")
    assert "\nimport os" not in jax_code.code(session.now)


def test_the_page_is_written_to_its_path(tmp_path):
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    path = made.save_html(tmp_path / "mine")
    assert path.name == "mine.html"
    text = path.read_text()
    assert "http://" not in text
    assert "https://" not in text


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    path = made.save_html(tmp_path / "mine")
    before = path.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ShardvizError, match="No space left"):
        made.save_html(path)
    assert path.read_text() == before


def test_the_bundle_has_every_module_once_and_no_name_twice():
    source = html_page.bundled_module("explorer")
    for path in html_page.HERE.glob("*.js"):
        assert source.count(f"// {path.name}\n") == 1, path.name
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", source, re.MULTILINE)
    assert sorted(names) == sorted(set(names))
    assert not re.search(r"^(import|export (?!default))", source, re.MULTILINE)


def test_the_report_of_a_run_reaches_the_view(eight_devices):
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    made.run()
    report = made.wait(120)
    assert report.ok, report
    view = made.report_data
    assert view["state"] == "done"
    assert {c["ok"] for c in view["checks"]} == {True}
    assert "all-reduce" in made.stages_data["stages"][2]["title"]
    made.session.edit("mesh", "data=2, model=2")
    assert (made.report_data["revision"], made.answer["revision"]) == (0, 1)
    assert np.shape(jax.tree.leaves(report.outputs)[0]) == (64, 512)


def test_the_rules_come_back_from_their_python_and_their_yaml():
    table = [("batch", ("data", "model")), ("it's: [a]", "model"), ("seq", None), ("batch", "data")]
    code = jax_code.rules_code(Rules.of(*table))
    assert executed(code["Rules as Python"])["rules"] == table
    assert [tuple(rule) for rule in sv.rules(code["Rules as YAML"])] == table
    free = jax_code.rules_code(sv.rules("a -> UNCONSTRAINED\nb -> x"))
    python = executed(free["Rules as Python"])["rules"]
    assert [rule.free for rule in sv.rules(python)] == [True, False]
    assert sv.rules(free["Rules as YAML"]) == sv.rules([("b", "x")])
    assert jax_code.rules_code(Rules()) == {}
