"""Commands on this machine, and what ssh is never asked."""

from __future__ import annotations

import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    "destination",
    [
        *("box", "root@box", "a_b.example.org", "a@b@box", "::1", "root@::1", "root@fe80::1%eth0", "1.2.3.4"),
        *("ssh://box", "ssh://root@box:22", "ssh://box:65535/", "ssh://root@[::1]:22"),
    ],
)
def test_what_ssh_takes_is_a_destination(destination: str) -> None:
    assert SshHost(destination).name == destination


@pytest.mark.parametrize(
    "destination",
    [
        *(
            "ssh://root@box:99999",
            "ssh://box:0",
            "ssh://box:65536",
            "ssh://box:1000022",
            "ssh://box:",
            "ssh://",
            "root@",
        ),
        *(
            "ssh://@box",
            "@box",
            "box:22",
            "ab:22",
            "[::1]",
            "[::1]:22",
            "ssh://::1",
            "ssh://box/path",
            "ssh://box:\uff12\uff12",
        ),
        *("root:secret@box", "ssh://root:secret@box:22", "ssh://root%3Asecret@box"),
    ],
)
def test_ports_that_are_none_missing_hosts_and_passwords_make_no_destination(destination: str) -> None:
    with pytest.raises(ValueError, match="no destination") as caught:
        SshHost(destination)
    assert "secret" not in str(caught.value)


def test_the_usage_of_an_ssh_that_takes_no_such_destination_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'usage: ssh [-46]\n           destination [command]' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    host = SshHost("ssh://root@[::1]:22")
    with pytest.raises(HostError, match=r"ssh://root@\[::1\]:22: this ssh takes no such destination$"):
        host.address()
    with pytest.raises(HostError, match=r"this ssh takes no such destination$"):
        host.run(["true"])


@pytest.mark.parametrize("destination", ["", "-oProxyCommand=id", "a b", "a;id", "$(id)", "u@h\nx", "ssh://-x"])
def test_what_ssh_or_a_shell_would_read_as_more_is_no_destination(destination: str) -> None:
    with pytest.raises(ValueError, match="no destination"):
        SshHost(destination)
