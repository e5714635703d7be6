"""Every command and every line of code in the docs is run; set LAYOUT_TUNE_REWRITE_DOCS=1 to put in what came out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
REWRITE = os.environ.get("LAYOUT_TUNE_REWRITE_DOCS") == "1"


def blocks(page: Path, kind: str) -> list[re.Match[str]]:
    return [match for match in BLOCK.finditer(page.read_text()) if match["kind"] == kind]


def session(block: re.Match[str]) -> tuple[str, str]:
    """The command after the prompt, and what the page shows of its output."""
    first, _, shown = block["text"].partition("\n")
    assert first.startswith("$ "), first
    return first[2:], shown


def output_of(command: str, folder: Path) -> str:
    program, *words = shlex.split(command)
    assert program == "tune"
    path = f"{Path(__file__).parent / 'no_gpu'}:{Path(sys.executable).parent}:{os.defpath}"
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in {0, 3}, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    for block in reversed(blocks(page, "console")):
        command, shown = session(block)
        if command.startswith("cat "):
            continue
        for other in blocks(page, "console"):
            file, content = session(other)
            if file.startswith("cat "):
                (tmp_path / file.removeprefix("cat ")).write_text(content)
        printed = output_of(command, tmp_path)
        if REWRITE:
            text = f"{text[: block.start()]}```console\n$ {command}\n{printed}```{text[block.end() :]}"
        else:
            assert shown == printed, command
    if REWRITE:
        page.write_text(text)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_pages_code_runs(page: Path) -> None:
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block["text"], str(page), "exec"), names)


def test_the_pages_show_something() -> None:
    assert sum(len(blocks(page, "console")) for page in PAGES) > 4
    assert sum(len(blocks(page, "python")) for page in PAGES) > 1
