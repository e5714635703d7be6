"""A file of measurements, one point a line: what `--measured` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.calibration import Observation
from cost_models.limit import limits
from search_spaces.errors import MalformedError, UserError
from search_spaces.layout import MOST_GPUS, Layout
from search_spaces.model import Model
from search_spaces.workload import MOST_ACCEPTED, MOST_CONCURRENT, Workload
from tuner.batch_lines import environment_of_line, launch_of_line, numbered, object_of, refuse_misspelled
from tuner.checking import Checked, Server, check_flags, check_layout
from tuner.served_names import served_gpu, served_model
from tuner.standard_input import standard_input

_KEYS = (
    "id", "flags", "argv", "env", "concurrency", "tpot_ms", "ttft_ms", "isl", "osl", "input_tokens", "output_tokens",
)  # fmt: skip
_SIZES = {"tp": "tp_size", "moe_ep": "ep_size", "attention_dp": "attn_dp_size", "pp": "pp_size"}
"""How lines for `tune validate` name the sizes of a layout, and the fields of `Layout`."""
_OF_VALIDATE = (
    *_SIZES, "world_tp", "moe_tp", "model", "precision", "gpu", "n_gpus", "engine", "engine_version", "output_tok_s",
    "mem_fraction_static", "kv_cache_dtype", "flag", "client", "source", "date",
)  # fmt: skip
_LENGTHS = {"input_tokens": ("isl", "input_tokens"), "output_tokens": ("osl", "output_tokens")}
_LONGEST_S = 1e6
_MOST_TOK_PER_S = 1e9


def measured_in_file(word: str, server: Server, workload: Workload) -> tuple[Observation, ...]:
    """`--measured`: a layout, `concurrency`, `tpot_ms` and, where known, `ttft_ms` and `output_tok_s` of each line.

    The layout is `flags` or `argv`, or sizes under the names that `tune validate` reads; variables of the server's
    environment stand in `argv` or `env`. All of one model on one
    cluster under one load: those of the command; a line that says others is refused. Raises UserError with the line's
    number.
    """
    if word == "-":
        return _observations(standard_input(), server, workload)
    if not word.strip():
        raise MalformedError("--measured takes a file of JSON lines, or - for stdin (got '')")
    try:
        with Path(word).expanduser().open("rb") as lines:
            return _observations(lines, server, workload)
    except OSError as error:
        raise MalformedError(f"--measured {word} cannot be read: {error.strerror}") from None


def _observations(lines: Iterable[str | bytes], server: Server, workload: Workload) -> tuple[Observation, ...]:
    found = []
    for number, line in numbered(lines):
        try:
            found.append(_observation(object_of(line), server, workload))
        except UserError as error:
            raise MalformedError(f"--measured, line {number}: {error}") from None
    return tuple(found)


def _observation(asked: dict[str, Any], server: Server, workload: Workload) -> Observation:
    refuse_misspelled(asked, (*_KEYS, *_OF_VALIDATE))
    concurrency = asked.get("concurrency")
    if type(concurrency) is not int or not 1 <= concurrency <= MOST_CONCURRENT:
        raise MalformedError(f"concurrency is a count from 1 to {MOST_CONCURRENT} (got {concurrency!r})")
    tpot_s, ttft_s = _seconds(asked, "tpot_ms"), _seconds(asked, "ttft_ms")
    if tpot_s is None:
        raise MalformedError(
            "tpot_ms is missing: the mean time per output token after the first, in milliseconds (a throughput alone "
            "says nothing of the time to first token)"
        )
    _refuse_other_load(asked, workload)
    _refuse_other_server(asked, server)
    layout, environment = _launch(asked, server)
    seen = Observation(
        layout=layout,
        concurrency=concurrency,
        tpot_s=tpot_s,
        ttft_s=ttft_s,
        output_tok_per_s=_rate(asked),
        environment=environment,
    )
    _refuse_the_impossible(seen, server, workload)
    return seen


def _seconds(asked: dict[str, Any], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LONGEST_S * 1e3:
        raise MalformedError(f"{name} is a time above 0 in milliseconds (got {str(value)[:40]})")
    return value / 1e3


def _rate(asked: dict[str, Any]) -> float | None:
    value = asked.get("output_tok_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST_TOK_PER_S:
        raise MalformedError(f"output_tok_s is a rate above 0 in tokens per second (got {str(value)[:40]})")
    return float(value)


def _refuse_other_load(asked: Mapping[str, Any], workload: Workload) -> None:
    for field, names in _LENGTHS.items():
        wanted = getattr(workload, field)
        for name in names:
            value = asked.get(name)
            if value is not None and value != wanted:
                option = f"--{field.replace('_', '-')}"
                raise MalformedError(
                    f"measured with {name} {value}, and what is asked for has {wanted}: say {option} {value}, or leave "
                    "the line out"
                )


def _refuse_other_server(asked: Mapping[str, Any], server: Server) -> None:
    engine = asked.get("engine")
    if isinstance(engine, str) and engine.strip() and engine.strip().lower() != "sglang":
        raise MalformedError(f"measured with {engine}, and predictions here are of SGLang")
    name, gpu = asked.get("model"), asked.get("gpu")
    if isinstance(name, str) and name.strip():
        try:
            other = served_model(name, str(asked.get("precision") or ""))
        except UserError:
            other = None
        if other is not None and _shape(other) != _shape(server.model):
            raise MalformedError(f"measured of {name}, and what is asked for is {server.model.name}")
    if isinstance(gpu, str) and gpu.strip():
        try:
            key = served_gpu(gpu).key
        except UserError:
            return
        if key != server.cluster.gpu.key:
            raise MalformedError(f"measured on {gpu}, and what is asked for is {server.cluster.name}")


def _shape(model: Model) -> tuple[object, ...]:
    """What no precision and no other name of a model changes."""
    return model.architecture, model.num_layers, model.hidden_size, model.num_experts


def _refuse_the_impossible(seen: Observation, server: Server, workload: Workload) -> None:
    """Times in seconds where milliseconds are due, or another model's."""
    tokens = workload.output_tokens
    rate = seen.concurrency * tokens / ((seen.ttft_s or 0.0) + (tokens - 1) * seen.tpot_s)
    drafted = float(seen.layout.speculative_num_draft_tokens or MOST_ACCEPTED)
    accepted = 1.0 if seen.layout.speculative_algorithm is None else min(drafted, MOST_ACCEPTED)
    at_once = tuple(sorted({1, seen.concurrency}))
    load = replace(workload, concurrencies=at_once, acceptance_length=accepted)
    most = limits(server.model, server.cluster, load)[-1]
    if rate > most.output_tok_per_s:
        tpot_ms = seen.tpot_s * 1e3
        raise MalformedError(
            f"tpot_ms {tpot_ms:g} with {seen.concurrency} at once is {rate:,.0f} tok/s, and no layout of "
            f"{server.cluster.name} can exceed {most.output_tok_per_s:,.0f} ({most.bound_by}); is it milliseconds "
            f"(in seconds it would be {tpot_ms * 1e3:g} ms), of {server.model.name}?"
        )


