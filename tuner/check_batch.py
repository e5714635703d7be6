"""`tune check --batch`: one verdict for each line of a JSON-lines file, in the same order, as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from rich.status import Status

from search_spaces.errors import UserError
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner.batch_lines import Answer, judged_line, numbered, object_of, refuse_misspelled, unanswered
from tuner.check_document import document
from tuner.check_memory import format_notes, uncounted_notes
from tuner.exit_code import Exit
from tuner.voice import Voice

_SHOWN_EVERY = 20


def answers(lines: Iterable[str | bytes], version: EngineVersion = NEWEST, *, suggest: bool = True) -> Iterator[Answer]:
    """Blank lines are passed over, and a mark of the byte order before the first. version: for lines that name none."""
    for number, line in numbered(lines):
        asked: Any = None
        try:
            asked = object_of(line)
            refuse_misspelled(asked)
            judged = judged_line(asked, version, suggest=suggest)
        except UserError as error:
            yield unanswered(number, asked, error)
            continue
        told = {"id": asked.get("id"), **document(judged.checked)}
        notes = [*judged.notes, *uncounted_notes(judged.checked), *(format_notes(judged.checked) if suggest else ())]
        yield Answer(fields={**told, "notes": notes} if notes else told, is_answered=True)


def write_answers(lines: Iterable[str | bytes], version: EngineVersion = NEWEST) -> Exit:
    """Answers `lines` on stdout, each as soon as it is judged; progress for whoever watches stderr."""
    voice = Voice()
    failed = total = 0
    with Status("", console=voice.live_console()) if voice.is_live else nullcontext() as progress:
        for total, answer in enumerate(answers(lines, version), start=1):
            failed += not answer.is_answered
            voice.document(json.dumps(answer.fields, allow_nan=False) + "\n")
            if progress is not None and total % _SHOWN_EVERY == 0:
                progress.update(f"{total} lines judged")
    if failed:
        voice.say(f"tune: {failed} of {total} lines could not be used; each says why under `error`")
    return Exit.USER if failed else Exit.DONE
