"""The cache: bounded, counted, and one maker however many threads ask."""

from __future__ import annotations

import threading

import pytest

from shardviz.runs.cache import ExecutableCache


def test_the_least_recently_used_goes_first():
    cache = ExecutableCache(size=2)
    for key in "ab":
        cache.get_or_make(key, lambda: object())
    kept = cache.get_or_make("a", lambda: pytest.fail("it was there"))
    cache.get_or_make("c", lambda: object())
    assert cache.entries == ("a", "c")
    assert cache.get_or_make("a", lambda: pytest.fail("it was there")) is kept
    assert (cache.hits, cache.misses, len(cache)) == (2, 3, 2)


def test_clear_forgets_and_counts_anew():
    cache = ExecutableCache()
    cache.get_or_make("a", lambda: 1)
    cache.get_or_make("a", lambda: 1)
    cache.clear()
    assert (cache.entries, cache.hits, cache.misses, len(cache)) == ((), 0, 0, 0)
    assert cache.get_or_make("a", lambda: 2) == 2


def test_none_is_a_value_too():
    cache = ExecutableCache()
    cache.get_or_make("a", lambda: None)
    assert cache.get_or_make("a", lambda: pytest.fail("it was there")) is None


def test_many_threads_make_it_once():
    cache, made, ready = ExecutableCache(), [], threading.Barrier(17)
    others_came = threading.Event()
    results: list[object] = []

    def make() -> object:
        others_came.wait(60)
        made.append(object())
        return made[0]

    def ask() -> None:
        ready.wait(60)
        results.append(cache.get_or_make("key", make))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    ready.wait(60)
    others_came.set()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1
    assert results == made * 16
    assert (cache.misses, cache.hits) == (1, 15)


def test_a_failure_reaches_its_caller_and_the_next_one_tries_anew():
    cache = ExecutableCache()

    def fail() -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        cache.get_or_make("a", fail)
    assert cache.entries == ()
    assert cache.get_or_make("a", lambda: "made") == "made"


def test_a_waiting_thread_takes_over_from_one_that_failed():
    cache, begun, go_on = ExecutableCache(), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def fail() -> None:
        begun.set()
        go_on.wait(60)
        raise KeyboardInterrupt

    def first() -> None:
        try:
            cache.get_or_make("a", fail)
        except KeyboardInterrupt as error:
            errors.append(error)

    maker = threading.Thread(target=first)
    maker.start()
    begun.wait(60)
    waiter_result: list[str] = []
    waiter = threading.Thread(
        target=lambda: waiter_result.append(cache.get_or_make("a", lambda: "second"))
    )
    waiter.start()
    go_on.set()
    maker.join(60)
    waiter.join(60)
    assert waiter_result == ["second"]
    assert len(errors) == 1
