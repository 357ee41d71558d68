"""What the processes of a run must agree on, and in words which of them differs.

Every process of `jax.distributed` runs the same script. Where one of them runs another program, has
another mesh or other values, the others wait for it in a collective, or get wrong numbers: jax does
not compare. Each process describes what it is about to do (`Account`), and `difference` finds the
first thing that is not the same in all.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardviz.core.format import ids_text, joined, plural
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.process_rows import process_rows, ranges_text

_MOST = 2  # collectives that a sentence names
_SAME_SCRIPT = "Every process must run the same script"


@dataclass(frozen=True)
class Account:
    """What one process is about to do.

    Attributes:
        process: its index.
        call: the call, `"sv.run('step')"`.
        versions: of jax and jaxlib.
        platform: the kind of its devices, and their driver.
        mesh: the axes of the mesh.
        devices: the device ids, in mesh order.
        arguments: name to type, shape and spec.
        options: compiler options, donation, and how often to run.
        program: the fingerprint of the lowered program.
        values: name to a digest of a value that all processes must give alike; of an array over
            several processes, the digest of every shard that another process holds too, by its
            indices.
        line: the line of the user's script that called, where known.

    >>> Account.read(Account(1, "sv.run('step')").text).process
    1
    """

    process: int
    call: str
    versions: str = ""
    platform: str = ""
    mesh: str = ""
    devices: tuple[int, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    options: str = ""
    program: str = ""
    values: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    line: str = ""

    @property
    def text(self) -> str:
        """The account as JSON, to be sent to the other processes."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Account:
        """The account that another process sent."""
        fields = json.loads(text)
        return cls(**{**fields, "devices": tuple(fields["devices"])})


@dataclass(frozen=True)
class Difference:
    """The first thing that processes do not agree on.

    Attributes:
        what: the field of Account that differs.
        sentence: which process differs, how, and what to do.
        odd: the processes that differ.
        others: those that they are compared with.

    >>> Difference("mesh", "Process 1 has the mesh data=4.", (1,), (0,)).odd
    (1,)
    """

    what: str
    sentence: str
    odd: tuple[int, ...]
    others: tuple[int, ...]


def difference(accounts: Sequence[Account]) -> Difference | None:
    """What the processes do not agree on first; None where they agree.

    >>> accounts = [Account(i, "sv.run('step')", mesh="data=8") for i in range(3)]
    >>> difference([*accounts, Account(3, "sv.run('step')", mesh="data=4, model=2")]).sentence
    'Process 3 has the mesh data=4, model=2, and the others have data=8. Make the same mesh in \
every process.'
    """
    for what, words in _WORDS.items():
        found = _odd([(a.process, getattr(a, what)) for a in accounts])
        if found is not None:
            by_process = {a.process: a for a in accounts}
            odd, others = by_process[found[0][0]], by_process[found[1][0]]
            return Difference(what, words(_Names(*found), odd, others), *found)
    for name in sorted(set(itertools.chain.from_iterable(a.values for a in accounts))):
        if different := _other_values(name, accounts):
            return different
    return None


