"""Templates: the text of every tile as data, so that Python and the page make the same words.

A text inside a tile, or its tooltip, is a tuple of parts: plain words, and slots that are filled
per tile from a number of that tile. 65,536 tooltips cost as much as one: none is made before
somebody points at its tile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

INDEX, GROUP, DEVICE, DEVICES, PEERS = "index", "group", "device", "devices", "peers"
RESERVED = (INDEX, GROUP, DEVICE, DEVICES, PEERS)


@dataclass(frozen=True)
class Slot:
    """A number of a tile, or its word: `words[n]`, `n = value // divide % modulo * times + plus`.

    Coordinates in a mesh, numbers of blocks and the bounds of boxes are all mixed-radix digits
    of the tile's place or group, so this one formula says them.

    Attributes:
        of: where the value comes from: `"index"` (the tile's own number), `"group"`, `"device"`,
            or the name of one of the tiles' columns. `"devices"` is the list of device ids that
            the tile stands for, and `"peers"` that of the other tiles of its group; these two
            are written by `ids_text` and know nothing of the formula.
        modulo: 0 leaves the value as it is.
        words: what the numbers mean; empty for the number itself.
        limit: for `"devices"` and `"peers"`, the letters there is room for; 0 for no limit.

    >>> Slot("group", divide=2, modulo=4, times=16).number(7)
    48
    """

    of: str
    divide: int = 1
    modulo: int = 0
    times: int = 1
    plus: int = 0
    words: tuple[str, ...] = ()
    limit: int = 0

    def number(self, value: int) -> int:
        """What the formula makes of `value`."""
        value //= self.divide
        if self.modulo:
            value %= self.modulo
        return value * self.times + self.plus

    def word(self, value: int) -> str:
        """The number, or the word it stands for."""
        number = self.number(value)
        return self.words[number] if self.words else str(number)


Template = tuple[str | Slot, ...]


def worded(texts: Iterable[str]) -> Template:
    """The template of tiles that each have a text of their own.

    >>> worded(["a", "b"])[0].word(1)
    'b'
    """
    return (Slot(INDEX, words=tuple(texts)),)


def coordinates(names: Iterable[str], sizes: Iterable[int], joint: str = ", ") -> Template:
    """`data 1, model 0`: the place of tile number i in a row-major grid.

    >>> [p if isinstance(p, str) else p.word(3) for p in coordinates(["data", "model"], [4, 2])]
    ['data ', '1', ', ', 'model ', '1']
    """
    parts: list[str | Slot] = []
    pairs = list(zip(names, sizes, strict=True))
    stride = 1
    for name, size in reversed(pairs):
        slot = Slot(INDEX, divide=stride, modulo=size)
        parts = [f"{name} ", slot, *([joint] if parts else []), *parts]
        stride *= size
    return tuple(parts)


def box(counts: Iterable[int], steps: Iterable[int], of: str = GROUP) -> Template:
    """`[0:512, 1024:2048]`: the box of a block, from its row-major number.

    >>> [p if isinstance(p, str) else p.word(1) for p in box([1, 2], [512, 1024])]
    ['[', '0', ':', '512', ', ', '1024', ':', '2048', ']']
    """
    parts: list[str | Slot] = []
    stride = 1
    for count, step in reversed(list(zip(counts, steps, strict=True))):
        start = Slot(of, stride, count, step)
        stop = Slot(of, stride, count, step, step)
        parts = [start, ":", stop, *([", "] if parts else []), *parts]
        stride *= count
    return ("[", *parts, "]")
