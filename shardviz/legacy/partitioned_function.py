"""sharded_jit(fun, in_parts, out_parts): a function split over devices by integers alone.

The parts of a call become one mesh and a PartitionSpec for each array, and `jax.jit` does the rest.
`modern_code` writes that as code that runs by itself: the function's source is parsed with `ast`
and written back; nothing is evaluated.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import keyword
import textwrap
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardviz.core.errors import ProgramError, SpecError, TargetError, import_optional
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.parse import check_size
from shardviz.core.program.cache import cache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.legacy.call import (
    PartitionedCall,
    PartitionedSignature,
    PartitionRequest,
    inside,
    is_inside,
    read_call,
)
from shardviz.legacy.partitions import (
    Partition,
    Parts,
    check_count,
    check_tree,
    count_of,
    is_partition,
    is_parts_mesh,
    mesh_over,
    same_parts,
)

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

    Shardings = tuple[NamedSharding, ...]

_MOST_SIGNATURES = 256  # of each function; an older one is traced again


def sharded_jit(
    fun: Callable[..., Any],
    in_parts: Any,
    out_parts: Any,
    num_partitions: int | None = None,
    local_in_parts: Any = None,
    local_out_parts: Any = None,
    local_num_partitions: int | None = None,
    static_argnums: int | Iterable[int] = (),
) -> ShardedJit:
    """`fun`, split over devices by integers: `jax.jit` as it was before meshes had names.

    The result is called as `fun` is. It also has `.report(*args)`, a Report of one run;
    `.program(*args)`, a Program for the Explorer; and `.to_modern(*args)`, the same as code over
    `jax.jit` and NamedSharding.

    Args:
        fun: the function; it takes arrays, or containers of them, by position.
        in_parts: how the arguments are split: a Parts, None for a replicated array, or containers
            of these, as a prefix of the tuple of arguments.
        out_parts: the same for what it returns.
        num_partitions: how many devices, where no Parts says so.
        local_in_parts, local_out_parts, local_num_partitions: the same for one process of several;
            where there is only one they may be left out, or repeat the others.
        static_argnums: positions of arguments that are compile-time constants; they have no parts.

    Raises:
        ShardvizError: for parts that do not fit together, and where jax is not installed; in a
            call for arguments that do not fit the parts, keywords, missing static arguments, and
            too few devices.

    >>> import jax.numpy as jnp
    >>> from shardviz.legacy.partitions import Parts
    >>> scale = sharded_jit(lambda x, s: x * s, (Parts(1, 1), None), Parts(1, 1))
    >>> scale(jnp.ones((2, 2)), 3.0).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    import_optional("jax", "legacy.sharded_jit", "jax")
    if not callable(fun):
        raise ProgramError(f"sharded_jit takes a function first; got {shown(fun)}.")
    overall = [("in_parts", in_parts), ("out_parts", out_parts)]
    count = count_of([(name, check_tree(parts, name)) for name, parts in overall], num_partitions)
    local = [("local_in_parts", local_in_parts), ("local_out_parts", local_out_parts)]
    local_count = count_of([(name, check_tree(parts, name)) for name, parts in local])
    if local_num_partitions is not None:
        local_count = check_count(local_num_partitions, "local_num_partitions")
    _check_local(local_count, count)
    numbers = static_argnums if isinstance(static_argnums, Iterable) else (static_argnums,)
    statics = tuple(check_size(n, "A number in static_argnums", ProgramError) for n in numbers)
    request = PartitionRequest(fun, in_parts, out_parts, count)
    return ShardedJit(request, (local_in_parts, local_out_parts, local_count), statics)


