"""Commands on this machine, and what ssh is never asked."""

from __future__ import annotations

import sys

import pytest

from tuner.servers.host import HostError, LocalHost
from tuner.servers.ssh_host import SshHost

HOSTILE = ["a b", "'", '"', "$(touch /x)", "`id`", "-oProxyCommand=id", "line\nline", "*", "\\", "", "é"]


def test_words_input_and_both_outputs_arrive_as_they_are() -> None:
    code = "import sys; print(sys.argv[1:]); sys.stderr.write(sys.stdin.read()); sys.exit(255)"
    answer = LocalHost().run([sys.executable, "-c", code, *HOSTILE], stdin=b"in")
    assert (answer.code, answer.stdout.decode().strip(), answer.stderr) == (255, str(HOSTILE), b"in")


def test_a_command_ended_by_a_signal_answers_as_a_shell_does() -> None:
    assert LocalHost().run(["sh", "-c", "kill -9 $$"]).code == 128 + 9


def test_a_command_that_takes_too_long_is_ended_with_its_children() -> None:
    with pytest.raises(HostError, match=r"did not end within 0\.5 s"):
        LocalHost().run(["sh", "-c", "sleep 600 & sleep 600"], timeout_s=0.5)


@pytest.mark.parametrize("destination", ["", "-oProxyCommand=id", "a b", "a;id", "$(id)", "u@h\nx", "ssh://-x"])
def test_what_ssh_or_a_shell_would_read_as_more_is_no_destination(destination: str) -> None:
    with pytest.raises(ValueError, match="no destination"):
        SshHost(destination)
