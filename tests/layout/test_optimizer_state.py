"""Which parameter every array of an optimizer belongs to, compared with what optax says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from flax.core import freeze

import shardviz as sv
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.optimizer_state import OPTIMIZER, pair

optax = pytest.importorskip("optax")
pytest.importorskip("optax.contrib")

# No two have one shape, so that a moment of the shape of a parameter is that parameter's.
W, B, E = (256, 512), (512,), (4, 8, 16)
NESTED = {"a": {"w": jnp.zeros(W), "b": jnp.zeros(B)}, "e": jnp.zeros(E)}


class Layer(NamedTuple):
    """Parameters in a class of the user's."""

    mu: Any
    count: Any
    inner: Any


#: The same parameters in other containers, some with names that optimizers use themselves.
TREES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "dicts": lambda w, b, e: {"a": {"w": w, "b": b}, "e": e},
    "a tuple": lambda w, b, e: (w, b, e),
    "a list of lists": lambda w, b, e: [[w, b], [e]],
    "frozen dicts": lambda w, b, e: freeze({"params": {"w": w, "b": {"0": b, "1": e}}}),
    "a class with names of optax": lambda w, b, e: Layer(w, b, {"nu": e}),
}


CONTRIB = optax.contrib
# One of each kind of state.
ONLY_RATE = ["adafactor", "adam", "adan", "lars", "noisy_sgd", "rprop", "sgd"]
NOTHING = ["apply_every", "identity", "scale_by_adadelta", "scale_by_distance_over_gradients",
           "scale_by_factored_rms", "scale_by_param_block_norm", "add_decayed_weights"]  # fmt: skip
CONTRIB_RATE = ["ademamix", "galore", "madgrad", "muon", "sophia", "dog"]
CONTRIB_NOTHING = ["cocob", "dadapt_adamw", "momo", "prodigy", "reduce_on_plateau",
                   "schedule_free_adamw"]  # fmt: skip

#: name: how it is made, given the parameters
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    **{n: lambda _, n=n: getattr(optax, n)(0.1) for n in ONLY_RATE},
    **{n: lambda _, n=n: getattr(optax, n)() for n in NOTHING},
    **{f"contrib.{n}": lambda _, n=n: getattr(CONTRIB, n)(0.1) for n in CONTRIB_RATE},
    **{f"contrib.{n}": lambda _, n=n: getattr(CONTRIB, n)() for n in CONTRIB_NOTHING},
    "apply_if_finite": lambda _: optax.apply_if_finite(optax.adam(0.1), 3),
    "chain": lambda _: optax.chain(optax.clip(1.0), optax.adam(0.1), optax.trace(0.9)),
    "conditionally_mask": lambda _: optax.conditionally_mask(optax.adam(0.1), lambda n: n > 2),
    "conditionally_transform": lambda _: optax.conditionally_transform(
        optax.adam(0.1), lambda n: n > 2
    ),
    "ema": lambda _: optax.ema(0.9),
    "inject_hyperparams": lambda _: optax.inject_hyperparams(optax.adamw)(learning_rate=0.1),
    "masked": lambda p: optax.masked(optax.adam(0.1), _masks(p)),
    "measure_with_ema": lambda _: optax.measure_with_ema(lambda u: u, 0.9),
    "multi_transform": lambda p: _by_label(optax.multi_transform, p),
    "named_chain": lambda _: optax.named_chain(
        ("first", optax.scale_by_adam()), ("second", optax.trace(0.9))
    ),
    "scale_by_schedule": lambda _: optax.scale_by_schedule(lambda n: n),
    "selective_transform": lambda p: optax.selective_transform(
        optax.adam(0.1), freeze_mask=_masks(p)
    ),
    "snapshot": lambda _: optax.snapshot("name", lambda u: u),
    "MultiSteps": lambda _: optax.MultiSteps(optax.adafactor(0.1), 2).gradient_transformation(),
    "contrib.dpsgd": lambda _: CONTRIB.dpsgd(0.1, 1.0, 0.1, 0, momentum=0.9),
    "contrib.differentially_private_aggregate": lambda _: (
        CONTRIB.differentially_private_aggregate(1.0, 0.1, 0)
    ),
    "contrib.mechanize": lambda _: CONTRIB.mechanize(optax.adam(0.1)),
    "contrib.sam": lambda _: CONTRIB.sam(optax.adam(0.1), optax.sgd(0.1, momentum=0.9)),
    "contrib.schedule_free": lambda _: CONTRIB.schedule_free(optax.adam(0.1), 0.1),
    "contrib.split_real_and_imaginary": lambda _: CONTRIB.split_real_and_imaginary(
        optax.adam(0.1)
    ),
    "contrib.hutchinson_estimator_diag_hessian": lambda _: (
        CONTRIB.hutchinson_estimator_diag_hessian(0)
    ),
}  # fmt: skip

