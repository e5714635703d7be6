"""A measured serving point: one line of a sweep, read into what the cost model can be asked.

A line is a JSON object shaped as those of `cost_models/measured_sweeps.jsonl`; docs/validate.md lists its fields.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from cost_models.setting import ServingEngine, Setting
from search_spaces.errors import MalformedError, UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.resolution import resolve
from search_spaces.sglang.rules import judge
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import EngineVersion
from search_spaces.workload import MOST_CONCURRENT
from tuner.batch_lines import numbered
from tuner.served_names import served_gpu, served_model
from tuner.validate_campaigns import client, length_ratio, memory_flags, release_of, setting
from tuner.validate_fields import (
    LONGEST,
    Reason,
    SkippedError,
    count,
    flagged,
    milliseconds,
    refuse_missing,
    tokens_per_second,
    truth,
    word,
)
from tuner.validate_flags import flag_words, launch_of, refuse_impossible, refuse_unmodelled
from tuner.validate_lines import refuse_repeats, said_on
from tuner.validate_sizes import cluster_of_size, sizes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One concurrency of one layout, measured.

    served, gpu_name, precision, engine_version: as the line has them; empty where it says nothing.
    setting: its version is the nearest known of SGLang; the newest for other engines, whose layouts are lent to it.
    layout: effective, with the engine's own choices filled in. is_legal: whether the rules here allow it.
    input_tokens, output_tokens: the mean of the lengths drawn.
    other_flags: what the line says was asked for beside those sizes, as words of the command line.
    tpot_s: mean time per output token after the first; ttft_s: mean time to first token; stated_output_tok_per_s: of
        the whole deployment. None where the line does not say; either the first or the last is there.
    line: where it stands in its file, from 1.
    """

    line: int
    source: str
    setting: Setting
    engine_version: str
    served: str
    gpu_name: str
    precision: str
    model: Model
    cluster: Cluster
    layout: Layout
    is_legal: bool
    other_flags: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    concurrency: int
    tpot_s: float | None
    ttft_s: float | None
    stated_output_tok_per_s: float | None = None
    used_for_fitting: bool

    @property
    def engine(self) -> ServingEngine:
        return self.setting.engine

    @property
    def output_tok_per_s(self) -> float | None:
        """Of the whole deployment; where not stated, in a closed loop: each request takes TTFT and a TPOT for every
        further token.
        """
        if self.stated_output_tok_per_s is not None:
            return self.stated_output_tok_per_s
        if self.ttft_s is None or self.tpot_s is None:
            return None
        return self.concurrency * self.output_tokens / (self.ttft_s + (self.output_tokens - 1) * self.tpot_s)

    @property
    def campaign(self) -> tuple[str, str, str, str, str]:
        """What was measured in one go: model, GPU, precision, engine and its version."""
        return self.served, self.gpu_name, self.precision, self.engine, self.engine_version

    @property
    def split(self) -> tuple[int, int, int, int]:
        """How the layout splits the model: world, expert, attention-data and pipeline parallel sizes."""
        return self.layout.tp_size, self.layout.ep_size, self.layout.attn_dp_size, self.layout.pp_size

    @property
    def curve(self) -> tuple[object, ...]:
        """The sweep over concurrency that the point belongs to."""
        lengths = self.input_tokens, self.output_tokens
        return *self.campaign, self.cluster.num_gpus, self.split, self.other_flags, *lengths

    @property
    def pair(self) -> tuple[str, int, int, int, str]:
        """The shape of the model, whatever its precision and its name, and the GPU: what is left out together."""
        model = self.model
        return model.architecture, model.num_layers, model.hidden_size, model.num_experts, self.cluster.gpu.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A line that is not compared. engine, gpu, model: as far as the line says them."""

    line: int
    reason: str
    message: str
    engine: str = ""
    gpu: str = ""
    model: str = ""


def bundled_lines() -> list[str]:
    """The public measurements that come with the tool."""
    text = files("cost_models").joinpath("measured_sweeps.jsonl").read_text(encoding="utf-8")
    return text.splitlines()


def bundled_rows() -> tuple[MeasuredRow, ...]:
    """Those of the bundled lines that can be compared with; none of them is flagged."""
    return tuple(row for row in read_rows(bundled_lines()) if isinstance(row, MeasuredRow))


def read_rows(lines: Iterable[str | bytes], *, with_flagged: bool = False) -> Iterator[MeasuredRow | Skipped]:
    """One answer a line, in order; blank lines are passed over."""
    seen: set[str] = set()
    for number, line in numbered(lines):
        said: Mapping[str, Any] = {}
        try:
            said = said_on(line)
            refuse_repeats(line)
            yield _row(number, _once(said, seen), with_flagged=with_flagged)
        except MalformedError as error:
            yield _skipped(number, said, Reason.UNREADABLE, error)
        except SkippedError as skipped:
            yield _skipped(number, said, skipped.reason, skipped)


def _once(said: Mapping[str, Any], seen: set[str]) -> Mapping[str, Any]:
    text = json.dumps({name: value for name, value in said.items() if value is not None}, sort_keys=True)
    if text in seen:
        raise SkippedError(Reason.DUPLICATE, "the same stands above")
    seen.add(text)
    return said


def _skipped(number: int, said: Mapping[str, Any], reason: str, why: Exception) -> Skipped:
    engine, gpu, model = (_shown(said.get(name)) for name in ("engine", "gpu", "model"))
    return Skipped(
        line=number,
        reason=str(reason),
        message=" ".join(str(why).split()),
        engine=_ENGINES.get(_squeezed(engine), engine),
        gpu=gpu,
        model=model,
    )


def _shown(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _row(number: int, said: Mapping[str, Any], *, with_flagged: bool) -> MeasuredRow:
    if word(said, "mode") not in {"", "agg"} or said.get("disagg"):
        raise SkippedError(Reason.DISAGGREGATED, "prefill and decode ran on different GPUs")
    flag = flagged(said)
    if flag and not with_flagged:
        raise SkippedError(flag, flag)
    status = word(said, "layout_status")
    if status not in {"", "ok"}:
        raise SkippedError(Reason.UNCLEAR_LAYOUT, f"layout_status is {status}")
    refuse_missing(said)
    engine = _engine(said)
    served, precision, gpu_name = (word(said, name) for name in ("model", "precision", "gpu"))
    input_tokens, output_tokens = (count(said, name, LONGEST) for name in ("isl", "osl"))
    sent_by = client(said, engine, input_tokens, output_tokens)
    ratio = length_ratio(said, sent_by)
    concurrency = count(said, "concurrency", MOST_CONCURRENT)
    tpot_ms, ttft_ms = (milliseconds(said, name) for name in ("tpot_ms", "ttft_ms"))
    output_tok_s = tokens_per_second(said, "output_tok_s")
    sizes, num_gpus = sizes_of(said)
    engine_version = word(said, "engine_version")
    release = release_of(engine, engine_version, said)
    used_for_fitting = truth(said, "used_for_fitting")
    try:
        model = served_model(served, precision)
    except UserError as error:
        raise SkippedError(Reason.UNKNOWN_MODEL, str(error)) from None
    try:
        gpu = served_gpu(gpu_name)
    except UserError as error:
        raise SkippedError(Reason.UNKNOWN_GPU, str(error)) from None
    cluster = cluster_of_size(gpu, num_gpus)
    ran_as = setting(engine, release, sent_by)
    other_flags = flag_words(said, ran_as.version)
    launch = None if other_flags is None else launch_of(other_flags, sizes, ran_as.version)
    asked = (launch or Layout()).changed(**sizes, **memory_flags(said, launch, model, gpu))
    if launch is not None:
        refuse_impossible(asked, model, cluster, ran_as.version)
    layout, is_legal = _effective(asked, model, cluster, ran_as.version)
    if other_flags is not None:
        refuse_unmodelled(other_flags, asked, layout, Target(model=model, gpu=gpu), ran_as.version)
    return MeasuredRow(
        line=number,
        source=word(said, "source"),
        setting=ran_as,
        engine_version=engine_version,
        served=served,
        gpu_name=gpu_name,
        precision=precision,
        model=model,
        cluster=cluster,
        layout=layout,
        is_legal=is_legal,
        other_flags=other_flags or (),
        input_tokens=max(1, round(ratio * input_tokens)),
        output_tokens=max(2, round(ratio * output_tokens)),
        concurrency=concurrency,
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        stated_output_tok_per_s=output_tok_s,
        used_for_fitting=used_for_fitting,
    )


_ENGINES = {
    "sglang": ServingEngine.SGLANG, "vllm": ServingEngine.VLLM, "trtllm": ServingEngine.TRTLLM,
    "tensorrtllm": ServingEngine.TRTLLM, "trt": ServingEngine.TRTLLM, "tensorrt": ServingEngine.TRTLLM,
}  # fmt: skip


def engine_named(name: str) -> ServingEngine:
    """Raises MalformedError."""
    found = _ENGINES.get(_squeezed(name))
    if found is None:
        raise MalformedError(f"unknown engine {reprlib.repr(name)}. Known: {', '.join(ServingEngine)}")
    return found


def _squeezed(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _engine(said: Mapping[str, Any]) -> ServingEngine:
    try:
        return engine_named(word(said, "engine"))
    except MalformedError as error:
        raise SkippedError(Reason.UNKNOWN_ENGINE, str(error)) from None


@cache
def _effective(asked: Layout, model: Model, cluster: Cluster, version: EngineVersion) -> tuple[Layout, bool]:
    """With what SGLang would fill in, and whether it is legal there.

    What was measured did run, so the sizes stay as they were, whatever the rules make of them.
    """
    run_as, _ = resolve(asked, model, cluster, version)
    sizes = {name: getattr(asked, name) for name in ("tp_size", "ep_size", "attn_dp_size", "pp_size")}
    is_legal = judge(asked, model, cluster, version, suggest=False).is_legal
    return run_as.changed(**sizes), is_legal
