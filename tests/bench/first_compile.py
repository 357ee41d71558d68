"""The first `sv.compile` of a process against jax's first trace, lower and compile.

In a script, the worker starts with the compile. In an interactive session it starts with the
first program, and here it has time to import jax before the compile. Each number is the best
of a few fresh processes.
"""

from __future__ import annotations

from tests.structure.isolation import printed

TARGET = 4.0  # times jax, in a session
REPEATS = 5
BEGIN = """
import sys, time
import jax, jax.numpy as jnp

def step(w1, w2, x):
    loss = lambda w1, w2: jnp.mean((jax.nn.relu(x @ w1) @ w2) ** 2)
    g1, g2 = jax.grad(loss, (0, 1))(w1, w2)
    return w1 - 0.1 * g1, w2 - 0.1 * g2

SHAPES = {"w1": (512, 2048), "w2": (2048, 512), "x": (256, 512)}
SPECS = {"w1": "None, model", "w2": "model", "x": "data"}
"""
JAX = """
shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES.values()]
jax.devices()
start = time.perf_counter()
jax.jit(step).trace(*shapes).lower().compile()
print(time.perf_counter() - start)
"""
SCRIPT = """
import shardviz as sv
arrays = [sv.array(name, shape, spec=SPECS[name]) for name, shape in SHAPES.items()]
program = sv.program(step, *arrays, mesh="data=4, model=2")
start = time.perf_counter()
assert sv.compile(program).ok
print(time.perf_counter() - start)
"""
READY = """
import threading
for thread in threading.enumerate():
    if thread.name == "shardviz-early":
        thread.join()
"""
SESSION = "sys.ps1 = '>>> '" + SCRIPT.replace("start =", f"{READY}start =", 1)


def best(code: str) -> float:
    """The least seconds that `code` prints in a fresh process."""
    printed(BEGIN + code)  # writes the bytecode, which an installation has
    return min(float(printed(BEGIN + code)) for _ in range(REPEATS))


def main() -> int:
    """Prints the times; how many targets were missed."""
    jax = best(JAX)
    print(f"  jax's own                     {jax:6.2f} s")
    script, session = best(SCRIPT), best(SESSION)
    print(f"  sv.compile in a script        {script:6.2f} s   {script / jax:4.1f} times")
    missed = session > TARGET * jax
    verdict = f"target {TARGET} times: {'MISSED' if missed else 'ok'}"
    print(
        f"  sv.compile in a session       {session:6.2f} s   {session / jax:4.1f} times   {verdict}"
    )
    return missed


if __name__ == "__main__":
    main()
