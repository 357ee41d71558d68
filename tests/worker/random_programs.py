"""Random programs with Explicit axes, partial sums, callbacks, host memory and two meshes.

A program depends only on its number, so jax's own compile and ours get the same program. As a
script, it compares many: `python -m tests.worker.random_programs 300`. Both compile in separate
processes, so that programs that end the process can be counted.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEVICES = 4
NAMES = ("X", "Y")
SIZES = (8, 16)
_DRAWN = (
    *("einsum", "einsum", "einsum", "einsum", "reshard", "reshard", "elementwise", "callback"),
    *("ordered", "printed", "host", "meshes", "scan", "gradient", "mapped", "indexed"),
)
_KINDS = ("Explicit", "Explicit", "Auto", "mixed")


@dataclass(frozen=True)
class DrawnProgram:
    """A random program.

    Attributes:
        fn: the function, in `jax.jit` if it requests results in the host's memory.
        arrays: its arguments, with shardings.
        mesh: the mesh of devices.
        features: the names of its operations and types of axes.
    """

    fn: Callable[..., Any]
    arrays: tuple[Any, ...]
    mesh: Any
    features: tuple[str, ...]


def random_program(number: int) -> DrawnProgram:
    """The program of a number; the same in every process."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding

    draw = random.Random(number)
    kind = draw.choice(_KINDS)
    types = {
        "Explicit": (AxisType.Explicit,) * 2,
        "Auto": (AxisType.Auto,) * 2,
        "mixed": (AxisType.Explicit, AxisType.Auto),
    }[kind]
    devices = np.array(jax.devices("cpu")[:DEVICES])
    mesh = Mesh(devices.reshape(2, 2), NAMES, axis_types=types)
    usable = [
        n for n, t in zip(NAMES, types, strict=True) if kind == "Auto" or t.name == "Explicit"
    ]
    steps = _Steps(draw, mesh, Mesh(devices, ("Z",)), usable, kind)
    shape = (draw.choice(SIZES), draw.choice(SIZES))
    arrays = []
    for _ in range(draw.randint(1, 3)):
        sharding = NamedSharding(mesh, steps.spec(2, partial=True))
        arrays.append(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding))
    plan = [steps.step() for _ in range(draw.randint(2, 5))]

    def fn(*values: Any) -> Any:
        computed = list(values)
        for step in plan:
            computed.append(step(computed[-1], *computed))
        return computed[-1], computed[len(values) // 2]

    function: Any = fn
    if draw.random() < 0.15:
        host = NamedSharding(mesh, steps.spec(0), memory_kind="pinned_host")
        function = jax.jit(fn, out_shardings=(host, None))
        steps.features.append("results in the host's memory")
    return DrawnProgram(function, tuple(arrays), mesh, (kind, *steps.features))


@dataclass
class _Steps:
    """Draws one operation after another."""

    draw: random.Random
    mesh: Any
    other: Any
    usable: list[str]
    kind: str
    features: list[str] = field(default_factory=list)

    def spec(self, rank: int, partial: bool = False) -> Any:
        """A random spec, sometimes with partial sums."""
        from jax.sharding import PartitionSpec as P

        axes = [*self.usable, None, None, None]
        self.draw.shuffle(axes)
        entries, unused_axes = axes[:rank], [a for a in axes[rank:] if a]
        if partial and unused_axes and self.kind == "Explicit" and self.draw.random() < 0.3:
            self.features.append("partial sums")
            return P(*entries, unreduced={unused_axes[0]})
        return P(*entries)

    def step(self) -> Callable[..., Any]:
        """An operation on the last value and all values so far."""
        name = self.draw.choice(_DRAWN)
        if name not in ("elementwise", "einsum", "reshard"):
            self.features.append(name)
        return getattr(self, f"_{name}")()

    def _einsum(self) -> Callable[..., Any]:
        import jax.numpy as jnp

        equation, count, rank = self.draw.choice(
            [("ab,ac->bc", 2, 2), ("ab->b", 1, 1), ("ab,ab,ab->ab", 3, 2), ("ab,ac,ab->bc", 3, 2),
             ("ab,cb->ac", 2, 2)]
        )  # fmt: skip
        out = self.spec(rank, partial=True) if self.kind != "Auto" else None

        def step(last: Any, *values: Any) -> Any:
            operands = [v for v in values if v.ndim == 2][-count:]
            operands += operands[-1:] * (count - len(operands))
            result = jnp.einsum(equation, *operands, out_sharding=out)
            return result if rank == 2 else result[None] * jnp.ones((8, 1))

        return step

    def _reshard(self) -> Callable[..., Any]:
        import jax

        spec = self.spec(2, partial=True)
        ask = jax.lax.with_sharding_constraint if self.kind == "Auto" else jax.sharding.reshard
        return lambda last, *_: ask(last, jax.sharding.NamedSharding(self.mesh, spec))

    def _elementwise(self) -> Callable[..., Any]:
        import jax.numpy as jnp

        return self.draw.choice([lambda x, *_: jnp.sin(x), lambda x, *_: x + x,
                                 lambda x, *_: x * 2, lambda x, *_: x.T @ x])  # fmt: skip

    def _callback(self) -> Callable[..., Any]:
        import jax
        import numpy as np

        return lambda x, *_: jax.pure_callback(
            np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
        )

    def _ordered(self) -> Callable[..., Any]:
        import jax
        from jax.experimental import io_callback

        def step(x: Any, *_: Any) -> Any:
            io_callback(lambda v: None, None, x.sum(), ordered=True)
            return jax.numpy.cos(x)

        return step

    def _printed(self) -> Callable[..., Any]:
        import jax

        def step(x: Any, *_: Any) -> Any:
            jax.debug.callback(lambda v: None, x.sum())
            return x

        return step

    def _host(self) -> Callable[..., Any]:
        import jax

        def step(x: Any, *_: Any) -> Any:
            on_host = jax.device_put(x, jax.memory.Space.Host)
            return jax.device_put(on_host, jax.memory.Space.Device) + 1

        return step

    def _meshes(self) -> Callable[..., Any]:
        import jax
        from jax.sharding import NamedSharding
        from jax.sharding import PartitionSpec as P

        split = NamedSharding(self.other, self.draw.choice([P("Z"), P(None, "Z"), P()]))
        return lambda x, *_: jax.lax.with_sharding_constraint(x, split) * 2

    def _scan(self) -> Callable[..., Any]:
        import jax

        return lambda x, *_: jax.lax.scan(lambda c, _: (c * 2 + 1, None), x, None, length=3)[0]

    def _gradient(self) -> Callable[..., Any]:
        import jax

        return lambda x, *_: jax.grad(lambda y: (y * y).sum())(x)

    def _mapped(self) -> Callable[..., Any]:
        import jax
        from jax.sharding import PartitionSpec as P

        axis = self.usable[0]
        return lambda x, *_: jax.shard_map(
            lambda y: y + jax.lax.psum(y, axis),
            mesh=self.mesh, in_specs=P(axis), out_specs=P(axis),
        )(x)  # fmt: skip

    def _indexed(self) -> Callable[..., Any]:
        import jax.numpy as jnp

        out = self.spec(2) if self.kind != "Auto" else None
        return lambda x, *_: x.at[jnp.arange(8) % 4].get(out_sharding=out)


def compile_with_jax(drawn: DrawnProgram) -> str:
    """jax's error when it compiles the program; `""` for none."""
    import jax

    try:
        with jax.set_mesh(drawn.mesh):
            jax.jit(drawn.fn).lower(*drawn.arrays).compile()
    except Exception as error:  # noqa: BLE001  jax refuses in many ways
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def compile_with_us(drawn: DrawnProgram, target: str) -> str:
    """Our error when we plan and compile the program; `""` for none."""
    import jax

    import shardviz as sv

    with jax.set_mesh(drawn.mesh):
        program = sv.program(drawn.fn, *drawn.arrays)
        for outcome in (sv.plan(program), sv.compile(program, target)):
            if outcome.error is not None:
                return f"{type(outcome).__name__}: {outcome.error}"[:600]
    return ""


def _run(who: str, first: int, stop: int) -> None:
    """Prints a line when a program begins and when it is done."""
    for number in range(first, stop):
        drawn = random_program(number)
        print(json.dumps([number, None]), flush=True)
        if who == "jax":
            error = compile_with_jax(drawn)
        else:
            error = compile_with_us(drawn, "attached" if number % 8 == 7 else f"cpu:{DEVICES}")
        print(json.dumps([number, error, drawn.features]), flush=True)


def _results(who: str, count: int, first: int) -> Iterator[tuple[int, str | None, list[str]]]:
    """The number, error and features of each program; None if it ended the process."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(DEVICES)}
    stop = first + count
    while first < stop:
        process = subprocess.run(
            [sys.executable, "-m", __spec__.name, who, str(first), str(stop)],
            cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("[")]
        if not lines:
            raise RuntimeError(process.stderr[-2000:])
        for number, error, *features in lines:
            if error is not None:
                yield number, error, features[0]
        if lines[-1][1] is None:
            yield lines[-1][0], None, []
        first = lines[-1][0] + 1


def compare(count: int, first: int = 0) -> dict[str, Any]:
    """Counts the programs that jax compiles, and lists those of them that we refuse."""
    by_jax = {number: error for number, error, _ in _results("jax", count, first)}
    by_us = {number: (error, features) for number, error, features in _results("us", count, first)}
    return {
        "programs": len(by_jax),
        "jax compiles": sum(error == "" for error in by_jax.values()),
        "jax refuses": sum(bool(error) for error in by_jax.values()),
        "jax aborts": sum(error is None for error in by_jax.values()),
        "kernels ended": [n for n, (error, _) in by_us.items() if error is None],
        "refused": {n: by_us[n] for n, error in by_jax.items() if error == "" and by_us[n][0]},
        "taken that jax refuses": sum(not by_us[n][0] for n, error in by_jax.items() if error),
    }


if __name__ == "__main__":
    if sys.argv[1] in ("jax", "us"):
        _run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(compare(int(sys.argv[1]), *map(int, sys.argv[2:])), indent=2))
