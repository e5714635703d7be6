"""Room that a server takes on its host beside the GPUs: main memory, shared memory, disk."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.servers.host import Host

GIB = 2**30
RANK_BYTES = 2 * GIB
"""Main memory below which no rank of a server comes up: torch, CUDA's context and the engine's modules take about that
much in each of its processes. More may be needed; then the kernel's log tells."""
LEAST_SHARED_BYTES = 16 * 2**20
"""NCCL takes segments of about 10 MB from /dev/shm for two ranks alone ("Error while creating shared memory segment
/dev/shm/nccl-... (size 9637888)")."""
WANTED_SHARED_BYTES = GIB
"""What NCCL's manual asks of containers, which have 64 MiB by themselves: `--shm-size=1g` (NCCL, "Troubleshooting")."""
LEAST_DISK_BYTES = GIB // 2
WANTED_DISK_BYTES = 5 * GIB
"""Kernels that are compiled on first use (Triton, DeepGEMM, FlashInfer, torch.compile) fill gigabytes."""

_SHARED = "/dev/shm"  # noqa: S108
_SCRIPT = (
    f'grep MemAvailable /proc/meminfo; for d in {_SHARED} "${{HOME:-/}}" "${{TMPDIR:-/tmp}}"; do '
    'printf "%s " "$d"; df -Pk -- "$d" 2>/dev/null | tail -n 1; echo; done'
)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)
_FREE = re.compile(r"^(?P<folder>/.*?) \S.*?\s\d+\s+\d+\s+(?P<free_kib>\d+)\s+\d+% ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """available_bytes: of main memory; None where the host does not say. free_bytes: of disk, by folder."""

    available_bytes: int | None
    free_bytes: dict[str, int]

    def faults(self, num_ranks: int) -> list[str]:
        """What keeps a server of `num_ranks` from coming up, one line each."""
        found = []
        if self.available_bytes is not None and self.available_bytes < num_ranks * RANK_BYTES:
            found.append(
                f"main memory: {_gib(self.available_bytes)} are available, and {num_ranks} ranks take "
                f"{_gib(num_ranks * RANK_BYTES)} at least"
            )
        for folder, free in self.free_bytes.items():
            least = LEAST_SHARED_BYTES if folder == _SHARED else LEAST_DISK_BYTES
            if free < least and not (folder == _SHARED and num_ranks == 1):
                found.append(f"{folder} has {_gib(free)} free, and {_gib(least)} is the least that a server needs")
        return found

    def notices(self, num_ranks: int) -> list[str]:
        """What may become a fault, one line each."""
        found = []
        for folder, free in self.free_bytes.items():
            if folder == _SHARED:
                if num_ranks > 1 and LEAST_SHARED_BYTES <= free < WANTED_SHARED_BYTES:
                    found.append(f"{_SHARED} has {_gib(free)} free, and NCCL may need more (--shm-size=1g)")
            elif LEAST_DISK_BYTES <= free < WANTED_DISK_BYTES:
                found.append(f"{folder} has {_gib(free)} free, and kernels compiled on first use fill gigabytes")
        return found


def room_of(host: Host) -> Room:
    """Raises HostError."""
    said = host.run(["sh", "-c", _SCRIPT]).stdout.decode(errors="replace")
    available = _AVAILABLE.search(said)
    return Room(
        available_bytes=int(available[1]) * 1024 if available else None,
        free_bytes={each["folder"]: int(each["free_kib"]) * 1024 for each in _FREE.finditer(said)},
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.3g} GiB"