def _odd(values: Sequence[tuple[int, Any]]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The processes of the first value that is not that of most, and those of most."""
    groups: dict[str, list[int]] = {}
    for process, value in sorted(values, key=lambda pair: pair[0]):
        groups.setdefault(json.dumps(value), []).append(process)
    if len(groups) < 2:
        return None
    most, *rest = sorted(groups.values(), key=len, reverse=True)  # of equal ones the first
    return tuple(rest[0]), tuple(most)


class _Names:
    """How a sentence calls the processes that differ, and the others."""

    def __init__(self, odd: tuple[int, ...], others: tuple[int, ...]) -> None:
        self.odd, self.others = processes(odd), "the others"
        self.has = "has" if len(odd) == 1 else "have"
        self.its = "its" if len(odd) == 1 else "their"
        self.it = "it" if len(odd) == 1 else "they"
        self.have = "have"
        if len(others) == 1:
            self.others, self.have = processes(others).lower(), "has"

    @property
    def differ(self) -> str:
        """The beginning of a sentence: `Process 1 has`."""
        return f"{self.odd} {self.has}"


def processes(numbers: Iterable[int]) -> str:
    """Processes as a sentence begins with them.

    >>> processes([1]), processes([0, 2]), processes(range(64))
    ('Process 1', 'Processes 0 and 2', 'Processes 0–63')
    """
    found = sorted(numbers)
    if len(found) == 1:
        return f"Process {found[0]}"
    return f"Processes {joined(found) if len(found) < 4 else ids_text(found)}"


def _call(names: _Names, odd: Account, others: Account) -> str:
    where = f" ({odd.line})" if odd.line else ""
    there = f" ({others.line})" if others.line else ""
    verb = "is" if names.has == "has" else "are"
    theirs = "is" if names.have == "has" else "are"
    return (
        f"{names.odd} {verb} at {odd.call}{where}, and {names.others} {theirs} at"
        f" {others.call}{there}. {_SAME_SCRIPT}, with the same calls in the same order: look for a"
        " branch on jax.process_index() or on data that one process has."
    )


def _versions(names: _Names, odd: Account, others: Account) -> str:
    return (
        f"{names.differ} {odd.versions}, and {names.others} {names.have} {others.versions}. Install"
        " the same versions for every process."
    )


def _platform(names: _Names, odd: Account, others: Account) -> str:
    return (
        f"{names.differ} devices of {odd.platform}, and {names.others} {names.have}"
        f" {others.platform}. One program runs on devices of one kind."
    )


def _mesh(names: _Names, odd: Account, others: Account) -> str:
    return (
        f"{names.differ} the mesh {odd.mesh}, and {names.others} {names.have} {others.mesh}. Make"
        " the same mesh in every process."
    )


def _devices(names: _Names, odd: Account, others: Account) -> str:
    return (
        f"{names.differ} the devices of the mesh in the order {joined(odd.devices, limit=8)},"
        f" and {names.others} {names.have} {joined(others.devices, limit=8)}. Make the mesh from"
        " jax.devices() in the same order in every process; jax.make_mesh does."
    )


def _arguments(names: _Names, odd: Account, others: Account) -> str:
    every = [*others.arguments, *(n for n in odd.arguments if n not in others.arguments)]
    for name in every:
        here, there = odd.arguments.get(name, ""), others.arguments.get(name, "")
        if here and there and here != there:
            return (
                f"{names.differ} {name} as {here}, and {names.others} {names.have} {there}. {_SAME}"
                f" {_of_arrays(here, there)}"
            )
        if here != there:
            which = "an argument" if here else "no argument"
            return f"{names.differ} {which} {name}, unlike {names.others}. {_SAME_SCRIPT}."
    return (
        f"{names.differ} the arguments in another order than {names.others}:"
        f" {joined(odd.arguments)} instead of {joined(others.arguments)}. {_SAME_SCRIPT}."
    )


_SAME = "Arrays must have the same shape, dtype and spec in every process."


def _of_arrays(here: str, there: str) -> str:
    """What to do about an argument of another type, shape or spec."""
    (left, _, spec), (right, _, other) = here.partition(" as "), there.partition(" as ")
    if spec != other:
        return "Look for a spec or rules that depend on the process."
    if left.partition("[")[0] != right.partition("[")[0]:
        return (
            "Where jax.make_array_from_process_local_data made it, the local data has another"
            " dtype there: convert it with .astype."
        )
    return (
        "Where jax.make_array_from_process_local_data made it, the local batch has another size"
        " there: give every process as many rows as sv.process_rows says."
    )


def _options(names: _Names, odd: Account, others: Account) -> str:
    return (
        f"{names.differ} {odd.options}, and {names.others} {names.have} {others.options}."
        f" {_SAME_SCRIPT}, with the same options."
    )


def _program(names: _Names, odd: Account, others: Account) -> str:
    return f"{names.odd} {_runs(names)} another program than {names.others}. {_SAME_PROGRAM}"


def _runs(names: _Names) -> str:
    return "runs" if names.has == "has" else "run"


_SAME_PROGRAM = (
    "Every process must run the same program, else they wait for one another or compute wrong"
    " numbers: look for what depends on jax.process_index(), on files of one process, or on random"
    " numbers without a fixed seed."
)
_WORDS: dict[str, Callable[[_Names, Account, Account], str]] = {
    "call": _call,
    "versions": _versions,
    "platform": _platform,
    "mesh": _mesh,
    "devices": _devices,
    "arguments": _arguments,
    "options": _options,
    "program": _program,
}


def _other_values(name: str, accounts: Sequence[Account]) -> Difference | None:
    given = [(a.process, a.values.get(name, "")) for a in accounts]
    kinds = _odd([(p, isinstance(v, str)) for p, v in given])
    if kinds is not None:
        names = _Names(*kinds)
        local = isinstance(dict(given)[kinds[0][0]], str)
        own, spread = "a value of its own", "an array over several processes"
        sentence = (
            f"{names.odd} {_gives(names)} {own if local else spread} for {name}, and {names.others}"
            f" {spread if local else own}. Give the same in every process."
        )
        return Difference("values", sentence, *kinds)
    if not isinstance(given[0][1], str):
        return _other_shards(name, [(p, v) for p, v in given if not isinstance(v, str)])
    if (found := _odd(given)) is None:
        return None
    names = _Names(*found)
    sentence = (
        f"{names.odd} {_gives(names)} other values for {name} than {names.others}. A numpy array, a"
        f" number or an array on devices of one process stands for all of {name} and must be the"
        " same in every process. Where each process has rows of its own, make the array with"
        " jax.make_array_from_process_local_data."
    )
    return Difference("values", sentence, *found)


def _other_shards(name: str, given: Sequence[tuple[int, Mapping[str, str]]]) -> Difference | None:
    """A difference between processes that hold the same shard of an array."""
    for index in sorted(set(itertools.chain.from_iterable(v for _, v in given))):
        found = _odd([(p, v[index]) for p, v in given if index in v])
        if found is not None:
            names = _Names(*found)
            theirs = names.others if len(found[1]) == 1 else processes(found[1]).lower()
            sentence = (
                f"{names.odd} {'holds' if names.has == 'has' else 'hold'} other values of"
                f" {name}[{index}] than {theirs}, and all of them hold that shard. Processes with"
                " the same shards must give the same local data: sv.process_rows says which rows"
                " every process loads."
            )
            return Difference("values", sentence, *found)
    return None


def _gives(names: _Names) -> str:
    return "gives" if names.has == "has" else "give"


@dataclass(frozen=True)
class ProgramDetails:
    """What a program consists of, as one process sends it where programs differ.

    Attributes:
        operations: name, type of the result, source line and a digest of the parameters.
        collectives: kind, mesh axes and source line, as the partitioner put them in; None where
            that is not known.
        constants: type and digest of the arrays that the function closes over.

    >>> ProgramDetails.read(ProgramDetails((("sin", "f32[8]", "f.py:3", ""),)).text).operations
    (('sin', 'f32[8]', 'f.py:3', ''),)
    """

    operations: tuple[tuple[str, str, str, str], ...]
    collectives: tuple[tuple[str, str, str], ...] | None = None
    constants: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The details as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> ProgramDetails:
        """The details that another process sent."""
        made: dict[str, Any] = {
            name: None if some is None else tuple(map(tuple, some))
            for name, some in json.loads(text).items()
        }
        return cls(**made)


def program_difference(
    found: Difference, odd: ProgramDetails, others: ProgramDetails
) -> Difference:
    """A difference of programs, with what differs in them.

    >>> sums = ProgramDetails((("reduce_sum", "f32[]", "train.py:25", ""),))
    >>> twice = ProgramDetails((("mul", "f32[8]", "train.py:27", ""),))
    >>> found = Difference("program", "", (1,), (0, 2, 3))
    >>> program_difference(found, twice, sums).sentence[:86]
    'Process 1 runs another program than the others: at train.py:27 it has mul instead of r'
    """
    names = _Names(found.odd, found.others)
    parts = [
        *_collective_words(names, odd.collectives, others.collectives),
        *_operation_words(names, odd, others),
    ]
    what = joined(parts) or "something else than its operations differs in the lowered program"
    sentence = f"{names.odd} {_runs(names)} another program than {names.others}: {what}."
    return Difference("program", f"{sentence} {_SAME_PROGRAM}", found.odd, found.others)


def _collective_words(
    names: _Names,
    odd: Sequence[tuple[str, str, str]] | None,
    others: Sequence[tuple[str, str, str]] | None,
) -> list[str]:
    if odd is None or others is None:
        return []
    missing, extra = Counter(others) - Counter(odd), Counter(odd) - Counter(others)
    words = [f"{names.it} {names.has} no {_collective(one)}" for one in list(missing)[:_MOST]]
    more = [f"{names.it} {names.has} an {_collective(one)} more" for one in list(extra)[:_MOST]]
    return words + [w.replace(" an collective", " a collective").replace(
        " an reduce", " a reduce") for w in more]  # fmt: skip


def _collective(one: tuple[str, str, str]) -> str:
    kind, axes, line = one
    return kind + (f" over {axes}" if axes else "") + (f" at {line}" if line else "")


def _operation_words(names: _Names, odd: ProgramDetails, others: ProgramDetails) -> list[str]:
    here, there = list(odd.operations), list(others.operations)
    while here and there and here[-1] == there[-1]:
        del here[-1], there[-1]
    same = len(list(itertools.takewhile(lambda p: p[0] == p[1], zip(here, there, strict=False))))
    here, there = here[same:], there[same:]
    if here and there:
        (name, type_, line, _), (other, other_type, other_line, _) = here[0], there[0]
        if (name, type_, line) == (other, other_type, other_line):
            return [f"{_at(line)}{names.its} {name} has other parameters"]
        if (name, line) == (other, other_line):
            return [f"{_at(line)}{names.its} {name} gives {type_} instead of {other_type}"]
        at = f" ({other_line})" if other_line and other_line != line else ""
        return [f"{_at(line)}{names.it} {names.has} {name} instead of {other}{at}"]
    if there:
        return [f"{names.it} {names.has} no {_of(there)}"]
    if here:
        return [f"{names.it} {names.has} {_of(here)} more"]
    for (type_, digest), (_, other) in zip(odd.constants, others.constants, strict=False):
        if digest != other:
            return [
                f"{names.it} {names.has} other values in {type_}, which the function closes over"
            ]
    return []


def _at(line: str) -> str:
    return f"at {line} " if line else ""


def _of(operations: Sequence[tuple[str, str, str, str]]) -> str:
    """The first of some operations, and how many follow it."""
    name, _, line, _ = operations[0]
    more = f" and {plural(len(operations) - 1, 'operation')} after it" if operations[1:] else ""
    return f"{name}{f' at {line}' if line else ''}{more}"


def missing(
    call: str,
    absent: Sequence[int],
    there: Sequence[int],
    seconds: float,
    doing: str = "",
    ended: bool = True,
) -> str:
    """That processes did not come to a call.

    Args:
        call: the call, in words.
        absent: the processes that did not come.
        there: those that wait.
        seconds: how long they have waited.
        doing: what the first of them does, `"in the stage 'trace'"`; `""` where it is not known.
        ended: whether they wait no longer.

    >>> missing("sv.run('step')", [3], [0, 1, 2], 30)[:73]
    "Process 3 did not reach sv.run('step') within 30 s; the others waited for"
    """
    did = "did not reach" if ended else f"{'has' if len(absent) == 1 else 'have'} not reached"
    it, is_ = ("it", "is") if len(absent) == 1 else ("them", "are")
    who = "the others" if len(there) > 1 else processes(there).lower()
    waits = "waited" if ended else "waits" if len(there) == 1 else "wait"
    begin = f"{processes(absent)} {did} {call} within {seconds:.3g} s; {who} {waits} for"
    if not ended:
        return f"{begin} {it}."
    where = f"still {doing}" if doing else "in another branch of the script, still busy, or ended"
    return (
        f"{begin} {it}, and nothing ran. {'It' if len(absent) == 1 else 'They'} {is_} {where}: look"
        f" at {'its' if len(absent) == 1 else 'their'} output. Every process must make this call;"
        " the environment variable SHARDVIZ_WAIT says how many seconds to wait."
    )


def waits(process: int, doing: str, seconds: float) -> str:
    """That the others wait for a process that is busy.

    >>> waits(1, "in the stage 'run' at train.py:30", 30)
    "Process 1 has been in the stage 'run' at train.py:30 for 30 s, and the others wait for it."
    """
    return f"Process {process} has been {doing} for {seconds:.3g} s, and the others wait for it."


def silent(numbers: Sequence[int], doing: str, seconds: float) -> str:
    """That processes have given no sign of life for a while.

    >>> silent([1], "in the stage 'run'", 5)
    "Process 1 has given no sign for 5 s, in the stage 'run': it died, or its machine stopped it \
or is overloaded."
    """
    one = len(numbers) == 1
    return (
        f"{processes(numbers)} {'has' if one else 'have'} given no sign for {seconds:.3g} s"
        f"{f', {doing}' if doing else ''}: {'it' if one else 'they'} died, or"
        f" {'its' if one else 'their'} machine stopped {'it' if one else 'them'} or is overloaded."
    )


def broken_blocks(layouts: Mapping[str, Layout]) -> str:
    """A note on arrays of which a process holds no one block of rows; `""` where there is none.

    A loader that reads as many rows as process 0 needs, from where its number says, then puts rows
    where others belong.

    Args:
        layouts: the arguments of a run by name, on a mesh with the processes of its devices.
    """
    found = []
    for name, layout in layouts.items():
        parts = process_rows(layout).parts if layout.rank else ()
        if len({part.rows for part in parts}) < 2:
            continue  # every process has all rows
        in_order = [part.rows[0][0] for part in parts]
        apart = next((part for part in parts if len(part.rows) > 1), None)
        if apart is None and in_order != sorted(in_order):
            apart = next(
                p for p, q in zip(parts, sorted(in_order), strict=True) if p.rows[0][0] != q
            )
        if apart is not None:
            rows = ranges_text(apart.rows)
            found.append(f"process {apart.process} holds rows {rows} of {name}")
    if not found:
        return ""
    return (
        "The order of the mesh's devices parts the rows of processes:"
        f" {joined(found, limit=_MOST)}. Each process loads its own rows in this order, as"
        " sv.process_rows says; a mesh in the"
        " order of jax.devices() gives every process one block."
    )


def failed(process: int, stage: str, message: str) -> str:
    """That another process failed before the run was over.

    >>> failed(1, "place", "It needs 3 GiB.")
    "Process 1 failed in the stage 'place', so no process goes on: It needs 3 GiB."
    """
    return f"Process {process} failed in the stage {stage!r}, so no process goes on: {message}"
