"""pair(): finds the parameter of each array in an optimizer's state.

An optimizer's state contains trees with the structure of the parameters: `mu`, `nu`,
`trace`. A subtree with the same paths as the parameters therefore has one array per
parameter. A masked optimizer omits some of these paths. If an optimizer has several
arrays per parameter (sm3), their paths start with the parameter's path.

`optax.tree_utils.tree_map_params` finds the same arrays, but needs the optimizer and
calls it again. `tests/layout` compares its results with those of `pair`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from shardviz.axis_rules.array_tree import is_optimizer_type

PARAMETERS, GRADIENTS, OPTIMIZER, OTHER = (
    "parameters",
    "gradients",
    "optimizer state",
    "other",
)
GROUPS = (PARAMETERS, GRADIENTS, OPTIMIZER, OTHER)
_STATE_KEYS = frozenset(
    ("opt_state", "opt_states", "optimizer_state", "optimizer_states", "opt")
)
_TELLING = ("opt", "params")
_PARAMETER_KEYS = ("params", "parameters", "model", "weights", "fast")
# Maximum number of prefixes stored per path suffix. A suffix with more prefixes is too
# common to show where the parameters are.
_MOST_ROOTS = 8
Path = tuple[str, ...]
# (array index, path depth) -> index of the array's parameter, or None.
_Find = Callable[[int, int], "int | None"]


class Pairs(NamedTuple):
    """The group of every array, and the position of the array's parameter or None.

    >>> pair(["params/w", "opt_state/0/count", "opt_state/0/mu/w"], [(8,), (), (8,)])
    Pairs(groups=('parameters', 'optimizer state', 'optimizer state'), partners=(None, None, 0))
    """

    groups: tuple[str, ...]
    partners: tuple[int | None, ...]


def optimizer_leaves(tree: Any) -> frozenset[int]:
    """Returns the positions of leaves that are inside optax states.

    Args:
        tree: a jax PyTreeDef.
    """
    leaves: set[int] = set()
    position = 0
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        kind_and_data = node.node_data()
        if kind_and_data is None:
            position += node.num_leaves
        elif is_optimizer_type(kind_and_data[0]):
            leaves.update(range(position, position + node.num_leaves))
            position += node.num_leaves
        else:
            nodes.extend(reversed(node.children()))
    return frozenset(leaves)


def pair_names(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]], states: Collection[int]
) -> tuple[list[str], list[str | None]] | None:
    """Returns the group and the parameter's name of every array of a program.

    Returns None if no array is in an optimizer's state.

    Args:
        names: array names such as `params.layers[0].w`.
        shapes: the shapes of the arrays.
        states: positions of arrays known to be in an optimizer's state.

    >>> pair_names(["params.w", "opt_state[0].mu.w"], [(8,), (8,)], ())
    (['parameters', 'optimizer state'], [None, 'params.w'])
    """
    if not states and not may_hold_state(names):
        return None
    paths = [re.sub(r"[.\[\]]+", "/", name).strip("/") for name in names]
    pairs = pair(paths, shapes, states)
    partners: list[str | None] = []
    for position in pairs.partners:
        partners.append(None if position is None else names[position])
    return list(pairs.groups), partners


def may_hold_state(paths: Sequence[str]) -> bool:
    """Whether any path contains `opt` or `params`; else, pairing finds nothing.

    >>> may_hold_state(["params/w"]), may_hold_state(["w", "b"])
    (True, False)
    """
    text = "\n".join(paths)
    return any(word in text for word in _TELLING)


def pair(
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    states: Collection[int] = (),
    given_partners: Mapping[int, int] | None = None,
) -> Pairs:
    """Pairs optimizer state, gradients and copies with their parameters.

    Args:
        paths: the path of every array, with segments joined by `/`.
        shapes: the shapes of the arrays.
        states: positions of arrays known to be in an optimizer's state.
        given_partners: array position -> position of its parameter, if a library
            records it.
    """
    parts = [tuple(path.split("/")) for path in paths]
    pairing = _Pairing(parts, shapes, frozenset(states), given_partners or {})
    return Pairs(tuple(pairing.groups), tuple(pairing.partners))


class _Pairing:
    """Pairs the arrays of one tree."""

    def __init__(
        self,
        parts: list[Path],
        shapes: Sequence[tuple[int, ...]],
        states: frozenset[int],
        given_partners: Mapping[int, int],
    ) -> None:
        self.parts, self.shapes = parts, shapes
        self.groups = [OTHER] * len(parts)
        self.partners: list[int | None] = [None] * len(parts)
        state, outside = [], []
        for index, path in enumerate(parts):
            # Partners that a library records take precedence over paths.
            if index in given_partners:
                self.groups[index], self.partners[index] = (
                    OPTIMIZER,
                    given_partners[index],
                )
            elif index in states or _in_state(path):
                self.groups[index] = OPTIMIZER
                state.append(index)
            else:
                outside.append(index)
        for parameter in given_partners.values():
            self.groups[parameter] = PARAMETERS
        root = self._root(outside, state)
        if root is None:
            return
        self.by_path: dict[Path, int] = {}
        beside = []
        for index in outside:
            path = parts[index]
            # If the root is empty, it is also a prefix of the gradients' paths.
            if path[: len(root)] == root and (root or not _is_gradient(path)):
                self.by_path[path[len(root) :]] = index
                self.groups[index] = PARAMETERS
            else:
                beside.append(index)
        self._pair_state(state)
        self._pair_copies(beside)

    def _root(self, outside: list[int], state: list[int]) -> Path | None:
        """Returns the path prefix of the parameters, or None if it is unknown."""
        votes = self._votes(outside, state)
        if votes:
            best = max(votes.values())
            equal = [root for root, count in votes.items() if count == best]
            return min(equal, key=_least_likely)
        arrays = [i for i in outside if self.shapes[i]]
        # If only one array is outside the state, it is the only parameter.
        if state and len(arrays) == 1:
            return self.parts[arrays[0]]
        for index in outside:
            path = self.parts[index]
            if "params" in path:
                return path[: path.index("params") + 1]
        return None

    def _votes(self, outside: list[int], state: list[int]) -> Counter[Path]:
        """Counts votes for the parameters' path prefix.

        A path in the optimizer's state votes for the prefixes of all outside paths with
        which it shares the longest suffix.
        """
        votes: Counter[Path] = Counter()
        if not state:
            return votes
        # Path suffix -> prefixes in front of it.
        roots: dict[Path, list[Path]] = {}
        for index in outside:
            path = self.parts[index]
            for begin in range(len(path)):
                before = roots.setdefault(path[begin:], [])
                if len(before) < _MOST_ROOTS:
                    before.append(path[:begin])
        for index in state:
            path = self.parts[index]
            # Try the longest suffix first.
            for begin in range(len(path)):
                if (before := roots.get(path[begin:])) is not None:
                    votes.update(dict.fromkeys(before, len(path) - begin))
                    break
        return votes

    def _pair_state(self, state: list[int]) -> None:
        for index, parameter in self._node(state, 0, self._exact).items():
            self.partners[index] = parameter
        unpaired = [i for i in state if self.partners[i] is None and self.shapes[i]]
        for index, parameter in self._node(unpaired, 0, self._below).items():
            self.partners[index] = parameter

    def _pair_copies(self, outside: list[int]) -> None:
        """Pairs trees that have one array per parameter, such as gradients."""
        parameter_count, tops = len(self.by_path), {}
        for index in outside:
            tops.setdefault(self.parts[index][0], []).append(index)
        for indices in tops.values():
            partners = self._node(indices, 0, self._exact)
            # Require all parameters, because paths such as `w` are in many trees.
            if len(set(partners.values())) < parameter_count:
                continue
            for index, parameter in partners.items():
                self.partners[index] = parameter
                if _is_gradient(self.parts[index]):
                    self.groups[index] = GRADIENTS

    def _node(self, indices: list[int], depth: int, find: _Find) -> dict[int, int]:
        """Pairs the arrays below one node of the tree.

        If the paths relative to this node give every array a parameter, these paths are
        used, unless a child node reaches more parameters with its own relative paths.
        Both nodes can match: an optax chain has the same paths as a list of parameters.

        Returns:
            Array position -> position of its parameter.
        """
        at_node: dict[int, int] = {}
        inner: dict[str, list[int]] = {}
        for index in indices:
            parameter = find(index, depth)
            if parameter is not None:
                at_node[index] = parameter
            if len(self.parts[index]) > depth:
                inner.setdefault(self.parts[index][depth], []).append(index)
        below: dict[int, int] = {}
        most_below = 0
        for indices_inside in inner.values():
            paired = self._node(indices_inside, depth + 1, find)
            most_below = max(most_below, len(set(paired.values())))
            below.update(paired)
        if len(at_node) == len(indices) and len(set(at_node.values())) >= most_below:
            return at_node
        return below

    def _exact(self, index: int, depth: int) -> int | None:
        path = self.parts[index][depth:]
        parameter = self.by_path.get(path)
        # If the parameters are a single array, its path is empty and matches any array
        # of the state, so compare the shapes.
        if (
            not path
            and parameter is not None
            and self.shapes[index] != self.shapes[parameter]
        ):
            return None
        return parameter

    def _below(self, index: int, depth: int) -> int | None:
        """Returns the parameter whose path starts the array's path, if sizes agree."""
        path = self.parts[index][depth:]
        for end in range(len(path) - 1, 0, -1):
            parameter = self.by_path.get(path[:end])
            if parameter is not None:
                # A factored moment has some of these sizes; its other sizes are 1.
                sizes = {*self.shapes[parameter], 1}
                if not sizes.issuperset(self.shapes[index]):
                    return None
                return parameter
        return None


def _in_state(path: Path) -> bool:
    if not _STATE_KEYS.isdisjoint(path[:-1]):
        return True
    # An nnx optimizer can also contain the model.
    return "optimizer" in path[:-1] and "model" not in path[path.index("optimizer") :]


def _is_gradient(path: Path) -> bool:
    return any("grad" in part.lower() for part in path)


def _least_likely(root: Path) -> tuple[bool, bool, int]:
    """Returns a sort key for path prefixes of parameters, the likeliest first."""
    last = ""
    if root:
        last = root[-1].lower()
    return _is_gradient(root), last not in _PARAMETER_KEYS, len(root)
