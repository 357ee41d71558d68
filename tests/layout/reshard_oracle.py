"""A reshard counted element by element with numpy, from mesh and spec alone.

It uses no Layout: every device gets a boolean array of the elements that it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Side:
    """One side of a reshard.

    Attributes:
        shape: of the array.
        axes: name and size of each mesh axis.
        ids: the device ids, in the shape of the mesh.
        dims: for each dimension of the array its mesh axes, major to minor.
    """

    shape: tuple[int, ...]
    axes: dict[str, int]
    ids: np.ndarray
    dims: tuple[tuple[str, ...], ...]

    def held(self) -> dict[int, np.ndarray]:
        """Device id to bool [*shape]: the elements that it holds."""
        masks = {}
        for coordinates in np.ndindex(*self.axes.values()):
            at = dict(zip(self.axes, coordinates, strict=True))
            mask = np.ones(self.shape, bool)
            for dim, names in enumerate(self.dims):
                block, blocks = 0, 1
                for name in names:
                    block = block * self.axes[name] + at[name]
                    blocks *= self.axes[name]
                which = np.arange(self.shape[dim]) * blocks // self.shape[dim]
                outside = [slice(None)] * len(self.shape)
                outside[dim] = which != block
                mask[tuple(outside)] = False
            masks[int(self.ids[coordinates])] = mask
        return masks


def check_sends(before: Side, after: Side, hosts: dict[int, int], sends: np.ndarray) -> str:
    """Asserts what the rule says of every send of one array; returns the kind.

    Args:
        before, after: both sides.
        hosts: device id to host.
        sends: int64 [pairs, 3]: ids of sender and receiver, elements.
    """
    old, new = before.held(), after.held()
    listed = {(source, target): amount for source, target, amount in sends.tolist()}
    assert len(listed) == len(sends)
    expected = 0
    # By block, whether it comes from the same host, and the devices that may send it.
    turns: dict[tuple[bytes, bool, frozenset[int]], Counter[int]] = {}
    chunks, whole_old, whole_new = [], [], []
    for target, needs in new.items():
        mine = old.get(target)
        blocks = {mask.tobytes(): mask for mask in old.values()}
        for key, block in blocks.items():
            shared = int((block & needs).sum())
            if shared == 0 or (mine is not None and key == mine.tobytes()):
                continue
            holders = {device for device, mask in old.items() if mask.tobytes() == key}
            near = {device for device in holders if hosts[device] == hosts[target]}
            senders = [device for device in holders if (device, target) in listed]
            assert len(senders) == 1, "each block comes from one device"
            assert senders[0] in (near or holders), "from the same host where possible"
            assert listed[senders[0], target] == shared
            expected += 1
            pool = frozenset(near or holders)
            turns.setdefault((key, bool(near), pool), Counter())[senders[0]] += 1
            chunks.append(shared)
            whole_old.append(shared == int(block.sum()))
            whole_new.append(shared == int(needs.sum()))
    assert expected == len(listed)
    for (*_, pool), counts in turns.items():
        often = [counts[device] for device in pool]
        assert max(often) - min(often) <= 1, "they take turns"
    if not chunks:
        return ""
    if old.keys() != new.keys():
        return "copy"
    if all(whole_new):
        return "collective-permute"
    return "all-gather" if all(whole_old) else "all-to-all"


def same_blocks(before: Side, after: Side) -> bool:
    """Whether every device holds the same elements on both sides."""
    old, new = before.held(), after.held()
    return old.keys() == new.keys() and all((old[d] == new[d]).all() for d in old)


def peaks(
    arrays: Sequence[tuple[Side, Side, int]],
) -> tuple[dict[int, int], dict[int, int], int, int]:
    """Bytes before and after by device id; the peaks without and with donation.

    Args:
        arrays: both sides of each and the bytes of an element, in the order in which
            they move.
    """
    before, after, kept = Counter[int](), Counter[int](), Counter[int]()
    sizes = []
    for old, new, width in arrays:
        moves = not same_blocks(old, new)
        held_before = {d: int(m.sum()) * width for d, m in old.held().items()}
        held_after = {d: int(m.sum()) * width for d, m in new.held().items()}
        before.update(held_before)
        after.update(held_after)
        kept.update(held_before)
        if moves:
            kept.update(held_after)
        sizes.append((held_before, held_after, moves))
    now, most = Counter(before), max(before.values(), default=0)
    for held_before, held_after, moves in sizes:
        if moves:
            now.update(held_after)
            most = max(most, *now.values())
            now.subtract(held_before)
    return dict(before), dict(after), max(kept.values(), default=0), most
