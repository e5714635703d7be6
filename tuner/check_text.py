"""A verdict told to people: what is broken, what changes silently, what runs, and what would work instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.rank_groups import RankGroups, rank_groups
from search_spaces.verdict import Adjustment, Evidence, Stage, Status, Violation
from tuner import engine_opinion
from tuner.check_document import argv_text
from tuner.checked_launch import CheckedLaunch, Meant, VersionRange
from tuner.checking import Checked

_GIB = 2**30
_DEFAULT = Layout()
_BEFORE_CHOICES = frozenset({Stage.PARSE, Stage.RESOLVE})
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
        title(launch),
        *(f"note: {note}" for note in launch.notes),
        *_violations(checked.verdict.violations),
        *_adjustments(checked),
        *_what_runs(checked),
        *_chosen_if_read(checked),
        *_meant(launch),
        *_nearest(checked),
        *_elsewhere(launch.history),
        *([] if launch.opinion is None else engine_opinion.lines(launch.opinion)),
    ]


def _chosen_if_read(checked: Checked) -> list[str]:
    is_read = not any(broken.stage in _BEFORE_CHOICES for broken in checked.verdict.violations)
    return _chosen(checked) if is_read else []


def title(launch: CheckedLaunch) -> Text:
    """The verdict, and of what, in one line."""
    checked = launch.checked
    verdict, server = checked.verdict, checked.server
    line = Text(no_wrap=True, overflow="ignore")
    line.append(str(verdict.status), style=_STYLES[verdict.status])
    if verdict.violations:
        line.append(verdict.violations[0].stage.after_illegal)
    if checked.excused is not None and not verdict.violations:
        line.append(", memory not judged", style=_STYLES[Status.ADJUSTED])
    if checked.is_tight:
        line.append(", but likely to run out of memory while graphs are captured", style=_STYLES[Status.ADJUSTED])
    line.append(f": {launch.shown_flags} | {server.model.name} on {server.cluster.name}, SGLang {server.version}")
    return line


def silent_changes(checked: Checked) -> list[str]:
    """What the engine makes of the launch without being asked."""
    return [*_adjustments(checked), *_chosen_if_read(checked)]


def _violations(violations: Sequence[Violation]) -> list[str]:
    lines = []
    for broken in violations:
        lines += [
            "",
            f"breaks {broken.rule},{broken.stage.after_illegal.removeprefix(',')} ({_HOW_KNOWN[broken.evidence]})",
        ]
        lines.append(f"  {broken.message}")
        lines.append(f"  SGLang: {_said(broken)}  [{broken.source}]")
    return lines


def _said(broken: Violation) -> str:
    text = " ".join(broken.engine_text.split())
    if not broken.exception:
        return text or "does not notice"
    return f"{broken.exception}: {text}" if text else f"{broken.exception}, without a text"


def _adjustments(checked: Checked) -> list[str]:
    """Apart: what the words were read as, what overrides them, and what else the engine sets."""
    asked, changes = checked.verdict.requested, checked.verdict.adjustments
    read = [change for change in changes if str(getattr(asked, change.name, None)) == change.after]
    overrides = [change for change in changes if change not in read and _was_asked(change, asked)]
    filled = [change for change in changes if change not in (*read, *overrides)]
    return [
        *_changes("read as other flags", read),
        *_changes("overrides what was asked for", overrides),
        *_changes("filled in by the engine", filled),
    ]


_SETTING = {
    "prefill_cuda_graph": ("cuda_graph_backend_prefill", "disable_prefill_cuda_graph"),
    "decode_cuda_graph": ("cuda_graph_backend_decode", "disable_decode_cuda_graph"),
}
"""The fields that ask for what an adjustment names, where it names none itself."""


def _was_asked(change: Adjustment, asked: Layout) -> bool:
    names = _SETTING.get(change.name, (change.name,))
    return any(getattr(asked, name, None) != getattr(_DEFAULT, name, None) for name in names)


def _changes(title: str, changes: Sequence[Adjustment]) -> list[str]:
    if not changes:
        return []
    width = max(len(change.name) for change in changes)
    rows = [f"  {change.name:<{width}}  {change.before} -> {change.after}  [{change.source}]" for change in changes]
    return ["", title, *rows]


_CHOSEN = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "kv_cache_dtype",
    "moe_runner_backend",
    "quantization",
    "mem_fraction_static",
    "chunked_prefill_size",
    "max_running_requests",
)
"""Automatic choices that a launch's speed and memory hang on."""


def _chosen(checked: Checked) -> list[str]:
    """What the engine decides because it was left open, in one line."""
    run, asked = checked.verdict.effective, checked.verdict.requested
    told = {change.name for change in checked.verdict.adjustments}
    words = [
        f"{name} {_figure(getattr(run, name))}"
        for name in _CHOSEN
        if getattr(asked, name) == getattr(_DEFAULT, name)
        and getattr(run, name) != getattr(_DEFAULT, name)
        and name not in told
    ]
    if not checked.server.cluster.gpu.is_cpu:
        words += [f"{phase} graphs {graphs}" for phase in ("decode", "prefill") if (graphs := _graphs(run, phase))]
    return ["", f"chosen by the engine: {', '.join(words)}"] if words else []


