"""jax.jit's own arguments mean in shardviz what they mean in jax, in every public function."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.errors import TargetError
from shardviz.programs.notes import JitStays
from shardviz.runs.backend.compile import lower
from tests.program.helpers import sentences

AXES = ("data", "model")
X, W = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 32), "float32")
PARAMS = {"w": W, "b": jax.ShapeDtypeStruct((32,), "float32")}


def mesh(kind: AxisType = AxisType.Auto) -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), AXES, axis_types=(kind,) * 2)


def on(*spec: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*spec))


def dense(params, x, repeats=1, *, act="relu"):
    for _ in range(repeats):
        y = x @ params["w"] + params["b"]
    return getattr(jax.nn, act)(y)


def keywords_only(*, x, w, scale=2.0):
    return {"y": x @ w * scale, "w": w * scale}


def update(w, x):
    return w - 0.1 * (x.T @ (x @ w)), (x @ w).mean()


class Model:
    def __init__(self) -> None:
        self.bias = jnp.ones(32)

    def apply(self, w, x, train):
        y = x @ w + self.bias
        return y if train else y.sum(0)

    def __call__(self, w, x):
        return x @ w


@dataclass
class Case:
    """A call, with arguments of jax.jit. `jitted` are those of a jax.jit around the function."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    jit: Mapping[str, Any] = field(default_factory=dict)
    jitted: Mapping[str, Any] | None = None

    @property
    def given(self) -> Callable[..., Any]:
        return self.fn if self.jitted is None else jax.jit(self.fn, **self.jitted)


ROWS, COLUMNS = on("data"), on(None, "model")
BOTH = (COLUMNS, ROWS)
CASES = {
    "one for all": Case(jnp.dot, (X, W), jit={"in_shardings": on("data")}),
    "one for each": Case(jnp.dot, (X, W), jit={"in_shardings": (ROWS, COLUMNS)}),
    "a list": Case(jnp.dot, (X, W), jit={"in_shardings": [ROWS, COLUMNS]}),
    "None leaves it open": Case(jnp.dot, (X, W), jit={"in_shardings": (None, COLUMNS)}),
    "out": Case(jnp.dot, (X, W), jit={"in_shardings": (ROWS, None), "out_shardings": COLUMNS}),
    "only out": Case(jnp.dot, (X, W), jit={"out_shardings": on("data", "model")}),
    "a prefix": Case(dense, (PARAMS, X), jit={"in_shardings": (on(), ROWS)}),
    "a tree": Case(
        dense, (PARAMS, X), jit={"in_shardings": ({"w": COLUMNS, "b": on("model")}, ROWS)}
    ),
    "a tree of results": Case(
        update,
        (W, X),
        jit={"in_shardings": BOTH, "out_shardings": (COLUMNS, on()), "donate_argnums": 0},
    ),
    "a static number": Case(
        dense, (PARAMS, X, 3), jit={"static_argnums": 2, "out_shardings": ROWS}
    ),
    "a static number from the end": Case(
        dense, (PARAMS, X, 3), jit={"static_argnums": (-1,), "in_shardings": (None, ROWS)}
    ),
    "static by name": Case(
        dense,
        (PARAMS, X),
        {"repeats": 2, "act": "gelu"},
        {"static_argnames": ("repeats", "act"), "out_shardings": ROWS},
    ),
    "static and shardings": Case(
        dense,
        (PARAMS, X, 3),
        jit={"static_argnames": "repeats", "in_shardings": (None, ROWS)},
    ),
    "donated by name": Case(
        lambda a, b: (a + 1, b * 2), (W,), {"b": W},
        {"donate_argnames": "b", "out_shardings": COLUMNS},
    ),
    "donated twice": Case(
        lambda a, b: (a + 1, b * 2), (W, W),
        jit={"donate_argnums": (0, 1), "in_shardings": COLUMNS, "out_shardings": COLUMNS},
    ),
    "donated, and of no use": Case(
        lambda a: a.sum(), (W,), jit={"donate_argnums": 0, "in_shardings": (COLUMNS,)}
    ),
    "a method": Case(
        Model().apply, (W, X, True), jit={"static_argnums": 2, "in_shardings": (COLUMNS, ROWS)}
    ),
    "an object": Case(Model(), (W, X), jit={"in_shardings": (COLUMNS, ROWS), "donate_argnums": 1}),
    "a partial": Case(
        functools.partial(dense, act="tanh"), (PARAMS, X, 2),
        jit={"static_argnums": 2, "in_shardings": (None, ROWS)},
    ),
    "keywords only": Case(
        keywords_only, (), {"x": X, "w": W}, {"out_shardings": {"y": ROWS, "w": COLUMNS},
                                              "donate_argnames": "w"},
    ),
    "jitted without any": Case(
        dense, (PARAMS, X, 2), jit={"static_argnums": 2, "in_shardings": (None, ROWS)}, jitted={}
    ),
    "jitted with half of it": Case(
        update, (W, X), jit={"in_shardings": (COLUMNS, ROWS)}, jitted={"donate_argnums": (0,)}
    ),
    "jitted with the same": Case(
        update, (W, X), jit={"in_shardings": (COLUMNS, ROWS), "donate_argnames": "w"},
        jitted={"donate_argnums": (0,), "in_shardings": (COLUMNS, ROWS)},
    ),
}  # fmt: skip


