"""Files of measurements, one point a line: what `--measured` takes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cost_models.calibration import Observation
from cost_models.setting import Client, ServingEngine
from search_spaces.errors import MalformedError, UserError
from search_spaces.layout import MOST_GPUS
from search_spaces.model import Model
from search_spaces.workload import MOST_CONCURRENT, Workload
from tuner.batch_lines import numbered, refuse_misspelled
from tuner.checking import Server
from tuner.predict_left_out import LeftOut
from tuner.predict_measured_bounds import refuse_beyond_sense, refuse_the_impossible
from tuner.predict_measured_launch import SIZES, measured_launch
from tuner.served_names import served_gpu, served_model
from tuner.standard_input import standard_input
from tuner.validate_campaigns import client, length_ratio, release_of
from tuner.validate_fields import LONGEST, Reason, SkippedError, count, flagged, milliseconds, tokens_per_second, word
from tuner.validate_lines import refuse_repeats, said_on

_KEYS = (
    "id", "flags", "argv", "env", "concurrency", "tpot_ms", "ttft_ms", "output_tok_s", "isl", "osl", "input_tokens",
    "output_tokens",
)  # fmt: skip
_OF_VALIDATE = (
    *SIZES, "world_tp", "moe_tp", "model", "precision", "gpu", "n_gpus", "engine", "engine_version",
    "mem_fraction_static", "kv_cache_dtype", "flag", "layout_status", "mode", "client", "random_range_ratio", "source",
    "date",
)  # fmt: skip
_LENGTHS = {"input_tokens": ("isl", "input_tokens"), "output_tokens": ("osl", "output_tokens")}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLines:
    """observations: what moves predictions, in the order of the lines."""

    observations: tuple[Observation, ...]
    left_out: LeftOut


def measured_in_files(names: Sequence[str], server: Server, workload: Workload) -> MeasuredLines:
    """`--measured`: of each line a layout, `concurrency`, `tpot_ms` and, where known, `ttft_ms` and `output_tok_s`.

    The layout is `flags` or `argv`, or sizes under the names that `tune validate` reads; variables of the server's
    environment stand in `argv` or `env`. All of one model on one cluster under one load: those of the command; a line
    that says others is refused. What a line sets aside itself, as `tune validate` reads it, is counted only.

    Raises UserError with the line's number.
    """
    found = _Found(server, workload)
    for name in names:
        if name == "-":
            found.read(standard_input())
            continue
        if not name.strip():
            raise MalformedError("--measured takes a file of JSON lines, or - for stdin (got '')")
        try:
            with Path(name).expanduser().open("rb") as lines:
                found.read(lines)
        except OSError as error:
            raise MalformedError(f"--measured {name} cannot be read: {error.strerror}") from None
    return found.lines


class _Found:
    """What the lines of all files have given so far."""

    def __init__(self, server: Server, workload: Workload) -> None:
        self._server, self._workload = server, workload
        self._observations: list[Observation] = []
        self._seen: set[str] = set()
        self._set_aside: Counter[str] = Counter()
        self._by_client: Counter[str] = Counter()
        self._repeated = 0

    @property
    def lines(self) -> MeasuredLines:
        left_out = LeftOut(set_aside=dict(self._set_aside), repeated=self._repeated, by_client=dict(self._by_client))
        return MeasuredLines(observations=tuple(self._observations), left_out=left_out)

    def read(self, lines: Iterable[str | bytes]) -> None:
        """One file. Raises MalformedError."""
        found = []
        for number, line in numbered(lines):
            try:
                seen = self._observation(line)
            except (UserError, SkippedError) as error:
                raise MalformedError(f"--measured, line {number}: {error}") from None
            if seen is not None:
                found.append((number, seen))
        try:
            refuse_beyond_sense(found, self._server, self._workload)
        except MalformedError as error:
            raise MalformedError(f"--measured, {error}") from None
        self._observations += [seen for _, seen in found]

    def _observation(self, line: str | bytes) -> Observation | None:
        """None where the line is only counted. Raises UserError and SkippedError."""
        said = said_on(line)
        refuse_repeats(line)
        refuse_misspelled(said, (*_KEYS, *_OF_VALIDATE))
        text = json.dumps({name: value for name, value in said.items() if value is not None}, sort_keys=True)
        if text in self._seen:
            self._repeated += 1
            return None
        self._seen.add(text)
        if reason := _set_aside(said):
            self._set_aside[reason] += 1
            return None
        seen = _observation(said, self._server, self._workload)
        sent_by = _sent_by(said, self._workload)
        if sent_by is Client.STEADY or seen.ttft_s is seen.output_tok_per_s is None:
            return seen
        self._by_client[sent_by] += 1
        return replace(seen, ttft_s=None, output_tok_per_s=None)


def _set_aside(said: Mapping[str, Any]) -> str:
    """Why the line says that it is no measurement to go by; empty where it does not."""
    if word(said, "mode") not in {"", "agg"} or said.get("disagg"):
        return Reason.DISAGGREGATED
    status = word(said, "layout_status")
    return flagged(said) or (f"layout_status is {status}" if status not in {"", "ok"} else "")


def _observation(said: Mapping[str, Any], server: Server, workload: Workload) -> Observation:
    concurrency = count(said, "concurrency", MOST_CONCURRENT)
    tpot_ms, ttft_ms = (milliseconds(said, name) for name in ("tpot_ms", "ttft_ms"))
    if tpot_ms is None:
        raise MalformedError(
            "tpot_ms is missing: the mean time per output token after the first, in milliseconds (a throughput alone "
            "says nothing of the time to first token)"
        )
    output_tok_s = tokens_per_second(said, "output_tok_s")
    _refuse_other_load(said, workload)
    _refuse_other_server(said, server)
    layout, environment = measured_launch(said, server)
    seen = Observation(
        layout=layout,
        concurrency=concurrency,
        tpot_s=tpot_ms / 1e3,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        output_tok_per_s=output_tok_s,
        environment=environment,
    )
    refuse_the_impossible(seen, server, workload)
    return seen


def _sent_by(said: Mapping[str, Any], workload: Workload) -> Client:
    lengths = (_length(said, field, workload)[1] for field in _LENGTHS)
    return client(said, ServingEngine.SGLANG, *lengths)


def _length(said: Mapping[str, Any], field: str, workload: Workload) -> tuple[str, int]:
    """By which name the line says it, and how many tokens; what is asked for, under no name, where it does not."""
    for name in _LENGTHS[field]:
        if said.get(name) is not None:
            return name, count(said, name, LONGEST)
    return "", getattr(workload, field)


def _refuse_other_load(said: Mapping[str, Any], workload: Workload) -> None:
    """Lengths are means, as in `tune validate`."""
    ratio = length_ratio(said, _sent_by(said, workload))
    for field, names in _LENGTHS.items():
        wanted = getattr(workload, field)
        stated = {name: count(said, name, LONGEST) for name in names if said.get(name) is not None}
        if ratio < 1 and not stated:
            raise MalformedError(f"{names[0]} is missing: of lengths that were drawn (random_range_ratio), the longest")
        for name, value in stated.items():
            mean = max(1, round(ratio * value))
            if mean == wanted:
                continue
            drawn = f", {mean} in the mean" if mean != value else ""
            raise MalformedError(
                f"measured with {name} {value}{drawn}, and what is asked for has {wanted}: say "
                f"--{field.replace('_', '-')} {mean}, or leave the line out"
            )


def _refuse_other_server(said: Mapping[str, Any], server: Server) -> None:
    engine = said.get("engine")
    if isinstance(engine, str) and engine.strip() and engine.strip().lower() != "sglang":
        raise MalformedError(f"measured with {engine}, and predictions here are of SGLang")
    _refuse_other_release(said, server)
    name, gpu = said.get("model"), said.get("gpu")
    if isinstance(name, str) and name.strip():
        try:
            other = served_model(name, str(said.get("precision") or ""))
        except UserError:
            other = None
        if other is not None and _shape(other) != _shape(server.model):
            raise MalformedError(f"measured of {name}, and what is asked for is {server.model.name}")
    if isinstance(gpu, str) and gpu.strip():
        try:
            key = served_gpu(gpu).key
        except UserError:
            key = server.cluster.gpu.key
        if key != server.cluster.gpu.key:
            raise MalformedError(f"measured on {gpu}, and what is asked for is {server.cluster.name}")
    here = server.cluster.num_gpus
    if (there := count(said, "n_gpus", MOST_GPUS, default=here)) != here:
        raise MalformedError(
            f"measured on {there} GPUs, and what is asked for is {server.cluster.name}: say the --cluster that it was "
            "measured on, or leave the line out"
        )


def _refuse_other_release(said: Mapping[str, Any], server: Server) -> None:
    """A word that is no release, such as `main`, contradicts none."""
    named = word(said, "engine_version")
    release = release_of(ServingEngine.SGLANG, named, {})
    if named and release.is_known and release.version != server.version:
        raise MalformedError(
            f"measured with SGLang {named}, and what is asked for is {server.version}: say --engine-version "
            f"{release.version}, or leave the line out"
        )


def _shape(model: Model) -> tuple[object, ...]:
    """What no precision and no other name of a model changes."""
    return model.architecture, model.num_layers, model.hidden_size, model.num_experts
