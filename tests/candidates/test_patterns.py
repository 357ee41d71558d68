import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.blocks import Blocks, NotInBlocks
from shardviz.core.backend.tracing.jaxprs import operations, users_line
from tests.candidates.threads import CASES, OURS, grouped_convolution, place

X = jax.ShapeDtypeStruct((16, 6, 6), jnp.float32)
Y = jax.ShapeDtypeStruct((16, 6), jnp.float32)
FEW = jax.ShapeDtypeStruct((6, 2), jnp.float32)
KEYS = jax.ShapeDtypeStruct((16,), jax.random.key(0).dtype)


def until_large(x):
    return jax.lax.while_loop(lambda x: (x < 9).all(), lambda x: x * 2 + 1, x)


def draws(key, x):
    return jax.random.permutation(key, x) + jax.random.normal(key, x.shape)


def picked(x, at):
    return x[at.astype(int)]


# Functions of a batch, and the dimension that is then split in each result.
BATCHED = {
    "loop": (jax.vmap(until_large), (Y,), [0]),
    "inverse": (jnp.linalg.inv, (X,), [0]),
    "qr": (jnp.linalg.qr, (X,), [0, 0]),
    "eigenvalues": (jnp.linalg.eigvalsh, (X,), [0]),
    "random": (jax.vmap(draws), (KEYS, Y), [0]),
    "top_k": (lambda x: jax.lax.top_k(x, 2), (Y,), [0, 0]),
    "fft": (jnp.fft.fft, (Y,), [0]),
    "cumsum": (lambda x: jnp.cumsum(x, 1), (Y,), [0]),
    "roll": (lambda x: jnp.roll(x, 1, 1), (Y,), [0]),
    "gather": (jax.vmap(picked), (Y, Y), [0]),
    "softmax": (jax.nn.softmax, (Y,), [0]),
    "second": (lambda x: x.reshape(16, 36).T, (X,), [1]),
    "product": (lambda x, y: jnp.einsum("bij,bj->jb", x, y), (X, Y), [1]),
    "map": (lambda x: jax.lax.map(jnp.sin, x, batch_size=2), (Y,), [0]),
    "map of products": (lambda x, y: jax.lax.map(lambda x: x @ y, x), (X, FEW), [0]),
    "fewer rows": (lambda x: x.reshape(8, 12), (Y,), [0]),
    "same for all": (lambda x: x + jnp.ones((16, 6)).at[3].set(2), (Y,), [0]),
}


# jax itself says it of what does not fit.
REFUSED = (NotInBlocks, TypeError, ValueError)


def in_blocks(fn, *arrays):
    """A function on one of 8 blocks of 16 rows, and how its results are split."""
    jaxpr = jax.make_jaxpr(fn, axis_env=[("data", 8)])(*arrays)
    splits = [0 if array.shape[0] == 16 else None for array in arrays]
    return Blocks(["data"], {"data": 8}).traced(jaxpr, splits)


@pytest.mark.parametrize("name", BATCHED)
def test_a_block_of_the_arguments_gives_a_block_of_the_results(name):
    fn, arrays, expected = BATCHED[name]
    jaxpr, splits = in_blocks(fn, *arrays)
    assert splits == expected
    whole = jax.tree.leaves(jax.eval_shape(fn, *arrays))
    for block, one, split in zip(jaxpr.out_avals, whole, splits, strict=True):
        shape = list(one.shape)
        shape[split] //= 8
        assert block.shape == tuple(shape)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.cumsum(x, 0),
        lambda x: jnp.sort(x, 0),
        lambda x: x[3:],
        lambda x: x.reshape(-1, 32),
        lambda x: jax.numpy.fft.fft(x, axis=0),
        lambda x: x[::-1],
        lambda x: x + x.T.reshape(16, 6),
        lambda x: x.sum(0),
        lambda x: x.T @ x,
        lambda x: x[jnp.argsort(x[:, 0])],
        until_large,
        lambda x: jax.lax.scan(lambda total, row: (total + row,) * 2, x[0], x)[1],
        lambda x: jax.lax.map(lambda y: x * y, jnp.ones(16)),
        lambda x: x / jax.lax.axis_size("data") + jax.lax.axis_index("data"),
        lambda x: jax.lax.psum(x, "data"),
    ],
    ids=[
        "cumsum",
        "sort",
        "slice",
        "reshape",
        "fft",
        "reversed",
        "two splits",
        "sum",
        "contraction",
        "gather",
        "one predicate",
        "carry",
        "steps that read all",
        "number of the device",
        "sum over devices",
    ],
)
def test_what_needs_other_blocks_is_refused(fn):
    with pytest.raises(REFUSED):
        in_blocks(fn, Y)