class ShardedJit:
    """A function under `sharded_jit`: call it, run it with a report, or translate it.

    Its first call with arguments of a new shape, dtype, tree or static value traces the function
    twice: once to learn what it asks for, once for the devices.

    >>> import jax
    >>> from shardviz.legacy.partitions import Parts
    >>> double = sharded_jit(lambda x: 2 * x, Parts(1), None)
    >>> double.report(jax.numpy.arange(3)).ok
    True
    """

    def __init__(
        self,
        request: PartitionRequest,
        local: tuple[Any, Any, int | None],
        statics: tuple[int, ...],
    ) -> None:
        functools.update_wrapper(self, request.fun, updated=())
        self._request, self._local, self._statics = request, local, statics
        self._calls: dict[Any, _CompiledCall] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, as arrays split as `out_parts` says."""
        compiled, leaves = self._prepared(args, kwargs)
        return compiled(leaves)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The same as a Program, for `sv.explore`, `sv.compile` and `sv.run`.

        Args:
            *args: arguments, or their shapes: ArraySpecs or `jax.ShapeDtypeStruct`s.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as a call; and where no single mesh fits all of the parts.
        """
        return self._prepared(args, kwargs)[0].call.program()

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """Runs the function once and reports, as `sv.run` does.

        Args:
            *args: arguments; values are made up if they are only shapes.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as `program`.
        """
        import jax

        from shardviz.core.backend.worker.run import run_program

        compiled, leaves = self._prepared(args, kwargs)
        signature, program = compiled.call.signature, compiled.call.program()
        if any(isinstance(leaf, (ArraySpec, jax.ShapeDtypeStruct)) for leaf in leaves):
            return run_program(program, cache=cache)
        arrays = [
            leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf, struct.dtype)
            for leaf, struct in zip(leaves, signature.structs, strict=True)
        ]
        return run_program(program, *signature.tree.unflatten(arrays), cache=cache)

    def to_modern(self, *args: Any, **kwargs: Any) -> str:
        """The same as code: `jax.jit` over a Mesh with NamedShardings.

        Args:
            *args: arguments, or their shapes.
            **kwargs: refused, as in a call.

        Raises:
            ProgramError: as a call; and for containers that have no literal.
        """
        return modern_code(self._prepared(args, kwargs)[0].call)

    def _prepared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_CompiledCall, list[Any]]:
        if kwargs:
            raise ProgramError(
                "sharded_jit passes no keyword arguments to its function; got"
                f" {', '.join(f'{k}={shown(v, 20)}' for k, v in kwargs.items())}. Pass them by"
                " position, or set them with functools.partial first."
            )
        signature, leaves = read_call(self._request.fun, args, self._statics)
        found = self._calls.get(signature.key)
        return (found or self._add(signature)), leaves

    def _add(self, signature: PartitionedSignature) -> _CompiledCall:
        request, call = self._request, PartitionedCall(self._request, signature)
        local_in, local_out, local_count = self._local
        same_parts(local_in, request.in_parts, signature.tree, "in_parts")
        same_parts(local_out, request.out_parts, call.out_tree, "out_parts")
        _check_local(local_count, call.count)
        compiled = _CompiledCall(call)
        with self._lock:
            while len(self._calls) >= _MOST_SIGNATURES:
                del self._calls[next(iter(self._calls))]
            return self._calls.setdefault(signature.key, compiled)


class _CompiledCall:
    """A call, compiled for its devices when it is first made."""

    def __init__(self, call: PartitionedCall) -> None:
        self.call = call

    def __call__(self, leaves: list[Any]) -> Any:
        import jax
        from jax.core import Tracer

        ins, outs, jitted = self._compiled
        if is_inside():
            return self.call.out_tree.unflatten(jitted(*leaves))
        placed = [_place(leaf, s) for leaf, s in zip(leaves, ins, strict=True)]
        results = jitted(*placed)
        if any(isinstance(r, Tracer) for r in results):
            # So that gradients come back sharded as the results are: jit takes no others.
            results = map(jax.lax.with_sharding_constraint, results, outs)
        return self.call.out_tree.unflatten(results)

    @functools.cached_property
    def _compiled(self) -> tuple[Shardings, Shardings, Callable[..., Any]]:
        import jax

        from shardviz.core.backend.bridge import abstract_mesh
        from shardviz.core.backend.devices import mesh_of

        call, devices = self.call, _devices(self.call.count)

        def sharding(partition: Partition) -> NamedSharding:
            sizes, spec = call.sizes_and_spec(partition)
            return jax.sharding.NamedSharding(mesh_of(devices, mesh_over(sizes)), spec.to_jax())

        ins, outs = tuple(map(sharding, call.in_parts)), tuple(map(sharding, call.out_parts))
        around, tree = abstract_mesh(mesh_over(call.sizes)), call.signature.tree

        def flat(*leaves: Any) -> tuple[Any, ...]:
            # Inner constraints look for the mesh here, and it is part of the key of jax's traces.
            with jax.sharding.use_abstract_mesh(around), inside():
                return tuple(jax.tree.leaves(call.body(*tree.unflatten(leaves))))

        functools.update_wrapper(flat, call.request.fun, updated=())
        del flat.__wrapped__
        return ins, outs, jax.jit(flat, in_shardings=ins, out_shardings=outs)


