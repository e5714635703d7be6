"""What a test of real services needs of the machine, and what becomes of the test where that is missing."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRED = "LAYOUT_TUNE_REQUIRE_SERVICES"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/usr/bin:/sbin"


def needed(*programs: str, root: bool = True) -> dict[str, str]:
    """Where each program is. Skips the test where one is missing, or fails it where services are required."""
    found = {name: shutil.which(name, path=_PATH) for name in programs}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        not_here(f"{', '.join(missing)} not installed: tests/services/install.sh installs what these tests start")
    if root and os.geteuid() != 0:
        not_here("starting these services needs root")
    return {name: path for name, path in found.items() if path is not None}


def not_here(reason: str) -> None:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{reason} ({REQUIRED}=1 makes this a failure)")
    pytest.skip(reason)
