"""Writes search_spaces/sglang/options.json: every option of every release, asked of each release's own parser.

    python -m tests.engine_support.options_table ENGINE_PYTHON FOLDER

FOLDER holds the wheels (`pip download --no-deps sglang==0.5.N`); ENGINE_PYTHON is an environment made by
install.sh. Old releases are put before its own SGLang on the path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from search_spaces.sglang.versions import NEWEST, OLDEST
from tests.engine_support.environment import ENVIRONMENT, HERE

TABLE = Path(__file__).parents[2] / "search_spaces" / "sglang" / "options.json"

Entry = dict[str, Any]


def parser_of(engine_python: str, package: Path | None = None) -> list[Entry]:
    """The options of the SGLang under `package`, or of the one that `engine_python` has installed."""
    path = ENVIRONMENT["PYTHONPATH"] if package is None else f"{package}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    done = subprocess.run(
        [engine_python, str(HERE / "read_parser.py")],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    entries: list[Entry] = json.loads(done.stdout)
    return entries


def merged(parsers: dict[str, list[Entry]]) -> str:
    """The table: each distinct option once, and for each release which of them its parser has, in its order."""
    texts = {release: [json.dumps(entry, sort_keys=True) for entry in parser] for release, parser in parsers.items()}
    distinct = sorted({text for parser in texts.values() for text in parser}, key=_by_name)
    place = {text: number for number, text in enumerate(distinct)}
    options = ",\n".join(distinct)
    releases = ",\n".join(
        f'"{release}": {json.dumps([place[text] for text in parser], separators=(",", ":"))}'
        for release, parser in texts.items()
    )
    return f'{{"options": [\n{options}\n],\n"releases": {{\n{releases}\n}}}}\n'


def _by_name(text: str) -> tuple[str, str]:
    return json.loads(text)["names"][0], text


def main(engine_python: str, folder: Path) -> None:
    parsers: dict[str, list[Entry]] = {}
    for patch in range(OLDEST.patch, NEWEST.patch + 1):
        release = f"0.5.{patch}"
        (wheel,) = folder.glob(f"sglang-{release}-*.whl")
        with tempfile.TemporaryDirectory() as unpacked:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
            parsers[release] = parser_of(engine_python, Path(unpacked))
    TABLE.write_text(merged(parsers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