def signature(text: str) -> list[str]:
    """Arguments and results of a lowered module: types, shardings, aliases."""
    main = re.search(r"func\.func public @main\((.*?)\) -> (.*?) \{\n", text, re.DOTALL)
    assert main
    parts = re.findall(
        r"tensor<[^>]*>(?: \{.*?\})?(?=, %arg|, tensor|\)|$| loc)", " ".join(main.groups())
    )
    parts = [re.sub(r"#sdy\.sharding<@\w+, ", "#sdy.sharding<", part) for part in parts]
    # We number the results of a function, as a tuple of them.
    return [re.sub(r'jax.result_info = "[^"]*"(, )?', "", part) for part in parts]


def jax_lowers(case: Case) -> str:
    jitted = jax.jit(case.fn, **{**(case.jitted or {}), **case.jit})
    return jitted.lower(*case.args, **case.kwargs).as_text()


def body(text: str) -> list[str]:
    return re.findall(r"stablehlo\.\w+", text)


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_lowered_module_is_that_of_jax(case):
    program = sv.program(case.given, *case.args, **case.kwargs, **case.jit)
    assert program.notes == ()
    ours, theirs = lower(program, mesh()).text, jax_lowers(case)
    assert signature(ours) == signature(theirs)
    assert body(ours) == body(theirs)


# With out_shardings, because on Explicit axes jax.jit doesn't tell the function of in_shardings.
BARE = {
    "one for all": {"in_shardings": P("data"), "out_shardings": P("data")},
    "one for each": {"in_shardings": (P("data"), P(None, "model")), "out_shardings": P("data")},
}


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("jit", BARE.values(), ids=BARE)
def test_partition_specs_are_on_the_mesh_of_the_program(jit, kind):
    program = sv.program(jnp.dot, X, W, **jit, mesh=mesh(kind))
    with jax.set_mesh(mesh(kind)):
        theirs = jax.jit(jnp.dot, **jit).lower(X, W).as_text()
        in_context = sv.program(jnp.dot, X, W, **jit)
    assert signature(lower(program, mesh(kind)).text) == signature(theirs)
    assert signature(lower(in_context, mesh(kind)).text) == signature(theirs)
    text = sv.program(jnp.dot, X, W, **{**jit, "in_shardings": "data"}, mesh=mesh(kind))
    assert [str(array.spec) for array in text.arrays] == ["P('data')"] * 2


STAYS = {
    "in_shardings": ({"in_shardings": ROWS}, {"in_shardings": COLUMNS}),
    "out_shardings": ({"out_shardings": (ROWS, None)}, {"out_shardings": COLUMNS}),
    "donation": ({"donate_argnums": 0}, {"donate_argnames": "x"}),
    "static arguments": ({"static_argnames": "n"}, {"static_argnums": 1}),
}


@pytest.mark.parametrize("setting", STAYS)
def test_what_the_function_is_jitted_with_stays_and_the_difference_is_a_note(setting):
    def step(w, x, n=1):
        return w * n, x @ w

    jitted, given = STAYS[setting]
    alone = sv.program(jax.jit(step, **jitted), W, X, mesh=mesh())
    program = sv.program(jax.jit(step, **jitted), W, X, mesh=mesh(), **given)
    assert program.notes == sentences(JitStays((setting,)))
    assert program.replace(notes=()).arrays == alone.arrays
    assert (program.options, program.out_specs) == (alone.options, alone.out_specs)


