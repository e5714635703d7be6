"""`tune check` on one launch or one script: from words to a told verdict and an exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces.catalogue import parse_cluster
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.flags import FlagError, from_argv
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner import asking, check_text, detection, engine_opinion
from tuner.check_document import argv_text, document
from tuner.checked_launch import CheckedLaunch, check_launch
from tuner.checking import Server
from tuner.cluster_words import cluster_of
from tuner.exit_code import Exit
from tuner.installed_engine import installed_engine
from tuner.launch_words import Asked, read_words
from tuner.voice import Voice

_GPUS_OF_A_NODE = 8


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
        version = request.version or installed or _image_version(each, voice)
        served, about_model = _served(each, request, voice)
        cluster, about_cluster = _cluster(each, request, version, voice)
        server = Server(model=served.model, cluster=cluster, version=version, env=each.env)
        noted = replace(each, notes=(*about_model, *about_cluster, *each.notes))
        launches.append((noted, served, check_launch(noted, server)))
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


def _image_version(asked: Asked, voice: Voice) -> EngineVersion:
    """The rules to judge by where nothing but the launch itself says: those of its container's image."""
    version = asked.container.version
    if version is None:
        return NEWEST
    voice.say(f"SGLang {version}, as {asked.container.image} says (--engine-version says otherwise)")
    return version


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


def _served(asked: Asked, request: CheckRequest, voice: Voice) -> tuple[asking.Served, tuple[str, ...]]:
    """The model, and what is to be noted of it."""
    if request.model is not None:
        served = asking.served(request.model)
        return served, _other_model(asked, served)
    if not asked.model:
        if any(word.partition("=")[0] == "--config" for word in asked.flags):
            raise UserError("the file of --config is not read here, and may name the model: say it with --model")
        voice.say(f"no model is named: taken for {asking.STORY_MODEL} (--model says otherwise)")
        return asking.served(asking.STORY_MODEL), ()
    found = asking.served_elsewhere(asked.model)
    if found.model_path != asked.model and "/" in asked.model and not Path(asked.model).expanduser().exists():
        voice.say(f"{asked.model} is not on this machine: taken for {found.model.name} (--model says otherwise)")
    return found, ()


def _other_model(asked: Asked, served: asking.Served) -> tuple[str, ...]:
    """Said where the launch itself names another model than the one it is judged for."""
    try:
        named = asking.served_elsewhere(asked.model).model if asked.model else served.model
    except UserError:
        return ()
    if named.name == served.model.name:
        return ()
    return (f"the launch names {asked.model}; it is judged for {served.model.name}, as --model says",)


def _cluster(
    asked: Asked, request: CheckRequest, version: EngineVersion, voice: Voice
) -> tuple[Cluster, tuple[str, ...]]:
    """The GPUs that the server is let to see, and what is to be noted of them."""
    nodes = min(max(_layout(asked, version).nnodes, 1), 64)
    said = request.cluster or (asked.notation.cluster if asked.notation is not None else "")
    whole = cluster_of(said) if said else _usual_cluster(asked, version, nodes, voice)
    notes = []
    if nodes > whole.num_nodes:
        wanted = replace(whole, num_nodes=nodes)
        notes.append(
            f"the launch is for {nodes} nodes and {whole.name} is {whole.num_nodes}: say --cluster {wanted.name}"
        )
    visible = asked.visible_gpus
    seen = whole if visible is None else visible.of(whole)
    if visible is not None and seen != whole:
        notes.append(f"{visible.said}: {seen.gpus_per_node} of {whole.gpus_per_node} GPUs are seen")
    return seen, tuple(notes)


def _usual_cluster(asked: Asked, version: EngineVersion, nodes: int, voice: Voice) -> Cluster:
    """What is found here, or as many GPUs as the launch needs, eight at least."""
    notation = asked.notation
    here = detection.found_cluster(detection.found_gpus())
    gpu = here.gpu if here is not None else parse_cluster(asking.STORY_CLUSTER).gpu
    if notation is not None and notation.num_gpus:
        wanted = notation.num_gpus
    else:
        layout = _layout(asked, version)
        layout.needed_nodes()
        wanted = layout.num_gpus
    usual = here.gpus_per_node if here is not None else _GPUS_OF_A_NODE
    each = max(-(-wanted // nodes), 1)
    said = notation is not None and notation.num_gpus is not None
    cluster = Cluster(gpu=gpu, gpus_per_node=each if said else max(each, usual), num_nodes=nodes)
    why = "what is found here" if here is not None else "nothing was said of the GPUs"
    voice.say(f"cluster: {cluster.name} ({why}; --cluster says otherwise)")
    return cluster


def _layout(asked: Asked, version: EngineVersion) -> Layout:
    if asked.notation is not None:
        return asked.notation.literal
    try:
        return from_argv(asked.flags, version).layout
    except FlagError:
        return Layout()


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