#: What `tree_map_params` cannot read: the fields with one array for each parameter.
BY_HAND: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "lbfgs": (lambda: optax.lbfgs(), ("0/params", "0/updates", "0/diff_params_memory",
                                      "0/diff_updates_memory", "2/grad")),
    "scale_by_zoom_linesearch": (lambda: optax.scale_by_zoom_linesearch(5), ("grad",)),
    "sm3": (lambda: optax.sm3(0.1), ("0/mu", "0/nu")),
}  # fmt: skip


def _masks(params: Any) -> Any:
    return jax.tree.map(lambda p: p.shape != B, params)


def _by_label(make: Callable[..., Any], params: Any) -> Any:
    labels = jax.tree.map(lambda p: "y" if p.shape == B else "x", params)
    return make({"x": optax.adam(0.1), "y": optax.sgd(0.1, momentum=0.9)}, labels)


def audited(params: Any, state: Any) -> Audit:
    return sv.audit({"params": params, "opt_state": state}, [], "data=4, model=2")


def partners(found: Audit) -> dict[str, str]:
    """Path in the state to path of the parameter."""
    return {
        row.path.removeprefix("opt_state/"): row.partner.removeprefix("params/")
        for row in found.rows
        if row.partner is not None
    }


def path_of(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def paths_of(tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: path_of(path), tree)


def said_by_optax(tx: Any, params: Any, state: Any) -> dict[str, str]:
    """The same, by `tree_map_params`: it tells parameters apart by initializing once more."""
    by_shape = {
        tuple(p.shape): path_of(at) for at, p in jax.tree_util.tree_leaves_with_path(params)
    }
    leaf = lambda x: isinstance(x, (_Mark, optax.MaskedNode))  # noqa: E731
    try:
        marked = optax.tree_utils.tree_map_params(
            tx, lambda _, path: _Mark(path), state, paths_of(params),
            transform_non_params=lambda _: _Mark(None),
        )  # fmt: skip
    except ValueError:  # where some parameters are masked it takes no second tree
        marked = optax.tree_utils.tree_map_params(
            tx, lambda a: _Mark(by_shape[a.shape]), state,
            transform_non_params=lambda _: _Mark(None),
        )  # fmt: skip
    found = jax.tree_util.tree_leaves_with_path(marked, is_leaf=leaf)
    return {
        path_of(at): mark.partner
        for at, mark in found
        if isinstance(mark, _Mark) and mark.partner is not None
    }


class _Mark:
    """A leaf, whatever is in it."""

    def __init__(self, partner: str | None) -> None:
        self.partner = partner


def made(name: str, params: Any) -> Any:
    module, attribute = (CONTRIB, name[8:]) if name.startswith("contrib.") else (optax, name)
    if not hasattr(module, attribute):
        pytest.skip(f"optax {optax.__version__} has no {name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optax, on arguments to come
        return OPTIMIZERS[name](params)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pairs_are_those_of_optax(name):
    params = jax.eval_shape(lambda: NESTED)
    tx = made(name, params)
    state = jax.eval_shape(tx.init, params)
    found = audited(params, state)
    assert partners(found) == said_by_optax(tx, params, state)
    assert {r.group for r in found.rows if r.path.startswith("opt_state/")} <= {OPTIMIZER}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["masked", "MultiSteps"])
def test_pairs_in_any_container(name, tree):
    params = TREES[tree](*(jax.ShapeDtypeStruct(s, "float32") for s in (W, B, E)))
    tx = made(name, params)
    state = jax.eval_shape(tx.init, params)
    assert partners(audited(params, state)) == said_by_optax(tx, params, state)


@pytest.mark.parametrize("name", BY_HAND)
def test_pairs_of_what_optax_itself_cannot_map(name):
    make, fields = BY_HAND[name]
    params = jax.eval_shape(lambda: NESTED)
    found = partners(audited(params, jax.eval_shape(make().init, params)))
    wanted = {f"{f}/{p}": p for f in fields for p in ("a/w", "a/b", "e")}
    if "sm3" in name:  # one vector for each dimension of a parameter
        mu = next(f for f in fields if f.endswith("mu"))
        for path, rank in (("a/w", 2), ("a/b", 1), ("e", 3)):
            del wanted[f"{mu}/{path}"]
            wanted |= {f"{mu}/{path}/{d}": path for d in range(rank)}
    assert found == wanted


def test_one_array_is_all_parameters():
    w = jax.ShapeDtypeStruct((8, 4), "float32")
    state = jax.eval_shape(optax.adam(0.1).init, w)
    found = sv.audit((w, state), [], "data=4")
    assert {r.path: r.partner for r in found.rows} == {
        "0": None, "1/0/count": None, "1/0/mu": "0", "1/0/nu": "0",
    }  # fmt: skip


def test_gradients_and_copies_are_paired_and_named():
    paths = ["params/w", "params/b", "grads/w", "grads/b", "ema/w", "ema/b", "batch/w", "step"]
    shapes = [(8,), (4,)] * 3 + [(2,), ()]
    found = pair(paths, shapes)
    assert found.groups == (
        "parameters", "parameters", "gradients", "gradients", "other", "other", "other", "other",
    )  # fmt: skip
    assert found.partners == (None, None, 0, 1, 0, 1, None, None)


def state(moments: Any, dtype: str = "float32", **more: Any) -> Audit:
    """A parameter w split over both axes, and what an optimizer keeps of it: name to a row."""
    params = {"w": ((8, 4096, 64), "layers embed mlp", dtype), "b": ((64,), "mlp", dtype)}
    tree = {"params": params, "opt_state": {name: {"w": row} for name, row in moments.items()}}
    rules = [("layers", "stage"), ("embed", "data"), ("mlp", "model")]
    return sv.audit(tree, rules, "stage=2, data=4, model=2", **more)


W3 = (8, 4096, 64)
#: What an optimizer keeps: the kind of the difference, and its bytes per device.
DIFFERENCES = {
    "alike": ({"mu": (W3, "layers embed mlp")}, []),
    "replicated": ({"mu": (W3, None)}, [("lost", 7680 << 10)]),
    "split over one axis": ({"mu": (W3, "_ embed _")}, [("lost", 1536 << 10)]),
    "the axis of layers is not split": ({"mu": (W3, "_ embed mlp")}, [("lost", 512 << 10)]),
    "split otherwise": ({"mu": (W3, "layers mlp embed")}, [("otherwise", 0)]),
    "factored, without the axis of layers": ({"v_row": ((4096,), "embed")}, []),
    "factored and replicated": ({"v_row": ((8, 4096), None)}, [("lost", 112 << 10)]),
    "factored as the parameter": ({"v_row": ((8, 4096), "layers embed")}, []),
    "a placeholder": ({"v": ((1,), None)}, []),
    "a mean of squares in 16 bits": (
        {"nu": (W3, "layers embed mlp", "bfloat16")}, [],
    ),
    "a momentum in 16 bits": ({"mu": (W3, "layers embed mlp", "bfloat16")}, []),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENCES)
def test_differences_are_found(case):
    moments, wanted = DIFFERENCES[case]
    found = state(moments)
    assert [(d.kind, d.bytes_per_device) for d in found.differences] == wanted
    for one in found.differences:
        assert (one.role, one.parameter.path) == (next(iter(moments)), "params/w")
        assert str(one) in found.explain()


def test_types_that_cost_memory_are_found():
    (one,) = state({"mu": (W3, "layers embed mlp")}, "bfloat16").differences
    assert (one.kind, one.bytes_per_device) == ("dtype", 256 << 10)
    assert (one.row.dtype, one.parameter.dtype) == ("float32", "bfloat16")


def test_a_program_is_audited_by_its_arguments():
    params = jax.eval_shape(lambda: NESTED)
    kept = jax.eval_shape(optax.adam(0.1).init, params)
    batch = jax.ShapeDtypeStruct((8, 256), "float32")

    def step(params, opt, batch):
        return params

    program = sv.program(step, params, kept, batch, mesh=sv.mesh(data=4, model=2))
    found = sv.audit(program)
    assert [g.name for g in found.groups] == ["parameters", "optimizer state", "other"]
    assert {r.path: r.partner for r in found.rows}["opt/0/mu/a/w"] == "params/a/w"
    assert found.mesh == program.mesh
    assert [r.shape for r in found.rows] == [a.shape for a in program.arrays]


def stack(mesh: Any, stacked: bool, **transform: Any) -> tuple[Any, Any]:
    """A model with the names of one layer, in a stack or alone, and its optimizer."""
    nnx = pytest.importorskip("flax.nnx")

    def weight(rngs: Any) -> Any:
        value = jax.random.normal(rngs.params(), (16, 32))
        names = ("A", "B") if stacked else ("A",)
        rules = (("A", "a"), ("B", "b"))
        return nnx.Param(value, out_sharding=names, mesh=mesh, sharding_rules=rules)

    class Model(nnx.Module):
        def __init__(self) -> None:
            make = weight
            if stacked:
                make = nnx.vmap(weight, in_axes=(0,), out_axes=0, **transform)
                make = nnx.split_rngs(splits=4)(make)
            self.w = make(nnx.Rngs(0))

    model = Model()
    return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


@pytest.mark.parametrize("axis_type", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
@pytest.mark.parametrize("stacked", ["", "stack", "stack with its own axis"])
def test_names_of_one_layer_on_a_stack_of_layers(stacked, axis_type, eight_devices):
    nnx = pytest.importorskip("flax.nnx")
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(axis_type,) * 2)
    more = {"transform_metadata": {nnx.PARTITION_NAME: None}} if "axis" in stacked else {}
    with jax.set_mesh(mesh):
        live = stack(mesh, bool(stacked), **more)
        abstract = nnx.eval_shape(lambda: stack(mesh, bool(stacked), **more))
    leaves = [x for x in jax.tree.leaves(nnx.state(live)) if x.ndim > 1]
    differ = (
        len({tuple(x.sharding.spec) + (None,) * (x.ndim - len(x.sharding.spec)) for x in leaves})
        > 1
    )
    assert differ == (stacked == "stack"), "what flax makes"
    found = sv.audit(live)
    assert [d.kind for d in found.differences] == ["otherwise"] * 2 * differ
    assert all(d.row.few_names for d in found.differences)
    before = sv.audit(abstract)
    # Auto axes have no types, so flax takes the specs from the names alone.
    if differ:
        assert {d.kind for d in before.differences} <= {"few names", "otherwise"}
        assert len(before.differences) == 2
    for row in before.rows:
        mine = found[row.path].spec.equivalent(row.spec)
        assert mine or row in before.few_names, "a spec that is not made is said with a caveat"
