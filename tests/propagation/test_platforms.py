"""Plans are lowered for the platform of a target, or name what depends on it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan_notes import PlatformDependent
from shardviz.runs.backend.targets import lowering_platform, missing

MESH = AbstractMesh((8,), ("ep",), axis_types=(AxisType.Auto,))
ROWS = sv.array("x", (64, 32), spec="ep")


def gathers_on_tpus(x):
    whole = NamedSharding(MESH, P())
    return lax.platform_dependent(
        x,
        tpu=lambda v: lax.with_sharding_constraint(v * 2, whole),
        default=lambda v: v * 2,
    )


def experts(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


EXPERTS = (
    sv.array("x", (256, 64)),
    sv.array("w", (16, 64, 128), spec="ep"),
    sv.array("sizes", (16,), dtype="int32"),
)


def program(fn, *arrays):
    return sv.program(fn, *arrays, mesh=sv.mesh(ep=8))


@pytest.mark.parametrize(
    ("fn", "arrays", "names"),
    [
        (gathers_on_tpus, (ROWS,), ("platform_dependent",)),
        (experts, EXPERTS, ("ragged_dot_general",)),
        (jnp.linalg.qr, (ROWS,), ("qr",)),
        (
            lambda x: lax.scan(lambda c, r: (lax.linalg.cholesky(c), r), x[:32], x)[0],
            (ROWS,),
            ("cholesky",),
        ),
        (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (ROWS,), ()),
        (lambda x: jax.nn.softmax(x @ x.T), (ROWS,), ()),
    ],
)
def test_without_a_target_a_note_names_what_depends_on_the_platform(fn, arrays, names):
    made = sv.plan(program(fn, *arrays))
    assert made.error is None
    notes = [note for note in made.notes if isinstance(note, PlatformDependent)]
    assert [note.operations for note in notes] == ([names] if names else [])
    for_cpu = plan_program(program(fn, *arrays), "cpu")
    assert not any(isinstance(note, PlatformDependent) for note in for_cpu.notes)


MATRIX = [
    jnp.linalg.cholesky,
    jnp.linalg.qr,
    jnp.linalg.inv,
    jnp.linalg.eigh,
    jnp.linalg.svd,
    jnp.cumsum,
    jnp.cumprod,
    jnp.sort,
    jnp.fft.fft,
    lambda x: lax.top_k(x, 2),
    lambda x: lax.approx_max_k(x, 2),
    jax.scipy.special.logsumexp,
    lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "SAME"),
    lambda x: lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"),
    lambda x: jax.nn.dot_product_attention(*[x.reshape(1, 8, 2, 4)] * 3),
]


@pytest.mark.parametrize("fn", MATRIX)
def test_the_note_is_there_if_jax_lowers_another_program(fn):
    traced = jax.jit(fn).trace(jax.ShapeDtypeStruct((8, 8), "float32"))
    texts = {traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "tpu", "cuda")}
    made = sv.plan(program(fn, sv.array("x", (8, 8), spec="ep")))
    assert made.error is None
    noted = any(isinstance(note, PlatformDependent) for note in made.notes)
    assert noted == (len(texts) > 1)


def test_the_plan_of_a_target_takes_its_branch():
    assert plan_program(program(gathers_on_tpus, ROWS), "cpu").collectives == ()
    (gather,) = plan_program(program(gathers_on_tpus, ROWS), "tpu").collectives
    assert (gather.kind, gather.bytes_per_device) == ("all-gather", 64 * 32 * 4)


@pytest.mark.parametrize(
    ("fn", "arrays"), [(gathers_on_tpus, (ROWS,)), (experts, EXPERTS)], ids=["branch", "experts"]
)
def test_stages_have_the_plan_of_their_target(fn, arrays):
    target = "tpu:v5e:2x4"
    if error := missing("tpu"):
        pytest.skip(str(error))
    stages = sv.stages(program(fn, *arrays), target)
    assert stages.report.error is None

    def sent(collectives):
        return [(c.kind, c.bytes_per_device) for c in collectives]

    if all(op.covered for op in stages.plan.ops):
        assert sent(stages.plan.collectives) == sent(stages.report.partitioned)
    else:  # Shardy has no rule for an operation of the TPU's own
        assert [op.name for op in stages.plan.ops if not op.covered] == ["ragged_dot_general"]


@pytest.mark.parametrize(
    ("target", "platform"),
    [
        ("tpu:v5e:2x4", "tpu"),
        ("gpu:h100:2x8", "cuda"),
        ("cpu", "cpu"),
        ("cpu:8", "cpu"),
        (None, "cpu"),
        ("no such target", ""),
    ],
)
def test_platforms_of_targets(target, platform, eight_devices):
    assert lowering_platform(target, 8) == platform


def test_callbacks_lower_for_the_platform_of_a_target():
    def prints(x):
        jax.debug.print("{}", x.sum())
        return x * 2

    for platform in ("", "cpu", "tpu", "cuda"):
        assert plan_program(program(prints, ROWS), platform).error is None
