"""`tune predict --batch`: one prediction for each line of a JSON-lines file, in the same order.

Lines are read in blocks; those of a block that ask for the same server and load are predicted together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from cost_models.estimate import predict_all
from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Prediction
from cost_models.setting import Client, ServingEngine
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster, LinkKind
from search_spaces.sglang.all_reduce import unheeded
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.workload import Workload
from tuner.batch_lines import Answer, numbered, object_of, unanswered
from tuner.check_document import document as checked_document
from tuner.check_memory import uncounted_notes
from tuner.checking import may_be_freed
from tuner.exit_code import Exit
from tuner.predict_batch_lines import BatchLaunch, BatchLine, read_line
from tuner.predict_document import intervals_document, shortfall_document
from tuner.predict_launch import too_large
from tuner.voice import Voice

BLOCK = 4096
_GPUS_PER_NODE = 8


def answers(lines: Iterable[str | bytes], version: EngineVersion = NEWEST) -> Iterator[Answer]:
    """version: for lines that name none."""
    rest = numbered(lines)
    while block := list(islice(rest, BLOCK)):
        yield from _answered(block, version)


def _answered(block: Sequence[tuple[int, str | bytes]], version: EngineVersion) -> list[Answer]:
    found: dict[int, Answer] = {}
    read: list[BatchLine] = []
    launches: dict[str, BatchLaunch | UserError] = {}
    for number, line in block:
        asked: Any = None
        try:
            asked = object_of(line)
            read.append(read_line(number, asked, version, launches))
        except UserError as error:
            found[number] = unanswered(number, asked, error)
    estimates = _estimates(read)
    for each in read:
        fields = _fields(each, estimates.get(each.number))
        found[each.number] = Answer(fields=fields, is_answered=True)
    return [found[number] for number, _ in block]


def _estimates(read: Sequence[BatchLine]) -> dict[int, Prediction | DoesNotFit]:
    """By line number. Launches on the same server that are asked for the same loads are predicted at once."""
    asked: dict[tuple[int, tuple[int, int, float, Client]], list[BatchLine]] = {}
    for each in read:
        if each.launch.runs:
            asked.setdefault((id(each.launch), each.load), []).append(each)
    together: dict[tuple[Any, ...], list[list[BatchLine]]] = {}
    for lines in asked.values():
        launch = lines[0].launch
        server = launch.judged.checked.server
        ladder = tuple(sorted({1, *(line.concurrency for line in lines)}))
        key = (id(server.model), _in_nodes(server.cluster), server.setting, launch.engine, lines[0].load, ladder)
        together.setdefault(key, []).append(lines)
    found: dict[int, Prediction | DoesNotFit] = {}
    for (*_, ladder), groups in together.items():
        first = groups[0][0]
        server = first.launch.judged.checked.server
        load = Workload(
            input_tokens=first.workload.input_tokens,
            output_tokens=first.workload.output_tokens,
            concurrencies=ladder,
            acceptance_length=first.workload.acceptance_length,
        )
        layouts = [lines[0].launch.layout for lines in groups]
        setting = replace(server.setting, engine=first.launch.engine, client=first.client)
        estimates = predict_all(server.model, _in_nodes(server.cluster), layouts, load, setting=setting)
        for lines, estimate in zip(groups, estimates, strict=True):
            found.update((line.number, estimate) for line in lines)
    return found


def _in_nodes(cluster: Cluster) -> Cluster:
    """More than eight GPUs on NVLink that a line counts in one number stand in nodes of eight."""
    nodes, rest = divmod(cluster.gpus_per_node, _GPUS_PER_NODE)
    if cluster.gpu.link is not LinkKind.NVLINK or cluster.num_nodes > 1 or nodes < 2 or rest:
        return cluster
    return replace(cluster, gpus_per_node=_GPUS_PER_NODE, num_nodes=nodes)


def _fields(line: BatchLine, estimate: Prediction | DoesNotFit | None) -> dict[str, Any]:
    launch = line.launch
    checked = checked_document(launch.judged.checked)
    is_sglang = launch.engine is ServingEngine.SGLANG
    notes = [*launch.judged.notes, *unheeded(launch.judged.checked.server.env)]
    notes += uncounted_notes(launch.judged.checked)
    if not is_sglang:
        notes.append(f"what {launch.engine} would refuse is not known here: its layout is taken as legal")
    told = {
        "id": line.asked.get("id"),
        "verdict": checked["verdict"] if is_sglang else None,
        "stage": checked["stage"] if is_sglang else None,
        "violations": checked["violations"] if is_sglang else [],
        "engine": str(launch.engine),
        "engine_version": checked["engine_version"] if is_sglang else None,
        "fits": checked["fits"],
        "weight_bytes_per_gpu": checked["weight_bytes_per_gpu"],
        **dict.fromkeys(_NOTHING),
        "unproven": [],
    }
    known = launch.judged.checked
    if isinstance(estimate, DoesNotFit) and may_be_freed(known, estimate, line.workload):
        told["fits"] = None
    elif isinstance(estimate, DoesNotFit):
        told |= {
            "fits": False,
            "weight_bytes_per_gpu": estimate.memory.weight_bytes,
            "shortfall": shortfall_document(estimate),
        }
    elif estimate is None:
        lacking = too_large(launch.judged.checked) if is_sglang else None
        told["shortfall"] = None if lacking is None else shortfall_document(lacking)
    else:
        told |= _predicted(line, estimate)
        if not is_sglang:
            told["fits"] = None if known.uncounted else True
    return {**told, "notes": notes} if notes else told


_NOTHING = (
    "kv_tokens",
    "max_concurrency",
    "ttft_ms",
    "tpot_ms",
    "output_tok_s",
    "interval",
    "limit_tok_s",
    "all_reduce",
    "shortfall",
)
"""What is null where nothing runs."""


def _predicted(line: BatchLine, estimate: Prediction) -> dict[str, Any]:
    point = next(each for each in estimate.points if each.concurrency == line.concurrency)
    limits = {each.concurrency: each.output_tok_per_s for each in estimate.limits}
    return {
        "weight_bytes_per_gpu": estimate.memory.weight_bytes,
        "kv_tokens": estimate.memory.kv_tokens_total,
        "max_concurrency": estimate.memory.max_concurrency(line.workload),
        "ttft_ms": point.ttft_s * 1e3,
        "tpot_ms": point.tpot_s * 1e3,
        "output_tok_s": point.output_tok_per_s,
        "interval": intervals_document(point),
        "limit_tok_s": limits.get(line.concurrency),
        "all_reduce": str(estimate.all_reduce),
        "unproven": list(estimate.unproven),
    }


def write_answers(lines: Iterable[str | bytes], version: EngineVersion = NEWEST) -> Exit:
    """Answers `lines` on stdout, a block at a time."""
    voice = Voice()
    failed = total = 0
    for answer in answers(lines, version):
        total += 1
        failed += not answer.is_answered
        voice.document(json.dumps(answer.fields, allow_nan=False) + "\n")
    if failed:
        voice.say(f"tune: {failed} of {total} lines could not be used; each says why under `error`")
    return Exit.USER if failed else Exit.DONE
