"""Pairs the items of two collections by key, and lists the gone and the new items.

Every comparison of two tables, plans, locks, signatures or stages starts here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Old = TypeVar("Old")
New = TypeVar("New")


@dataclass(frozen=True)
class Pairing(Generic[Old, New]):
    """The items of two collections, paired.

    Attributes:
        paired: pairs of items with equal keys, in the order of the first collection.
        gone: the unpaired items of the first collection, in order.
        new: the unpaired items of the second collection, in order.
    """

    paired: tuple[tuple[Old, New], ...]
    gone: tuple[Old, ...]
    new: tuple[New, ...]


def pair(
    before: Iterable[Old],
    after: Iterable[New],
    key: Callable[[Old], Hashable],
    key_after: Callable[[New], Hashable],
    fits: Callable[[Old, New], bool] | None = None,
) -> Pairing[Old, New]:
    """Pairs each item of `before` with the first unpaired item of `after` that fits.

    Args:
        before, after: the items. A key may occur several times.
        key: the key of an item of `before`; an item whose key is None has no partner.
        key_after: the key of an item of `after`.
        fits: returns whether two items with equal keys may be paired; None if all may.

    >>> pair(["a1", "b1", "a2"], ["a3", "c3"], lambda s: s[0], lambda s: s[0])
    Pairing(paired=(('a1', 'a3'),), gone=('b1', 'a2'), new=('c3',))
    """
    unpaired: dict[int, New] = dict(enumerate(after))
    positions: dict[Hashable, list[int]] = defaultdict(list)
    for position, item in unpaired.items():
        positions[key_after(item)].append(position)
    paired: list[tuple[Old, New]] = []
    gone: list[Old] = []
    for item in before:
        item_key = key(item)
        candidates = positions.get(item_key, []) if item_key is not None else []
        for position in candidates:
            if fits is None or fits(item, unpaired[position]):
                candidates.remove(position)
                paired.append((item, unpaired.pop(position)))
                break
        else:
            gone.append(item)
    return Pairing(tuple(paired), tuple(gone), tuple(unpaired.values()))


def pair_names(before: Mapping[K, object], after: Mapping[K, object]) -> Pairing[K, K]:
    """Pairs the keys of two mappings; both members of a pair are the same key.

    >>> pair_names({"x": 1, "y": 2}, {"y": 3, "z": 4})
    Pairing(paired=(('y', 'y'),), gone=('x',), new=('z',))
    """
    return pair(before, after, lambda name: name, lambda name: name)
