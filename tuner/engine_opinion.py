"""`--installed`: what the installed engine itself says of a launch, set beside this project's verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces.catalogue.lookup import model_files
from search_spaces.sglang.flags import to_argv
from search_spaces.verdict import Stage, Verdict, Violation
from tuner.agreement import Difference, compare, speaks_for
from tuner.asking import Served
from tuner.checking import Checked
from tuner.detection import rules_of
from tuner.installed_engine import Answer, InstalledEngine, Platform, Question, folder_of
from tuner.launch_words import MODEL_OPTIONS, Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """decides: whether the engine was asked under the facts of the GPUs that are to run the launch, and is of the
    release that was judged: it then wins.

    other_release: the release that was judged, where the engine is of another; else empty.
    later: where the launch ends after the stages that the engine was asked about; None where it does not.
    """

    platform: Platform
    answer: Answer
    differences: tuple[Difference, ...]
    decides: bool
    other_release: str = ""
    later: Stage | None = None


@contextmanager
def model_folder(served: Served) -> Iterator[Path]:
    """Where the engine finds the model's config.json: the user's own folder, or one made of the catalogue's."""
    folder = Path(served.model_path).expanduser()
    if folder.is_dir():
        yield folder
        return
    with folder_of(model_files(served.model.name)) as made:
        yield made


def ask(engine: InstalledEngine, asked: Asked, checked: Checked, folder: Path) -> Opinion:
    """Raises EngineSilentError."""
    flags = asked.flags or to_argv(checked.verdict.requested, checked.server.version)
    argv = ["--model-path", str(folder), *_without_model(flags)]
    if engine.platform.kind == "cpu" and "--device" not in argv:
        argv += ["--device", "cpu"]
    (answer,) = engine.ask([Question(argv=tuple(argv), env=asked.env)])
    is_same = rules_of(engine.platform.version) == checked.server.version
    return Opinion(
        platform=engine.platform,
        answer=answer,
        differences=compare(checked.verdict, answer),
        decides=speaks_for(engine.platform, checked.server.cluster) and is_same,
        other_release="" if is_same else str(checked.server.version),
        later=_end_after(checked.verdict, answer),
    )


def _end_after(verdict: Verdict, answer: Answer) -> Stage | None:
    """The stage at which a launch that the engine was not asked far enough about is stopped; None where it is not."""
    first = next(iter(verdict.violations), None)
    return None if first is None or first.stage in answer.asked else first.stage


def with_opinion(checked: Checked, opinion: Opinion) -> Checked:
    """The verdict after the engine has spoken: its refusal added, or what it lets pass removed, where it decides."""
    if not opinion.decides or all(difference.name != "verdict" for difference in opinion.differences):
        return checked
    answer = opinion.answer
    kept = tuple(broken for broken in checked.verdict.violations if broken.stage not in answer.asked)
    if answer.stage is not None:
        kept = (_refusal(answer, answer.stage), *kept)
    return replace(checked, verdict=_decided(checked.verdict, kept))


def document(opinion: Opinion) -> dict[str, Any]:
    answer = opinion.answer
    return {
        "version": opinion.platform.version,
        "platform": opinion.platform.kind,
        "gpu": opinion.platform.gpu,
        "decides": opinion.decides,
        "agrees": not opinion.differences,
        "stage": None if answer.stage is None else str(answer.stage),
        "exception": answer.exception,
        "error": answer.error,
        "at": answer.at,
        "differences": [{"name": d.name, "ours": d.ours, "engine": d.engine} for d in opinion.differences],
        "resolved": json.loads(json.dumps(dict(answer.resolved))),
    }


def lines(opinion: Opinion) -> list[str]:
    """For people."""
    platform = opinion.platform
    where = f"{platform.kind}{f', {platform.gpu}' if platform.gpu else ''}"
    title = f"the installed SGLang {platform.version}, asked here ({where})"
    answer = opinion.answer
    if answer.stage is None:
        said = f"accepts it, up to the {answer.asked[-1]}"
    else:
        text = " ".join(answer.error.split()) or "no text"
        said = f"refuses it at {answer.stage}: {answer.exception}: {text} [{answer.at}]"
    if not opinion.decides:
        return ["", f"{title}: it {said}", f"  not decisive: {_why_not(opinion)}"]
    differs = {difference.name for difference in opinion.differences}
    attitude = "DISAGREES" if "verdict" in differs else "agrees but for some values" if differs else "agrees"
    told = ["", f"{title}, {attitude}: it {said}"]
    told += [f"  {d.name}: here {d.ours}; there {' '.join(d.engine.split())}" for d in opinion.differences]
    if opinion.differences:
        told.append("  the engine wins: it was asked under the facts of these GPUs")
    elif opinion.later is not None and answer.stage is None:
        told.append(f"  it was not asked further: what stops the launch comes at {opinion.later}")
    return told


def _why_not(opinion: Opinion) -> str:
    if opinion.other_release:
        return f"it is not SGLang {opinion.other_release}, whose rules were asked for"
    return "it applied the rules of this machine, not those of the GPUs that are to run it"


def _refusal(answer: Answer, stage: Stage) -> Violation:
    return Violation(
        rule="engine.refuses",
        stage=stage,
        message=f"the installed engine refuses it: {answer.error or answer.exception}",
        source=answer.at,
        exception=answer.exception,
        engine_text=answer.error,
    )


def _decided(verdict: Verdict, violations: Sequence[Violation]) -> Verdict:
    return replace(verdict, violations=tuple(violations), suggestions=verdict.suggestions if violations else ())


def _without_model(flags: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in flags:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in MODEL_OPTIONS:
            skip = not equals
        else:
            kept.append(word)
    return kept
