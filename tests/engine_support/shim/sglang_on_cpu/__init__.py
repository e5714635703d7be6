"""Makes the wheel sglang 0.5.23 importable and its CPU server runnable with nothing but CPU torch.

For the project's own tests. SGLang's supported CPU build is compiled from source for x86 with AMX; the wheel
on the package index has the same Python code, holds kernels for NVIDIA GPUs only, and falls back to plain
torch where those are missing. Two things stand between that fallback and a running server: packages that are
imported and never used (`absent`), and three places that were written with a GPU in mind (`patches`).
"""

from __future__ import annotations

import sys
from typing import Any

from sglang_on_cpu.absent import GPU_PACKAGES, PACKAGES, AbsentPackages
from sglang_on_cpu.patches import CONFIGURATION_PATCHES, PATCHES, PatchedModules


def install() -> None:
    sys.meta_path.insert(0, PatchedModules(PATCHES))
    sys.meta_path.append(AbsentPackages(PACKAGES))


def install_with_gpus(card: Any) -> None:
    """For judging launches on GPUs of a kind that this machine doesn't have; nothing can be run on them."""
    from sglang_on_cpu import gpus  # noqa: PLC0415 - torch is slow to import

    gpus.install(card)
    sys.meta_path.insert(0, PatchedModules(CONFIGURATION_PATCHES))
    sys.meta_path.append(AbsentPackages(PACKAGES | GPU_PACKAGES))
