"""The doors: thin functions, each a line or two over a room.

jax's own objects are welcome at every door. What is missing on this machine is named in one
sentence when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardviz.adopting import adopt, as_mesh, as_spec, bridge, is_jax, layout_of, room
from shardviz.core.errors import ProgramError, shown
from shardviz.core.layout.array import ArraySpec, read_shape
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.audit import audit as _audit
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.resolution import Resolution
from shardviz.core.layout.resolution import resolve as _resolve
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.layout.shards import Layout
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report

#: The executables compiled so far; the one piece of state that shardviz keeps.
cache = ExecutableCache()


def mesh(
    axes: Any = None,
    *,
    axis_types: Any = None,
    device_ids: Any = None,
    processes: Any = None,
    **sizes: int,
) -> MeshSpec:
    """A mesh: named axes over devices, with or without the devices.

    Args:
        axes: text such as `"data=4, model=2"`, a mapping, pairs, a jax `Mesh` or `AbstractMesh`.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"`, one for all or one an axis.
        device_ids: the ids in mesh order; 0, 1, 2, … where not said.
        processes: how many hosts share the devices, or the process of each device.
        **sizes: the axes as keywords, in place of `axes`.

    Raises:
        ShardvizError: where no mesh comes out of it.

    >>> mesh(data=4, model=2).size
    8
    """
    if isinstance(axes, MeshSpec):
        return axes
    if is_jax(axes):
        return bridge().adopt_mesh(axes)
    return make_mesh(
        axes, axis_types=axis_types, device_ids=device_ids, processes=processes, **sizes
    )


def rules(*pairs: Any) -> Rules:
    """An ordered table of rules from logical axis names to mesh axes.

    Args:
        *pairs: pairs such as `("batch", "data")`, one list of them, or typed text.

    Raises:
        ShardvizError: for a dict, and for pairs that cannot be read.

    >>> len(rules(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None)))
    3
    """
    return Rules.of(*pairs)


def array(
    name: str, shape: Any, logical: Any = None, dtype: Any = "float32", spec: Any = None
) -> ArraySpec:
    """An array that need not exist.

    Args:
        name: what to call it.
        shape: its global shape, in elements.
        logical: one logical axis name a dimension, as text or a sequence.
        dtype: its element type.
        spec: a PartitionSpec that wins over any rules.

    Raises:
        ShardvizError: for a shape, dtype, names or spec that no array has.

    >>> array("w", (512, 2048), "embed mlp", dtype="bfloat16").short
    'bf16[512, 2048]'
    """
    given = None if spec is None else as_spec(spec)
    return ArraySpec(name, read_shape(shape), logical, dtype, given)


def resolve(
    names: Any, rules: Any, *, mesh: Any = None, shape: Any = None, dialect: Any = "linen"
) -> Resolution:
    """Logical names to a PartitionSpec, with a verdict for every rule on every dimension.

    Args:
        names: one logical name a dimension, as text or a sequence; None for a nameless one.
        rules: the table.
        mesh: the mesh that the verdicts are checked against.
        shape: the array's shape, for verdicts on sizes that do not divide.
        dialect: who reads the table: `"linen"`, `"nnx"` or `"maxtext"`.

    Raises:
        ShardvizError: for names or rules that cannot be read, or a name that stands twice.

    >>> str(resolve(("embed", "mlp"), [("mlp", "model")]).spec)
    "P(None, 'model')"
    """
    grid = mesh if mesh is None or isinstance(mesh, MeshSpec) else as_mesh(mesh)
    return _resolve(names, rules, mesh=grid, shape=shape, dialect=dialect)


def layout(
    thing: Any, spec: Any = None, mesh: Any = None, *, rules: Any = None, dtype: Any = None,
    dialect: Any = "linen",
) -> Layout:  # fmt: skip
    """Which box of an array every device holds.

    Args:
        thing: a shape, an ArraySpec, a jax `ShapeDtypeStruct` with a sharding, or a live array.
        spec: a PartitionSpec as text or jax's own, any jax `Sharding`, a ShardingSpec or Parts.
        mesh: the mesh, where `spec` does not bring one.
        rules: axis rules, for an ArraySpec with logical names.
        dtype: the element type, where `thing` does not bring one; float32 if nobody says.
        dialect: who reads the rules.

    Raises:
        ShardvizError: where it does not work out, with what would.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> layout((512, 2048), "None, model", make_mesh(data=4, model=2)).shard_shape
    (512, 1024)
    """
    return layout_of(thing, spec, mesh, rules, dtype, dialect)


def audit(tree: Any, rules: Any, mesh: Any, *, dialect: Any = "linen") -> Audit:
    """Many arrays against one rule table: what each becomes, and which rules do no work.

    Args:
        tree: ArraySpecs, `(name, shape, logical)` rows, or a tree of a model's parameters.
        rules: the table.
        mesh: the mesh.
        dialect: who reads the table.

    Raises:
        ShardvizError: for a tree, rules or mesh that cannot be read.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> rows = [("w", (512, 2048), "embed mlp")]
    >>> audit(rows, [("mlp", "model")], make_mesh(data=4, model=2)).bytes_per_device
    2097152
    """
    return _audit(tree, Rules.of(rules), as_mesh(mesh), dialect=dialect)


def program(
    fn: Any, *arrays: Any, mesh: Any = None, rules: Any = None, dialect: Any = "linen",
    in_specs: Any = None, out_specs: Any = None, donate: Any = (), name: str = "",
) -> Program:  # fmt: skip
    """A function with the arrays it takes, and how they are asked to be split.

    Args:
        fn: the function, as you would give it to `jax.jit`.
        *arrays: one argument each: ArraySpecs, `jax.ShapeDtypeStruct`s (with or without a
            sharding), arrays, or pytrees of these.
        mesh: the mesh; may be left out where an array's sharding brings one.
        rules: axis rules, for arrays with logical names.
        dialect: who reads the rules.
        in_specs, out_specs: PartitionSpecs, or pytree prefixes of them, where arrays and rules do
            not say.
        donate: positions of arguments whose memory the program may reuse.
        name: what to call it; the function's name where not said.

    Raises:
        ShardvizError: where the parts do not fit together.

    >>> import jax.numpy as jnp
    >>> matmul = program(jnp.dot, array("x", (8, 4)), array("w", (4, 8)), mesh="data=4")
    >>> [a.name for a in matmul.arrays]
    ['x', 'w']
    """
    grid = None if mesh is None else as_mesh(mesh)
    table = None if rules is None else Rules.of(rules)
    building = room("shardviz.core.program.building", "sv.program", "jax")
    return building.build_program(
        fn, arrays, grid, table, Dialect.of(dialect), in_specs, out_specs, donate, name
    )


def compile(program: Program, target: Any = None, *, options: Any = None) -> Report:
    """Compiles a program for a target, and reports; nothing is executed.

    Args:
        program: what `sv.program` made.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.
        options: compiler options, by name.

    Raises:
        ShardvizError: where jax is not installed. A program that fails is a Report with an error.

    >>> import jax.numpy as jnp
    >>> compile(program(jnp.sin, array("x", (8,)), mesh="data=1")).error
    """
    runner = room("shardviz.core.program.runner", "sv.compile", "jax")
    if options is not None and not isinstance(options, Mapping):
        raise ProgramError(f"Compiler options are a dict of names to values; got {shown(options)}.")
    changed = program if options is None else program.replace(
        options={**program.options, **options}
    )  # fmt: skip
    return runner.compile_program(changed, target, cache=cache)


def run(program: Program, *values: Any, target: Any = None, repeat: int = 1) -> Report:
    """Compiles and runs a program, and holds what was predicted against what happened.

    Args:
        program: what `sv.program` made.
        *values: the arguments; made up, small and always the same, where none are given.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.
        repeat: how often to run it.

    Raises:
        ShardvizError: where jax is not installed. A program that fails is a Report with an error.

    >>> import jax.numpy as jnp
    >>> run(program(jnp.sin, array("x", (8,)), mesh="data=1")).ok
    True
    """
    runner = room("shardviz.core.program.runner", "sv.run", "jax")
    return runner.run_program(program, *values, target=target, repeat=repeat, cache=cache)


def plot(thing: Any, **options: Any) -> Any:
    """The picture of any value, as a matplotlib Figure.

    Args:
        thing: anything these doors return, or jax's own mesh, spec, sharding or array.
        **options: `theme="dark"`, and what the value's picture understands, such as `dims=(0, 2)`.

    Raises:
        ShardvizError: where the value has no picture, or matplotlib is not installed.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> type(plot(make_mesh(data=4, model=2))).__name__
    'Figure'
    """
    figures = room("shardviz.plots.figures", "sv.plot", "matplotlib")
    return figures.figure(adopt(thing), **options)


def text(thing: Any, width: int = 80) -> str:
    """The picture of any value, as text for terminals and screen readers.

    Args:
        thing: anything these doors return, or jax's own mesh, spec, sharding or array.
        width: how many letters a line may have.

    Raises:
        ShardvizError: where the value has no picture.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> "model" in text(make_mesh(data=4, model=2))
    True
    """
    from shardviz.picture.text import to_text

    return to_text(adopt(thing), width)


def explore(thing: Any = None) -> Any:
    """Opens the Explorer: with a running example, on a program, or from a saved state.

    Args:
        thing: None, a Program, a MeshSpec, ArraySpecs, or what `explorer.state()` returned.

    Raises:
        ShardvizError: for a state that cannot be read, or where anywidget is not installed.

    >>> explore().session.mesh.size
    8
    """
    explorer = room("shardviz.widgets.explorer", "sv.explore", "anywidget")
    return explorer.open_explorer(adopt(thing), cache)


def to_jax(thing: Any) -> Any:
    """jax's own object for a value: a Mesh, PartitionSpec, NamedSharding, ShapeDtypeStruct.

    Args:
        thing: a MeshSpec, Spec, Layout, ArraySpec, Resolution, Rules or Program.

    Raises:
        ShardvizError: where there is none.

    >>> to_jax(layout((8,), "data", "data=4")).spec
    P('data',)
    """
    return bridge().to_jax(thing)


def targets() -> Any:
    """What a program can be compiled for or run on here, in words.

    >>> len(targets()) >= 1
    True
    """
    return room("shardviz.core.program.targets", "sv.targets", "jax").targets()
