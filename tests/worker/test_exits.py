"""However a worker ends, the error says why: the line of the cause, not what stands around it."""

from __future__ import annotations

import sys

import pytest

from shardviz.programs.backend.failures import failure
from shardviz.programs.backend.worker.exits import WorkerError, cause
from shardviz.programs.backend.worker.process import Pool
from shardviz.programs.backend.worker.settings import Settings
from shardviz.programs.failure import Exited, HostMemory
from tests.worker.crashes import ENDS, PRINTED, memory_error, number_of_this_process


@pytest.fixture(scope="module")
def pool():
    pool = Pool()
    yield pool
    pool.end()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names Linux's libraries")
@pytest.mark.parametrize("end", ENDS, ids=lambda f: f.__name__)
def test_the_error_says_how_the_worker_ended_and_why(end, pool):
    how, why = ENDS[end]
    with pytest.raises(WorkerError) as caught:
        pool.call(Settings("cpu"), end)
    found = caught.value.end
    assert (type(found), found.stage, found.code) == (Exited, "compile", how)
    assert why in found.printed
    assert bool(found.printed) == bool(why)
    assert "Extension modules" not in found.printed
    assert "most recent call" not in found.printed
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("printed", "why"), PRINTED.values(), ids=PRINTED)
def test_the_cause_is_found_in_what_was_printed(printed, why):
    found = cause(printed)
    assert found.isprintable() or not found
    assert found == why or why is None


def test_an_exception_comes_back_and_the_worker_stays(pool):
    before = pool.call(Settings("cpu"), number_of_this_process)
    with pytest.raises(MemoryError) as caught:
        pool.call(Settings("cpu"), memory_error)
    found = failure("compile", caught.value)
    assert (found.cause, found.said, found.lacks_memory) == (HostMemory(), "MemoryError", True)
    assert pool.call(Settings("cpu"), number_of_this_process) == before
