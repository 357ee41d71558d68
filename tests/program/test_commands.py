"""python -m shardviz: what it prints, its exit codes, and the sentence for what is wrong."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

import shardviz as sv
from shardviz.__main__ import main

TRAIN = """
import jax.numpy as jnp
import shardviz as sv

CALLS = []

def state():
    return [(f"layers_{n}/w", (1024, 1024), "embed mlp") for n in range(4)]

def audited():
    return sv.audit(state(), [("mlp", "model")], "data=4, model=2")

def step():
    CALLS.append(1)
    w = sv.array("w", (64, 64), "embed mlp")
    x = sv.array("x", (16, 64), "batch embed")
    return sv.program(jnp.dot, x, w, mesh="data=4, model=2",
                      rules=[("batch", "data"), ("embed", "model")], name="step")

def large():
    return sv.program(jnp.sin, sv.array("x", (4096,), spec="data"), mesh="data=4096")

def refused():
    return sv.program(jnp.dot, sv.array("x", (3, 4)), sv.array("y", (5, 6)), mesh="data=1")

def fails():
    return {}["nothing"]

def exits():
    raise SystemExit("no accelerator")

def contract():
    sv.expect(audited()).sharded(at_least=0.9).at_most("1 B", per="device")

def needs(x):
    return x

def nothing():
    return None

def unnamed():
    import jax
    return {"w": jax.ShapeDtypeStruct((8, 8), "float32")}

def prints():
    print("not JSON")
    return step()

