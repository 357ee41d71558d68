"""The Explorer's code, pasted below a notebook's functions, in a process without shardviz."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.explorer import jax_code
from shardviz.explorer.document import DEVICE_PUT
from shardviz.explorer.jax_function import Unwritable, written
from shardviz.explorer.session import Session
from shardviz.programs.program import Program

HERE = Path(__file__).parent
PASTED = """
import contextlib, io, json, sys
functions, found = open(sys.argv[1]).read(), {}
for name, (code, variables) in json.load(open(sys.argv[2])).items():
    cells = {"__name__": "__main__"}
    exec(compile(functions, "cell 1", "exec"), cells)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(code, "cell 2", "exec"), cells)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
        continue
    import jax
    shards = lambda a: {str(s.device.id): [[i.start or 0, n if i.stop is None else i.stop]
        for i, n in zip(s.index, a.shape)] for s in a.addressable_shards}
    outputs = jax.tree.leaves(cells["outputs"])
    assert len(said.getvalue().splitlines()) == len(outputs)
    found[name] = [shards(a) for a in outputs], {
        v: None if cells[v].is_deleted() else shards(cells[v]) for v in variables}
assert "shardviz" not in sys.modules
json.dump(found, sys.stdout)
"""
# What the arrays are called in the code, where not by their own names.
RENAMED = {
    "a name of the function": ["dot_2", "w"],
    "names of the code": ["mesh_2", "P_2", "jax_2", "output_2", "print_2", "ids_2"],
    "names that are none": ["a_class", "ü_b", "a_1st", "a_b", "a_b_2"],
    "a name that the function reads": ["x", "SCALE_2"],
}
PROGRAMS = HERE / "notebook_programs.py"
NAMES = re.findall(r'^    "([^"]+)": lambda', PROGRAMS.read_text(), re.MULTILINE)


def python(*arguments: str) -> str:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE.parents[1])}
    env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # where shards are does not depend on them
    made = subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return made.stdout


@pytest.fixture(scope="module")
def programs() -> dict:
    """The code and the shards of every program, from the notebook's process."""
    return json.loads(python(str(PROGRAMS)))


@pytest.fixture(scope="module")
def pasted(programs, tmp_path_factory) -> dict:
    """The shards of everything once the code ran in a process of its own."""
    file = tmp_path_factory.mktemp("pasted") / "codes.json"
    codes = {n: (t["code"], RENAMED.get(n, t["names"])) for n, t in programs.items()}
    file.write_text(json.dumps(codes))
    return json.loads(python("-c", PASTED, str(HERE / "notebook_functions.py"), str(file)))


DONATED = ("pytrees, donated", "one spec for the output", "under jit")


@pytest.mark.parametrize("name", NAMES)
def test_pasted_code_places_everything_as_the_program_does(name, programs, pasted):
    assert not isinstance(pasted[name], str), pasted[name] + "\n" + programs[name]["code"]
    outputs, inputs = pasted[name]
    assert outputs == programs[name]["outputs"]
    for shards, wanted in zip(inputs.values(), programs[name]["inputs"], strict=True):
        assert shards in (None, wanted)  # a donated array is used up
    assert (None in inputs.values()) == (name in DONATED)


LATE = """
import contextlib, io, sys
import jax
old = jax.numpy.ones(3)
assert jax.device_count() == 1
codes = {codes!r}
for code in codes:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "cell", "exec"), {{}})
assert jax.device_count() == 16
assert (old + 1).tolist() == [2, 2, 2], "what was made before can be used"
jax.default_backend = lambda: "gpu"  # beside an accelerator JAX is not started again
try:
    exec(compile(codes[0].replace("8", "32"), "cell", "exec"), {{}})
except RuntimeError as error:
    print(error)
"""


def test_pasted_code_runs_where_jax_has_started_with_one_device():
    meshes = (
        make_mesh(data=8),
        make_mesh(data=4, model=2),
        make_mesh(a=4, device_ids=range(12, 16)),
    )
    made = [Session(Program(abs, (ArraySpec("x", (64,)),), m, name=DEVICE_PUT)) for m in meshes]
    said = python("-c", LATE.format(codes=[jax_code.code(session.now) for session in made]))
    assert said == (
        "This mesh needs 32 devices, and JAX has 16. Restart the kernel and run this cell first.\n"
    )


def closure(k):
    return lambda x: x + k


def test_a_function_that_no_code_can_name_is_a_placeholder():
    program = Program(closure(3), (ArraySpec("x", (8,)),), make_mesh(data=8))
    code = jax_code.code(Session(program).now)
    assert "jax.jit(function)(x)" in code
    with pytest.raises(NotImplementedError, match="own function here: closure"):
        exec(code, {})  # noqa: S102  what a person does with it


def test_a_donated_array_in_host_memory_stays_there():
    array = ArraySpec("x", (8,), None, "float32", None, "pinned_host")
    session = Session(Program(abs, (array,), make_mesh(data=8)))
    session.edit("shape", "16", 0)
    assert "memory_kind='pinned_host')" in jax_code.code(session.now)


@pytest.mark.parametrize("value", [object(), float("nan"), {1: {2}}])
def test_what_no_expression_makes(value):
    with pytest.raises(Unwritable):
        written(value, set())
