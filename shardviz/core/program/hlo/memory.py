"""What a program needs on each device against what the device has, in one sentence. Pure."""

from __future__ import annotations

from shardviz.core.errors import bytes_text
from shardviz.core.program.report import Memory

_ROUNDING = 0.005


def needed(memory: Memory) -> int | None:
    """Bytes that the program takes on each device; None where the compiler said nothing.

    Arguments, outputs and temporaries, and the code where it lives on the device; an output that
    stands where a donated argument stood counts once.

    >>> needed(Memory(arguments=100, outputs=40, temporaries=5, aliased=40)), needed(Memory())
    (105, None)
    """
    given = [n for n in _parts(memory).values() if n is not None]
    return sum(given) - (memory.aliased or 0) if given else None


def capacity_words(memory: Memory) -> str:
    """What is needed on each device, whether it fits, and what takes the most; `""` where the
    compiler said nothing.

    >>> gib = 1 << 30
    >>> capacity_words(Memory(arguments=20 * gib, temporaries=28 * gib, capacity=16 * gib))
    'It needs 48 GiB on each device and a device has 16 GiB: 3 times over. Most of it, 28 GiB, is \
temporaries.'
    """
    total = needed(memory)
    if total is None:
        return ""
    words = f"It needs {bytes_text(total)} on each device{_against(total, memory.capacity)}"
    if total:
        words += f" Most of it, {_largest(memory)}."
    if beside := host_bytes(memory):
        words += f" Beside that, {bytes_text(beside)} a device lie in the memory of the host."
    return words


def host_bytes(memory: Memory) -> int:
    """Bytes that the program keeps for each device in the memory of the host.

    >>> host_bytes(Memory(arguments=100, host_arguments=40)), host_bytes(Memory())
    (40, 0)
    """
    parts = (memory.host_arguments, memory.host_outputs, memory.host_temporaries)
    return sum(part or 0 for part in parts)


def _against(total: int, capacity: int | None) -> str:
    if capacity is None:
        return "; how much a device has is not known."
    has = f" and a device has {bytes_text(capacity)}"
    if total > capacity:
        if not capacity:
            return f"{has}: it does not fit."
        times = total / capacity
        # 1.00 times over would read as if it fitted.
        return f"{has}: {max(times, 1 + _ROUNDING * 2):.3g} times over."
    return f"{has}: it fits, and takes {_percent(total, capacity)} of it."


def _percent(total: int, capacity: int) -> str:
    share = 100 * total / max(capacity, 1)
    return "less than 1 %" if share < 1 else f"{share:.0f} %"


def _largest(memory: Memory) -> str:
    parts = {word: size or 0 for word, size in _parts(memory).items()}
    word = max(parts, key=lambda w: parts[w])
    return f"{bytes_text(parts[word])}, is {word}"


def _parts(memory: Memory) -> dict[str, int | None]:
    return {
        "arguments": memory.arguments,
        "outputs": memory.outputs,
        "temporaries": memory.temporaries,
        "code": memory.generated_code,
    }