class group:
    rows = state()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a module, as the current one."""
    (tmp_path / "my_train.py").write_text(TRAIN)
    (tmp_path / "broken_syntax.py").write_text("def f(:\n")
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "rules.txt").write_text("mlp -> model\nembed -> data\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("my_train", "broken_syntax", "needs_more"):
        sys.modules.pop(name, None)


STATE = ("my_train:state", "--mesh", "data=4, model=2")


def test_an_audit_as_text(here, capsys):
    assert main(["audit", *STATE, "--rules", "rules.txt"]) == 0
    line = "4 × 512 KiB  layers_{0..3}/w · f32[1024, 1024] · P('data', 'model')"
    assert line in capsys.readouterr().out


def test_an_audit_beside_the_memory_of_a_target(here, capsys):
    asked = ["audit", "my_train:state", "--rules", "rules.txt", "--json"]
    for mesh, exit_code in {"data=-1, model=2": 0, "data=4, model=2": 0, "data=3": 1}.items():
        assert main([*asked, "--mesh", mesh, "--target", "tpu:v5e:2x4"]) == exit_code
        found = json.loads(capsys.readouterr().out)
        if exit_code == 0:
            assert (found["mesh"], found["fits"]) == ({"data": 4, "model": 2}, True)
            assert "v5e" in found["target"]
    assert main(["audit", "my_train:audited", "--target", "tpu:v5e:2x4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True


def test_tables_of_paths_and_of_maxtext(here, capsys):
    (here / "base.yml").write_text("logical_axis_rules: [['mlp', ['model']], ['embed', 'data']]\n")
    assert main(["check", *STATE, "--rules", "base.yml", "--sharded", "1"]) == 0
    table = "layers_.*/w -> P(None, 'model')"
    assert main(["audit", *STATE, "--dialect", "regex", "--rules", table]) == 0
    assert "P(None, 'model')" in capsys.readouterr().out


def test_an_audit_as_json(here, capsys):
    # No array can be laid out.
    assert main(["audit", *STATE, "--rules", "mlp -> model; embed -> nnx", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"data": 4, "model": 2}
    assert [a["spec"] for a in found["arrays"]] == ["P('nnx', 'model')"] * 4
    assert "'nnx'" in found["arrays"][0]["problem"]
    assert found["unknown"] == []
    assert main(["audit", "my_train:unnamed", "--mesh", "data=8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown"] == ["w"]


def test_checks_that_hold_and_that_do_not(here, capsys):
    asked = ["--sharded", "98%", "--at-most", "8 MiB per device", "--fits", "tpu:v5e:2x4"]
    assert main(["check", *STATE, "--rules", "mlp -> model", *asked]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok      at most 8 MiB per device", "ok      sharded: 98%", "ok      fits tpu:v5e:2x4",
    ]  # fmt: skip
    assert main(["check", *STATE, "--rules", "emb -> model", *asked]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[0] != " "] == [
        "BROKEN  at most 8 MiB per device", "BROKEN  sharded: 98%", "ok      fits tpu:v5e:2x4",
    ]  # fmt: skip
    assert any("no rule names “embed”" in line for line in lines)


def test_checks_of_a_program(here, capsys):
    asked = ["--no", "all-gather", "--no", "over data", "--no", "any over data", "--at-most",
             "2 KiB per all-reduce over model", "--no", "all-reduce over model"]  # fmt: skip
    assert main(["check", "my_train:step", *asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(c["check"], c["ok"]) for c in found["checks"]] == [
        ("no all-gather", True),
        ("no over data", True),
        ("no any over data", True),
        ("no all-reduce over model", False),
        ("at most 2 KiB per all-reduce over model", True),
    ]
    assert found["ok"] is False
    assert "all-reduce over model" in found["checks"][3]["message"]


def test_a_lock_is_written_holds_and_breaks(here, capsys):
    command = ["check", *STATE, "--rules", "mlp -> model", "--lock", "model.json"]
    assert main(command) == 1
    assert "--update" in capsys.readouterr().out
    assert main([*command, "--update"]) == 0
    assert "written: model.json" in capsys.readouterr().out
    written = Path("model.json").stat().st_mtime_ns
    assert main([*command, "--update"]) == 0
    assert "model.json is unchanged" in capsys.readouterr().out
    assert Path("model.json").stat().st_mtime_ns == written
    assert main(command) == 0
    command[command.index("mlp -> model")] = "mlp -> data"
    assert main(command) == 1
    assert "layers_{0..3}/w: P(None, 'model') -> P(None, 'data')" in capsys.readouterr().out


def test_a_lock_is_compared_with_a_program_and_with_another_lock(here, capsys):
    import my_train

    sv.lock(my_train.step(), collectives=False).write("specs.json")
    assert main(["compare", "specs.json", "my_train:step"]) == 0
    assert capsys.readouterr().out == "Nothing changed.\n"
    assert main(["compare", "my_train:step", "specs.json", "--specs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"same": True, "lines": []}
    assert main(["compare", "my_train:step", "my_train:step", "--rules", "a -> data"]) == 0
    assert main(["compare", "specs.json", "my_train:step", "--rules", "batch -> model"]) == 1
    assert "x: P('data', 'model') -> P('model')" in capsys.readouterr().out


WRONG = {
    "no command": ([], "the following arguments are required: plan|compile|audit"),
    "an unknown option": (["audit", "x:y", "--what"], "unrecognized arguments: --what"),
    "a path": (["audit", "/etc/passwd:f"], "module:function"),
    "no module": (["audit", "my_trian:state"], "'my_trian'"),
    "no function": (["audit", "my_train:stat"], "Did you mean 'state'?"),
    "None": (["audit", "my_train:nothing"], "my_train:nothing returned None"),
    "a function with parameters": (["plan", "my_train:needs"], "returns sv.program(needs, ...)"),
    "no program": (
        ["plan", "my_train:state"],
        "A plan is of a program; my_train:state returned [(",
    ),
    "no program to compile": (["compile", "my_train:nothing"], "Let it return sv.program(fn, ...)"),
    "a bad mesh": (["audit", "my_train:state", "--mesh", "data"], "data"),
    "a bad table": (["audit", *STATE, "--rules", "mlp ->"], "Cannot read"),
    "rules for an audit": (["audit", "my_train:audited", "--rules", "a->data"], "--rules"),
    "nothing to check": (["check", *STATE], "--at-most"),
    "no share": (["check", *STATE, "--sharded", "most"], "'most'"),
    "an update of nothing": (["check", *STATE, "--update"], "--lock"),
    "an axis": (["check", "my_train:step", "--no", "all-gather over dat"], "'dat'"),
    "no lock": (["compare", "rules.txt", "my_train:step"], "rules.txt' is not a lock"),
    "no file": (["compare", "prog.lock", "prog.lock"], "there is no file 'prog.lock' either"),
    "a file to plan": (["plan", "rules.txt"], "For a file of XLA: shardviz compile rules.txt"),
}


@pytest.mark.parametrize(("typed", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_sentence_and_two(here, capsys, typed, words):
    assert main(typed) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.startswith("shardviz: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_a_working_folder_that_was_removed_is_one_sentence_and_two(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["audit", "my_train:state"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("what", "last"),
    [
        ("my_train:fails", "KeyError: 'nothing'"),
        ("my_train:exits", "SystemExit: no accelerator"),
        ("needs_more:f", "No module named 'a_module_that_is_not_there'"),
    ],
)
def test_what_the_users_code_raises_is_its_own_traceback(here, capsys, what, last):
    assert main(["audit", what]) == 2
    assert last in capsys.readouterr().err.splitlines()[-1]


def test_as_a_process_without_jax_and_a_terminal_that_knows_ascii_alone(here):
    (here / "plain.py").write_text("def rows():\n    return [('größe', (8, 8), 'embed mlp')]\n")
    (here / "jax.py").write_text("raise ImportError('jax is not needed here')\n")
    (here / "rules.txt").write_text("mlp -> model\n")
    root = str(Path(sv.__file__).parents[1])
    # Python leaves the folder out, and it is searched all the same.
    more = {"PYTHONPATH": root, "PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "shardviz", "audit", "plain:rows", "--mesh", "model=2",
         "--rules", "rules.txt"],
        env={**os.environ, **more},
        cwd=here, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr??e" in done.stdout


FLIPS = """
import shardviz as sv