def _place(leaf: Any, sharding: NamedSharding) -> Any:
    import jax
    from jax.core import Tracer

    # An array may be on any devices and is moved; a traced one gets a constraint, since device_put
    # under vmap would apply the sharding to the wrong dimensions.
    if isinstance(leaf, Tracer):
        try:
            return jax.lax.with_sharding_constraint(leaf, sharding)
        except ValueError:  # a gradient at an array that is committed to other devices
            replicated = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
            moved = jax.device_put(leaf, replicated)
            return jax.lax.with_sharding_constraint(moved, sharding)
    return jax.device_put(leaf, sharding)


def _devices(count: int) -> tuple[Any, ...]:
    import jax

    from shardviz.core.backend.targets import choose, devices_of

    around = jax.sharding.get_abstract_mesh()
    if is_parts_mesh(around) and around.size != count:
        raise ProgramError(
            f"A sharded_jit over {plural(count, 'partition')} is called inside one over"
            f" {around.size:,}. Nested ones run on the same devices: give them the same product."
        )
    if jax.process_count() > 1:
        return _local_devices(count)
    try:
        return devices_of(choose(None, count))[:count]
    except TargetError as error:
        raise TargetError(
            f"This sharded_jit makes {plural(count, 'partition')}, one per device. {error}"
        ) from error


def _local_devices(count: int) -> tuple[Any, ...]:
    """The devices of this process, where there are several processes."""
    import jax

    found = tuple(jax.local_devices())
    if len(found) < count:
        raise TargetError(
            f"This sharded_jit makes {plural(count, 'partition')}, and this process has"
            f" {plural(len(found), 'device')} of {jax.device_count():,}. Across processes every one"
            " would give only its own part of the data, split as local_in_parts says; shardviz runs"
            " sharded_jit on the devices of one process. Write it with jax.jit, NamedSharding and"
            " jax.make_array_from_process_local_data, as to_modern(...) begins it."
        )
    return found[:count]


def _check_local(local_count: int | None, count: int | None) -> None:
    if local_count is not None and count is not None and local_count != count:
        raise ProgramError(
            f"local_num_partitions, or the local parts, say {plural(local_count, 'partition')} for"
            f" this process, and there are {count:,} in all. In a single process, which has all of"
            " the devices, they are the same number: leave the local_ arguments out."
        )


# Names that the code around the function defines, and the modules among them.
_TAKEN = {"jax", "np", "P", "NamedSharding", "AxisType", "Mesh", "mesh", "devices"}
_MODULES = {"jax": "jax", "np": "numpy"}


@dataclass(frozen=True)
class Source:
    """A function as code.

    Attributes:
        code: the definition.
        imports: the lines it needs before it.
    """

    code: str
    imports: str


def translated(fun: Callable[..., Any], sharding: Callable[[Partition], str]) -> Source | None:
    """The source of a plain function, with our constraints written as those of `jax.lax`.

    Args:
        fun: the function.
        sharding: from a Parts or None to the code of its sharding.

    Returns:
        The source; None where there is none, or where it needs more than imports.

    >>> translated(len, repr) is None
    True
    """
    tree = _definition(fun)
    if tree is None or getattr(fun, "__closure__", None):
        return None
    namespace = getattr(fun, "__globals__", {})
    try:
        tree = ast.fix_missing_locations(_Constraints(namespace, sharding).visit(tree))
    except _NoLiteral:
        return None
    imports = _imports(tree, namespace)
    return None if imports is None else Source(ast.unparse(tree), imports)


class _NoLiteral(Exception):
    """The parts of a constraint are no literal."""


def _definition(fun: Callable[..., Any]) -> ast.FunctionDef | None:
    if not inspect.isfunction(fun):
        return None
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(fun))).body
    except (OSError, TypeError, SyntaxError):  # typed into a shell, or an expression's part
        return None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    definition = body[0]
    if any("sharded_jit" not in ast.unparse(d) for d in definition.decorator_list):
        return None
    definition.decorator_list = []
    return definition if definition.name == fun.__name__ else None


