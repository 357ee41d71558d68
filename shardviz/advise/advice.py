"""Advice: code to paste, for changes that cannot be tried on a traced program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardviz.base.display import Fact

#: jax's names of operations that XLA may gather along a batch, to the kind of advice.
UNSPLIT = {
    "conv_general_dilated": "convolution",
    "fft": "fft",
    "top_k": "top_k",
    "approx_top_k": "top_k",
    "pallas_call": "kernel",
    "ffi_call": "kernel",
}
_LINEAR_ALGEBRA = (
    "cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur",
    "svd", "triangular_solve", "tridiagonal_solve",
)  # fmt: skip
UNSPLIT |= dict.fromkeys(_LINEAR_ALGEBRA, "linear algebra")
_AROUND = "{name} = jax.shard_map({function}, mesh=mesh, in_specs={in_specs}, out_specs={split}"
# Kind to the name of the result, and the function that the shard_map wraps.
_FUNCTIONS = {
    "convolution": ("convolve", "convolve"),
    "fft": ("transform", "transform"),
    "top_k": ("best", "best"),
    "linear algebra": ("decompose", "decompose"),
    "kernel": ("kernel", "kernel"),
    "loop": ("solve", "jax.vmap(solve)"),
    "map": ("mapped", "lambda x: jax.lax.map(step, x)"),
}
# jax can't tell what varies in a kernel or after a loop that ends on its own.
_UNCHECKED = {"kernel", "loop"}
_LINES = {
    "random": 'jax.config.update("jax_threefry_partitionable", True)',
    "parts": "parts = x.reshape(-1, {count}, *x.shape[1:]).swapaxes(0, 1)",
    "accumulation": """\
split = lambda x: x.reshape(-1, {count}, *x.shape[1:]).swapaxes(0, 1)
add = lambda total, part: (jax.tree.map(jnp.add, total, jax.grad(loss)(w, part)), None)
zeros = jax.tree.map(jnp.zeros_like, w)
gradients, _ = jax.lax.scan(add, zeros, jax.tree.map(split, batch))
# for a mean over the batch: gradients / {count}""",
}
_PARTS = 4


@dataclass(frozen=True)
class Advice(Fact):
    """Code to write by hand. It has not been tried.

    Attributes:
        kind: `"convolution"`, `"fft"`, `"top_k"`, `"linear algebra"`, `"kernel"`,
            `"loop"` (under `jax.vmap`) or `"map"` for a `jax.shard_map` around it;
            `"parts"` and `"accumulation"` for a batch that is taken in parts, the
            second for the gradients of these; `"random"` for an option of jax.
        source: the line to change; `""` for the whole program.
        axes: the mesh axes that split the batch.
        arrays: the arrays of the batch.
        all_axes: whether these are all axes of the mesh.
        tried: False. Changes are tried, advice is not.

    >>> print(Advice("fft", "f.py:3", ("data",)).code())
    transform = jax.shard_map(transform, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    """

    kind: str
    source: str = ""
    axes: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    all_axes: bool = True
    tried: bool = False

    def code(self) -> str:
        """The code to paste, in plain jax."""
        if self.kind in _LINES:
            return _LINES[self.kind].format(count=_PARTS)
        name, function = _FUNCTIONS[self.kind]
        quoted = ", ".join(f'"{axis}"' for axis in self.axes)
        split = f"P({quoted})" if len(self.axes) == 1 else f"P(({quoted}))"
        in_specs = f"({split}, P())" if self.kind == "convolution" else split
        fields = {"function": function, "in_specs": in_specs, "split": split}
        code = _AROUND.format(name=name, **fields)
        if not self.all_axes:
            code += f", axis_names={{{quoted}}}"
        if self.kind in _UNCHECKED:
            code += ", check_vma=False"
        return f"{code})"

    def to_dict(self) -> dict[str, Any]:
        """Its attributes and its code, as plain data.

        >>> Advice("random", "f.py:3").to_dict()["tried"]
        False
        """
        return {**asdict(self), "code": self.code()}
