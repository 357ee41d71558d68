"""pair(), group_bytes() and differences(): parameters, gradients and optimizer state of a model.

An optimizer keeps trees of the structure of the parameters in its state: `mu`, `nu`, `trace`. So a
part of the state whose paths are those of the parameters holds one array for each of them; where an
optimizer is masked, some are missing, and where it keeps several arrays for a parameter (sm3), the
paths go on below it. `optax.tree_utils.tree_map_params` finds the same arrays by calling the
optimizer again, which takes the optimizer itself; `tests/layout` compares the two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardviz.core.format import bytes_text, fold, joined, listed, plural, shown
from shardviz.core.layout.remedies import Remedies, Remedy
from shardviz.core.layout.remedy_edits import Wish
from shardviz.core.layout.resolution import Request, kinds_of

PARAMETERS, GRADIENTS, OPTIMIZER, OTHER = "parameters", "gradients", "optimizer state", "other"
GROUPS = (PARAMETERS, GRADIENTS, OPTIMIZER, OTHER)
_STATE_KEYS = frozenset(("opt_state", "opt_states", "optimizer_state", "optimizer_states", "opt"))
_TELLING = ("opt", "params")
_PARAMETER_KEYS = ("params", "parameters", "model", "weights", "fast")
_MOST_ROOTS = 8  # of one end of a path; more say nothing of where the parameters are
#: What people call the axis of layers that `nn.scan`, `nnx.scan` or a pipeline stacks.
STACKED = frozenset(
    ("layer", "layers", "stack", "stacked", "stage", "stages", "scan", "blocks", "repeats",
     "layers_per_stage", "circular_repeats", "num_layers")
)  # fmt: skip
Path = tuple[str, ...]
_Find = Callable[[int, int], "int | None"]  # of an array and a depth


class Pairs(NamedTuple):
    """The group of every array, and the position of its parameter; None where it has none.

    >>> pair(["params/w", "opt_state/0/count", "opt_state/0/mu/w"], [(8,), (), (8,)])
    Pairs(groups=('parameters', 'optimizer state', 'optimizer state'), partners=(None, None, 0))
    """

    groups: tuple[str, ...]
    partners: tuple[int | None, ...]


def may_hold_state(paths: Sequence[str]) -> bool:
    """Whether anything is found by paths alone: it takes one of these words, and is soon said.

    >>> may_hold_state(["params/w"]), may_hold_state(["w", "b"])
    (True, False)
    """
    text = "\n".join(paths)
    return any(word in text for word in _TELLING)


def pair(
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    states: Collection[int] = (),
    known: Mapping[int, int] | None = None,
) -> Pairs:
    """Finds the parameters of a tree, its optimizer state and gradients, and pairs them.

    Args:
        paths: the path of every array, joined by `/`.
        shapes: their shapes.
        states: positions of arrays known to stand in an optimizer's state, whatever their paths.
        known: positions of arrays to positions of their parameters, where a library says it.
    """
    found = _Pairing([tuple(p.split("/")) for p in paths], shapes, frozenset(states), known or {})
    return Pairs(tuple(found.groups), tuple(found.partners))


class _Pairing:
    """The pairing of one tree."""

    def __init__(
        self,
        parts: list[Path],
        shapes: Sequence[tuple[int, ...]],
        states: frozenset[int],
        known: Mapping[int, int],
    ) -> None:
        self.parts, self.shapes = parts, shapes
        self.groups = [OTHER] * len(parts)
        self.partners: list[int | None] = [None] * len(parts)
        state = [i for i, p in enumerate(parts) if i in states or i in known or _in_state(p)]
        for index in state:
            self.groups[index] = OPTIMIZER
        held = frozenset(state)
        outside = [i for i in range(len(parts)) if i not in held]
        for index, parameter in known.items():
            self.partners[index], self.groups[parameter] = parameter, PARAMETERS
        state = [i for i in state if i not in known]
        root = self._root(outside, state)
        if root is None:
            return
        below = [i for i in outside if parts[i][: len(root)] == root]
        if not root:
            below = [i for i in below if not _is_gradient(parts[i])]
        self.by_path = {parts[i][len(root) :]: i for i in below}
        for index in below:
            self.groups[index] = PARAMETERS
        self._pair_state(state)
        chosen = frozenset(below)
        self._pair_copies([i for i in outside if i not in chosen])

    def _root(self, outside: list[int], state: list[int]) -> Path | None:
        """The path below which the parameters stand, or None where nothing says so."""
        votes = self._votes(outside, state)
        if votes:
            best = max(votes.values())
            return min((r for r, n in votes.items() if n == best), key=_least_likely)
        arrays = [i for i in outside if self.shapes[i]]
        if state and len(arrays) == 1:  # one array is all parameters there are
            return self.parts[arrays[0]]
        roots = (p[: p.index("params") + 1] for i in outside if "params" in (p := self.parts[i]))
        return next(roots, None)

    def _votes(self, outside: list[int], state: list[int]) -> Counter[Path]:
        """What stands before the longest end that a path has in common with one of the state."""
        roots: dict[Path, list[Path]] = {}
        for index in outside if state else ():
            path = self.parts[index]
            for begin in range(len(path)):
                some = roots.setdefault(path[begin:], [])
                if len(some) < _MOST_ROOTS:
                    some.append(path[:begin])
        votes: Counter[Path] = Counter()
        for index in state:
            path = self.parts[index]
            for begin in range(len(path)):
                if (some := roots.get(path[begin:])) is not None:
                    votes.update(dict.fromkeys(some, len(path) - begin))
                    break
        return votes

    def _pair_state(self, state: list[int]) -> None:
        for index, parameter in self._node(state, 0, self._exact).items():
            self.partners[index] = parameter
        rest = [i for i in state if self.partners[i] is None and self.shapes[i]]
        for index, parameter in self._node(rest, 0, self._below).items():
            self.partners[index] = parameter

    def _pair_copies(self, outside: list[int]) -> None:
        """Trees beside the parameters with one array for each of them, as gradients are."""
        wanted, tops = len(self.by_path), {}
        for index in outside:
            tops.setdefault(self.parts[index][0], []).append(index)
        for some in tops.values():
            found = self._node(some, 0, self._exact)
            if len(set(found.values())) < wanted:
                continue
            for index, parameter in found.items():
                self.partners[index] = parameter
                if _is_gradient(self.parts[index]):
                    self.groups[index] = GRADIENTS

    def _node(self, some: list[int], depth: int, find: _Find) -> dict[int, int]:
        """Array to parameter, of those below one node of the tree.

        A node is paired as one where all its arrays have parameters, unless a node inside it has
        more of them: a list of parameters has the paths of a chain of transformations.
        """
        here = {i: p for i in some if (p := find(i, depth)) is not None}
        inner: dict[str, list[int]] = {}
        for index in some:
            if len(self.parts[index]) > depth:
                inner.setdefault(self.parts[index][depth], []).append(index)
        found: dict[int, int] = {}
        most = 0
        for some_inside in inner.values():
            paired = self._node(some_inside, depth + 1, find)
            most = max(most, len(set(paired.values())))
            found.update(paired)
        return here if len(here) == len(some) and len(set(here.values())) >= most else found

    def _exact(self, index: int, depth: int) -> int | None:
        rest = self.parts[index][depth:]
        found = self.by_path.get(rest)
        # Where the parameters are one array, every array of the state has its path: none.
        if not rest and found is not None and self.shapes[index] != self.shapes[found]:
            return None
        return found

    def _below(self, index: int, depth: int) -> int | None:
        """The parameter whose path an array's path begins with, and whose sizes it has."""
        rest = self.parts[index][depth:]
        for end in range(len(rest) - 1, 0, -1):
            found = self.by_path.get(rest[:end])
            if found is not None:
                sizes = set(self.shapes[found])
                return found if all(n in sizes for n in self.shapes[index] if n != 1) else None
        return None