def test_a_loop_that_ends_by_itself_may_not_wait_for_other_devices():
    def each(x, y):
        def step(x):
            return x + 1 + y.sum()

        return jax.vmap(lambda x: jax.lax.while_loop(lambda x: x < 9, step, x))(x)

    column = jax.ShapeDtypeStruct((16,), X.dtype)
    assert in_blocks(each, column, jax.ShapeDtypeStruct((12, 6), X.dtype))[1] == [0]
    with pytest.raises(REFUSED):
        in_blocks(each, column, Y)


def case(name):
    (found,) = (one for one in (*CASES, *OURS) if one.name == name)
    return found


# A few, since each compiles a dozen programs.
@pytest.mark.parametrize("thread", ["jax#26586", "tpu-inference#2938", "openpi#193"])
def test_the_edit_that_was_named_in_the_thread_is_among_the_first(thread):
    one = case(thread)
    program = one.program()
    changes = sv.changes(program, one.collective(sv.compile(program)))
    assert 1 <= place(one, changes) <= 3
    for candidate in changes:
        assert candidate.values.ok is True
        again = sv.compile(candidate.program)
        assert sum(c.sent_in_all for c in again.collectives) == candidate.bytes


def test_random_numbers_of_the_option_are_others_and_that_is_said():
    one = case("jax#15484")
    with one.context():
        program = one.program()
        changes = sv.changes(program, one.collective(sv.compile(program)))
    assert place(one, changes) == 1
    assert changes[0].bytes == 0
    assert changes[0].values.ok is None
    assert changes[0].values.finding.code == "other random numbers"


def test_a_gradient_is_changed_as_its_line_is():
    one = case("gradient of a grouped convolution")
    program = one.program()
    changes = sv.changes(program, one.collective(sv.compile(program)))
    (edit,) = changes[0].edits
    assert edit.code == "shard_map"
    made = operations(changes[0].program.fn.jaxpr)
    assert [found.name for found in made].count("shard_map") == 2
    # What is left is the sum of the kernel's gradient.
    assert [c.kind for c in changes[0].collectives] == ["all-reduce"]


def test_what_needs_a_sum_in_the_code_is_no_edit():
    x, w = jax.ShapeDtypeStruct((16, 64), X.dtype), jax.ShapeDtypeStruct((64, 8), X.dtype)
    program = sv.program(
        jnp.dot, x, w, mesh=sv.mesh("data=8"), in_specs=(P(None, "data"), P("data"))
    )
    changes = sv.changes(program, sv.compile(program).collectives[0])
    # Pasted around a product, a shard_map would return the parts of the sum.
    edits = [edit for one in (*changes, *changes.refused) for edit in one.edits]
    assert edits
    assert all(edit.code != "shard_map" for edit in edits)


def test_the_code_does_what_was_promised():
    one = case("gradient of a grouped convolution")
    program = one.program()
    best = sv.changes(program, one.collective(sv.compile(program)))[0]
    convolved = jax.shard_map(
        grouped_convolution,
        mesh=abstract_mesh(program.mesh),
        in_specs=(P("data"), P()),
        out_specs=P("data"),
    )

    def loss(w, x):
        return jnp.square(convolved(jnp.tanh(x), w)).sum()

    pasted = program.replace(fn=lambda w, x: w - 0.1 * jax.grad(loss)(w, x))
    report = sv.compile(pasted)
    assert report.error is None
    assert sum(c.sent_in_all for c in report.collectives) == best.bytes > 0


def test_a_batch_is_taken_in_turns_where_that_changes_no_sum():
    one = case("maxtext#2507")
    program = one.program()
    best = sv.changes(program, one.collective(sv.compile(program)))[0]
    assert [edit.code for edit in best.edits] == ["parts"]
    assert best.values.ok is True
    assert best.code().startswith(".reshape(128, 4, 32).swapaxes(0, 1)  # threads.py:")

    def step(w, x):
        def add(total, part):
            grad = jax.grad(lambda w: jnp.square(jnp.tanh(part @ w)).mean())(w)
            return total + grad, None

        parts = x.reshape(128, 4, 32).swapaxes(0, 1)
        return jax.lax.scan(add, jnp.zeros_like(w), parts)[0]

    report = sv.compile(program.replace(fn=step))
    assert sum(c.sent_in_all for c in report.collectives) == best.bytes


def test_a_batch_whose_parts_are_returned_stays_in_its_order():
    def results(w, x):
        return jax.lax.map(lambda part: jnp.tanh(part @ w), x.reshape(4, 128, 32))

    w, x = (jax.ShapeDtypeStruct(shape, X.dtype) for shape in ((32, 8), (512, 32)))
    specs = (P(), P("data"))
    program = sv.program(results, w, x, mesh=sv.mesh("data=8"), in_specs=specs)
    changes = sv.changes(program, sv.compile(program).collectives[0])
    assert all(edit.code != "parts" for one in changes for edit in one.edits)
    refused = {edit.code: one.code for one in changes.refused for edit in one.edits}
    assert refused["parts"] == "values differ"


