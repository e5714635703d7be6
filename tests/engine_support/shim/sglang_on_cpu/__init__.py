from __future__ import annotations

import sys

from sglang_on_cpu.absent import AbsentPackages
from sglang_on_cpu.patches import PatchedModules


def install() -> None:
    sys.meta_path.insert(0, PatchedModules())
    sys.meta_path.append(AbsentPackages())
