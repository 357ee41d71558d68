"""Advice: code to paste, for changes that can't be applied to a traced program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardviz.base.display import Fact

#: jax primitive name -> kind of advice, for primitives whose batch XLA may gather.
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
# Kind -> (name for the result, function that the shard_map wraps).
_FUNCTIONS = {
    "convolution": ("convolve", "convolve"),
    "fft": ("transform", "transform"),
    "top_k": ("best", "best"),
    "linear algebra": ("decompose", "decompose"),
    "kernel": ("kernel", "kernel"),
    "loop": ("solve", "jax.vmap(solve)"),
    "map": ("mapped", "lambda x: jax.lax.map(step, x)"),
}
# jax's `check_vma` can't follow values through a kernel or a while_loop.
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
    """Code for the user to add by hand; shardviz has not tried it.

    Attributes:
        kind: `"convolution"`, `"fft"`, `"top_k"`, `"linear algebra"`, `"kernel"`,
            `"loop"` (under `jax.vmap`) or `"map"` to wrap the operation in
            `jax.shard_map`; `"parts"` to reshape the batch into microbatches;
            `"accumulation"` to add up gradients over microbatches; `"random"` to set a
            jax option.
        source: the source line to change; `""` for the whole program.
        axes: the mesh axes that split the batch.
        arrays: names of the arrays in the batch.
        all_axes: whether `axes` includes every mesh axis.
        tried: always False.

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
        """Returns the code to paste, in plain jax."""
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
        """Returns the attributes and the code as plain data.

        >>> Advice("random", "f.py:3").to_dict()["tried"]
        False
        """
        return {**asdict(self), "code": self.code()}
