"""A verdict told to people: what is broken, what changes silently, what runs, and what would work instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from search_spaces.layout import Layout
from search_spaces.rank_groups import RankGroups, rank_groups
from search_spaces.verdict import Adjustment, Evidence, Stage, Status, Violation
from tuner import engine_opinion
from tuner.check_document import argv_text
from tuner.checked_launch import CheckedLaunch, Meant, VersionRange
from tuner.checking import Checked

_GIB = 2**30
_STYLES = {Status.LEGAL: "bold green", Status.ADJUSTED: "bold yellow", Status.ILLEGAL: "bold red"}
_HOW_KNOWN = {
    Evidence.EXECUTED: "seen in SGLang's own code, run without a GPU",
    Evidence.READ: "read in SGLang's code",
    Evidence.UNCERTAIN: "uncertain: depends on what is installed",
    Evidence.PREDICTED: "predicted by the memory model",
}


def report(launch: CheckedLaunch) -> list[RenderableType]:
    """The whole answer, one fact a line."""
    checked = launch.checked
    return [
        _title(launch),
        *(f"note: {note}" for note in launch.notes),
        *_violations(checked.verdict.violations),
        *_adjustments(checked.verdict.adjustments),
        *_what_runs(checked),
        *_meant(launch),
        *_nearest(checked),
        *_elsewhere(launch.history),
        *([] if launch.opinion is None else engine_opinion.lines(launch.opinion)),
    ]


def _title(launch: CheckedLaunch) -> Text:
    checked = launch.checked
    verdict, server = checked.verdict, checked.server
    title = Text(no_wrap=True, overflow="ignore")
    title.append(str(verdict.status), style=_STYLES[verdict.status])
    if verdict.violations:
        title.append(f" at {verdict.violations[0].stage}")
    title.append(f": {launch.shown_flags} | {server.model.name} on {server.cluster.name}, SGLang {server.version}")
    return title


def _violations(violations: Sequence[Violation]) -> list[str]:
    lines = []
    for broken in violations:
        lines += ["", f"breaks {broken.rule}, at {broken.stage} ({_HOW_KNOWN[broken.evidence]})"]
        lines.append(f"  {broken.message}")
        lines.append(f"  SGLang: {_said(broken)}  [{broken.source}]")
    return lines


def _said(broken: Violation) -> str:
    text = " ".join(broken.engine_text.split())
    if not broken.exception:
        return text or "does not notice"
    return f"{broken.exception}: {text}" if text else f"{broken.exception}, without a text"


def _adjustments(adjustments: Sequence[Adjustment]) -> list[str]:
    if not adjustments:
        return []
    width = max(len(change.name) for change in adjustments)
    rows = [f"  {change.name:<{width}}  {change.before} -> {change.after}  [{change.source}]" for change in adjustments]
    return ["", "changed without being asked", *rows]


def _what_runs(checked: Checked) -> list[str]:
    run, cluster = checked.verdict.effective, checked.server.cluster
    groups = rank_groups(run)
    if not groups or any(broken.stage is Stage.PARSE for broken in checked.verdict.violations):
        return []
    title = "would run as" if checked.verdict.violations else "runs as"
    copies = f" in each of {run.dp_size} replicas" if run.dp_size > 1 else ""
    lines = ["", f"{title} {_sizes(run)}, on {run.num_gpus} of {cluster.num_gpus} GPUs{copies}"]
    drawn = [
        group for group in groups if not group.is_trivial and not (group.name == "pipeline stages" and run.pp_size == 1)
    ]
    width = max((len(group.name) for group in drawn), default=0)
    lines += [f"  {group.name:<{width}}  {group.drawing}  {_shared_by(group)}" for group in drawn]
    return [*lines, *_memory(checked)]


def _sizes(run: Layout) -> str:
    attention = f"attention {_product(('DP', run.attn_dp_size), ('CP', run.attn_cp_size), ('TP', run.attn_tp_size))}"
    experts = f"experts {_product(('DP', run.moe_dp_size), ('EP', run.ep_size), ('TP', run.moe_tp_size))}"
    stages = f"{run.pp_size} stages of " if run.pp_size > 1 else ""
    backend = "" if run.moe_a2a_backend == "none" else f" over {run.moe_a2a_backend}"
    return f"{stages}TP{run.tp_size}: {attention}, {experts}{backend}"


def _product(*parts: tuple[str, int]) -> str:
    return " x ".join(f"{name}{size}" for name, size in parts if size != 1) or "on one GPU"


def _shared_by(group: RankGroups) -> str:
    return f"share {group.shares}"


def _memory(checked: Checked) -> list[str]:
    memory = checked.memory
    if memory is None:
        return []
    weights = f"{_gib(memory.weight_bytes)} of weights on the fullest GPU of {_gib(memory.total_bytes)}"
    if not checked.fits:
        return [f"  memory: {weights}: does not fit"]
    fraction = f"{memory.mem_fraction_static:.3g}"
    if memory.kv_pool_bytes <= 0:
        edge = f"{fraction} of it leaves nothing for sure for the KV cache; say --mem-fraction-static"
        return [f"  memory: {weights}: at the edge, {edge}"]
    pools = f" in {memory.kv_replicas} pools" if memory.kv_replicas > 1 else ""
    pool = f"{_gib(memory.kv_pool_bytes)} for {memory.kv_tokens_total:,} tokens of KV cache{pools}"
    return [f"  memory: {weights}, {pool} at mem fraction {fraction}: fits"]


def _meant(launch: CheckedLaunch) -> list[str]:
    if not launch.meant or launch.notation is None:
        return []
    return [
        "",
        f"{launch.notation.text} was probably meant as",
        *(line for each in launch.meant for line in _reading(each)),
    ]


def _reading(meant: Meant) -> list[str]:
    return [
        f"  {argv_text(meant.layout, meant.checked.server.version)}",
        f"    {meant.meaning}: {outcome(meant.checked)}",
    ]


def outcome(checked: Checked) -> str:
    """A verdict in a few words."""
    verdict = checked.verdict
    if verdict.violations:
        return f"illegal at {verdict.violations[0].stage} ({verdict.violations[0].rule})"
    words = str(verdict.status)
    if checked.memory is not None and checked.fits:
        words += f", fits with {_gib(checked.memory.weight_bytes)} of weights per GPU"
    return words


def _nearest(checked: Checked) -> list[str]:
    suggestions = checked.verdict.suggestions
    if not checked.verdict.violations:
        return []
    if not suggestions:
        gpus = checked.server.cluster.name
        return ["", f"no legal layout of {checked.server.model.name} that fits was found on {gpus}"]
    title = "nearest legal" if checked.suggestions_fit else "nearest legal, though no layout of this model fits here"
    return ["", title, *(f"  {argv_text(near, checked.server.version)}" for near in suggestions)]


def _elsewhere(history: Sequence[VersionRange]) -> list[str]:
    if len(history) < 2:
        return []
    return ["", "under other versions", *(f"  {each.first} to {each.last}: {each.outcome}" for each in history)]


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
