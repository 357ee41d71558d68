"""Message: the fields of a protocol buffer by number, without generated code.

The wire format is that of https://protobuf.dev/programming-guides/encoding: a key with
the field's number and kind, then a number, or a length and as many bytes.
"""

from __future__ import annotations

_NUMBER, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


class Message:
    """The fields of one message; what is repeated keeps its order.

    What is nested stays bytes until somebody reads it, since of a large module most
    instructions are never looked into.

    Raises:
        ValueError: where the bytes are no message, or end within a field.

    >>> Message(b"\\x08\\x07\\x12\\x02hi").number(1), Message(b"\\x12\\x02hi").text(2)
    (7, 'hi')
    """

    __slots__ = ("_fields",)

    def __init__(self, data: bytes) -> None:
        # By hand, as the classes that protoc makes would be another dependency.
        self._fields: dict[int, list[int | bytes]] = {}
        at, end = 0, len(data)
        while at < end:
            # Keys and most lengths are of one byte, which is read here: this runs often.
            key, at = data[at], at + 1
            if key > 127:
                key, at = _varint(data, at - 1)
            kind = key & 7
            if kind == _NUMBER:
                value, at = _varint(data, at)
            elif kind == _BYTES:
                size, at = data[at], at + 1
                if size > 127:
                    size, at = _varint(data, at - 1)
                value = data[at : at + size]
                at += size
                if at > end:
                    raise ValueError("The protocol buffer is cut off.")
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                size = 8 if kind == _EIGHT_BYTES else 4
                value = data[at : at + size]
                at += size
            else:
                raise ValueError(f"No protocol buffer has a field of kind {kind}.")
            self._fields.setdefault(key >> 3, []).append(value)

    def __contains__(self, field: int) -> bool:
        return field in self._fields

    def number(self, field: int, default: int = 0) -> int:
        """A number; as in protobuf the last one counts where there are several."""
        value = self._fields.get(field, (default,))[-1]
        assert isinstance(value, int)
        return value

    def bytes(self, field: int) -> bytes:
        """Text or nested message as it is written; `b""` where it is not there."""
        # What is not written has its default, and no mark that it is not there.
        value = self._fields.get(field, (b"",))[-1]
        assert isinstance(value, bytes)
        return value

    def text(self, field: int) -> str:
        """A text; `""` where it is not there."""
        return self.bytes(field).decode(errors="replace")

    def message(self, field: int) -> Message:
        """A nested message; an empty one where it is not there."""
        return Message(self.bytes(field))

    def each(self, field: int) -> list[bytes]:
        """Every text or nested message of a repeated field."""
        return [
            value for value in self._fields.get(field, ()) if isinstance(value, bytes)
        ]

    def messages(self, field: int) -> list[Message]:
        """Every message of a repeated field."""
        return [Message(data) for data in self.each(field)]

    def numbers(self, field: int) -> list[int]:
        """Every number of a repeated field, packed or not."""
        found: list[int] = []
        for value in self._fields.get(field, ()):
            # Writers may pack the numbers of a field into bytes, or not.
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                number, at = _varint(value, at)
                found.append(number)
        return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at a position, and the position behind it."""
    byte = data[at]
    if byte < 128:  # most are of one byte
        return byte, at + 1
    result, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at + 1
        shift += 7


def signed(number: int) -> int:
    """A number below zero, which the wire format writes as one above 2 ** 63.

    >>> signed(2**64 - 3), signed(5)
    (-3, 5)
    """
    return number - (1 << 64) if number >= 1 << 63 else number
