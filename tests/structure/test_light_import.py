from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.isolation import REPO, loaded_by, printed, run_python

JAX = ("jax", "jaxlib", "flax")
WIDGETS = ("ipywidgets", "anywidget", "traitlets", "IPython")
HEAVY = (*JAX, *WIDGETS, "matplotlib")
# A backend of this name cannot start, so whatever starts one fails.
NO_BACKEND = {"JAX_PLATFORMS": "no_such_platform"}

LIGHT = """
import shardviz as sv
mesh = sv.mesh(data=4, model=2)
rules = sv.rules(("batch", "data"), ("mlp", "model"))
resolution = sv.resolve(("embed", "mlp"), rules, mesh=mesh, shape=(512, 2048))
layout = sv.layout((512, 2048), resolution.spec, mesh)
audit = sv.audit([("w", (512, 2048), "embed mlp")], rules, mesh)
for thing in (mesh, rules, resolution, layout, audit):
    assert sv.text(thing).strip(), thing
    assert thing._repr_mimebundle_()["text/plain"].strip(), thing
assert layout.shard_shape == (512, 1024)
print("model" in resolution.explain(), audit.bytes_per_device)
"""


def test_the_package_loads_nothing_heavy():
    assert loaded_by("import shardviz", HEAVY) == set()


def test_a_planted_heavy_import_is_found(tmp_path: Path):
    (tmp_path / "planted.py").write_text("def f():\n    import jax\n\nf()\n")
    assert loaded_by("import planted", HEAVY, tmp_path) >= {"jax", "jaxlib"}


# All in one process: none of them loads anything heavy, so none hides what another loads.
LIGHT_MODULES = (
    "base.layout", "axis_rules.audit", "axis_rules.public", "programs.program", "compiled.report",
    "advise.contracts", "runs.public", "gallery.programs", "pictures", "draw.public.show",
    "exercises", "explorer.session", "__main__",
)  # fmt: skip


def test_modules_without_a_backend_load_nothing_heavy():
    code = "".join(f"import shardviz.{module}\n" for module in LIGHT_MODULES)
    assert loaded_by(code, HEAVY) == set()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("shardviz.draw.paint", (*JAX, *WIDGETS)),
        ("shardviz.runs.backend.worker.run", (*WIDGETS, "flax", "matplotlib")),
        ("shardviz.explorer.explorer", (*JAX, "matplotlib")),
    ],
)
def test_a_module_loads_nothing_from_above_it(module: str, heavy: tuple[str, ...]):
    assert loaded_by(f"import {module}", heavy) == set()


NO_DRAWING = (*WIDGETS, "matplotlib")
A_PROGRAM = """
import jax.numpy as jnp, shardviz as sv
def step():
    x, w = sv.array("x", (8, 8), spec="None, data"), sv.array("w", (8, 8), spec="data")
    return sv.program(jnp.matmul, x, w, mesh="data=4")
"""
IN_CI = {
    "expect": "sv.expect(step()).no('all-gather').at_most('1 MiB', per='device')",
    "lock": "assert sv.expect(step()).matches(sv.lock(step()))",
    "a failure": """
try:
    sv.expect(step()).no('all-reduce')
    raise SystemExit(1)
except sv.ContractError as error:
    assert str(error)
""",
    "the command line": """
import types
from shardviz.__main__ import main
sys.modules["train"] = types.ModuleType("train")
sys.modules["train"].step = step
assert main(["check", "train:step", "--no", "all-gather"]) == 0
assert main(["plan", "train:step"]) == 0
assert main(["compile", "train:step"]) == 0
""",
}


@pytest.mark.parametrize("used", IN_CI.values(), ids=IN_CI)
def test_what_runs_in_ci_loads_neither_matplotlib_nor_widgets(used: str):
    assert loaded_by(A_PROGRAM + used, NO_DRAWING) == set()


def test_a_planted_picture_in_ci_is_found():
    found = loaded_by(A_PROGRAM + "sv.plot(sv.lock(step()).arrays and sv.mesh(data=4))", NO_DRAWING)
    assert found == {"matplotlib"}


IMPORTS = """
import importlib, pkgutil, shardviz
for module in pkgutil.walk_packages(shardviz.__path__, "shardviz."):
    importlib.import_module(module.name)
assert "jax" in sys.modules
"""
PLANS = """
import jax, jax.numpy as jnp, numpy as np
import shardviz as sv
from jax.experimental import io_callback

mesh = sv.mesh(data=4, model=2)
x, w = sv.array("x", (16, 32), spec="data"), sv.array("w", (32, 64), spec="None, model")

def called(x):
    return io_callback(np.sin, x, x)

def entered(x):
    return jax.lax.with_sharding_constraint(x, jax.P("model"))

def summed(x):
    add = lambda x: jax.lax.psum(x, "data")
    return jax.shard_map(add, in_specs=jax.P("data"), out_specs=jax.P())(x)

def random(x):
    return x + jax.random.normal(jax.random.key(0), x.shape) + jnp.arange(32) + np.ones(32)

sv.resolve(("embed",), sv.rules(("embed", "data")), mesh=mesh)
for fn in (jnp.sin, called, entered, summed, random):
    plan = sv.plan(sv.program(fn, x, mesh=mesh))
    assert plan.ok, plan.error
explorer = sv.explore(sv.program(jnp.matmul, x, w, mesh=mesh))
explorer.follow()
explorer.wait(100)
assert explorer.planner.state.report.error is None
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
print(len(jax.devices()))
"""