def _launch(asked: dict[str, Any], server: Server) -> tuple[Layout, tuple[tuple[str, str], ...]]:
    """As it ran, in the environment that the line says, which is none of the launch that is asked about.

    What was measured fitted, whatever the memory model says.
    """
    sizes = _sizes(asked)
    if sizes and asked.get("flags") is None and asked.get("argv") is None:
        asked = {**asked, "flags": {}}
    launch = launch_of_line(asked, server.version)
    server = replace(server, env={**launch.env, **environment_of_line(asked)})
    checked: Checked = (
        check_layout(launch.notation.literal_on(server.cluster), server, suggest=False, memory_decides=False)
        if launch.notation is not None
        else check_flags(launch.flags, server, suggest=False, memory_decides=False)
    )
    if sizes:
        checked = check_layout(checked.verdict.requested.changed(**sizes), server, suggest=False, memory_decides=False)
    if checked.verdict.violations:
        broken = checked.verdict.violations[0]
        raise MalformedError(
            f"it was measured, but SGLang {server.version} refuses it ({broken.rule}): {broken.message}; say what it "
            "ran on with --engine-version, --model and --cluster"
        )
    return checked.verdict.effective, server.setting.environment


def _sizes(asked: Mapping[str, Any]) -> dict[str, int | float]:
    """Of a layout, by field, as a line for `tune validate` says them; 0 and null stand for no such parallelism."""
    found: dict[str, int | float] = {}
    for name, field in (("world_tp", "tp_size"), *_SIZES.items()):
        value = asked.get(name)
        if not value or field in found:
            continue
        if type(value) is not int or not 1 <= value <= MOST_GPUS:
            raise MalformedError(f"{name} is a count from 1 to {MOST_GPUS} (got {value!r})")
        found[field] = value
    fraction = asked.get("mem_fraction_static")
    if found and isinstance(fraction, int | float) and not isinstance(fraction, bool):
        found["mem_fraction_static"] = fraction
    return found
