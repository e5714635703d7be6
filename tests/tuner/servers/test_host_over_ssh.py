"""Commands through ssh, to a real sshd on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests

from search_spaces.errors import UserError
from tests.services.ssh_server import Sshd
from tuner.server_hosts import check_python
from tuner.servers.guarded import GuardedLauncher
from tuner.servers.host import HostError
from tuner.servers.protocol import Launch, LaunchError
from tuner.servers.ssh_host import SshHost

HOSTILE = ["a b", "'", '"', "$(touch /x)", "`id`", "-oProxyCommand=id", "line\nline", "*", "\\", "!x", "", "é"]
SHELLS = [shell for shell in ("sh", "bash", "csh", "tcsh", "fish", "zsh", "ksh") if shutil.which(shell)]
pytestmark = pytest.mark.services


@pytest.fixture
def host(sshd: Sshd) -> Iterator[SshHost]:
    reached = SshHost(sshd.destination, sshd.options)
    yield reached
    reached.close()


def test_hostile_words_and_input_arrive_as_they_are(host: SshHost) -> None:
    answer = host.run(["printf", r"%s\0", *HOSTILE])
    assert answer.stdout.decode().split("\0")[:-1] == HOSTILE
    assert host.run(["cat"], stdin=b"\x00\xff\n").stdout == b"\x00\xff\n"
    words = subprocess.run(host.command(["printf", r"%s\0", *HOSTILE]), stdout=subprocess.PIPE, check=True).stdout
    assert words.decode().split("\0")[:-1] == HOSTILE


@pytest.mark.parametrize("shell", SHELLS)
def test_no_login_shell_reads_more_in_a_command_than_it_says(host: SshHost, shell: str) -> None:
    """sshd hands the words to the login shell of the user as one string with -c."""
    *_, remote = host.command(["printf", r"%s\0", *HOSTILE])
    said = subprocess.run([shell, "-c", remote], stdout=subprocess.PIPE, check=True).stdout
    assert said.decode().split("\0")[:-1] == HOSTILE


def test_255_of_the_command_is_an_answer(host: SshHost) -> None:
    answer = host.run(["sh", "-c", "echo said >&2; exit 255"])
    assert (answer.code, answer.stderr) == (255, b"said\n")


def test_a_session_that_dies_is_no_answer_and_the_next_command_connects_again(host: SshHost) -> None:
    with pytest.raises(HostError):
        host.run(["sh", "-c", 'kill -9 $(ps -o ppid= -p "$PPID")'])
    assert host.run(["true"]).code == 0


def test_all_goes_over_one_connection_which_ends_when_it_is_closed(sshd: Sshd, host: SshHost) -> None:
    before = {p.pid for p in sshd.sessions()}
    for _ in range(3):
        host.run(["true"])
    host.free_port()
    made = [p for p in sshd.daemons() if p.pid not in before]
    assert len([p for p in made if p.ppid() == sshd.pid]) == 1
    host.close()
    host.close()
    for process in made:
        process.wait(60)
    assert host.run(["true"]).code == 0


def test_a_port_there_answers_here_until_it_is_taken_back(host: SshHost) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address, port = host.reach(server.server_port)
        assert (address, port) == host.reach(server.server_port)
        assert port != server.server_port
        assert requests.get(f"http://{address}:{port}", timeout=60).status_code == 204
        host.unreach(server.server_port)
        host.unreach(server.server_port)
        with pytest.raises(requests.ConnectionError):
            requests.get(f"http://{address}:{port}", timeout=60)
        server.shutdown()


def test_the_connection_ends_with_the_process_that_made_it(sshd: Sshd) -> None:
    before = {p.pid for p in sshd.sessions()}
    code = (
        "import sys, time\nfrom tuner.servers.ssh_host import SshHost\n"
        f"SshHost({sshd.destination!r}, {sshd.options!r}).run(['true'])\nprint('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        made = [p for p in sshd.sessions() if p.pid not in before]
        assert made
        holder.send_signal(signal.SIGKILL)
        for process in made:
            process.wait(60)


def launch_of(host: SshHost, folder: Path) -> Launch:
    return Launch(command=("true",), host="127.0.0.1", port=9, log_path=folder / "log")


def refused(host: SshHost, folder: Path) -> str:
    """What every way to use `host` says, in one line each: the same."""
    with pytest.raises(HostError) as ran:
        host.run(["true"])
    with pytest.raises(LaunchError) as started:
        GuardedLauncher(host).start(launch_of(host, folder))
    assert str(ran.value) == str(started.value)
    with pytest.raises(UserError) as checked:
        check_python(host, "--host")
    assert str(checked.value) == f"--host: {ran.value}"
    assert "\n" not in str(ran.value)
    assert GuardedLauncher(host).free_port() == 0
    host.close()
    return str(ran.value)


def test_a_host_that_refuses_the_connection_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = taken.getsockname()[1]
        said = refused(SshHost("root@127.0.0.1", ["-F", "none", "-p", str(port)]), tmp_path)
    assert said == f"root@127.0.0.1: ssh: connect to host 127.0.0.1 port {port}: Connection refused"


def test_a_host_that_does_not_take_the_key_says_so(sshd: Sshd, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    options = ["-F", "none", "-p", str(sshd.port), "-i", str(tmp_path / "other"), "-o", "IdentitiesOnly=yes"]
    options += ["-o", f"UserKnownHostsFile={tmp_path}/known", "-o", "StrictHostKeyChecking=accept-new"]
    said = refused(SshHost(sshd.destination, options), tmp_path)
    assert said == f"{sshd.destination}: Permission denied (publickey)."


def test_a_host_whose_key_is_not_known_is_not_asked_anything(sshd: Sshd, tmp_path: Path) -> None:
    options = ["-o", f"UserKnownHostsFile={tmp_path}/none", "-o", "StrictHostKeyChecking=yes", *sshd.options]
    assert "Host key verification failed" in refused(SshHost(sshd.destination, options), tmp_path)


def test_a_name_that_is_no_host_says_so(tmp_path: Path) -> None:
    assert "Could not resolve hostname" in refused(SshHost("no-such-host.invalid", ["-F", "none"]), tmp_path)


def test_a_host_without_python_says_so(host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SshHost, "python", "python3-that-is-not-there")
    with pytest.raises(
        LaunchError, match=r"no python3-that-is-not-there that can be run on root@127\.0\.0\.1: .*not found"
    ):
        GuardedLauncher(host).start(launch_of(host, tmp_path))
    with pytest.raises(
        UserError, match=r"needs python3-that-is-not-there \(3\.8 or newer\), to guard the servers: .*not found"
    ):
        check_python(host, "--host")


def test_a_host_with_a_python_that_is_too_old_says_so(
    host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3 6\n")
    old.chmod(0o755)
    monkeypatch.setattr(SshHost, "python", os.fspath(old))
    with pytest.raises(UserError, match=r"has Python 3\.6, and 3\.8 is the oldest"):
        check_python(host, "--host")
