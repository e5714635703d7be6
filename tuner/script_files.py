"""The files that words name: a script or a unit itself, or a shell that is told to run one."""

from __future__ import annotations

import errno
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.errors import MalformedError

_LARGEST_FILE_BYTES = 2**20
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "source", "."})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_FENCED = re.compile(r"^[ \t]*(?:```+|~~~+)[^\n`]*\n(.*?)^[ \t]*(?:```+|~~~+)[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """arguments, environment: what it is started with."""

    path: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Raises MalformedError."""
        try:
            if self.path.stat().st_size > _LARGEST_FILE_BYTES:
                raise MalformedError(f"{self.path} is too large for a script ({self.path.stat().st_size} bytes)")
            text = self.path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            raise MalformedError(f"{self.path} cannot be read: {error.strerror}") from None
        if "\0" in text:
            raise MalformedError(f"{self.path} is no text")
        return text


def script_of(words: Sequence[str]) -> Script | None:
    """`run.sh`, `sglang.service`, `TP=4 bash run.sh 8`; None for words that name no file to read.

    Raises MalformedError for a file that is not there.
    """
    if len(words) == 1 and (path := _file(words[0])) is not None:
        return Script(path=path)
    if len(words) == 1:
        try:
            words = shlex.split(words[0]) if "\n" not in words[0].strip() else ()
        except ValueError:
            return None
    given: dict[str, str] = {}
    rest = list(words)
    while rest and (assignment := _ASSIGNMENT.fullmatch(rest[0])):
        given[assignment[1]] = assignment[2]
        rest = rest[1:]
    is_shell = bool(rest) and Path(rest[0]).name in _SHELLS
    while is_shell and len(rest) > 1 and re.fullmatch(r"-[aeuxl]+", rest[1]):
        rest = [rest[0], *rest[2:]]
    if is_shell and len(rest) == 1:
        raise MalformedError(
            f"{rest[0]} is given nothing to run: name its script, or pipe it in: tune check - < script"
        )
    rest = rest[1:] if is_shell else rest
    if not rest or rest[0].startswith("-") or not (is_shell or rest[0].endswith((".sh", ".bash"))):
        return None
    path = _file(rest[0])
    return None if path is None else Script(path=path, arguments=tuple(rest[1:]), environment=given)


def _file(word: str) -> Path | None:
    is_path = re.fullmatch(r"(?:[./~]\S*|[^\s-]\S*\.(?:sh|bash|service|txt|slurm|sbatch))", word) is not None
    try:
        path = Path(word).expanduser()
        kind = path.stat().st_mode
    except FileNotFoundError:
        if is_path:
            raise MalformedError(f"{word}: no such file") from None
        return None
    except (OSError, RuntimeError, ValueError) as error:
        if is_path or (isinstance(error, OSError) and error.errno == errno.ELOOP):
            raise MalformedError(f"{word} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return None
    if stat.S_ISREG(kind):
        return path
    if stat.S_ISDIR(kind):
        if is_path:
            raise MalformedError(f"{word} is a folder: name the script or the unit in it")
        return None
    what = "a pipe" if stat.S_ISFIFO(kind) else "no regular file"
    raise MalformedError(f"{word} is {what}, and is not read: pipe the text in, with - for it")


def unfenced(text: str) -> str:
    """What stands in fences of Markdown, or between single backquotes; all of `text` where nothing does."""
    fenced = _FENCED.findall(text.replace("\r\n", "\n"))
    if fenced:
        return "\n".join(fenced)
    quoted = re.fullmatch(r"\s*`([^`]+)`\s*", text)
    return quoted[1] if quoted else text