def test_no_import_no_plan_and_no_explorer_starts_a_backend():
    assert printed(IMPORTS + PLANS, **NO_BACKEND) == "8"


@pytest.mark.parametrize(
    "variables",
    [
        {"JAX_PLATFORMS": "", "JAX_PLATFORM_NAME": "gpu"},
        {"JAX_PLATFORMS": "cuda"},
    ],
)
def test_plans_need_no_device_of_the_chosen_platform(variables: dict[str, str]):
    code = """
import jax, jax.numpy as jnp, shardviz as sv
program = sv.program(jnp.sin, sv.array("x", (8,), spec="data"), mesh=sv.mesh(data=2))
assert sv.plan(program).ok
try:
    jax.devices()
except (RuntimeError, AssertionError):
    print(sv.plan(program).error, sv.compile(program, target="attached").error)
"""
    words = printed(code, **variables)
    assert words.startswith("None ")
    assert all(name in words for name in variables)


def test_a_planted_backend_is_found(tmp_path: Path):
    (tmp_path / "planted.py").write_text("import jax\njax.devices()\n")
    done = run_python("import planted", path=tmp_path, **NO_BACKEND)
    assert done.returncode
    assert "no_such_platform" in done.stderr


def test_layouts_rules_audits_and_text_need_no_jax():
    assert printed(LIGHT, without=(*HEAVY, "ml_dtypes")) == "True 2097152"


def test_every_module_but_those_of_backend_widgets_and_figures_needs_no_jax():
    code = """
import importlib, pkgutil, sys, shardviz
count = 0
heavy = {"backend", "panel", "explorer", "figures", "paint", "__main__"}
for module in pkgutil.walk_packages(shardviz.__path__, "shardviz."):
    if heavy.isdisjoint(module.name.split(".")):
        importlib.import_module(module.name)
        count += 1
assert not any(name.startswith("jax") for name in sys.modules)
print(count)
"""
    heavy = {"backend", "panel", "explorer", "figures.py", "paint.py", "__main__.py"}
    light = [
        path
        for path in (REPO / "shardviz").rglob("*.py")
        if path.name != "__init__.py" and heavy.isdisjoint(path.relative_to(REPO).parts)
    ]
    assert len(light) > 100
    assert int(printed(code, without=(*JAX, *WIDGETS, "matplotlib", "ml_dtypes"))) >= len(light)


def test_the_explorer_is_on_the_page_before_jax_and_matplotlib_are_imported():
    code = """
import IPython.display, shardviz as sv
slow, shown = ("jax", "matplotlib", "image/png"), []
def display(data, **options):
    shown.append([name for name in slow if name in {*sys.modules, *data}])
IPython.display.display = display
sv.explore()._ipython_display_()
print(shown)
"""
    assert printed(code, JPY_SESSION_NAME="a.ipynb") == "[[], ['matplotlib', 'image/png']]"


def test_plotting_needs_no_widgets_and_no_jax():
    code = "import shardviz as sv; print(type(sv.plot(sv.mesh(data=4, model=2))).__name__)"
    assert printed(code, without=(*WIDGETS, *JAX)) == "Figure"


def test_a_planted_need_for_jax_is_found(tmp_path: Path):
    (tmp_path / "planted.py").write_text("try:\n    from jax import numpy\nexcept KeyError: 0\n")
    assert run_python("import planted", without=JAX, path=tmp_path).returncode


# What is not installed, the package that the error names, and calls.
MISSING = {
    "jax": (
        JAX,
        (
            "sv.run(program)",
            "sv.compile(program)",
            "sv.targets()",
            "sv.to_jax(sv.mesh(data=4))",
            "sv.layout((8,), 'data', 'data=4').spec.to_jax()",
            "sv.resolve('embed', [], mesh='data=4').partition_spec",
        ),
    ),
    "matplotlib": (("matplotlib",), ("sv.plot(sv.mesh(data=4))",)),
    "anywidget": (WIDGETS, ("sv.explore()",)),
}


@pytest.mark.parametrize("package", MISSING)
def test_a_public_function_names_what_is_missing_in_one_sentence(package: str):
    without, calls = MISSING[package]
    code = f"""
import shardviz as sv
from shardviz.programs.program import Program
program = Program(abs, (sv.array("x", (8,)),), sv.mesh(data=4))
for call in {calls!r}:
    try:
        eval(call)
    except sv.ShardvizError as error:
        print(error)
"""
    sentences = printed(code, without=without).splitlines()
    assert len(sentences) == len(calls)
    assert all(f"pip install {package}" in sentence for sentence in sentences)


def test_without_widgets_programs_run_and_jitted_functions_are_not_compiled_again():
    code = """
import jax, jax.numpy as jnp
step = jax.jit(lambda w, x: w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w))
w, x = jnp.ones((8, 8)), jnp.ones((4, 8))
step(w, x)
import shardviz as sv
events = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
program = sv.program(jnp.matmul, sv.array("x", (8, 8), spec="None, data"),
    sv.array("w", (8, 8), spec="data"), mesh=sv.mesh(data=4))
for use in (sv.plan, sv.compile, sv.run, sv.changes, sv.effects, sv.text):
    use(program)
    events.clear()
    step(w, x)
    assert not events and step._cache_size() == 1, (use, events)
assert sv.run(program).error is None
print("as before")
"""
    assert printed(code, without=WIDGETS).endswith("as before")