def _in_state(path: Path) -> bool:
    if not _STATE_KEYS.isdisjoint(path[:-1]):
        return True
    # nnx has an optimizer that holds the model, too.
    return "optimizer" in path[:-1] and "model" not in path[path.index("optimizer") :]


def _is_gradient(path: Path) -> bool:
    return any("grad" in part.lower() for part in path)


def _least_likely(root: Path) -> tuple[bool, bool, int]:
    """Sorts places where parameters may stand, the likeliest first."""
    last = root[-1].lower() if root else ""
    return _is_gradient(root), last not in _PARAMETER_KEYS, len(root)


class GroupBytes(NamedTuple):
    """What one group of arrays takes: the parameters, the optimizer state, and so on.

    Attributes:
        name: `"parameters"`, `"gradients"`, `"optimizer state"` or `"other"`.
        arrays: how many arrays there are.
        bytes: what they take together, each counted once.
        bytes_per_device: what they take on the device that holds most of them.
        copies: how many devices hold each byte, on average.
        waste: what replication costs on each device, in bytes: what is held there beyond an equal
            part of every array.
        uncounted: how many arrays nobody knows the bytes per device of: those that cannot be laid
            out, and those of which nothing says how they are split.

    >>> from shardviz.core.layout.audit import audit
    >>> one, = audit([("w", (8, 4), None)], [], "data=4").groups
    >>> one.bytes_per_device, one.copies, one.waste
    (128, 4.0, 96)
    """

    name: str
    arrays: int
    bytes: int
    bytes_per_device: int
    copies: float
    waste: int
    uncounted: int = 0

    def __str__(self) -> str:
        waste = f", {bytes_text(self.waste)} of it by replication" if self.waste else ""
        copies = "1 copy" if self.copies == 1 else f"{self.copies:,.3g} copies"
        left = f"{self.uncounted:,} of them not counted, " if self.uncounted else ""
        return (
            f"{self.name} {bytes_text(self.bytes_per_device)} ({plural(self.arrays, 'array')} of"
            f" {bytes_text(self.bytes)} in all, {left}{copies}{waste})"
        )


