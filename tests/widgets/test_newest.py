import threading
import time

from shardviz.widgets.background import LatestWins


def test_only_the_newest_of_what_was_asked_is_done():
    done: list[int] = []
    newest = LatestWins[int]("test", lambda item, stop: done.append(item), 0.05)
    for number in range(500):
        newest.ask(number)
    assert newest.wait(5)
    assert done == [499]


def test_nothing_begins_while_somebody_keeps_asking():
    done: list[int] = []
    newest = LatestWins[int]("test", lambda item, stop: done.append(item), 0.2)
    until = time.monotonic() + 0.5
    number = 0
    while time.monotonic() < until:
        newest.ask(number)
        number += 1
        time.sleep(0.01)
        assert done == []
    assert newest.wait(5)
    assert done == [number - 1]


def test_one_at_a_time_and_a_newer_one_tells_the_older_to_stop():
    began, stopped, under_way, most = threading.Event(), [], [0], [0]

    def work(item: int, stop) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        began.set()
        while item == 1 and not stop():
            time.sleep(0.005)
        stopped.append(item)
        under_way[0] -= 1

    newest = LatestWins[int]("test", work)
    newest.ask(1)
    assert began.wait(5)
    newest.ask(2)
    newest.ask(3)
    assert newest.wait(5)
    assert stopped == [1, 3]
    assert most == [1]


def test_asking_never_waits_for_the_work():
    hold = threading.Event()
    newest = LatestWins[int]("test", lambda item, stop: hold.wait(5) and None)
    newest.ask(0)
    begun = time.perf_counter()
    for number in range(1000):
        newest.ask(number)
    assert time.perf_counter() - begun < 0.5
    hold.set()
    newest.close()


def test_no_thread_is_left_when_there_is_nothing_to_do_or_it_is_closed():
    newest = LatestWins[int]("test of threads", lambda item, stop: None)
    newest.ask(1)
    assert newest.wait(5)
    again = LatestWins[int]("test of threads", lambda item, stop: _until(stop))
    again.ask(1)
    again.close(5)
    again.ask(2)
    newest.close()
    time.sleep(0.05)
    assert [t for t in threading.enumerate() if t.name == "test of threads"] == []


def _until(stop) -> None:
    while not stop():
        time.sleep(0.005)


def test_what_was_wanted_and_has_not_begun_can_be_dropped():
    done: list[int] = []
    newest = LatestWins[int]("test", lambda item, stop: done.append(item), 0.1)
    newest.ask(1)
    newest.drop()
    assert newest.wait(5)
    assert done == []
