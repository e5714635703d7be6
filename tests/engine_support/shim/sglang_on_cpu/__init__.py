"""Makes the wheel sglang 0.5.23 importable and its CPU server runnable with nothing but CPU torch.

For the project's own tests. SGLang's supported CPU build is compiled from source for x86 with AMX; the wheel
on the package index has the same Python code, holds kernels for NVIDIA GPUs only, and falls back to plain
torch where those are missing. Two things stand between that fallback and a running server: packages that are
imported and never used (`absent`), and three places that were written with a GPU in mind (`patches`).
"""

from __future__ import annotations

import sys

from sglang_on_cpu.absent import AbsentPackages
from sglang_on_cpu.patches import PatchedModules


def install() -> None:
    sys.meta_path.insert(0, PatchedModules())
    sys.meta_path.append(AbsentPackages())