class _Constraints(ast.NodeTransformer):
    """Rewrites our constraints as those of jax."""

    def __init__(self, namespace: dict[str, Any], sharding: Callable[[Partition], str]) -> None:
        self.namespace, self.sharding = namespace, sharding

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not self._is_ours(node.func, "with_sharding_constraint"):
            return node
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg == "parts")]
        if len(arguments) != 2 or len(node.keywords) > 1:
            raise _NoLiteral
        written = ast.parse(self.sharding(self._parts(arguments[1])), mode="eval").body
        target = ast.parse("jax.lax.with_sharding_constraint", mode="eval").body
        return ast.Call(target, [arguments[0], written], [])

    def _parts(self, node: ast.expr) -> Partition:
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if isinstance(node, ast.Call) and self._is_ours(node.func, "Parts") and not node.keywords:
            numbers = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if len(numbers) == len(node.args):
                try:
                    return Parts(*numbers)  # type: ignore[arg-type]
                except SpecError:
                    raise _NoLiteral from None
        raise _NoLiteral

    def _is_ours(self, node: ast.expr, name: str) -> bool:
        if isinstance(node, ast.Attribute):
            module = self.namespace.get(getattr(node.value, "id", ""))
            return node.attr == name and _is_shardviz(str(getattr(module, "__name__", "")))
        found = self.namespace.get(getattr(node, "id", ""))
        home = str(getattr(found, "__module__", ""))
        return getattr(found, "__name__", "") == name and _is_shardviz(home)


def _is_shardviz(module: str) -> bool:
    return module.partition(".")[0] == "shardviz"


def _imports(tree: ast.FunctionDef, namespace: dict[str, Any]) -> str | None:
    """The imports that a definition needs; None where it needs something else."""
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    bound |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    if bound & _TAKEN:
        return None
    lines = []
    for name in sorted({n.id for n in names} - bound - {"mesh", "NamedSharding", "P"}):
        value = namespace.get(name)
        if isinstance(value, ModuleType) and not _is_shardviz(value.__name__):
            if _MODULES.get(name) != value.__name__:
                lines.append(f"import {value.__name__} as {name}")
        elif name != "jax" and (name in namespace or not hasattr(builtins, name)):
            return None
    return "\n".join(lines)


_LITERALS = (bool, int, float, complex, str, bytes, type(None))


def modern_code(call: PartitionedCall) -> str:
    """The code: a mesh, the shardings, `jax.jit`, and the call, whose value is `result`.

    It contains the function's source, its constraints translated, where that needs only imports;
    otherwise it takes the function by its name.

    Raises:
        ProgramError: for containers and static arguments that have no literal.
    """
    meshes, fun = _Meshes(call), call.request.fun
    # Only legacy.with_sharding_constraint goes from one partition to another by a detour.
    needs_ours = call.indirect and call.constraints
    source = None if needs_ours else translated(fun, meshes.named_sharding)
    name = getattr(fun, "__name__", "")
    name = name if name.isidentifier() and not keyword.iskeyword(name) else "fun"
    arguments = _arguments(call, name)
    values = [arguments[i] for i in call.signature.positions]
    ins = call.request.in_parts
    every = (ins,) * len(values) if is_partition(ins) else ins
    ins = [_code(parts, meshes, "in_parts") for parts in every]
    outs = _code(call.request.out_parts, meshes, "out_parts")
    numbers = tuple(i for i, _ in call.signature.statics)
    definition = source.code if source else f"# {name} is your own function: define it above."
    jitted = name
    if call.indirect:
        definition += "\n\n\n" + _with_replicated(name, arguments, values)
        jitted, arguments, numbers = "with_replicated", values, ()
    lines = [_HEAD, *filter(None, [source and source.imports])]
    gap = ["", ""] if source or call.indirect else [""]
    lines += ["", _mesh_code(call.count, meshes.sizes), *gap, definition, *gap]
    lines += [f"in_shardings = {_tuple(ins)}", "jitted = jax.jit(", f"    {jitted},"]
    lines += ["    in_shardings=in_shardings,", f"    out_shardings={outs},"]
    lines += [f"    static_argnums={numbers!r},"] * bool(numbers) + [")"]
    if values:
        # Arrays on other devices are moved, as sharded_jit does.
        names = ", ".join(values) + "," * (len(values) == 1)
        lines += [f"{names} = jax.device_put({_tuple(values)}, in_shardings)"]
    last = f"result = jitted({', '.join(arguments)})"
    if call.constraints and not source:
        # legacy.with_sharding_constraint finds the mesh here.
        last = f"with jax.set_mesh(mesh):\n    {last}"
    return "\n".join([*lines, last]) + "\n"


