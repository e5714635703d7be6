"""Runs one container from its start to its removal, as the process that stands for it.

Run as a script, `python3 -I -c SOURCE`, on the machine on which the container's program is; it needs nothing but the
standard library of Python 3.8. What it is to do stands as JSON in the variable of VARIABLE, since a command line can be
read by everyone: `program`, the words that come before each of its commands; `head` and `tail`, the words of the run
before and behind an `--env-file`; `name`, the container's; `grace_s`; `file_env`, variables that go in by such a file;
`given`, variables added to the environment.

* When the container ends, it asks why, removes it and ends with the code that the program gave.
* On SIGTERM, or when the program dies before the container, it ends the container, gently and then by force (`kill
  --signal TERM`, then `rm -f`), also where that was just being made.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

VARIABLE = "LAYOUT_TUNE_CONTAINER"
SLACK_S = 25.0
"""How long stopping may take beyond the grace."""
_POLL_S = 0.05
_CONTROL_S = 15.0
_DYING_S = 2.0
_STATE = "{{.State.OOMKilled}} {{.State.StartedAt}}"
_NEVER = "0001-01-01"
_OF_THE_PROGRAM = (125, 126, 127)


class Keeper:
    def __init__(self, asked: dict[str, Any]) -> None:
        self._program: list[str] = asked["program"]
        self._name: str = asked["name"]
        self._grace_s: float = asked["grace_s"]
        self._asked = asked
        self._is_to_end = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._end_it)
        signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the program would inherit
        path = self._environment_file()
        words = [*self._asked["head"], *(("--env-file", path) if path else ()), *self._asked["tail"]]
        try:
            client = subprocess.Popen([_bytes(word) for word in words], stdin=subprocess.DEVNULL)
        except OSError as error:
            say(f"cannot start {words[0]!r}: {error.strerror}")
            return 127
        try:
            while client.poll() is None and not self._is_to_end:
                time.sleep(_POLL_S)
            code = client.poll()
            if code is None:
                code = self._stop(client)
            elif code < 0:
                say(f"{self._program[-1]} was ended by signal {-code}; its container is stopped")
                if self._told_to_end():
                    self._control("wait", self._name, limit_s=self._grace_s)
            else:
                self._say_why(code)
        finally:
            self._remove()
            if path:
                os.unlink(path)  # noqa: PTH108
        return code if code >= 0 else 128 - code

    def _end_it(self, *_: object) -> None:
        self._is_to_end = True

    def _environment_file(self) -> str:
        values = {name: os.environ[name] for name in self._asked["file_env"] if name in os.environ}
        if not self._asked["file_env"]:
            return ""
        descriptor, path = tempfile.mkstemp(prefix="layout-tune-")  # of mode 0600
        with os.fdopen(descriptor, "w") as f:
            f.writelines(f"{name}={value}\n" for name, value in values.items() if "\n" not in value)
        return path

    def _stop(self, client: subprocess.Popen[bytes]) -> int:
        # Where it cannot be told, the image was still fetched or the container made: without the program it is never
        # started.
        try:
            return client.wait(self._grace_s if self._told_to_end() else 0.0)
        except subprocess.TimeoutExpired:
            pass
        self._control("rm", "-f", self._name)  # while somebody waits for how it ended
        try:
            return client.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            client.kill()
            return client.wait()

    def _told_to_end(self) -> bool:
        """As `stop` tells it, whose grace a process that was stopped by a signal would sleep through."""
        told = self._control("kill", "--signal", "TERM", self._name)
        if told:
            self._control("kill", "--signal", "CONT", self._name)
        return bool(told)

    def _say_why(self, code: int) -> None:
        state = self._control("inspect", "--format", _STATE, self._name)
        if state.startswith("true"):
            say("the container was ended by the kernel for want of memory (State.OOMKilled)")
        elif code in _OF_THE_PROGRAM and (not state or _NEVER in state):
            say(f"the container was not started (exit code {code} of {self._program[-1]})")

    def _remove(self) -> None:
        """Asks again where it was not there: the daemon may still be making what the dead program asked for."""
        for wait_s in (0.0, 0.3, 1.0):
            time.sleep(wait_s)
            self._control("rm", "-f", self._name)
            if not self._is_to_end:
                return
            if not self._control("ps", "-aq", "--filter", f"name=^/?{self._name}$").strip() and wait_s:
                return

    def _control(self, *words: str, limit_s: float = _CONTROL_S) -> str:
        try:
            done = subprocess.run(
                [*self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=limit_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _bytes(word: str) -> bytes:
    # Not by the locale of a machine that may have none.
    return word.encode("utf-8", "surrogateescape")


def say(text: str) -> None:
    sys.stderr.write(f"layout-tune: {text}\n")
    sys.stderr.flush()


def main() -> None:
    asked = json.loads(os.environ.pop(VARIABLE))
    os.environ.update(asked["given"])
    sys.exit(Keeper(asked).run())


if __name__ == "__main__":
    main()
