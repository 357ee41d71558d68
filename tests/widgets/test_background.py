import threading
import time

from comm import DummyComm

from shardviz.core.program.cache import ExecutableCache
from shardviz.widgets.background import Heartbeat, LatestWins
from shardviz.widgets.explorer import open_explorer
from shardviz.widgets.ipykernel_compat import keep_subshell


def queue(work, settle_s: float = 0.0, name: str = "test") -> LatestWins[int]:
    def failed(item: int, error: Exception) -> None:
        raise AssertionError(error)

    return LatestWins[int](name, work, failed, settle_s)


def test_what_work_raises_goes_to_the_item_and_the_next_one_is_done():
    failed: list[tuple[int, str]] = []

    def work(item: int, stop) -> None:
        raise OSError(str(item))

    latest = LatestWins[int]("test", work, lambda item, error: failed.append((item, str(error))))
    for item in (1, 2):
        latest.request(item)
        assert latest.wait(5)
    assert failed == [(1, "1"), (2, "2")]


def test_one_at_a_time_and_a_later_request_stops_the_running_one():
    began, stopped, under_way, most = threading.Event(), [], [0], [0]

    def work(item: int, stop) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        began.set()
        while item == 1 and not stop():
            time.sleep(0.005)
        stopped.append(item)
        under_way[0] -= 1

    latest = queue(work)
    latest.request(1)
    assert began.wait(5)
    latest.request(2)
    latest.request(3)
    assert latest.wait(5)
    assert stopped == [1, 3]
    assert most == [1]


def test_no_thread_is_left_when_there_is_nothing_to_do_or_it_is_closed():
    latest = queue(lambda item, stop: None, name="test of threads")
    latest.request(1)
    assert latest.wait(5)
    again = queue(lambda item, stop: _until(stop), name="test of threads")
    again.request(1)
    again.close(5)
    again.request(2)
    latest.close()
    time.sleep(0.05)
    assert [t for t in threading.enumerate() if t.name == "test of threads"] == []


def _until(stop) -> None:
    while not stop():
        time.sleep(0.005)


class Comm(DummyComm):
    """A comm of ipykernel 7.4 that sent something for a request of another subshell."""

    def _reply_subshell_for(self, data, default):
        return "another"


def test_what_the_page_sends_goes_to_the_subshell_that_it_names():
    other, comm = Comm(), Comm()
    keep_subshell(comm)
    assert comm._reply_subshell_for({"method": "custom"}, "the page's") == "the page's"
    assert other._reply_subshell_for({}, "the page's") == "another"
    keep_subshell(bare := object())  # as of other front ends
    assert not hasattr(bare, "_reply_subshell_for")


def test_an_explorer_keeps_it_for_each_comm_that_it_gets():
    explorer = open_explorer(None, ExecutableCache())
    explorer.comm = comm = Comm(target_name="jupyter.widget")
    assert comm._reply_subshell_for({}, "the page's") == "the page's"
    explorer.close()


def test_a_beat_that_fails_is_not_the_last(monkeypatch):
    monkeypatch.setattr("shardviz.widgets.background.BEAT_S", 0.01)
    beats, again = [], threading.Event()

    def beat() -> None:
        beats.append(len(beats))
        if len(beats) in (1, 3):
            raise OSError("the connection is being made anew")
        if len(beats) > 4:
            again.set()

    heart = Heartbeat(beat)
    heart.start()
    assert again.wait(5)
    heart.close()


def test_the_kernel_is_alive_whatever_a_beat_cannot_find_out(monkeypatch):
    explorer = open_explorer(None, ExecutableCache())
    sent: list[dict] = []
    monkeypatch.setattr(explorer, "send", sent.append)
    explorer._beat()
    assert "line" in sent[0]
    monkeypatch.setattr(explorer, "_refresh_menus", lambda: 1 / 0)
    explorer._beat()
    assert sent[1]["kind"] == "alive"
    assert set(explorer._failed) == {"menus"}
    monkeypatch.undo()
    assert explorer._sync.acquire(timeout=1)  # no edit waits for it
    explorer._sync.release()
    explorer.close()