def sent_by(program):
    report = sv.compile(program)
    assert report.error is None
    return sum(c.sent_in_all for c in report.collectives)


def test_the_specs_of_a_shard_map_name_the_axis_that_they_leave_out():
    one = case("tpu-inference#1843")
    program = one.program()
    best = sv.changes(program, one.collective(sv.compile(program)))[0]
    assert best.edits[0].fields["axes"] == ("data",)
    specs = "in_specs=(P('data', 'model'), P('model')), out_specs=P('data', None)"
    assert best.code().startswith(f"{specs}  # threads.py:")
    assert best.values.ok is True

    def pasted(x, w):
        product = jax.shard_map(
            lambda x, w: jax.lax.psum(x @ w, "model"),
            in_specs=(P("data", "model"), P("model")),
            out_specs=P("data", None),
        )
        return product(jnp.tanh(x), w) * 2

    # 8 rows of 16 numbers are added up over 4 devices.
    assert sent_by(program.replace(fn=pasted)) == best.bytes == 2 * 8 * 16 * 4 * 3 / 4


@pytest.mark.parametrize("in_code", [True, False], ids=["argument", "constant"])
def test_what_a_shard_map_closes_over_is_in_no_specs(in_code):
    """Of 16 rows as well, so that its shape does not tell."""

    def scaled(x, w, y):
        def local(x, w, y=y):
            return jax.lax.psum(x @ w, "model") + y

        specs = (P(None, "model"), P("model")) + (P(),) * in_code
        product = jax.shard_map(local, in_specs=specs, out_specs=P(None, None))
        return product(jnp.tanh(x), w, *[y] * in_code)

    arrays = [jax.ShapeDtypeStruct(shape, X.dtype) for shape in ((16, 32), (32, 16), (16, 16))]
    program = sv.program(
        scaled,
        *arrays,
        mesh=sv.mesh("data=2, model=4"),
        in_specs=(P("data", "model"), P("model"), P()),
    )
    (gather,) = (c for c in sv.compile(program).collectives if c.kind == "all-gather")
    best = sv.changes(program, gather)[0]
    given = "P('data', 'model'), P('model')" + ", P('data')" * in_code
    assert best.code().startswith(f"in_specs=({given}), out_specs=")
    assert best.values.ok is True


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + jax.lax.axis_index("data"),
        lambda x: x / jax.lax.psum(x, "data"),
        lambda x: jnp.cumsum(x, 0),
    ],
    ids=["number", "sum", "cumsum"],
)
def test_specs_stay_where_the_body_is_not_the_same_for_each_row(fn):
    x = jax.ShapeDtypeStruct((16, 32), X.dtype)

    def whole(x):
        specs = {"in_specs": P(None, "model"), "out_specs": P(None, "model")}
        return jax.shard_map(fn, **specs, check_vma=False)(jnp.tanh(x))

    program = sv.program(whole, x, mesh=sv.mesh("data=2, model=4"), in_specs=(P("data", "model"),))
    changes = sv.changes(program, sv.compile(program).collectives[0])
    edits = [edit for one in (*changes, *changes.refused) for edit in one.edits]
    assert edits
    # A running sum is the same for each column.
    assert all(edit.code != "shard_map" or edit.fields["split"][0] == 1 for edit in edits)


def test_each_device_takes_its_own_steps_of_a_map():
    one = case("folx#36")
    program = one.program()
    best = sv.changes(program, one.collective(sv.compile(program)))[0]
    assert best.values.ok is True
    # What the steps share comes before what they take one after another.
    specs = "in_specs=(P(), P('data')), out_specs=P('data')"
    assert best.code().startswith(f"map = jax.shard_map(map, mesh=mesh, {specs})  # threads.py:")

    def pasted(x, w):
        def rows(x, w):
            return jax.lax.map(lambda x: jnp.tanh(w @ x), x, batch_size=4)

        specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}
        return jax.shard_map(rows, mesh=abstract_mesh(program.mesh), **specs)(x, w)

    assert sent_by(program.replace(fn=pasted)) == best.bytes == 0


def test_lines_of_the_code_stay():
    one = case("top_k")
    program = one.program()
    changes = sv.changes(program, one.collective(sv.compile(program)))
    jaxpr = changes[0].program.fn.jaxpr
    ((around, line),) = [
        (found.around, users_line(found.equation))
        for found in operations(jaxpr)
        if found.name == "top_k"
    ]
    assert around == ("shard_map",)
    assert line.startswith("threads.py:")
    # jax's top_k returns a list, which a tuple of specs does not fit.
    specs = "in_specs=P('data'), out_specs=P('data'))"
    assert f"top_k = jax.shard_map(top_k, mesh=mesh, {specs}" in changes[0].code()