def _with_replicated(name: str, arguments: Sequence[str], values: Sequence[str]) -> str:
    """A function around the function, for shardings between which XLA cannot reshard directly."""
    names = ", ".join(values) + "," * (len(values) == 1)
    take = f"    {names} = jax.tree.map(replicate, {_tuple(values)})\n" if values else ""
    return f"""\
def replicate(x):  # between two ways to split
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))


def with_replicated({", ".join(values)}):
{take}    return jax.tree.map(replicate, {name}({", ".join(arguments)}))"""


_HEAD = """\
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P"""


def _mesh_code(count: int, sizes: Sequence[tuple[int, ...]]) -> str:
    lines = [
        "try:  # simulated devices, where there are too few real ones; only before JAX starts",
        f'    jax.config.update("jax_num_cpu_devices", {count})',
        "except RuntimeError:",
        "    pass",
        f'devices = jax.devices() if jax.device_count() >= {count} else jax.devices("cpu")',
    ]
    for i, axes in enumerate(sizes):
        names = tuple(f"part{k}" for k in range(len(axes)))
        lines += [
            f"{_Meshes.name(i)} = Mesh(",
            f"    np.array(devices[:{count}]).reshape({axes!r}),",
            f"    {names!r},",
            f"    axis_types=(AxisType.Auto,) * {len(axes)},",
            ")",
        ]
    return "\n".join(lines)


class _Meshes:
    """The meshes of a call, in the order in which its code needs them."""

    def __init__(self, call: PartitionedCall) -> None:
        self.call = call
        self.sizes: list[tuple[int, ...]] = [call.sizes]

    @staticmethod
    def name(index: int) -> str:
        return "mesh" if index == 0 else f"mesh_{index + 1}"

    def named_sharding(self, partition: Partition) -> str:
        """The code of the NamedSharding that splits an array so."""
        sizes, spec = self.call.sizes_and_spec(partition)
        if sizes not in self.sizes:
            self.sizes.append(sizes)
        return f"NamedSharding({self.name(self.sizes.index(sizes))}, {spec})"


def _code(prefix: Any, meshes: _Meshes, what: str) -> str:
    """A tree of parts as the code of a tree of shardings."""
    if is_partition(prefix):
        return meshes.named_sharding(prefix)
    if type(prefix) is tuple:
        return _tuple([_code(p, meshes, what) for p in prefix])
    if type(prefix) is list:
        return f"[{', '.join(_code(p, meshes, what) for p in prefix)}]"
    if type(prefix) is dict:
        inner = (f"{_literal(k)}: {_code(v, meshes, what)}" for k, v in prefix.items())
        return f"{{{', '.join(inner)}}}"
    raise ProgramError(
        f"{what} holds a {type(prefix).__name__}, which cannot be printed as code. Use tuples,"
        " lists and dicts, or one Parts for all arrays below it."
    )


def _tuple(items: Sequence[str]) -> str:
    if not items:
        return "()"
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def _literal(value: Any) -> str:
    if type(value) is tuple:
        return _tuple([_literal(v) for v in value])
    if type(value) not in _LITERALS or value != value or value in (float("inf"), -float("inf")):
        raise ProgramError(
            f"{shown(value)} cannot be printed as code; numbers, text, None and tuples of them can."
            " Take the code of a call with such static arguments and keys."
        )
    return repr(value)


def _arguments(call: PartitionedCall, name: str) -> list[str]:
    """What the call passes: the parameter's name, or the literal of a static argument."""
    from shardviz.core.backend.arguments import unique

    taken = {*_TAKEN, name, "in_shardings", "jitted", "result", "replicate", "with_replicated"}
    taken |= {_Meshes.name(i) for i in range(1, 8)}
    static, names = dict(call.signature.statics), iter(call.signature.parameters)
    written = []
    for position in range(call.signature.total):
        if position in static:
            written.append(_literal(static[position]))
            continue
        given = next(names)
        good = given.isidentifier() and not keyword.iskeyword(given)
        written.append(unique(given if good else f"argument_{position}", taken))
        taken.add(written[-1])
    return written
