"""What a line of `tune predict --batch` asks: a launch, judged, and the load that it is predicted under."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cost_models.setting import Client, ServingEngine
from search_spaces.errors import MalformedError, UnknownNameError, UnsupportedError, UserError
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.rank_groups import rank_groups
from search_spaces.sglang.versions import EngineVersion
from search_spaces.workload import MOST_ACCEPTED, Workload
from tuner import asking
from tuner.batch_lines import KEYS, JudgedLine, judged_line, name_of_model, refuse_misspelled
from tuner.predict_launch import is_unjudged
from tuner.served_names import served_gpu, served_model

_LAUNCH_KEYS = (*(key for key in KEYS if key != "id"), "engine", "precision", "mem_fraction_static")
"""What a verdict hangs on."""
_LENGTHS = {"isl": "input_tokens", "osl": "output_tokens"}
"""Each with its other name."""
_LOAD_KEYS = (*_LENGTHS, *_LENGTHS.values(), "concurrency", "acceptance_length", "client")
_VLLM_FRACTION = 0.9
"""What other engines take of the memory unless they are told (vLLM's --gpu-memory-utilization)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLaunch:
    """layout: as it would run. runs: whether there is anything to predict."""

    judged: JudgedLine
    engine: ServingEngine
    layout: Layout
    runs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    number: int
    asked: dict[str, Any]
    launch: BatchLaunch
    workload: Workload
    client: Client

    @property
    def load(self) -> tuple[int, int, float, Client]:
        load = self.workload
        return load.input_tokens, load.output_tokens, load.acceptance_length, self.client

    @property
    def concurrency(self) -> int:
        return self.workload.concurrencies[-1]


def read_line(
    number: int, asked: dict[str, Any], version: EngineVersion, launches: dict[str, BatchLaunch | UserError]
) -> BatchLine:
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
    return BatchLine(number=number, asked=asked, launch=known, workload=workload, client=_client(asked.get("client")))


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


def _launch(asked: Mapping[str, Any], version: EngineVersion) -> BatchLaunch:
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
        return BatchLaunch(judged=judged, engine=engine, layout=verdict.effective, runs=runs)
    layout = verdict.effective
    if not rank_groups(layout):
        raise UnsupportedError(f"no layout of {engine}: {verdict.violations[0].message}")
    if verdict.requested.mem_fraction_static is None and not judged.checked.server.cluster.gpu.is_cpu:
        layout = layout.changed(mem_fraction_static=_VLLM_FRACTION)
    return BatchLaunch(judged=judged, engine=engine, layout=layout, runs=not is_unjudged(judged.checked))


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
