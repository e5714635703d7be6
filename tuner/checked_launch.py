"""A pasted launch with all that is to be said of it beside the verdict: notes, other readings, other versions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_models.fractions import workable_fractions
from cost_models.memory_verdict import SMALLEST_REQUEST
from search_spaces.layout import Layout
from search_spaces.notation import Notation, Reading, readings
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.verdict import Stage, Status, Verdict
from tuner.check_document import argv_text
from tuner.check_memory import format_notes, uncounted_notes
from tuner.checking import Checked, Server, check_anew, check_flags, check_layout
from tuner.engine_opinion import Opinion
from tuner.launch_words import Asked

_ROOMY_MEM_FRACTION = 0.9
_FEW_TOKENS = 16_384
_USUAL_REQUEST = 2048
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """A layout that a notation may have meant, judged."""

    layout: Layout
    meaning: str
    checked: Checked


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """Versions, both included, under which a launch ends the same way."""

    first: EngineVersion
    last: EngineVersion
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLaunch:
    """shown_flags: the layout's own flags, as asked for. history: how all known versions end it; one range where
    they agree.
    """

    checked: Checked
    shown_flags: str
    notation: Notation | None = None
    meant: tuple[Meant, ...] = ()
    notes: tuple[str, ...] = ()
    history: tuple[VersionRange, ...] = ()
    opinion: Opinion | None = None


def check_launch(asked: Asked, server: Server) -> CheckedLaunch:
    """Raises UserError for flags behind a notation that the release cannot read."""
    asked = asked.under(server.version)
    if asked.notation is None:
        checked = check_flags(asked.flags, server)
        meant: tuple[Meant, ...] = ()
    else:
        others = from_argv(asked.behind, server.version).others
        checked = check_layout(asked.notation.literal_on(server.cluster), server, others=others)
        meant = _meant(asked.notation, checked)
    readable = not any(broken.stage is Stage.PARSE for broken in checked.verdict.violations)
    return CheckedLaunch(
        checked=checked,
        shown_flags=argv_text(checked.verdict.requested, server.version) if readable else " ".join(asked.flags),
        notation=asked.notation,
        meant=meant,
        notes=(*asked.notes, *(_notes(asked, checked) if readable else ())),
        history=_history(checked) if readable else (),
    )


def _meant(notation: Notation, checked: Checked) -> tuple[Meant, ...]:
    found = readings(notation, checked.server.cluster.num_gpus)
    nodes = checked.server.cluster.num_nodes
    return tuple(_judged(each, each.layout.changed(nnodes=nodes), checked) for each in found)


def _judged(reading: Reading, layout: Layout, checked: Checked) -> Meant:
    """With a larger memory fraction where the engine's own leaves too little for the KV cache."""
    judged = check_anew(checked, layout)
    if [broken.stage for broken in judged.verdict.violations] == [Stage.KV_POOL]:
        roomier = layout.changed(mem_fraction_static=_ROOMY_MEM_FRACTION)
        again = check_anew(checked, roomier)
        if again.verdict.is_legal:
            return Meant(layout=roomier, meaning=reading.meaning, checked=again)
    return Meant(layout=layout, meaning=reading.meaning, checked=judged)


def _notes(asked: Asked, checked: Checked) -> list[str]:
    cluster, requested = checked.server.cluster, checked.verdict.requested
    notes = []
    idle = cluster.num_gpus - requested.num_gpus
    if 0 < idle < cluster.num_gpus:
        notes.append(f"world size {requested.num_gpus}: {idle} of {cluster.num_gpus} GPUs stay idle")
    if checked.is_tight:
        notes.append(_tight(checked))
    notes += [text for claim in asked.claims if (text := _unkept(claim, checked))]
    notes += _memory_notes(checked)
    told = (*checked.verdict.violations, *checked.verdict.adjustments)
    if checked.server.version != NEWEST and told:
        notes.append(f"files and lines are those of SGLang {NEWEST}, unless another release stands before them")
    if checked.memory is None and "config" in checked.others:
        notes.append("what the file of --config sets is not read here")
    return notes


