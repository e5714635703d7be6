"""`tune space`: enumerates, weighs each layout and tells the table."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from cost_models.memory import fit, memory
from cost_models.memory_types import DoesNotFit, Memory
from cost_models.memory_verdict import SMALLEST_REQUEST, memory_violation
from cost_models.weights import leaves_draft_out
from search_spaces.catalogue import parse_cluster
from search_spaces.hardware import Cluster
from search_spaces.model import Model
from search_spaces.sglang.rules import RULES, how_far, judge, launch_of
from search_spaces.sglang.suggestions import cure
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.space import Candidate, Space, enumerate_space
from search_spaces.verdict import Violation
from tuner import asking, detection
from tuner.check_document import argv_text
from tuner.cluster_words import cluster_of
from tuner.exit_code import Exit
from tuner.voice import Voice

_GIB = 2**30
_RIGHT = frozenset({"weights/GPU", "mem", "KV tokens"})
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
    """A legal layout and its memory. ended: how it runs out of it; None where it fits.

    least_fraction: the static fraction from which on it would fit; None where it does, or where none helps.
    leaves_draft_out: whether it also loads a draft model, which is not counted.
    """

    candidate: Candidate
    memory: Memory
    ended: Violation | None
    least_fraction: float | None = None
    leaves_draft_out: bool = False

    @property
    def order(self) -> tuple[int, float]:
        """What fits comes first, the larger KV cache before the smaller, then what would with a larger fraction."""
        if self.ended is None:
            return 0, -self.memory.kv_tokens_total
        return (2, self.memory.weight_bytes) if self.least_fraction is None else (1, self.least_fraction)


def run(request: SpaceRequest, *, json_output: bool) -> Exit:
    """Raises UserError."""
    model = asking.served(asking.STORY_MODEL if request.model is None else request.model).model
    cluster = _cluster(request.cluster)
    version = request.version
    pins = asking.pins_of(request.pins)
    space = enumerate_space(model, cluster, version, mem_fractions=(None,), pins=pins)
    # Where a pin excludes the baseline, it is no part of what was asked for.
    asked = [c for c in space.candidates if all(getattr(c.requested, name) == value for name, value in pins.items())]
    weighed = sorted((_weighed(model, cluster, version, candidate) for candidate in asked), key=lambda each: each.order)
    voice = Voice()
    if json_output:
        voice.document(json.dumps(_document(model, cluster, version, space, weighed), indent=2, allow_nan=False) + "\n")
        return Exit.DONE
    voice.result(
        f"{len(weighed)} legal layout{'s' * (len(weighed) != 1)} of {model.name} on {cluster.name} "
        f"under SGLang {version} ({_counted_combinations(space)}): {_counted_fits(weighed)}"
    )
    shown = weighed if request.limit is None else weighed[: request.limit]
    if shown:
        voice.result(*_rows(shown, version))
    if len(shown) < len(weighed):
        voice.result(f"... and {len(weighed) - len(shown)} more: --all shows them, --pin narrows them down")
    voice.result(*_refused(model, cluster, version, space, voice.width))
    return Exit.DONE


def _counted_combinations(space: Space) -> str:
    same = f", {space.renamed} of them run as another does" if space.renamed else ""
    return f"{space.considered} combinations considered{same}"


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
        return cluster_of(word)
    return detection.found_cluster(detection.found_gpus()) or parse_cluster(asking.STORY_CLUSTER)


def _weighed(model: Model, cluster: Cluster, version: EngineVersion, candidate: Candidate) -> Weighed:
    run_as = candidate.effective
    fitted = fit(model, cluster, run_as, SMALLEST_REQUEST, version=version)
    return Weighed(
        candidate=candidate,
        memory=memory(model, cluster, run_as, version=version),
        ended=memory_violation(model, cluster, run_as, version=version),
        least_fraction=fitted.least_fraction if isinstance(fitted, DoesNotFit) else None,
        leaves_draft_out=leaves_draft_out(model, run_as),
    )


def _rows(weighed: Sequence[Weighed], version: EngineVersion) -> list[str]:
    """A line a layout, never folded or cut; its flags stand last, where they can be copied from."""
    titles = ("layout", "runs as", "weights/GPU", "mem", "KV tokens", "fits", "flags")
    cells = [titles, *(_cells(each, version) for each in weighed)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if title in _RIGHT else cell.ljust(width)
            for title, cell, width in zip(titles, row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
    return ["", *lines, "mem: the engine's own --mem-fraction-static, unless it is pinned", ""]


def _cells(each: Weighed, version: EngineVersion) -> tuple[str, ...]:
    asked, run_as, held = each.candidate.requested, each.candidate.effective, each.memory
    runs_as = run_as.changed(mem_fraction_static=None).label
    return (
        asked.label,
        "" if runs_as == asked.changed(mem_fraction_static=None).label else runs_as,
        f"{held.weight_bytes / _GIB:.1f} GiB",
        f"{held.mem_fraction_static:.3g}",
        f"{held.kv_tokens_total:,}" if each.ended is None else "",
        _fits(each),
        argv_text(asked, version),
    )


def _counted_fits(weighed: Sequence[Weighed]) -> str:
    num_fit = sum(each.ended is None for each in weighed)
    num_larger = sum(each.least_fraction is not None for each in weighed)
    more = f", {num_larger} with a larger --mem-fraction-static" if num_larger else ""
    how = "without their draft models" if any(each.leaves_draft_out for each in weighed) else "as they are"
    return f"{num_fit} fit {how}{more}, {len(weighed) - num_fit - num_larger} do not"


def _fits(each: Weighed) -> str:
    if each.ended is None and each.leaves_draft_out:
        return "without its draft"
    if each.ended is None:
        return "yes" if each.memory.kv_tokens > 0 else "at the edge"
    least = each.least_fraction
    return f"no: {each.ended.stage}" if least is None else f"from mem {least:.3g}"


def _plain_table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=not title.startswith("source"))
    return table


def _refused(model: Model, cluster: Cluster, version: EngineVersion, space: Space, width: int) -> list[str]:
    """Each rule with how many combinations it stops first, what it says of one of them, and what would cure that."""
    if not space.refused:
        return []
    lines = [f"{sum(space.refused.values())} combinations refused, each by the rule that stops it first"]
    for rule, number in space.refused.items():
        lines.append(f"  {number:>6}  {rule}")
        said = _said(rule, model, cluster, version, space) + _cured(rule, model, cluster, version, space)
        lines += textwrap.wrap(said, width, initial_indent=" " * 10, subsequent_indent=" " * 10, break_on_hyphens=False)
    return lines


def _cured(rule: str, model: Model, cluster: Cluster, version: EngineVersion, space: Space) -> str:
    """The flag, pinned, with which the combination that is shown would be in the table; empty where none helps."""
    target = Target(model=model, gpu=cluster.gpu)
    found = cure(space.examples[rule], lambda near: how_far(launch_of(near, target, cluster, version)))
    if found is None or rule in _OWN_RULES:
        return ""
    return "; legal with " + " ".join(f"--pin {name}={value}" for name, value in found.items())


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
        "renamed": space.renamed,
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
        "fits": None if each.ended is None and each.leaves_draft_out else each.ended is None,
        "does_not_fit_because": None if each.ended is None else each.ended.message,
    }