def on_fullest_device(rows: Iterable[Request]) -> int:
    """What rows take on the device that holds most of them, in bytes.

    Arrays in another memory, that of the host, take nothing there.
    """
    alone: Counter[int] = Counter()
    split = 0
    for row, times in kinds_of(rows):
        if row.layout is None or row.array.memory_kind is not None:
            continue
        size = row.layout.bytes_per_device * times
        if row.spec is not None:
            split += size
        else:
            alone.update(dict.fromkeys(row.layout.device_ids, size))
    return split + max(alone.values(), default=0)


def not_counted(kinds: Iterable[tuple[Request, int]]) -> str:
    """Which arrays a number of bytes leaves out, as the end of a sentence; `""` for none.

    Args:
        kinds: rows, each with the number of arrays like it.

    >>> from shardviz.core.layout.audit import audit
    >>> rows = audit([("w", (512, 8), "embed mlp")], [("embed", "nowhere")], "data=4").rows
    >>> not_counted(kinds_of(rows))
    ', not counting 1 array (16 KiB)'
    """
    left = [(row.array.bytes, times) for row, times in kinds if row.layout is None]
    if not left:
        return ""
    count = sum(times for _, times in left)
    size = bytes_text(sum(each * times for each, times in left))
    return f", not counting {plural(count, 'array')} ({size}{' in all' if count > 1 else ''})"


def group_bytes(name: str, rows: Sequence[Request]) -> GroupBytes:
    """What some rows take."""
    held, once, waste = 0, 0, 0
    for row in rows:
        if row.layout is not None:
            each = row.layout.bytes_per_device
            held += each * len(row.layout.device_ids)
            once += row.array.bytes
            if row.spec is not None and row.array.memory_kind is None:
                waste += each - each // row.layout.replicas
    size = sum(row.array.bytes for row in rows)
    copies = held / once if once else 0.0
    left = sum(row.layout is None for row in rows)
    return GroupBytes(name, len(rows), size, on_fullest_device(rows), copies, waste, left)