def step():
    return sv.program(lambda x: x[::-1], sv.array("x", (8,), spec="model"), mesh="model=2")
"""


@pytest.mark.parametrize("what", ["my_train:step", "my_train.py:step"])
def test_a_plan_and_a_compile_as_text_and_as_json(here, capsys, what):
    for command in ("plan", "compile"):
        assert main([command, what]) == 0
        assert "all-reduce" in capsys.readouterr().out
        assert main([command, what, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["error"] is None
        (collective,) = found["collectives"]
        assert (collective["kind"], collective["mesh_axes"]) == ("all-reduce", ["model"])
        assert (collective["bytes_per_device"], collective["executions"]) == (1024, 1)
        assert ("estimated" in found) == (command == "plan")


def test_what_the_users_code_prints_is_not_in_the_json(here, capsys):
    for command in (["plan"], ["compile"], ["audit"], ["check", "--no", "all-gather"]):
        assert main([*command, "my_train:prints", "--json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)
        assert captured.err.startswith("not JSON\n")
    assert main(["audit", "my_train:prints"]) == 0
    assert capsys.readouterr().out.startswith("not JSON\n")


@pytest.mark.parametrize(("rules", "code"), [("mlp -> model", 0), ("emb -> model", 1)])
def test_a_closed_pipe_does_not_change_the_exit_code(here, monkeypatch, rules, code):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["check", *STATE, "--rules", rules, "--sharded", "98%"]) == code
        monkeypatch.undo()


def test_the_notes_of_a_plan_are_in_its_json(here, capsys):
    (here / "flips.py").write_text(FLIPS)
    assert main(["plan", "flips:step", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["collectives"] == []
    (note,) = found["notes"]
    assert note.startswith("The estimate is uncertain at 1 value: rev.")


def test_a_program_that_fails_is_one(here, capsys):
    for command in ("plan", "compile"):
        assert main([command, "my_train:refused", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]


def test_a_file_of_xla_is_reported(here, capsys):
    text = jax.jit(lambda x: x * 2).lower(1.0).compile().as_text()
    (here / "module.hlo").write_text(text)
    assert main(["compile", "module.hlo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collectives"] == []


ALONE = """
import gc, sys
from shardviz.__main__ import script
sys.argv = ["shardviz", "check", "my_train:step", "--no", "all-gather", "--no", "all-reduce",
            "--json"]
code = script()
jax, workers = sys.modules["jax"], sys.modules["shardviz.programs.backend.worker.process"].workers
print(code, workers.pids, jax.device_count())
"""
USES_DEVICES = "import jax\njax.devices()\n"


@pytest.mark.parametrize("first", ["", USES_DEVICES], ids=["no devices yet", "started by the user"])
def test_a_command_compiles_in_its_own_process_unless_jax_has_started(here, first):
    (here / "my_train.py").write_text(first + TRAIN)
    root = str(Path(sv.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**os.environ, "PYTHONPATH": f"{root}:{here}", "JAX_NUM_CPU_DEVICES": "1"},
        cwd=here, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    *printed, last = done.stdout.splitlines()
    assert [check["ok"] for check in json.loads("\n".join(printed))["checks"]] == [True, False]
    code, *pids, devices = last.split()
    assert (code, devices) == ("1", "1" if first else "8")
    assert (pids == ["()"]) == (not first)


def test_a_mesh_too_large_to_simulate_is_one_sentence_and_two(here):
    done = subprocess.run(
        [sys.executable, "-m", "shardviz", "check", "my_train:large", "--no", "all-gather"],
        env={**os.environ, "PYTHONPATH": f"{Path(sv.__file__).parents[1]}:{here}"},
        cwd=here, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "4,096" in done.stderr.splitlines()[-1]


def test_the_command_is_installed():
    project = tomllib.loads((Path(sv.__file__).parents[1] / "pyproject.toml").read_text())
    module, _, name = project["project"]["scripts"]["shardviz"].partition(":")
    assert getattr(importlib.import_module(module), name)


def test_the_doctor_says_what_works(capsys):
    assert main(["doctor"]) == 0
    assert "jax._src.mesh.thread_resources" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["jax"] == jax.__version__
    assert not any(found["checks"].values())
