"""What a pasted launch runs on: model, GPUs, version, environment, by options, the launch itself, and this host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from search_spaces.catalogue import parse_cluster
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.flags import FlagError, from_argv
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner import asking, detection
from tuner.checking import Server
from tuner.cluster_words import cluster_of
from tuner.launch_words import Asked
from tuner.voice import Voice

_GPUS_OF_A_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """asked: with notes of what was assumed for it."""

    asked: Asked
    served: asking.Served
    server: Server


def place(
    asked: Asked, *, model: str | None, cluster: str | None, version: EngineVersion | None, voice: Voice
) -> Placed:
    """model, cluster, version: the options; None: left open. What is taken for granted is said through `voice`.

    Raises UserError.
    """
    rules = version or _image_version(asked, voice)
    asked = asked.under(rules)
    served, about_model = _served(asked, model, voice)
    gpus, about_cluster = _cluster(asked, cluster, rules, voice)
    return Placed(
        asked=replace(asked, notes=(*about_model, *about_cluster, *asked.notes)),
        served=served,
        server=Server(model=served.model, cluster=gpus, version=rules, env=asked.env),
    )


def _image_version(asked: Asked, voice: Voice) -> EngineVersion:
    """The rules to judge by where nothing but the launch itself says: those of its container's image."""
    version = asked.container.version
    if version is None:
        return NEWEST
    voice.say(f"SGLang {version}, as {asked.container.image} says (--engine-version says otherwise)")
    return version


def _served(asked: Asked, model: str | None, voice: Voice) -> tuple[asking.Served, tuple[str, ...]]:
    """The model, and what is to be noted of it."""
    if model is not None:
        served = asking.served(model)
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
    asked: Asked, cluster: str | None, version: EngineVersion, voice: Voice
) -> tuple[Cluster, tuple[str, ...]]:
    """The GPUs that the server is let to see, and what is to be noted of them."""
    nodes = min(max(_layout(asked, version).nnodes, 1), 64)
    said = cluster or (asked.notation.cluster if asked.notation is not None else "")
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