@dataclass(frozen=True)
class Difference:
    """How an array of the optimizer is held otherwise than its parameter.

    Attributes:
        path: the array.
        partner: its parameter.
        role: what the optimizer calls it, such as `mu`.
        kind: `"lost"` where it is split less than the parameter, `"stacked"` where that, or the
            optimizer's own shape, leaves out the axis of stacked layers, `"unknown"` where nothing
            says how it is split, `"otherwise"` where it is split over other axes, `"further"` where
            it is split more, `"dtype"` where its type is another.
        words: what differs, to be said after its path; alike for the same array of other layers.
        bytes_per_device: what it costs on each device, in bytes; negative where it saves some.

    >>> print(Difference("mu/w", "params/w", "mu", "lost", "is replicated", 2048))
    mu of 'params/w' is replicated: +2 KiB per device
    """

    path: str
    partner: str
    role: str
    kind: str
    words: str
    bytes_per_device: int = 0

    def __str__(self) -> str:
        what = f"{self.role} of {shown(self.partner, 120)} {self.words}"
        return what + _cost(self.bytes_per_device)


def _cost(size: int) -> str:
    if not size:
        return ""
    return f": {'+' if size > 0 else '−'}{bytes_text(abs(size))} per device"


def differences(rows: Iterable[Request]) -> tuple[Difference, ...]:
    """What differs between the arrays of an optimizer and their parameters, in the order of rows.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.audit import audit
    >>> tree = {"params": {"w": ArraySpec("w", (512, 8), None, spec="data")},
    ...         "opt_state": {"mu": {"w": ArraySpec("w", (512, 8))}}}
    >>> print(*audit(tree, [], "data=4").differences)
    mu of 'params/w/w' is replicated while the parameter is split P('data'): +12 KiB per device
    """
    rows = tuple(rows)
    by_path = {row.path: row for row in rows}
    found: list[Difference] = []
    for row in rows:
        parameter = None if row.partner is None else by_path.get(row.partner)
        if parameter is None or row.problem or parameter.problem:
            continue
        what = role(row)
        for one in (_split_otherwise(row, parameter), _typed_otherwise(row, parameter, what)):
            if one is not None:
                found.append(Difference(row.path, parameter.path, what, *one))
    return tuple(found)


def role(row: Request) -> str:
    """What the optimizer calls an array: `mu` of `opt_state/0/mu/w`, beside `params/w`.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> role(Request(ArraySpec("o/0/nu/a/w", (8,)), None, None, None, None, partner="p/a/w"))
    'nu'
    """
    own, other = row.path.split("/"), (row.partner or "").split("/")
    flat = "_".join(other)
    if own[-1].startswith(flat + "_"):  # as Keras names it
        return own[-1][len(flat) + 1 :]
    for end in range(len(own), 0, -1):  # sm3 has more parts below a parameter
        common = 0
        while common < min(end, len(other)) and own[end - 1 - common] == other[-1 - common]:
            common += 1
        if common and common < end:
            return own[end - common - 1]
    return own[-1]


class _Found(NamedTuple):
    """The last fields of a Difference."""

    kind: str
    words: str
    cost: int = 0