def _tight(checked: Checked) -> str:
    server, run, held = checked.server, checked.verdict.effective, checked.memory
    fractions = workable_fractions(server.model, server.cluster, run, SMALLEST_REQUEST, version=server.version)
    left = (
        ""
        if held is None
        else (
            f": graphs, activations and exchange buffers are expected to need {held.need_bytes / _GIB:.1f} GiB outside "
            f"of it, and {held.headroom_bytes / _GIB:.1f} GiB are left"
        )
    )
    if fractions is None:
        return f"no --mem-fraction-static is sure to work{left}; a smaller --chunked-prefill-size needs less"
    return f"lower --mem-fraction-static to at most {fractions[1]:.3f}{left}"


def _memory_notes(checked: Checked) -> list[str]:
    """What `fits` does not say: what is not counted, a format that fits, a KV cache too small to serve with."""
    notes = [*uncounted_notes(checked), *format_notes(checked)]
    model, held = checked.server.model, checked.memory
    if any(each.may_free and Stage.KV_POOL in each.stages for each in checked.uncounted):
        held = None
    if checked.leaves_draft_out:
        notes.append(
            "the draft model's weights and KV cache are not counted: what is said of memory is without them, and "
            "it may not fit"
        )
    if held is not None and checked.ended is None and 0 < held.kv_tokens < min(model.context_length, _FEW_TOKENS):
        notes.append(
            f"a KV cache of {held.kv_tokens:,} tokens serves next to nothing: no request may be longer (the model's "
            f"context: {model.context_length:,}), and {max(held.kv_tokens // _USUAL_REQUEST, 1)} of "
            f"{_USUAL_REQUEST:,} tokens run at a time"
        )
    elif held is not None and checked.ended is None and 0 < held.kv_tokens < model.context_length:
        notes.append(
            f"no request may be longer than the KV cache, {held.kv_tokens:,} tokens, though the model's context is "
            f"{model.context_length:,}"
        )
    return notes


_SHOWN = {
    "tp_size": "TP",
    "pp_size": "PP",
    "dp_size": "DP",
    "ep_size": "EP",
    "attn_dp_size": "attention DP",
    "attn_cp_size": "attention CP",
    "moe_dp_size": "MoE DP",
}


def _unkept(claim: Notation, checked: Checked) -> str:
    """What a name says and the launch does not do; empty where it keeps its word."""
    run, requested = checked.verdict.effective, checked.verdict.requested
    broken = []
    for name, size in claim.flags.items():
        runs = getattr(run, name)
        if name == "dp_size" and size in {run.attn_dp_size, run.dp_size}:
            continue
        if runs != size:
            broken.append(f"{_SHOWN.get(name, name)}{runs}")
        elif getattr(requested, name) != size:
            broken.append(
                f"{_SHOWN.get(name, name)}{runs} only because --moe-a2a-backend {run.moe_a2a_backend} makes it so"
            )
    if not broken:
        return ""
    unsaid = [name for name in claim.flags if getattr(requested, name) == getattr(Layout(), name)]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in unsaid)
    never = f" (it never passes {flags})" if flags else ""
    verb = "would run" if checked.verdict.violations else "runs"
    return f"the name says {claim.text}, but it {verb} {', '.join(broken)}{never}"


def _history(checked: Checked) -> tuple[VersionRange, ...]:
    server, layout = checked.server, checked.verdict.requested
    found: list[VersionRange] = []
    for patch in range(OLDEST.patch, NEWEST.patch + 1):
        version = EngineVersion(NEWEST.major, NEWEST.minor, patch)
        verdict = check_layout(layout, replace(server, version=version), others=checked.others, suggest=False).verdict
        # What the words were rewritten to is no verdict of one release.
        ended = _ended(verdict, least=checked.verdict.status)
        if found and found[-1].outcome == ended:
            found[-1] = VersionRange(first=found[-1].first, last=version, outcome=ended)
        else:
            found.append(VersionRange(first=version, last=version, outcome=ended))
    return tuple(found)


def _ended(verdict: Verdict, *, least: Status) -> str:
    """least: ADJUSTED where reading the words has changed them already."""
    if verdict.violations:
        first = verdict.violations[0]
        return f"illegal{first.stage.after_illegal} ({first.rule})"
    changed = [a for a in verdict.adjustments if a.name in _SHOWN or a.name == "moe_a2a_backend"]
    shown = ", ".join(f"{a.name} {a.before} -> {a.after}" for a in changed)
    shown = shown or ", ".join(a.name for a in verdict.adjustments)
    status = Status.ADJUSTED if least is Status.ADJUSTED else verdict.status
    return f"{status}: {shown}" if shown else str(status)
