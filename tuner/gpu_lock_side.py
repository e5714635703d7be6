"""Locks GPUs against other tuners on the host that this runs on.

One file a GPU, by its uuid, in one folder for all users of the host; flock(2) holds it, and ends with whoever holds it
however that goes. Runs by itself on a host that has nothing of ours: `python -I -c SOURCE FOLDER HOLDER UUID...` says
`held`, or `busy UUID HOLDER`, and holds until its standard input ends or is silent for a minute. Standard library
alone, Python 3.8 and later.
"""

import fcntl
import os
import select
import sys
from typing import List, Tuple  # noqa: UP035 - for Python 3.8

FOLDER = "/tmp/layout-tune-gpus"  # noqa: S108 - the one folder that every user of a host can write to
SILENCE_S = 60.0


def lock(folder: str, holder: str, uuids: List[str]) -> Tuple[List[int], str]:  # noqa: UP006
    """Open files that hold the locks, and an empty text; or none, and `UUID HOLDER` of the first that is held.

    holder: what others are told. Raises OSError.
    """
    try:
        os.mkdir(folder)  # noqa: PTH102
        os.chmod(folder, 0o1777)  # noqa: PTH101, S103 - other users lock here too
    except FileExistsError:
        pass
    held: List[int] = []  # noqa: UP006
    for uuid in sorted(uuids):
        fd = _opened(os.path.join(folder, uuid.replace("/", "_")))  # noqa: PTH118
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            said = os.read(fd, 200).decode(errors="replace").strip() or "unknown"
            for each in (fd, *held):
                os.close(each)
            return [], "{} {}".format(uuid, said)  # noqa: UP032
        held.append(fd)
        os.ftruncate(fd, 0)
        os.write(fd, holder.encode())
    return held, ""


def _opened(path: str) -> int:
    """Made where it is not there. Another user's file in a folder like /tmp may be opened, but not with O_CREAT
    (Linux, fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        os.fchmod(fd, 0o666)
        return fd


def main() -> None:
    _, busy = lock(sys.argv[1], sys.argv[2], sys.argv[3:])
    sys.stdout.write("busy {}\n".format(busy) if busy else "held\n")  # noqa: UP032
    sys.stdout.flush()
    while not busy and select.select([sys.stdin], [], [], SILENCE_S)[0] and os.read(sys.stdin.fileno(), 4096):
        pass


if __name__ == "__main__":
    main()
