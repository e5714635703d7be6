"""The shim stands on the PYTHONPATH of whatever an engine's process starts, and must only be seen by SGLang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.engine_support.environment import ENVIRONMENT, HERE

SHIM = str(HERE / "shim")


def said(code: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_process_that_does_not_ask_for_the_cpu_engine_imports_as_ever() -> None:
    code = "import sys; print(sys.meta_path)"
    assert "sglang" not in said(code, PYTHONPATH=SHIM)
    assert "sglang_on_cpu.absent.AbsentPackages" in said(code, **ENVIRONMENT)


def test_nobody_but_sglang_finds_a_package_that_is_not_installed() -> None:
    assert "No module named 'sgl_kernel'" in said("import sgl_kernel", **ENVIRONMENT)


def test_sglang_may_name_an_absent_kernel_and_not_call_it(tmp_path: Path) -> None:
    (tmp_path / "sglang.py").write_text(
        "from sgl_kernel.flash_attn import Layout, flash_attn_varlen_func\n"
        "class Wide(Layout.Nested): pass\n"
        "print('named')\n"
        "flash_attn_varlen_func()\n"
    )
    output = said("import sglang", **{**ENVIRONMENT, "PYTHONPATH": f"{SHIM}:{tmp_path}"})
    assert output.startswith("named\n")
    assert output.endswith(
        "NotImplementedError: sgl_kernel.flash_attn.flash_attn_varlen_func was called, "
        "but its package is not installed\n"
    )
