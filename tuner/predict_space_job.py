"""`tune predict` without a launch: every legal layout ranked, told and drawn."""

from __future__ import annotations

import json

from rich.text import Text

from search_spaces.catalogue import parse_cluster
from search_spaces.hardware import Cluster
from search_spaces.sglang.versions import NEWEST
from tuner import asking, detection, predict_ranking_document, predict_ranking_text
from tuner.checking import Server
from tuner.cluster_words import cluster_of
from tuner.exit_code import Exit
from tuner.predict_plot import terminal_plot
from tuner.predict_request import PredictRequest, evidence_of
from tuner.predict_space import Ranking, rank_space
from tuner.voice import Voice


def rank(request: PredictRequest, *, json_output: bool) -> Exit:
    """Raises UserError."""
    voice = Voice()
    server = Server(
        model=asking.served(asking.STORY_MODEL if request.model is None else request.model).model,
        cluster=_cluster(request.cluster),
        version=request.version or NEWEST,
    )
    evidence = evidence_of(request, server)
    ranking = rank_space(
        server.model,
        server.cluster,
        server.version,
        request.workload,
        request.objective,
        pins=request.pins,
        all_reduce_paths=request.all_reduce_paths,
        evidence=evidence,
        asked=request.asked,
    )
    if request.plot is not None:
        from tuner.predict_figure import write_figure  # noqa: PLC0415

        write_figure(ranking, request.plot)
    if json_output:
        voice.document(json.dumps(predict_ranking_document.document(ranking), indent=2, allow_nan=False) + "\n")
        return Exit.DONE
    voice.result(*predict_ranking_text.report(ranking, voice.width, request.limit), *_plot(ranking, voice))
    if request.plot is not None:
        voice.say(f"drawn in {request.plot}")
    return Exit.DONE


def _plot(ranking: Ranking, voice: Voice) -> list[Text]:
    lines = terminal_plot(ranking, voice.width, is_plain=voice.is_plain, in_colour=voice.is_coloured)
    return [Text.from_ansi(line) for line in lines]


def _cluster(word: str | None) -> Cluster:
    if word is not None:
        return cluster_of(word)
    return detection.found_cluster(detection.found_gpus()) or parse_cluster(asking.STORY_CLUSTER)