REFUSED = {
    "a position too far": {"static_argnums": 7},
    "an unknown name": {"donate_argnames": "weights"},
    "static and donated": {"static_argnums": 0, "donate_argnums": 0},
    "no sharding": {"in_shardings": 3},
    "another structure": {"in_shardings": (ROWS, ROWS, ROWS)},
    "another mesh": {"in_shardings": ROWS, "mesh": "data=2"},
    "both words for one thing": {"in_shardings": P("data"), "in_specs": P("data")},
    "both words for donation": {"donate_argnums": 0, "donate": 1},
    "another sharding than the array's": {
        "in_shardings": (COLUMNS, None),
        "args": (jax.ShapeDtypeStruct((8, 16), "float32", sharding=ROWS), W),
    },
}


@pytest.mark.parametrize("keywords", REFUSED.values(), ids=REFUSED)
def test_what_jax_refuses_is_refused_in_a_sentence(keywords):
    with pytest.raises(sv.ShardvizError):
        sv.program(jnp.dot, **{"args": (X, W), "mesh": mesh(), **keywords})


def test_a_pmapped_function_has_no_arguments_of_jit():
    with pytest.raises(sv.ShardvizError, match=r"jax\.pmap"):
        sv.program(jax.pmap(lambda x: x, axis_name="i"), X, donate_argnums=0)


# --- every public function ---------------------------------------------------------------

CALLS = {
    "a tree": Case(dense, (PARAMS, X), jit={"in_shardings": (None, P("data"))}),
    "by keyword": Case(
        dense, (PARAMS,), {"x": X, "repeats": 2},
        {"static_argnames": "repeats", "in_shardings": P("data")},
    ),
    "keywords only": Case(keywords_only, (), {"x": X, "w": W}, {"donate_argnames": "w"}),
    "a method": Case(Model().apply, (W, X, True), jit={"static_argnums": 2, "donate_argnums": 0}),
    "a partial": Case(functools.partial(dense, act="tanh"), (PARAMS, X), jit={"donate_argnums": 1}),
    "jitted": Case(dense, (PARAMS, X, 2), jit={"static_argnums": 2}, jitted={"donate_argnums": 1}),
    "static by name": Case(dense, (PARAMS, X), {"act": "gelu"}, {"static_argnames": "act"}),
}  # fmt: skip


def linen() -> Case:
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(32), nn.Dropout(0.5, deterministic=True)])
    variables = jax.eval_shape(model.init, jax.random.key(0), X)
    key = jax.random.key(1)
    return Case(model.apply, (variables, X), {"rngs": {"dropout": key}}, {"donate_argnums": 1})


EVERY: dict[str, Callable[..., Any]] = {
    "program": lambda *a, **k: sv.plan(sv.program(*a, **k)),
    "plan": sv.plan,
    "effects": sv.effects,
    "compile": functools.partial(sv.compile, target="cpu:8"),
    "run": functools.partial(sv.run, target="cpu:8"),
    "stages": lambda *a, **k: sv.stages(*a, **k, target="cpu:8").report,
    "explore": sv.explore,
    "expect": lambda *a, **k: sv.expect(*a, **k).no("all-to-all"),
    "lock": functools.partial(sv.lock, collectives=False),
    "changes": functools.partial(sv.changes, goal="explicit", target="cpu:8"),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("public", EVERY)
@pytest.mark.parametrize("name", [*CALLS, "linen's apply"])
def test_every_function_takes_a_call_as_jax_does(public, name):
    case = CALLS[name] if name in CALLS else linen()
    result = EVERY[public](
        case.given, *case.args, **case.kwargs, **case.jit, mesh="data=4, model=2"
    )
    assert getattr(result, "error", None) is None
    if public == "effects":
        assert (result.refused, result.mesh_size) == (None, 8)


def test_a_search_takes_a_call_as_jax_does():
    for case in CALLS.values():
        # A search refuses CPUs, which have no published figures, once it has the program.
        with pytest.raises(TargetError):
            sv.search(
                case.given, *case.args, **case.kwargs, **case.jit, mesh=mesh(), target="cpu:8"
            )


def test_effects_of_a_static_argument_need_no_mesh():
    assert sv.effects(lambda x, n: [x] * n, X, 3, static_argnums=1).refused is None
    assert sv.effects(lambda x, n: [x] * n, X, 3).refused is not None


def test_runs_give_what_jax_gives():
    values = (
        {"w": np.ones((16, 32), "float32"), "b": np.ones(32, "float32")},
        np.ones((8, 16), "float32"),
    )
    given = {"static_argnames": "repeats", "in_shardings": (None, P("data"))}
    report = sv.run(dense, *values, 2, act="tanh", **given, mesh=mesh(), target="attached")
    assert report.ok
    np.testing.assert_allclose(report.outputs, dense(*values, 2, act="tanh"), rtol=1e-5)
