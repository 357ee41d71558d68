"""uv installs, and pip where pip has an index of its own or uv cannot."""

from __future__ import annotations

import subprocess

import pytest

from tests.packaging import install

ARGUMENTS = ["-e", ".[notebooks]"]


@pytest.fixture
def ran(monkeypatch):
    """The commands that were run; `answers` has the status and the text of those that do not do."""
    commands, answers = [], {}

    def run(command, **_):
        words = " ".join(command)
        commands.append(words)
        status, text = next((a for part, a in answers.items() if part in words), (0, ""))
        return subprocess.CompletedProcess(command, status, text, "")

    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    return commands, answers


def test_uv_installs_where_it_can_be_had(ran):
    assert install.main(ARGUMENTS) == 0
    assert "-m uv pip install" in ran[0][-1]
    assert ran[0][-1].endswith("-e .[notebooks]")


@pytest.mark.parametrize(
    "settings",
    [
        "global.index-url='https://mirror.example/simple'",
        ":env:.no-index='1'",
        "global.timeout='9'\ninstall.index-url='file:///wheels'",
    ],
)
def test_pip_installs_where_it_has_an_index_of_its_own(ran, settings):
    commands, answers = ran
    answers["config list"] = (0, settings)
    assert install.main(ARGUMENTS) == 0
    assert not any("uv" in command.split()[1:] for command in commands)
    assert "-m pip" in commands[-1]
    assert commands[-1].endswith("-e .[notebooks]")


def test_an_index_beside_the_usual_one_is_none_of_its_own(ran):
    ran[1]["config list"] = (0, "global.extra-index-url='file:///more'")
    assert install.main(ARGUMENTS) == 0
    assert "-m uv pip install" in ran[0][-1]


@pytest.mark.parametrize("part", ["uv>=", "-m uv"])
def test_what_uv_cannot_install_pip_does_or_says_why(ran, part):
    commands, answers = ran
    answers[part] = (2, "")
    assert install.main(ARGUMENTS) == 0
    assert "-m pip" in commands[-1]
    answers["-qq --no-compile -e"] = (3, "")
    assert install.main(ARGUMENTS) == 3
