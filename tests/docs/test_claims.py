"""What the pages say of JAX, flax and XLA themselves is so: a check for each such sentence.

What an executed block of a page shows already, and what `tests/layout`, `tests/stages` and
`tests/hosts` compare with JAX, is not repeated here.
"""

import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.docs.pages import says, spelled


@pytest.fixture
def mesh(eight_devices):
    """data=4, model=2, both Auto."""
    devices = np.array(eight_devices).reshape(4, 2)
    return Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture
def explicit(mesh):
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)


# semantics.md


@pytest.mark.parametrize(
    ("axes", "words"), [(("nowhere",), "nowhere"), (("data", "data"), "duplicate")]
)
def test_what_flax_lets_pass_jax_refuses_later(mesh, axes, words):
    with pytest.raises(Exception, match=words):  # of a kind of its own for a repeated axis
        NamedSharding(mesh, P(*axes))


def test_jax_refuses_uneven_arguments_and_results_and_takes_a_constraint(mesh):
    uneven, rows = np.ones((510, 4), np.float32), NamedSharding(mesh, P("data"))
    with pytest.raises(ValueError, match="510"):
        jax.device_put(uneven, rows)
    with pytest.raises(ValueError, match="510"):
        jax.jit(lambda x: x, in_shardings=rows)(uneven)
    with pytest.raises(ValueError, match="510"):
        jax.jit(lambda x: x, out_shardings=rows)(uneven)
    constrained = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, rows) + 1)
    assert constrained(uneven).shape == (510, 4)


def test_no_elements_can_be_split_over_any_axis(mesh):
    assert NamedSharding(mesh, P("data")).shard_shape((0, 4)) == (0, 4)


def test_an_unconstrained_dimension_is_not_split_and_needs_an_auto_axis(mesh, explicit):
    spec = P("data", P.UNCONSTRAINED)
    assert NamedSharding(mesh, spec).shard_shape((8, 4)) == (2, 4)
    with pytest.raises(ValueError, match="UNCONSTRAINED"):
        NamedSharding(explicit, spec)


def test_unreduced_axes_are_explicit_and_split_nothing(mesh, explicit):
    partial = P("data", None, unreduced={"model"})
    assert NamedSharding(explicit, partial).shard_shape((8, 4)) == (2, 4)
    with pytest.raises(ValueError):
        NamedSharding(mesh, partial)
    with pytest.raises(ValueError):
        P("data", unreduced={"data"})


def test_an_explicit_type_holds_the_sharding(explicit):
    seen = []

    def f(x):
        seen.append(jax.typeof(x + 1).sharding.spec)
        return x

    with jax.set_mesh(explicit):
        jax.jit(f)(jax.device_put(np.ones((8, 4), np.float32), P("data")))
    assert seen == [P("data", None)]


# stages.md, memory-and-time.md


def test_xla_counts_the_body_of_a_loop_once():
    def flops(steps: int) -> float:
        def f(x):
            return jax.lax.scan(lambda y, _: (y @ y, None), x, length=steps)[0]

        x = jax.ShapeDtypeStruct((32, 32), jnp.float32)
        return jax.jit(f).lower(x).compile().cost_analysis()["flops"]

    assert flops(50) == pytest.approx(flops(5), rel=0.01)


def test_what_is_traced_for_its_shape_alone_is_no_part_of_the_program():
    def f(x):
        jax.eval_shape(jnp.sin, x)
        return x * 2

    assert "sin" not in str(jax.make_jaxpr(f)(1.0))


# hosts.md


