"""`tune space`: enumerates, weighs each layout and tells the table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.table import Table

from cost_models.memory import memory
from cost_models.memory_verdict import memory_violation
from cost_models.prediction import Memory
from search_spaces.catalogue import parse_cluster
from search_spaces.hardware import Cluster
from search_spaces.model import Model
from search_spaces.sglang.rules import RULES, judge
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.space import Candidate, Space, enumerate_space
from search_spaces.verdict import Stage, Violation
from tuner import asking, detection
from tuner.check_document import argv_text
from tuner.exit_code import Exit
from tuner.voice import Voice

_GIB = 2**30
_NUMBERS = frozenset({"weights/GPU", "mem", "KV tokens"})
_LARGEST_FRACTION = 0.97
_OWN_RULES = {"megamoe.falls_back": "the model would run without MegaMoE: another name for plain expert parallelism"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRequest:
    """limit: layouts to show; None for all. None elsewhere: left open."""

    model: str | None
    cluster: str | None
    version: EngineVersion
    pins: tuple[str, ...]
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A legal layout and its memory. ended: how it runs out of it; None where it fits."""

    candidate: Candidate
    memory: Memory
    ended: Violation | None


def run(request: SpaceRequest, *, json_output: bool) -> Exit:
    """Raises UserError."""
    model = asking.served(asking.STORY_MODEL if request.model is None else request.model).model
    cluster = _cluster(request.cluster)
    version = request.version
    pins = asking.pins_of(request.pins)
    space = enumerate_space(model, cluster, version, mem_fractions=(None,), pins=pins)
    # Where a pin excludes the baseline, it is no part of what was asked for.
    asked = [c for c in space.candidates if all(getattr(c.requested, name) == value for name, value in pins.items())]
    weighed = [_weighed(model, cluster, candidate) for candidate in asked]
    voice = Voice()
    if json_output:
        voice.document(json.dumps(_document(model, cluster, version, space, weighed), indent=2, allow_nan=False) + "\n")
        return Exit.DONE
    voice.result(
        f"{len(weighed)} legal layouts of {model.name} on {cluster.name} under SGLang {version} "
        f"({space.considered} combinations considered): {_counted_fits(weighed)}"
    )
    shown = weighed if request.limit is None else weighed[: request.limit]
    if shown:
        voice.result(_table(shown, version))
    if len(shown) < len(weighed):
        voice.result(f"... and {len(weighed) - len(shown)} more: --all shows them, --pin narrows them down")
    voice.result(*_refused(model, cluster, version, space))
    return Exit.DONE


def tell_rules(version: EngineVersion, *, json_output: bool) -> None:
    """The table of the engine's rules, in the order in which a launch meets them."""
    held = [rule for rule in RULES if rule.since <= version <= rule.until]
    voice = Voice()
    if json_output:
        rows = [
            {"rule": r.id, "stage": str(r.stage), "since": str(r.since), "until": str(r.until), "source": r.source}
            for r in held
        ]
        voice.document(json.dumps(rows, indent=2) + "\n")
        return
    table = _plain_table("rule", "stage", "versions", "source, under sglang/srt/")
    for rule in held:
        since = "" if rule.since == OLDEST else f"since {rule.since}"
        until = "" if rule.until == NEWEST else f"until {rule.until}"
        table.add_row(rule.id, str(rule.stage), " ".join(filter(None, (since, until))) or "all known", rule.source)
    voice.result(f"{len(held)} rules of SGLang {version}, in the order in which a launch meets them", table)


def _cluster(word: str | None) -> Cluster:
    if word is not None:
        return parse_cluster(word)
    return detection.found_cluster(detection.found_gpus()) or parse_cluster(asking.STORY_CLUSTER)


def _weighed(model: Model, cluster: Cluster, candidate: Candidate) -> Weighed:
    run_as = candidate.effective
    return Weighed(
        candidate=candidate,
        memory=memory(model, cluster, run_as),
        ended=memory_violation(model, cluster, run_as),
    )


