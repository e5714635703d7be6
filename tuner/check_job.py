"""`tune check` on one launch or one script: from words to a told verdict and an exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner import asking, check_text, detection, engine_opinion
from tuner.asked_server import place
from tuner.check_document import argv_text, document
from tuner.checked_launch import CheckedLaunch, check_launch
from tuner.exit_code import Exit
from tuner.installed_engine import installed_engine
from tuner.launch_words import Asked, read_words
from tuner.voice import Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What was typed. None: left open."""

    words: tuple[str, ...]
    model: str | None = None
    cluster: str | None = None
    version: EngineVersion | None = None
    installed: bool = False
    engine_command: str | None = None


def run(request: CheckRequest, *, json_output: bool) -> Exit:
    """Raises UserError."""
    voice = Voice()
    asked = read_words(request.words)
    program = asking.engine_program(request.engine_command) if request.installed else ()
    installed = None if request.version is not None or not program else _installed_version(program, voice)
    launches = []
    for each in asked:
        version = request.version or installed
        placed = place(each, model=request.model, cluster=request.cluster, version=version, voice=voice)
        launches.append((placed.asked, placed.served, check_launch(placed.asked, placed.server)))
    told = [launch for _, _, launch in launches] if not program else _with_opinions(program, launches)
    if json_output:
        documents = [_document(launch) for launch in told]
        voice.document(json.dumps(documents if len(documents) > 1 else documents[0], indent=2, allow_nan=False) + "\n")
    else:
        for number, launch in enumerate(told):
            voice.result(*([""] if number else []), *check_text.report(launch))
    illegal = any(launch.checked.verdict.violations for launch in told)
    return Exit.ILLEGAL if illegal else Exit.DONE


def _installed_version(program: Sequence[str], voice: Voice) -> EngineVersion:
    """The rules to judge by where no version was named, and the installed engine is asked too."""
    found = detection.installed_engine(program)
    if found is None:
        return NEWEST
    if not found.is_known:
        voice.say(f"SGLang {found.version} is judged by the rules of {found.rules}")
    return found.rules


def _with_opinions(
    program: Sequence[str], launches: Sequence[tuple[Asked, asking.Served, CheckedLaunch]]
) -> list[CheckedLaunch]:
    told = []
    with installed_engine(program) as engine:
        for asked, served, launch in launches:
            with engine_opinion.model_folder(served) as folder:
                opinion = engine_opinion.ask(engine, asked, launch.checked, folder)
            checked = engine_opinion.with_opinion(launch.checked, opinion)
            told.append(replace(launch, checked=checked, opinion=opinion))
    return told


def _document(launch: CheckedLaunch) -> dict[str, Any]:
    server = launch.checked.server
    return {
        "model": server.model.name,
        "cluster": server.cluster.name,
        "flags": launch.shown_flags,
        **document(launch.checked),
        "installed": None if launch.opinion is None else engine_opinion.document(launch.opinion),
        "meant": [
            {"flags": argv_text(m.layout, server.version), "meaning": m.meaning, **document(m.checked)}
            for m in launch.meant
        ],
        "notes": list(launch.notes),
        "versions": [
            {"first": str(each.first), "last": str(each.last), "outcome": each.outcome} for each in launch.history
        ],
    }
