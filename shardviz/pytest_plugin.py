"""The fixture `shardviz_lock`, and the option `--shardviz-update` to write locks.

    def test_step_stays_as_it_is(shardviz_lock):
        shardviz_lock(make_step())

Each lock is a file in `shardviz_locks/` next to the test; commit it. The modules that
compare locks are imported only when a test uses the fixture.
(PYTEST_DONT_REWRITE: otherwise pytest warns if this plugin is already imported.)
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shardviz.advise.contracts import Expectation
    from shardviz.advise.lock import Lock

FOLDER = "shardviz_locks"
OPTION = "--shardviz-update"
# Lock file -> the test that wrote it.
_written = pytest.StashKey[dict[Path, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--shardviz-update`."""
    group, about = parser.getgroup("shardviz"), "writes differing locks"
    group.addoption(OPTION, action="store_true", default=False, help=about)


@pytest.fixture
def shardviz_lock(request: pytest.FixtureRequest) -> LockChecker:
    """Checks that a program, plan or audit matches the lock beside the test.

    Call it with the program, plan or audit, and with a name if two tests share a lock.
    """
    return LockChecker(request)


class LockChecker:
    """The value of the fixture `shardviz_lock`: each call checks or writes one lock.

    Args:
        request: pytest's `request` fixture of the test.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node, self._config = request.node, request.config
        self._folder = request.path.parent / FOLDER
        self._calls = 0

    def __call__(
        self,
        thing: Any,
        name: str | None = None,
        *,
        collectives: bool = True,
        target: Any = None,
    ) -> Expectation:
        """Compares `thing` with its lock; with `--shardviz-update`, writes the lock.

        Args:
            thing: a Program; or a Plan or an Audit, which lock only specs.
            name: name of the lock file; by default derived from the test's name.
            collectives: whether to compile a Program and lock its collectives too.
            target: the target to compile a Program for, as in `sv.expect`.

        Returns:
            The Expectation of `thing`, for further checks, such as
            `shardviz_lock(step).no("all-gather")`.

        Raises:
            ContractError: if `thing` differs from the lock, or there is no lock.
            ShardvizError: if `name` is not a file name or `thing` cannot be locked.
        """
        __tracebackhide__ = True
        from shardviz.advise.lock import read_lock
        from shardviz.advise.public import expect
        from shardviz.base.errors import ContractError

        file = self._file(name)
        expected = expect(thing, target=target)
        new_lock = expected.locked(collectives)
        if self._config.getoption(OPTION):
            self._update(new_lock, file)
            return expected
        if not file.exists():
            raise ContractError(
                f"There is no lock {self._shown(file)} yet. Write it with pytest {OPTION},"
                " look at it, and commit it."
            )
        before = read_lock(file)
        if before.collectives is None and new_lock.collectives is not None:
            raise ContractError(
                f"The lock {self._shown(file)} has no collectives. Write it again with"
                f" pytest {OPTION}, or give collectives=False."
            )
        return expected.matches(file)

    def _file(self, name: str | None) -> Path:
        from shardviz.base.errors import ProgramError
        from shardviz.base.format import shown

        if name is not None:
            if not re.fullmatch(r"[\w\-][\w.\- ]{0,150}", name):
                raise ProgramError(
                    "The name of a lock is letters, digits, dots and dashes, as it is the"
                    f" name of a file; got {shown(name)}."
                )
            return self._folder / f"{name}.json"
        self._calls += 1
        number = ""
        if self._calls > 1:  # a test with one lock needs no number
            number = f"-{self._calls}"
        node = self._node.nodeid.partition("::")[2].replace("::", ".")
        # Names of parametrized tests have brackets and slashes.
        words = re.sub(r"[^\w.\-]+", "-", f"{self._node.path.stem}.{node}")
        return self._folder / f"{words.strip('-')[:150]}{number}.json"

    def _update(self, new_lock: Lock, file: Path) -> None:
        __tracebackhide__ = True
        from shardviz.advise.lock import read_lock
        from shardviz.base.errors import ContractError

        written = self._config.stash.setdefault(_written, {})
        if file in written:
            if read_lock(file).diff(new_lock).same:
                return
            raise ContractError(
                f"{written[file]} has written the lock {self._shown(file)} in this run,"
                " and now a different one. Give one of them a name:"
                " shardviz_lock(program, 'name')."
            )
        if new_lock.update(file):
            written[file] = self._node.nodeid
            self._node.user_properties.append(("shardviz_lock", self._shown(file)))

    def _shown(self, file: Path) -> str:
        root = self._config.rootpath
        if file.is_relative_to(root):
            file = file.relative_to(root)
        return file.as_posix()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Lists the locks that were written, including by pytest-xdist workers."""
    if not config.getoption(OPTION):
        return
    files = set()
    for report in itertools.chain(*terminalreporter.stats.values()):
        # Some reports are warnings, which have no user properties.
        for key, value in getattr(report, "user_properties", ()):
            if key == "shardviz_lock":
                files.add(value)
    terminalreporter.section("shardviz locks")
    for file in sorted(files):
        terminalreporter.line(f"written: {file}")
    if not files:
        terminalreporter.line("none was written")
