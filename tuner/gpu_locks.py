"""One tuner on a GPU: two would measure each other, and each would take the other's memory for its layout's."""

from __future__ import annotations

import contextlib
import getpass
import inspect
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence

from search_spaces.errors import UserError
from tuner import gpu_lock_side
from tuner.servers.host import Host

BEAT_S = 10.0


@contextlib.contextmanager
def locked_gpus(host: Host, uuids: Sequence[str], folder: str = gpu_lock_side.FOLDER) -> Iterator[None]:
    """Holds the GPUs against other tuners on `host`, whoever runs them, until the end of the block or of this process.

    On another host a process there holds them, which ends when it hears nothing of this one any more. Tuners in
    containers that share no /tmp do not see each other. Raises UserError where one is held.
    """
    holder = f"process {os.getpid()} of {_user()}" + (f" on {socket.gethostname()}" if host.name else "")
    with contextlib.ExitStack() as held:
        if host.name:
            busy = held.enter_context(_held_there(host, uuids, folder, holder))
        else:
            try:
                files, busy = gpu_lock_side.lock(folder, holder, list(uuids))
            except OSError as error:
                raise UserError(f"the GPUs cannot be locked: {error}") from None
            for each in files:
                held.callback(os.close, each)
        if busy:
            uuid, _, other = busy.partition(" ")
            where = f" of {host.name}" if host.name else ""
            raise UserError(
                f"{uuid}{where} is in use by another tuner ({other}): wait for it, or leave it other GPUs with "
                "CUDA_VISIBLE_DEVICES"
            )
        yield


@contextlib.contextmanager
def _held_there(host: Host, uuids: Sequence[str], folder: str, holder: str) -> Iterator[str]:
    """Yields `UUID HOLDER` where one is held already, else an empty text."""
    source = inspect.getsource(gpu_lock_side)
    process = subprocess.Popen(
        host.command([host.python, "-I", "-c", source, folder, holder, *uuids]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    over = threading.Event()
    lifeline = process.stdin

    def beat() -> None:
        while not over.wait(BEAT_S):
            with contextlib.suppress(OSError, ValueError):
                lifeline.write(b"\n")
                lifeline.flush()

    try:
        word, _, busy = process.stdout.readline().decode(errors="replace").strip().partition(" ")
        if word not in {"held", "busy"}:
            _, stderr = process.communicate(timeout=30)
            said = stderr.decode(errors="replace").strip().rpartition("\n")[2] or "no answer"
            raise UserError(f"the GPUs of {host.name} cannot be locked: {said}")
        threading.Thread(target=beat, name="gpu-locks", daemon=True).start()
        yield busy
    finally:
        over.set()
        with contextlib.suppress(OSError):
            lifeline.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        return str(os.getuid())