def _figure(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _graphs(run: Layout, phase: str) -> str:
    backend, largest = getattr(run, f"cuda_graph_backend_{phase}"), getattr(run, f"cuda_graph_max_bs_{phase}")
    if backend in (None, "disabled"):
        return "off" if backend else ""
    unit = "requests" if phase == "decode" else "tokens"
    return f"{backend} up to {largest} {unit}" if largest else str(backend)


def _what_runs(checked: Checked) -> list[str]:
    run, cluster = checked.verdict.effective, checked.server.cluster
    groups = rank_groups(run)
    if not groups or any(broken.stage is Stage.PARSE for broken in checked.verdict.violations):
        return []
    title = "would run as" if checked.verdict.violations else "runs as"
    lines = ["", f"{title} {_sizes(run)}, {_gpus(run, cluster)}"]
    drawn = [
        group for group in groups if not group.is_trivial and not (group.name == "pipeline stages" and run.pp_size == 1)
    ]
    width = max((len(group.name) for group in drawn), default=0)
    lines += [f"  {group.name:<{width}}  {group.drawing}  {_shared_by(group)}" for group in drawn]
    return [*lines, *_memory(checked)]


def _gpus(run: Layout, cluster: Cluster) -> str:
    copies = f", {run.num_gpus // run.dp_size} in each of {run.dp_size} replicas" if run.dp_size > 1 else ""
    if run.num_gpus > cluster.num_gpus:
        return f"on {run.num_gpus} GPUs{copies}, of which {cluster.name} has {cluster.num_gpus}"
    return f"on {run.num_gpus} of {cluster.num_gpus} GPUs{copies}"


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
    fraction = f"{memory.mem_fraction_static:.3g}"
    if checked.ended is not None:
        return [f"  memory: {weights}: {_shortage(checked.ended)} at mem fraction {fraction}"]
    if checked.excused is not None:
        return [f"  memory: {weights} as they are counted: not judged, at mem fraction {fraction}"]
    if checked.is_at_the_edge:
        edge = f"mem fraction {fraction} leaves nothing for sure for the KV cache; say --mem-fraction-static"
        return [f"  memory: {weights}: at the edge, {edge}"]
    pools = f" in {memory.kv_replicas} pools" if memory.kv_replicas > 1 else ""
    pool = f"{_gib(memory.kv_pool_bytes)} for {memory.kv_tokens_total:,} tokens of KV cache{pools}"
    return [f"  memory: {weights}, {pool} at mem fraction {fraction}: {_how_it_fits(checked)}"]


def _how_it_fits(checked: Checked) -> str:
    if checked.leaves_draft_out:
        return "the draft model, which is not counted, has to fit too"
    deciding = next((each for each in checked.uncounted if each.decides), None)
    return "fits" if deciding is None else f"fits without what {deciding.words} does, which is not counted"


def _shortage(ended: Violation) -> str:
    """What there is no room for, by the stage at which memory runs out."""
    match ended.stage:
        case Stage.WEIGHTS:
            return "they do not fit,"
        case Stage.KV_POOL:
            return "nothing is left for a KV cache"
        case _:
            return "too little is left for CUDA graphs"


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
        return f"illegal{verdict.violations[0].stage.after_illegal} ({verdict.violations[0].rule})"
    words = str(verdict.status)
    if checked.excused is not None:
        words += ", memory not judged"
    elif checked.memory is not None and checked.ended is None:
        weights = f"{_gib(checked.memory.weight_bytes)} of weights per GPU"
        words += f", {weights} without a draft model" if checked.leaves_draft_out else f", fits with {weights}"
    return words


def _nearest(checked: Checked) -> list[str]:
    suggestions = checked.verdict.suggestions
    if not checked.verdict.violations:
        return []
    if not suggestions:
        gpus = checked.server.cluster.name
        return ["", f"no legal layout of {checked.server.model.name} that fits was found on {gpus}"]
    title = {
        True: "nearest legal",
        False: "nearest legal, though no layout of this model fits here",
        None: f"nearest legal beside {', '.join(each.words for each in checked.uncounted)}, memory not judged",
    }[checked.suggestions_fit]
    return ["", title, *(f"  {argv_text(near, checked.server.version)}" for near in suggestions)]


def _elsewhere(history: Sequence[VersionRange]) -> list[str]:
    if len(history) < 2:
        return []
    return ["", "under other versions", *(f"  {_releases(each)}: {each.outcome}" for each in history)]


def _releases(span: VersionRange) -> str:
    return str(span.first) if span.first == span.last else f"{span.first} to {span.last}"


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