def _table(weighed: Sequence[Weighed], version: EngineVersion) -> Table:
    table = _plain_table("layout", "runs as", "weights/GPU", "mem", "KV tokens", "fits", "flags")
    for each in weighed:
        run_as, held = each.candidate.effective, each.memory
        table.add_row(
            each.candidate.requested.label,
            run_as.changed(mem_fraction_static=None).label,
            f"{held.weight_bytes / _GIB:.1f} GiB",
            f"{held.mem_fraction_static:.3g}",
            f"{held.kv_tokens_total:,}" if each.ended is None else "",
            _fits(each),
            argv_text(each.candidate.requested, version),
        )
    table.caption = "mem: the engine's own --mem-fraction-static, unless it is pinned"
    table.caption_justify = "left"
    return table


def _counted_fits(weighed: Sequence[Weighed]) -> str:
    num_fit = sum(each.ended is None for each in weighed)
    num_larger = sum(_least_fraction(each) is not None for each in weighed)
    more = f", {num_larger} with a larger --mem-fraction-static" if num_larger else ""
    return f"{num_fit} fit as they are{more}, {len(weighed) - num_fit - num_larger} do not"


def _fits(each: Weighed) -> str:
    if each.ended is None:
        return "yes" if each.memory.kv_pool_bytes > 0 else "at the edge"
    least = _least_fraction(each)
    return f"no: {each.ended.stage}" if least is None else f"above mem {least:.3g}"


def _least_fraction(each: Weighed) -> float | None:
    """The static fraction above which a layout that fails for the KV pool's sake would fit; None where none helps."""
    held = each.memory
    if each.ended is None or each.ended.stage is not Stage.KV_POOL:
        return None
    least = math.ceil(1000 * held.weight_bytes / (held.total_bytes - held.reserve_bytes)) / 1000
    return least if least <= _LARGEST_FRACTION else None


def _plain_table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        justify: Literal["left", "right"] = "right" if title in _NUMBERS else "left"
        table.add_column(title, no_wrap=not title.startswith("source"), justify=justify)
    return table


def _refused(model: Model, cluster: Cluster, version: EngineVersion, space: Space) -> list[str]:
    """Each rule with how many combinations it stops first, and what it says of one of them."""
    if not space.refused:
        return []
    width = max(map(len, space.refused))
    lines = [f"{sum(space.refused.values())} combinations refused, each by the rule that stops it first"]
    for rule, number in space.refused.items():
        lines.append(f"  {number:>6}  {rule:<{width}}  {_said(rule, model, cluster, version, space)}")
    return lines


def _said(rule: str, model: Model, cluster: Cluster, version: EngineVersion, space: Space) -> str:
    if rule in _OWN_RULES:
        return _OWN_RULES[rule]
    verdict = judge(space.examples[rule], model, cluster, version, suggest=False)
    return next((broken.message for broken in verdict.violations if broken.rule == rule), "")


def _document(
    model: Model, cluster: Cluster, version: EngineVersion, space: Space, weighed: Sequence[Weighed]
) -> dict[str, Any]:
    return {
        "model": model.name,
        "cluster": cluster.name,
        "engine_version": str(version),
        "considered": space.considered,
        "refused": {
            rule: {"count": number, "example": _said(rule, model, cluster, version, space)}
            for rule, number in space.refused.items()
        },
        "layouts": [_row(each, version) for each in weighed],
    }


def _row(each: Weighed, version: EngineVersion) -> dict[str, Any]:
    return {
        "label": each.candidate.requested.label,
        "flags": argv_text(each.candidate.requested, version),
        "effective": each.candidate.effective.label,
        "weight_bytes_per_gpu": each.memory.weight_bytes,
        "mem_fraction_static": each.memory.mem_fraction_static,
        "kv_tokens": each.memory.kv_tokens_total if each.ended is None else None,
        "fits": each.ended is None,
        "does_not_fit_because": None if each.ended is None else each.ended.message,
    }