def test_what_has_started_its_devices_cannot_join_others():
    code = (
        "import jax; jax.devices();"
        "jax.distributed.initialize('127.0.0.1:1', 1, 0, initialization_timeout=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "must be called before" in done.stderr


# How-to pages


def test_the_message_of_a_size_that_does_not_divide(eight_devices):
    devices = np.array(eight_devices)
    mesh = jax.sharding.AbstractMesh((4, 16), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    assert devices.size < mesh.size  # no devices are needed to be refused
    table = jax.ShapeDtypeStruct((50257, 1024), jnp.float32)
    sharding = NamedSharding(mesh, P("model", "data"))
    with pytest.raises(ValueError) as refused:
        jax.jit(lambda x: x, in_shardings=sharding).lower(table)
    shown = spelled("howto/does-not-divide.md")
    says(shown.partition("implies")[2], str(refused.value))


def test_rows_in_another_order_give_another_batch_and_no_error(mesh):
    rows, local = NamedSharding(mesh, P("data")), np.arange(64.0).reshape(64, 1)
    batch = jax.make_array_from_process_local_data(rows, local[::-1], (64, 1))
    assert not np.array_equal(batch, local)


def test_the_warning_of_a_full_rematerialisation(mesh, capfd):
    def step(a, b, c):
        d = jax.lax.with_sharding_constraint(a + b, NamedSharding(mesh, P(None, mesh.axis_names)))
        return c + d

    def cube(*spec):
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct((16, 16, 16), jnp.float32, sharding=sharding)

    outer = cube("model", None, "data")
    jax.jit(step).lower(outer, outer, cube(None, ("data", "model"))).compile()
    shown, printed = spelled("howto/rematerialization.md"), capfd.readouterr().err
    says(shown.partition("=")[0][:60], printed)
    says(shown.partition("... ")[2], printed)


@pytest.mark.filterwarnings("ignore:`with mesh")  # jax advises against it since 0.10
def test_flax_does_not_see_the_mesh_of_a_with_statement(mesh):
    def constrained(x):
        return nn.with_logical_constraint(x, ("batch", "embed"))

    x = jnp.ones((8, 4))
    with nn.logical_axis_rules((("batch", "data"), ("embed", "model"))):
        with mesh:
            assert "sharding_constraint" not in str(jax.make_jaxpr(constrained)(x))
        with jax.set_mesh(mesh):
            assert "sharding_constraint" in str(jax.make_jaxpr(constrained)(x))


def test_flax_says_that_no_rule_matched_where_an_axis_is_taken_too(mesh):
    def strict(x):
        fallback = nn.spmd.RulesFallback.RAISE_ERROR
        return nn.with_logical_constraint(x, ("batch", "embed"), fallback=fallback)

    rules = (("batch", "data"), ("embed", "data"))
    refused = pytest.raises(ValueError, match="did not match a rule")
    with nn.logical_axis_rules(rules), jax.set_mesh(mesh), refused:
        jax.make_jaxpr(strict)(jnp.ones((8, 4)))


def test_jit_compiles_again_for_each_difference_without_a_word():
    step = jax.jit(lambda x, scale: (x * scale).sum())
    x = np.ones((8, 4), np.float32)
    calls = [(x, 2.0), (x, 3.0), (x[:6], 2.0), (x[:6], jnp.float32(2)), (x.astype("int32"), 2.0)]
    sizes = []
    for call in calls:
        step(*call)
        sizes.append(step._cache_size())
    assert sizes == [1, 1, 2, 3, 4]  # the value of a number alone is no difference


def test_a_new_lambda_each_time_is_a_new_function():
    traced = []

    def count(x):
        traced.append(x)
        return x

    for _ in range(2):
        jax.jit(lambda x: count(x))(1.0)
    assert len(traced) == 2


def test_device_put_does_not_copy_what_keeps_its_layout(mesh):
    rows = NamedSharding(mesh, P("data"))
    x = jax.device_put(np.ones((8, 4)), rows)
    moved = jax.device_put(x, rows)
    for old, new in zip(x.addressable_shards, moved.addressable_shards, strict=True):
        assert old.data.unsafe_buffer_pointer() == new.data.unsafe_buffer_pointer()


def test_shard_map_sums_gradients_and_without_check_vma_leaves_each_device_its_own(mesh):
    batch = Mesh(mesh.devices.reshape(8), ("batch",), axis_types=(AxisType.Auto,))
    x, w = np.arange(8.0), np.float64(1)

    def gradient(**options):
        inner = jax.shard_map(
            lambda w, x: jax.grad(lambda w: (w * x).sum())(w)[None],
            mesh=batch,
            in_specs=(P(), P("batch")),
            out_specs=P("batch"),
            **options,
        )
        return np.asarray(jax.jit(inner)(w, x))

    assert gradient().tolist() == [x.sum()] * 8
    assert gradient(check_vma=False).tolist() == x.tolist()


def test_the_message_of_an_ambiguous_output_on_explicit_axes(explicit):
    rows = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(explicit, P("data")))
    with jax.set_mesh(explicit), pytest.raises(Exception, match="ambiguous") as refused:
        jax.jit(lambda a: a.T @ a).lower(rows)
    says(spelled("howto/explicit-mode.md").removeprefix("ShardingTypeError: "), str(refused.value))


def test_the_message_of_a_kernel_outside_of_a_shard_map(mesh):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    def copied(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    rows = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    with pytest.raises(NotImplementedError) as refused:
        jax.jit(copied).trace(rows).lower(lowering_platforms=("tpu",))
    says(spelled("howto/kernels.md").removeprefix("NotImplementedError: "), str(refused.value))
