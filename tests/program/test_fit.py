"""Whether a program fits, in words, and what is named where it does not."""

from __future__ import annotations

import pytest

from shardviz.core.backend.execute import Execution, Failed
from shardviz.core.backend.failures import ended_for_memory, exit_in_words
from shardviz.core.hardware.chips import find_chip
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program
from shardviz.core.program.report import Failure, Memory, Report, fit_words
from shardviz.core.program.roofline import roofline

MESH, GIB = make_mesh(data=4, model=2), 1 << 30
WIDE = lay_out((32768, 32768), Spec(), MESH)
SPLIT = lay_out((32768, 32768), Spec.parse("data, model"), MESH)
LAYOUTS = {"mu.0.w": WIDE, "mu.1.w": WIDE, "x": SPLIT}
ARRAYS = (
    "The largest arrays: 2 × mu.{0..1}.w, 4 GiB each per device, not split; x, 512 MiB per device,"
    " split 8 ways over data × model."
)


def report(needed: int, capacity: int | None, chip: str = "", layouts=LAYOUTS) -> Report:
    found = Report("f", "t", memory=Memory(arguments=needed, capacity=capacity), in_layouts=layouts)
    return found.replace(roofline=roofline(found, find_chip(chip))) if chip else found


WORDS = {
    "it fits": (report(9 * GIB, 16 * GIB), "Fits: 9 GiB of 16 GiB per device."),
    "on a chip": (report(9 * GIB, 16 * GIB, "v5e"), "Fits: 9 GiB of 16 GiB per device (TPU v5e)."),
    "of a chip's own": (report(9 * GIB, None, "v5e"),
                        "Fits: 9 GiB of 16 GiB per device (TPU v5e)."),
    "just": (report(GIB, GIB), "Fits: 1 GiB of 1 GiB per device."),
    "it does not fit": (
        report(21 * GIB, 16 * GIB, "v5e"),
        f"Does not fit: 21 GiB per device, TPU v5e has 16 GiB; {ARRAYS.replace('The', 'the')}",
    ),
    "no layout is known": (
        report(2 * GIB, GIB, layouts={}),
        "Does not fit: 2 GiB per device, each has 1 GiB.",
    ),
    "the capacity is not known": (report(GIB, None), ""),
    "the compiler says nothing": (Report("f", "t", memory=Memory(capacity=GIB)), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", WORDS)
def test_one_sentence_says_whether_it_fits(case):
    found, words = WORDS[case]
    assert fit_words(found) == words


FOR_MEMORY = exit_in_words(-9, -1) if ended_for_memory() is not None else "memory ran out (SIGKILL)"
MESSAGES = {
    "the compiler": ("RESOURCE_EXHAUSTED: Ran out of memory in hbm.", True),
    "a refused run": ("It needs 6 GiB, and a device has 1 GiB free. Nothing was placed.", True),
    "ended by the system": (f"Process 1 ended: {FOR_MEMORY}.", True),
    "killed by somebody": (f"Process 1 ended: {exit_in_words(-9, ended_for_memory())}.", False),
    "killed, by whom is not known": (f"Process 1 ended: {exit_in_words(-9)}.", False),
    "another error": ("The shapes do not fit.", False),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_an_error_for_lack_of_memory_names_the_largest_arrays(case):
    message, named = MESSAGES[case]
    execution = Execution(Program(abs, (), MESH), None, None)
    execution.note(in_layouts=LAYOUTS)

    def fail() -> None:
        raise Failed(Failure("compile", message))

    execution.follow(fail)
    error = execution.report.error
    assert error is not None
    assert error.message == (f"{message} {ARRAYS}" if named else message)
