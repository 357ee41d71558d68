"""Programs that nobody wrote: functions in each other, constraints, shard_maps, loops, derivatives.

`program(seed)` is always the same program. `python -m tests.stages.random_programs 500` compares
the plans of the first 500 with XLA's own propagation, and counts what it finds;
`python -m tests.stages.random_programs 500 700` those of the next 200.

All values of a program have one shape, inside a shard_map that of a block, so that any step can
follow any other.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.stages.programs import Case

MESHES = ("data=4, model=2", "data=2, model=2", "data=2, fsdp=2, model=2")
SHAPES = ((16, 16), (8, 16, 16))
# Those in the tests: the first, and some in which an earlier version of the plan differed.
TESTED = (*range(34), 105, 163, 200, 240, 291, 564)

Body = Callable[[Any, Any], Any]
Makers = Mapping[str, Callable[["Builder"], Body]]


@dataclass(frozen=True)
class Builder:
    """Makes steps, bodies and specs at random.

    Attributes:
        rng: what chooses.
        rank: how many dimensions every value has.
        axes: the mesh axes that a constraint may name here.
        depth: how many more functions may stand in each other.
        reverse: whether all of it must have a gradient.
        manual: whether a shard_map is around.
        more: further steps, and further ones that have no gradient.
    """

    rng: random.Random
    rank: int
    axes: tuple[str, ...]
    depth: int = 3
    reverse: bool = False
    manual: bool = False
    more: tuple[Makers, Makers] = ({}, {})

    def body(self) -> Body:
        """A function of two arrays that returns one like them, of two to four steps."""
        inner = replace(self, depth=self.depth - 1)
        steps = []
        for number in range(self.rng.randint(2, 4)):
            operands = [self.rng.randrange(number + 2) for _ in range(2)]
            steps.append((inner.step(), operands))

        def run(x: Any, y: Any) -> Any:
            values = [x, y]
            for step, (first, second) in steps:
                values.append(step(values[first], values[second]))
            return values[-1]

        return run

    def step(self) -> Body:
        """One step of any kind that is allowed here."""
        kinds = {**SIMPLE, **self.more[0]}
        if not self.reverse:
            kinds |= self.more[1]
        if self.axes:
            kinds |= CONSTRAINTS
        if self.depth > 0:
            kinds |= NESTED
            if self.axes:
                kinds |= MANUAL
            if not self.reverse:
                kinds |= NO_GRADIENT
        # Constraints and functions in functions are what goes wrong, so they come more often.
        often = [n for n in kinds if n in CONSTRAINTS or n in NESTED or n in MANUAL]
        name = self.rng.choice([*kinds, *often, *often])
        return kinds[name](self)

    def dim(self) -> int:
        """A dimension."""
        return self.rng.randrange(self.rank)

    def spec(self, axes: Sequence[str] | None = None, some: bool = False) -> P:
        """A spec of some of the axes, perhaps with dimensions left open."""
        entries: list[list[str]] = [[] for _ in range(self.rank)]
        axes = list(self.axes if axes is None else axes)
        self.rng.shuffle(axes)
        for axis in axes:
            if some or self.rng.random() < 0.6:
                self.rng.choice(entries).append(axis)
        dims: list[Any] = [tuple(e) if len(e) > 1 else e[0] if e else None for e in entries]
        return P(*dims)


def _unary(fn: Callable[[Any], Any]) -> Callable[[Builder], Body]:
    return lambda b: lambda x, y: fn(x)


def _along(fn: Callable[[Any, int], Any]) -> Callable[[Builder], Body]:
    def make(b: Builder) -> Body:
        dim = b.dim()
        return lambda x, y: fn(x, dim)

    return make


def _merged(x: Any) -> Any:
    return jnp.sin(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])).reshape(x.shape)


def _concatenated(b: Builder) -> Body:
    dim = b.dim()

    def run(x: Any, y: Any) -> Any:
        return jax.lax.slice_in_dim(jnp.concatenate([x, y], dim), 0, x.shape[dim], axis=dim)

    return run


def _updated(x: Any, dim: int) -> Any:
    part = jax.lax.dynamic_slice_in_dim(x, jnp.int32(x.shape[dim] > 1), x.shape[dim] // 2, dim)
    return jax.lax.dynamic_update_slice_in_dim(x, part * 2, 0, dim)


def _taken(x: Any, dim: int) -> Any:
    return jnp.take(x, jnp.arange(x.shape[dim])[::-1], axis=dim)


SIMPLE: Makers = {
    # jax lowers the first of these to calls of functions.
    "relu": _unary(jax.nn.relu),
    "silu": _unary(jax.nn.silu),
    "gelu": _unary(jax.nn.gelu),
    "elu": _unary(jax.nn.elu),
    "where": lambda b: lambda x, y: jnp.where(x > 0, x, y),
    "where a number": _unary(lambda x: jnp.where(x > 0, x, 1)),
    "clip": _unary(lambda x: jnp.clip(x, -1, 1)),
    "softmax": _along(lambda x, d: jax.nn.softmax(x, axis=d)),
    "logsumexp": _along(lambda x, d: x - jax.nn.logsumexp(x, axis=d, keepdims=True)),
    "take": _along(_taken),
    "sort": _along(lambda x, d: jnp.sort(x, axis=d)),
    "roll": _along(lambda x, d: jnp.roll(x, 1, axis=d)),
    "variance": _along(lambda x, d: x - jnp.var(x, axis=d, keepdims=True)),
    "cumsum": _along(lambda x, d: jnp.cumsum(x, axis=d)),
    "argmax": _along(lambda x, d: x + jnp.argmax(x, axis=d, keepdims=True)),
    "tril": _unary(jnp.tril),
    # The rest are operations.
    "sin": _unary(jnp.sin),
    "add": lambda b: lambda x, y: x + y,
    "multiply": lambda b: lambda x, y: x * y,
    "product": lambda b: lambda x, y: (x @ y.swapaxes(-1, -2)) @ y,
    "transpose": _unary(lambda x: jnp.tanh(x.swapaxes(0, 1)).swapaxes(0, 1)),
    "merge": _unary(_merged),
    "sum": _along(lambda x, d: x + jnp.sum(x, axis=d, keepdims=True)),
    "reverse": _along(lambda x, d: jnp.flip(x, axis=d)),
    "concatenate": _concatenated,
    "update": _along(_updated),
    "another type": _unary(lambda x: (x.astype(jnp.bfloat16) * 2).astype(x.dtype)),
    "iota": _along(lambda x, d: x * jax.lax.broadcasted_iota(x.dtype, x.shape, d)),
}


def _constraint(b: Builder) -> Body:
    spec = b.spec()
    return lambda x, y: jax.lax.with_sharding_constraint(x, spec)


def _open_constraint(b: Builder) -> Body:
    dims = [d if d is not None or b.rng.random() < 0.5 else P.UNCONSTRAINED for d in b.spec()]
    return lambda x, y: jax.lax.with_sharding_constraint(x, P(*dims))


def _constraint_after(b: Builder) -> Body:
    name, spec = b.rng.choice(["relu", "silu", "where", "take", "sort", "softmax"]), b.spec()
    step = SIMPLE[name](b)
    return lambda x, y: jax.lax.with_sharding_constraint(step(x, y), spec) * 2


CONSTRAINTS: Makers = {
    "constraint": _constraint,
    "open constraint": _open_constraint,
    "constraint after a function": _constraint_after,
}


def _jitted(b: Builder) -> Body:
    return jax.jit(b.body())


def _jitted_twice(b: Builder) -> Body:
    fn = jax.jit(b.body())
    return lambda x, y: fn(fn(x, y), x)


def _split_jit(b: Builder) -> Body:
    fn, specs = b.body(), [b.spec(), b.spec()]

    def run(x: Any, y: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        first, second = (jax.sharding.NamedSharding(mesh, s) for s in specs)
        if b.manual or not b.axes:
            return jax.jit(fn)(x, y)
        return jax.jit(fn, in_shardings=(first, None), out_shardings=second)(x, y)

    return run


def _remat(b: Builder) -> Body:
    return jax.checkpoint(b.body())


def _vmapped(b: Builder) -> Body:
    if b.rank < 3:
        return b.body()
    inner = replace(b, axes=(), rank=b.rank - 1).body()
    return lambda x, y: jax.vmap(inner)(x, y)


def _gradient(b: Builder) -> Body:
    fn = replace(b, reverse=True).body()
    return lambda x, y: jax.grad(lambda x: jnp.sum(fn(x, y) ** 2))(x)


def _custom_jvp(b: Builder) -> Body:
    fn = jax.custom_jvp(b.body())

    @fn.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        out = fn(*primals)
        return out, tangents[0] * jax.nn.sigmoid(primals[0]) + jax.nn.relu(out) * tangents[1]

    return lambda x, y: fn(x, y) + jax.grad(lambda x: jnp.sum(fn(x, y)))(x)


def _custom_vjp(b: Builder) -> Body:
    body, backward = b.body(), b.body()
    fn = jax.custom_vjp(body)
    fn.defvjp(
        lambda x, y: (body(x, y), (x, y)),
        lambda saved, g: (backward(g, saved[0]), backward(saved[1], g)),
    )
    return lambda x, y: fn(x, y) + jax.grad(lambda x: jnp.sum(fn(x, y)))(x)


def _scan(b: Builder) -> Body:
    fn = b.body()

    def run(x: Any, y: Any) -> Any:
        carried, sums = jax.lax.scan(lambda c, z: (fn(c, z), c), x, jnp.stack([x, y]))
        return carried + sums[0]

    return run


def _for_loop(b: Builder) -> Body:
    fn = b.body()
    return lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: fn(c, y), x)


def _branches(b: Builder) -> Body:
    one, two = b.body(), b.body()

    # XLA refuses branches that end with different constraints.
    def doubled(fn: Body) -> Body:
        return lambda x, y: fn(x, y) * 2

    return lambda x, y: jax.lax.cond(jnp.sum(x) > 0, doubled(one), doubled(two), x, y)


NESTED: Makers = {
    "jit": _jitted,
    "jit, called twice": _jitted_twice,
    "jit with shardings": _split_jit,
    "remat": _remat,
    "vmap": _vmapped,
    "gradient": _gradient,
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "scan": _scan,
    "for loop": _for_loop,
    "branches": _branches,
}


def _while_loop(b: Builder) -> Body:
    fn = b.body()
    return lambda x, y: jax.lax.while_loop(lambda c: jnp.sum(c) < 10, lambda c: fn(c, y) + 1, x)


NO_GRADIENT: Makers = {"while loop": _while_loop}


def _shard_map(b: Builder) -> Body:
    partly = len(b.axes) > 1 and b.rng.random() < 0.5
    axes = tuple(b.rng.sample(b.axes, 1)) if partly else b.axes
    rest = tuple(a for a in b.axes if a not in axes)
    inside, outside = b.spec(axes, some=True), b.spec(axes, some=True)
    fn = replace(b, axes=rest, manual=True).body()

    def run(x: Any, y: Any) -> Any:
        options: dict[str, Any] = {"in_specs": (inside, outside), "out_specs": inside}
        options |= {"axis_names": set(axes), "check_vma": False}
        local = lambda x, y: fn(x, x)  # noqa: E731  y is split otherwise
        return jax.shard_map(local, **options)(x, y)

    return run


MANUAL: Makers = {"shard_map": _shard_map}


def program(seed: int, more: tuple[Makers, Makers] = ({}, {})) -> Case:
    """The program of a number, on one of the meshes.

    Args:
        seed: the number.
        more: steps that it may have besides those here, and such that have no gradient.
    """
    rng = random.Random(seed)
    mesh, shape = rng.choice(MESHES), rng.choice(SHAPES)
    axes = tuple(part.partition("=")[0] for part in mesh.split(", "))
    builder = Builder(rng, len(shape), axes, more=more)
    specs = [_text(builder.spec()) for _ in range(2)]
    fn = builder.body()
    arrays = (("x", shape, specs[0]), ("y", shape, specs[1]))
    out = _text(builder.spec()) if rng.random() < 0.2 else None
    return Case(f"random {seed}", lambda x, y: fn(x, y), arrays, (mesh,), out=out)


def _text(spec: P) -> str:
    def entry(dim: Any) -> str:
        return f"({', '.join(dim)})" if isinstance(dim, tuple) else str(dim)

    return ", ".join(entry(dim) for dim in spec)


def main(begin: int, end: int) -> int:
    """Compares the plans of some programs with XLA's propagation; prints what it finds.

    Args:
        begin, end: the number of the first program, and that after the last one.

    Returns:
        how many programs have a difference.
    """
    from tests.stages.dumps import propagated_entry
    from tests.stages.programs import DEVICES
    from tests.stages.propagated import Comparison, compare, in_words

    jax.config.update("jax_num_cpu_devices", DEVICES)
    found: list[Comparison] = []
    for case in map(program, range(begin, end)):
        try:
            found.append(compare(propagated_entry(case, case.meshes[0])))
        except jax.errors.JaxRuntimeError as error:
            print(f"{case.name}, which XLA refuses: {str(error)[:200]}", flush=True)
            continue
        for difference in found[-1].differences:
            print(f"{case.name} on {case.meshes[0]}: {difference[:300]}", flush=True)
    print(in_words(found))
    return sum(bool(one.differences) for one in found)


if __name__ == "__main__":
    from tests.stages import random_programs

    numbers = [int(word) for word in sys.argv[1:]] or [500]
    sys.exit(bool(random_programs.main(*([0, *numbers] if len(numbers) == 1 else numbers))))
