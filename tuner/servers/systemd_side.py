"""Runs one command as a unit of systemd, with its input, outputs and exit code connected: on the unit's machine.

Python 3.8 and its standard library are enough. `python3 -I -c SOURCE MANAGER UNIT WORDS ...`, where MANAGER is
`system` or `user`:

* what comes on standard input reaches the command through a FIFO, which closes when this process ends, however it
  ends: a command that ends with its input ends with whoever started this;
* its standard output is the unit's journal, which is followed here; its standard error is as it is;
* its environment is this process's own. Words and environment stand in files that only their owner can read and that
  are gone once it runs: `systemctl show` and the list of processes tell neither.

Ended by SIGTERM, or where the command goes on for STOP_S after its input has ended, it has systemd stop the unit:
SIGTERM to the command, SIGKILL to all that is left after STOP_S.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import time

STOP_S = 120
POLL_S = 0.05
DRAIN_S = 20.0
SHOWN = "Result,ExecMainCode,ExecMainStatus,LoadState,ActiveState"
PREFIX = "layout-tune-"

START = """\
import os, sys
def taken(name):
    path = os.path.join(sys.argv[1], name)
    with open(path, "rb") as f:
        found = f.read().split(b"\\0")[:-1]
    os.unlink(path)
    return found
environment = dict(each.partition(b"=")[::2] for each in taken("environment"))
words = taken("words")
os.execvpe(words[0], words, environment)
"""
"""What the unit runs: it becomes the command."""


def properties(folder: str, directory: str) -> dict[str, str]:
    """Of the unit, by the names of systemd.service(5), systemd.exec(5) and systemd.kill(5).

    folder: of this run's files. directory: in which the command runs.
    """
    return {
        "Type": "exec",
        "StandardInput": f"file:{folder}/stdin",
        "StandardOutput": "journal",
        "StandardError": f"file:{folder}/stderr",
        "WorkingDirectory": directory,
        "KillMode": "mixed",
        "TimeoutStopSec": f"{STOP_S}s",
        # Without the limits that services have and shells do not.
        "TasksMax": "infinity",
        "LimitNOFILE": _limit(resource.RLIMIT_NOFILE),
        "LimitMEMLOCK": _limit(resource.RLIMIT_MEMLOCK),
        # An interval of 0, which stands for no limit, was taken for one that is not set (seen with systemd 252).
        "LogRateLimitIntervalSec": "1s",
        "LogRateLimitBurst": "100000000",
    }


def _limit(which: int) -> str:
    both = resource.getrlimit(which)
    return ":".join("infinity" if each == resource.RLIM_INFINITY else str(each) for each in both)


class Unit:
    def __init__(self, manager: str, name: str, words: list[str]) -> None:
        self._is_user = manager == "user"
        self._name = f"{name}.service"
        self._words = words
        user_root = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        self._root = user_root if self._is_user else "/run"
        self._folder = f"{self._root}/{name}"
        self._asked_to_end = False

    def run(self) -> int:
        """To the end of the command. Returns its exit code, 128 + n for a signal n."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for harmless in (signal.SIGINT, signal.SIGHUP):
            signal.signal(harmless, lambda *_: None)
        try:
            return self._run()
        finally:
            self._remove()

    def _on_sigterm(self, *_: object) -> None:
        self._asked_to_end = True

    def _run(self) -> int:
        os.mkdir(self._folder, 0o700)  # noqa: PTH102
        lock = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends, however it does
        self._end_orphans()
        self._write("words", [os.fsencode(word) for word in self._words])
        self._write("environment", [name + b"=" + value for name, value in os.environb.items()])
        for name in ("stdin", "stderr"):
            os.mkfifo(f"{self._folder}/{name}", 0o600)
        # For reading and writing, so that neither side waits for the other to open it. Nobody inherits it.
        stdin = os.open(f"{self._folder}/stdin", os.O_RDWR | os.O_NONBLOCK)
        stderr = os.open(f"{self._folder}/stderr", os.O_RDONLY | os.O_NONBLOCK)
        started = subprocess.Popen(self._start(), stdin=subprocess.DEVNULL, stdout=2)
        journal = Journal(self._journal_words())
        self._relay(started, journal, stdin, stderr)
        waited = started.wait()
        code = self._code(waited)
        journal.drain(self._last_cursor())
        self._copy_stderr(stderr)
        self._forget()
        return code

    def _start(self) -> list[str]:
        words = [*self._tool("systemd-run"), "--quiet", "--wait", f"--unit={self._name}"]
        words.append("--description=A server that layout-tune tries out")
        settings = properties(self._folder, os.getcwd())  # noqa: PTH109
        words += [f"--property={name}={value}" for name, value in settings.items()]
        return [*words, "--", sys.executable, "-I", "-c", START, self._folder]

    def _tool(self, program: str) -> list[str]:
        return [program, "--user"] if self._is_user else [program]

    def _journal_words(self) -> list[str]:
        mine = [f"_SYSTEMD_USER_UNIT={self._name}"] if self._is_user else [f"_SYSTEMD_UNIT={self._name}"]
        return [*self._tool("journalctl"), "--quiet", "--output=export", "--output-fields=MESSAGE,_LINE_BREAK", *mine]

    def _relay(self, started: subprocess.Popen[bytes], journal: Journal, stdin: int, stderr: int) -> None:
        """Both ways, until the unit has ended."""
        is_open, is_stopped, pending, give_up_s = True, False, b"", float("inf")
        while started.poll() is None:
            readable = [journal.file, stderr] + ([0] if is_open and len(pending) < 1 << 20 else [])
            ready, writable, _ = select.select(readable, [stdin] if pending else [], [], POLL_S)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    pending = pending[os.write(stdin, pending) :]
            if 0 in ready:
                new = os.read(0, 1 << 16)
                pending += new
                is_open = bool(new)
            if journal.file in ready:
                journal.take()
            if stderr in ready and not self._copy_stderr(stderr):
                time.sleep(POLL_S)  # nobody writes to it now
            if stdin >= 0 and not pending and not is_open and self._has_taken_over():
                os.close(stdin)
                stdin, give_up_s = -1, time.monotonic() + STOP_S
            if (self._asked_to_end or time.monotonic() > give_up_s) and not is_stopped and self._has_taken_over():
                is_stopped = True
                subprocess.call([*self._tool("systemctl"), "stop", "--no-block", self._name], stdout=2)
        if stdin >= 0:
            os.close(stdin)

    def _has_taken_over(self) -> bool:
        """Whether the unit runs the command, with the FIFO as its input: one that nobody has opened must not close."""
        return not os.path.exists(f"{self._folder}/words")  # noqa: PTH110

    def _copy_stderr(self, stderr: int) -> bool:
        try:
            new = os.read(stderr, 1 << 16)
        except BlockingIOError:
            return False
        if new:
            _write_all(2, new)
        return bool(new)

    def _shown(self) -> dict[str, str]:
        words = [*self._tool("systemctl"), "show", f"--property={SHOWN}", self._name]
        told = subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout.decode(errors="replace")
        return dict(line.partition("=")[::2] for line in told.splitlines())

    def _code(self, waited: int) -> int:
        """waited: what `systemd-run --wait` ended with. A unit that has ended well is forgotten at once; of others
        systemd keeps how they ended.
        """
        shown = self._shown()
        result, how = shown.get("Result", ""), shown.get("ExecMainCode", "0")
        if result == "oom-kill":
            self._say("the kernel killed a process of it for want of memory (Result=oom-kill)")
        elif result not in {"", "success", "exit-code", "signal"}:
            self._say(f"systemd ended it (Result={result})")
        if shown.get("LoadState") != "loaded" or how == "0":
            return waited if waited >= 0 else 128 - waited
        status = int(shown.get("ExecMainStatus", "0"))
        return status if how == "1" else 128 + status

    def _say(self, words: str) -> None:
        _write_all(1, f"layout-tune: {self._name}: {words}\n".encode())

    def _last_cursor(self) -> bytes:
        """Of the last that the unit said, once the journal has written down all that it has received."""
        if not self._is_user:  # which only root may ask for
            subprocess.run(["journalctl", "--sync"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        told = subprocess.run([*self._journal_words(), "--lines=1"], stdout=subprocess.PIPE, check=False).stdout
        return told.partition(b"\n")[0]

    def _forget(self) -> None:
        subprocess.run([*self._tool("systemctl"), "reset-failed", self._name], stderr=subprocess.DEVNULL, check=False)

    def _end_orphans(self) -> None:
        """Removes what is left of units whose starter was killed: they have ended with their input, as a rule."""
        for name in os.listdir(self._root):  # noqa: PTH208
            if not name.startswith(PREFIX):
                continue
            try:
                folder = os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # its starter lives
            for verb in (["stop", "--no-block"], ["reset-failed"]):
                subprocess.call([*self._tool("systemctl"), *verb, f"{name}.service"], stderr=subprocess.DEVNULL)
            shutil.rmtree(f"{self._root}/{name}", ignore_errors=True)
            os.close(folder)

    def _write(self, name: str, texts: list[bytes]) -> None:
        handle = os.open(f"{self._folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
        with open(handle, "wb") as f:  # noqa: PTH123
            f.write(b"".join(text + b"\0" for text in texts))

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class Journal:
    """Follows what one unit says, in systemd's export format, and copies it to standard output."""

    def __init__(self, words: list[str]) -> None:
        following = [*words, "--follow", "--lines=all"]
        self._process = subprocess.Popen(following, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.file = self._process.stdout.fileno()
        self._rest = b""
        self._cursor = b""

    def take(self) -> bool:
        """False once there will be no more."""
        new = os.read(self.file, 1 << 18)
        self._rest += new
        messages = []
        while True:
            entry = self._entry()
            if entry is None:
                break
            messages.append(entry)
        if messages:
            _write_all(1, b"".join(messages))
        return bool(new)

    def _entry(self) -> bytes | None:
        """What the next whole entry says, with its newline; None where none is whole yet."""
        at, rest, message, cursor, newline = 0, self._rest, b"", b"", b"\n"
        while True:
            end = rest.find(b"\n", at)
            if end < 0:
                return None
            line = rest[at:end]
            at = end + 1
            if not line:
                self._rest, self._cursor = rest[at:], cursor or self._cursor
                return message + newline if cursor else b""
            name, is_text, value = line.partition(b"=")
            if not is_text:  # a length of 8 bytes, little-endian, and as many bytes
                stop = at + 8 + int.from_bytes(rest[at : at + 8], "little")
                if len(rest) < max(stop, at + 8) + 1:
                    return None
                value, at = rest[at + 8 : stop], stop + 1
            if name == b"__CURSOR":
                cursor = line
            elif name == b"MESSAGE":
                message = value
            elif line == b"_LINE_BREAK=line-max":  # a line that was too long for one entry goes on in the next
                newline = b""

    def drain(self, last: bytes) -> None:
        """Copies up to the entry whose cursor is `last`, and ends."""
        deadline = time.monotonic() + DRAIN_S
        while last and self._cursor != last and time.monotonic() < deadline:
            if select.select([self.file], [], [], POLL_S)[0] and not self.take():
                break
        self._process.kill()
        self._process.wait()


def _write_all(file: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(file, data) :]
        except OSError as error:
            if error.errno != errno.EINTR:
                return  # nobody reads it any more: the command is told by its input


if __name__ == "__main__":
    sys.exit(Unit(sys.argv[1], sys.argv[2], sys.argv[3:]).run())