def _split_otherwise(row: Request, parameter: Request) -> _Found | None:
    """How the layout of an array differs from that of its parameter."""
    if parameter.spec is None or parameter.layout is None:
        return None
    there = f"while the parameter is split {parameter.spec}"
    if row.layout is None:
        split = parameter.layout.num_blocks > 1
        return _Found("unknown", f"is split in a way that nothing says, {there}") if split else None
    if row.shape != parameter.shape:
        return _of_another_shape(row, parameter)
    blocks, wanted = row.layout.num_blocks, parameter.layout.num_blocks
    how = "is replicated" if blocks == 1 else f"is split {row.spec}"
    lost = _lost_axes(row, parameter)
    cost = row.layout.bytes_per_device - -(-row.array.bytes // wanted)
    if blocks < wanted and (stacked := _stacked(parameter, lost)):
        words = f"is not split over {stacked}, as the parameter is ({parameter.spec})"
        return _Found("stacked", words, cost)
    if blocks < wanted:
        return _Found("lost", f"{how} {there}", cost)
    if blocks > wanted:
        return _Found("further", f"{how}, further than the parameter ({parameter.spec})", cost)
    return _Found("otherwise", f"{how} {there}: every step moves one of them") if lost else None


def _dims(row: Request) -> tuple[tuple[str, ...], ...]:
    """The mesh axes of each dimension; none where its sharding names none."""
    dims = () if row.spec is None else row.spec.dims
    return dims + ((),) * (len(row.shape) - len(dims))


def _parts(axes: Iterable[str], row: Request) -> int:
    """Into how many parts axes of the mesh split a dimension."""
    assert row.layout is not None
    return math.prod(row.layout.mesh.shape.get(axis, 1) for axis in axes)


def _lost_axes(row: Request, parameter: Request) -> dict[int, list[str]]:
    """Dimension to the axes that split it in the parameter alone."""
    pairs = zip(_dims(row), _dims(parameter), strict=True)
    lost = {
        dim: [a for a in theirs if a not in mine and _parts((a,), parameter) > 1]
        for dim, (mine, theirs) in enumerate(pairs)
    }
    return {dim: axes for dim, axes in lost.items() if axes}


def _stacked(parameter: Request, lost: Mapping[int, list[str]]) -> str:
    """The axis of stacked layers, where that alone is not split as in the parameter."""
    names = dict(enumerate(parameter.names or ()))
    if len(lost) != 1 or names.get(dim := next(iter(lost))) not in STACKED:
        return ""
    return f"{listed(lost[dim])} along dimension {dim} ({shown(names[dim])}, the stacked layers)"


def _of_another_shape(row: Request, parameter: Request) -> _Found | None:
    """What a factored moment leaves out of its parameter's dimensions, and of its sharding."""
    kept = _kept_dimensions(row.shape, parameter.shape)
    if kept is None or not any(n > 1 for n in row.shape):  # of other sizes, or a placeholder
        return None
    shapes = f"has shape {list(row.shape)} beside {list(parameter.shape)}"
    for dim, name in enumerate(parameter.names or ()):
        if dim not in kept and name in STACKED:
            axis = f"{shown(name)}, the stacked layers (dimension {dim})"
            return _Found("stacked", f"{shapes}, without {axis}: the layers share it")
    dims = _dims(parameter)
    counts = [_parts(dims[d], parameter) for d in kept]
    wanted = math.prod(c for c, n in zip(counts, row.shape, strict=True) if n % c == 0)
    assert row.layout is not None
    blocks = row.layout.num_blocks
    if blocks >= wanted:
        return None
    how = "is replicated" if blocks == 1 else f"is split {row.spec}"
    cost = row.layout.bytes_per_device - -(-row.array.bytes // wanted)
    return _Found("lost", f"{shapes} and {how} while the parameter is split {parameter.spec}", cost)


def _kept_dimensions(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[int] | None:
    """Which dimensions of the parameter a factored array has, in order; None where it has others.

    >>> _kept_dimensions((4, 16), (4, 8, 16)), _kept_dimensions((5,), (4, 8))
    ([0, 2], None)
    """
    kept: list[int] = []
    begin = 0
    for size in shape:
        found = next((d for d in range(begin, len(whole)) if whole[d] == size), None)
        if found is None:
            return None
        kept.append(found)
        begin = found + 1
    return kept


def with_names_of_parameter(row: Request, want: Any) -> Remedies | None:
    """The remedy for an array of an optimizer that lost its names; None where it is no such array.

    Names are lost where an optimizer is given bare arrays in place of flax's boxes.

    Args:
        row: of an audit.
        want: what is wanted, as `shardviz.remedies` reads it.

    >>> from shardviz.core.layout.audit import audit
    >>> w, moment = ((512, 8), "embed mlp"), ((512, 8), None)
    >>> tree = {"params": {"w": w}, "opt_state": {"mu": {"w": moment}}}
    >>> rows = audit(tree, [("embed", "data")], "data=4").rows
    >>> print(with_names_of_parameter(rows[1], "split")[0].spec)
    P('data', None)
    """
    audit = row.audit
    if audit is None or row.partner is None or row.by_path is not None:
        return None
    by_path = {r.path: r for r in audit.rows}
    mine = _unnamed_beside(row, by_path)
    if mine is None:
        return None
    wish = Wish.of(want, mine.names, audit.mesh, audit.dialect)
    if not wish.met(mine.spec, mine.layout):
        return None
    others, saved = [], _saved(row, mine)
    for other in audit.rows:
        parameter = None if other is row else _unnamed_beside(other, by_path)
        if parameter is not None and not parameter.spec.equivalent(other.spec):
            others.append(other.path)
            saved += _saved(other, parameter)
    edit = (
        f"Make the optimizer's state from parameters that have their names"
        f" ({joined(map(shown, mine.names))} for {row.path}), not from bare arrays"
    )
    remedy = Remedy(
        edit, audit.rules, mine.names, row.shape, mine.spec, _saved(row, mine), saved,
        tuple(others),
    )  # fmt: skip
    return Remedies((remedy,), wish.words(row.path), row.path)


def _unnamed_beside(row: Request, by_path: Mapping[str, Request]) -> Any:
    """The row of the parameter of an array without names, where its names would do for both."""
    if row.partner is None or row.names is not None or row.spec_wins or row.layout is None:
        return None
    found = by_path.get(row.partner)
    if found is None or found.names is None or found.spec_wins or found.shape != row.shape:
        return None
    return None if found.layout is None else found


def _saved(row: Request, parameter: Request) -> int:
    """What an array takes less per device that is split as its parameter."""
    assert row.layout is not None
    assert parameter.layout is not None
    each = row.array.bytes // parameter.layout.num_blocks
    return row.layout.bytes_per_device - each


_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
_SQUARES = frozenset(("nu", "v", "velocity", "exp_avg_sq", "sum_of_squares", "nu_max"))


def _typed_otherwise(row: Request, parameter: Request, what: str) -> _Found | None:
    """A difference of types that costs memory or precision."""
    mine, theirs = _BITS.get(row.dtype), _BITS.get(parameter.dtype)
    if mine is None or theirs is None or row.layout is None or not any(n > 1 for n in row.shape):
        return None
    if mine < 32 and what in _SQUARES:
        return _Found("dtype", f"is {row.dtype}: small steps of a mean of squares round to nothing")
    if mine <= theirs:
        return None
    cost = row.layout.bytes_per_device * (mine - theirs) // mine
    return _Found("dtype", f"is {row.dtype} while the parameter is {parameter.dtype}", cost)


_RANK = ("lost", "stacked", "unknown", "otherwise", "dtype", "further")


def difference_lines(found: Iterable[Difference]) -> list[str]:
    """One line for what differs alike in all layers: what was lost first, then by what it costs.

    >>> two = [Difference(f"mu/{n}/w", f"p/{n}/w", "mu", "lost", "is lost", 1024) for n in (0, 1)]
    >>> print(*difference_lines(two))
    mu of 2 parameters (p/{0..1}/w) is lost: +2 KiB per device
    """
    alike: dict[tuple[str, str, str], list[Difference]] = {}
    for one in found:
        alike.setdefault((one.kind, one.role, one.words), []).append(one)
    lines = []
    for (kind, what, words), some in alike.items():
        names = [f.name for f in fold((o.partner for o in some), str)]
        whose = f"{plural(len(some), 'parameter')} ({joined(names, limit=5)})"
        cost = sum(o.bytes_per_device for o in some)
        line = str(some[0]) if len(some) == 1 else f"{what} of {whose} {words}{_cost(cost)}"
        lines.append((_RANK.index(kind), -cost, line))
    return [line for _, _, line in sorted(lines)]
