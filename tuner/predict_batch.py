"""`tune predict --batch`: one prediction for each line of a JSON-lines file, in the same order.

Lines are read in blocks; those of a block that ask for the same server and load are predicted together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

from cost_models.estimate import predict_all
from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Prediction
from cost_models.setting import Client, ServingEngine
from search_spaces.errors import MalformedError, UnknownNameError, UnsupportedError, UserError
from search_spaces.hardware import Cluster, LinkKind
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.rank_groups import rank_groups
from search_spaces.sglang.all_reduce import unheeded
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.workload import MOST_ACCEPTED, Workload
from tuner import asking
from tuner.batch_lines import (
    KEYS,
    Answer,
    JudgedLine,
    judged_line,
    name_of_model,
    numbered,
    object_of,
    refuse_misspelled,
    unanswered,
)
from tuner.check_document import document as checked_document
from tuner.check_memory import uncounted_notes
from tuner.exit_code import Exit
from tuner.predict_document import intervals_document, shortfall_document
from tuner.predict_launch import is_unjudged, too_large
from tuner.served_names import served_gpu, served_model
from tuner.voice import Voice

BLOCK = 4096
_LAUNCH_KEYS = (*(key for key in KEYS if key != "id"), "engine", "precision", "mem_fraction_static")
"""What a verdict hangs on."""
_LENGTHS = {"isl": "input_tokens", "osl": "output_tokens"}
"""Each with its other name."""
_LOAD_KEYS = (*_LENGTHS, *_LENGTHS.values(), "concurrency", "acceptance_length", "client")
_GPUS_PER_NODE = 8
_VLLM_FRACTION = 0.9
"""What other engines take of the memory unless they are told (vLLM's --gpu-memory-utilization)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """layout: as it would run. runs: whether there is anything to predict."""

    judged: JudgedLine
    engine: ServingEngine
    layout: Layout
    runs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    number: int
    asked: dict[str, Any]
    launch: _Launch
    workload: Workload
    client: Client

    @property
    def load(self) -> tuple[int, int, float, Client]:
        load = self.workload
        return load.input_tokens, load.output_tokens, load.acceptance_length, self.client

    @property
    def concurrency(self) -> int:
        return self.workload.concurrencies[-1]


def answers(lines: Iterable[str | bytes], version: EngineVersion = NEWEST) -> Iterator[Answer]:
    """version: for lines that name none."""
    rest = numbered(lines)
    while block := list(islice(rest, BLOCK)):
        yield from _answered(block, version)


def _answered(block: Sequence[tuple[int, str | bytes]], version: EngineVersion) -> list[Answer]:
    found: dict[int, Answer] = {}
    read: list[_Line] = []
    launches: dict[str, _Launch | UserError] = {}
    for number, line in block:
        asked: Any = None
        try:
            asked = object_of(line)
            read.append(_line(number, asked, version, launches))
        except UserError as error:
            found[number] = unanswered(number, asked, error)
    estimates = _estimates(read)
    for each in read:
        fields = _fields(each, estimates.get(each.number))
        found[each.number] = Answer(fields=fields, is_answered=True)
    return [found[number] for number, _ in block]


def _line(
    number: int, asked: dict[str, Any], version: EngineVersion, launches: dict[str, _Launch | UserError]
) -> _Line:
    """launches: those of lines before, by what they say; a verdict that is known is not asked for again."""
    refuse_misspelled(asked, ("id", *_LAUNCH_KEYS, *_LOAD_KEYS))
    workload = _workload(asked)
    key = json.dumps([asked.get(name) for name in _LAUNCH_KEYS])
    known = launches.get(key)
    if known is None:
        try:
            known = _launch(asked, version)
        except UserError as error:
            known = error
        launches[key] = known
    if isinstance(known, UserError):
        raise known
    if known.runs:
        workload.check_against(known.judged.checked.server.model)
        workload.check_drafts(known.layout)
    return _Line(number=number, asked=asked, launch=known, workload=workload, client=_client(asked.get("client")))


def _workload(asked: Mapping[str, Any]) -> Workload:
    inputs, outputs = (_length(asked, *names) for names in _LENGTHS.items())
    concurrency = _count(asked, "concurrency")
    accepted = asked.get("acceptance_length", 1.0)
    if isinstance(accepted, bool) or not isinstance(accepted, int | float):
        raise MalformedError(f"acceptance_length is a number of tokens per step (got {accepted!r})")
    if not 1 <= accepted <= MOST_ACCEPTED:  # before it becomes a float, which the largest numbers cannot
        raise MalformedError(f"acceptance_length is a number from 1 to {MOST_ACCEPTED}")
    return Workload(
        input_tokens=inputs,
        output_tokens=outputs,
        concurrencies=(1,) if concurrency == 1 else (1, concurrency),
        acceptance_length=float(accepted),
    )


def _length(asked: Mapping[str, Any], name: str, other: str) -> int:
    """In tokens, by either name."""
    if asked.get(name) is None and asked.get(other) is not None:
        return _count(asked, other)
    if asked.get(name) is not None and asked.get(other) not in {None, asked[name]}:
        raise MalformedError(f"{name} is {asked[name]} and {other} {asked[other]}: they are the same thing")
    return _count(asked, name)


def _count(asked: Mapping[str, Any], name: str) -> int:
    value = asked.get(name)
    if type(value) is not int or not 1 <= value < 2**31:
        raise MalformedError(f"{name} is a count of at least 1 (got {value!r})")
    return value


def _launch(asked: Mapping[str, Any], version: EngineVersion) -> _Launch:
    engine = _engine(asked.get("engine"))
    precision = asked.get("precision") or ""
    if not isinstance(precision, str):
        raise MalformedError(f"precision is a word, e.g. fp8 (got {precision!r})")
    if engine is not ServingEngine.SGLANG:
        asked = {name: value for name, value in asked.items() if name != "engine_version"}  # of an engine of its own
    judged = judged_line(
        _with_fraction(asked),
        version,
        suggest=False,
        model_named=lambda word: _model(name_of_model(word), precision),
        gpu_named=served_gpu,
    )
    verdict = judged.checked.verdict
    if engine is ServingEngine.SGLANG:
        runs = not verdict.violations and not is_unjudged(judged.checked)
        return _Launch(judged=judged, engine=engine, layout=verdict.effective, runs=runs)
    layout = verdict.effective
    if not rank_groups(layout):
        raise UnsupportedError(f"no layout of {engine}: {verdict.violations[0].message}")
    if verdict.requested.mem_fraction_static is None and not judged.checked.server.cluster.gpu.is_cpu:
        layout = layout.changed(mem_fraction_static=_VLLM_FRACTION)
    return _Launch(judged=judged, engine=engine, layout=layout, runs=True)


def _engine(word: Any) -> ServingEngine:
    if word is None:
        return ServingEngine.SGLANG
    if not isinstance(word, str) or word.lower() not in set(ServingEngine):
        raise UnknownNameError("engine", str(word), [str(each) for each in ServingEngine])
    return ServingEngine(word.lower())


def _client(word: Any) -> Client:
    if word is None:
        return Client.STEADY
    if not isinstance(word, str) or word.lower() not in set(Client):
        raise UnknownNameError("client", str(word), [str(each) for each in Client])
    return Client(word.lower())


@cache
def _model(word: str, precision: str) -> Model:
    if precision:
        return served_model(word, precision)
    try:
        return asking.served(word).model
    except UnknownNameError:
        return served_model(word)


def _with_fraction(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The line's `mem_fraction_static` among its flags, where it has one: it wins over theirs."""
    fraction = asked.get("mem_fraction_static")
    if fraction is None:
        return dict(asked)
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise MalformedError(f"mem_fraction_static is a number between 0 and 1 (got {fraction!r})")
    flags, argv = asked.get("flags"), asked.get("argv")
    if isinstance(flags, dict):
        return {**asked, "flags": {**_without_fraction(flags), "mem-fraction-static": fraction}}
    if isinstance(argv, list):
        return {**asked, "argv": [*argv, "--mem-fraction-static", str(fraction)]}
    return {**asked, "argv": f"{argv} --mem-fraction-static {fraction}"} if isinstance(argv, str) else dict(asked)


def _without_fraction(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if str(name).replace("_", "-") != "mem-fraction-static"}


def _estimates(read: Sequence[_Line]) -> dict[int, Prediction | DoesNotFit]:
    """By line number. Launches on the same server that are asked for the same loads are predicted at once."""
    asked: dict[tuple[int, tuple[int, int, float, Client]], list[_Line]] = {}
    for each in read:
        if each.launch.runs:
            asked.setdefault((id(each.launch), each.load), []).append(each)
    together: dict[tuple[Any, ...], list[list[_Line]]] = {}
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


def _fields(line: _Line, estimate: Prediction | DoesNotFit | None) -> dict[str, Any]:
    launch = line.launch
    checked = checked_document(launch.judged.checked)
    is_sglang = launch.engine is ServingEngine.SGLANG
    notes = [*launch.judged.notes, *unheeded(launch.judged.checked.server.env)]
    notes += uncounted_notes(launch.judged.checked) if is_sglang else []
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
    if isinstance(estimate, DoesNotFit) and is_sglang and is_unjudged(launch.judged.checked, estimate):
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
            told["fits"] = True
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


def _predicted(line: _Line, estimate: Prediction) -> dict[str, Any]:
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
