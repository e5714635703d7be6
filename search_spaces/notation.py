"""Layouts as people write and name them: `TP4 EP2`, `tp8_ep8`, `TP8 DP8 attn`, `TP4 EP2 on 8`.

A notation is read twice: literally, as the launch flags of the same names, and as what was probably meant,
since many people write the factors into which the GPUs are divided, where SGLang's `--tp-size` is their product.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from search_spaces.errors import MalformedError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.choices import moe_a2a_backends
from search_spaces.sglang.versions import NEWEST, OLDEST

EXAMPLE = "TP8 EP8, tp8_ep8 or TP4 EP2 on 8"

_FIELDS = {
    "tp": "tp_size",
    "pp": "pp_size",
    "dp": "dp_size",
    "ep": "ep_size",
    "adp": "attn_dp_size",
    "attndp": "attn_dp_size",
    "dpattn": "attn_dp_size",
    "dpa": "attn_dp_size",
    "acp": "attn_cp_size",
    "attncp": "attn_cp_size",
    "cp": "attn_cp_size",
    "mdp": "moe_dp_size",
    "moedp": "moe_dp_size",
    "moeep": "ep_size",
    "attntp": "attn_tp",
    "moetp": "moe_tp",
    "tep": "tep",
    "dep": "dep",
}
"""`TEP8` and `DEP8` are short for eight GPUs with expert parallelism and attention split or replicated."""

_SIZE = re.compile(
    r"(?P<name>dp[-_ ]?att(?:ention|n)|dpa|(?:attn|attention|moe)?[-_ ]?(?:tp|dp|cp|ep)|pp|adp|acp|mdp|tep|dep)"
    r"(?:[-_ ]?size)?\s*[=:]?\s*(?P<size>\d{1,6})(?![\d.]*\d*(?:st|nd|rd|th)\b)",
    re.IGNORECASE,
)
_DP_ATTENTION = re.compile(
    r"\b(?:with\s+)?(?:dp[-_ ]?att(?:ention|n)|att(?:ention|n)[-_ ]?dp|dpa)(?!\s*[-_=:]?\s*\d)\b", re.IGNORECASE
)
_EVERY_EXPERT_APART = re.compile(r"(?<![a-z])(?:ep|expert[- ]parallel(?:ism)?)(?![a-z0-9])", re.IGNORECASE)
_ATTENTION_WORD = re.compile(r"\batt(?:ention|n)\b", re.IGNORECASE)
_MEM_FRACTION = re.compile(r"mem(?:[-_ ]fraction(?:[-_ ]static)?)?\s*[=:]?\s*(?P<fraction>0?\.\d+|1\.0)", re.IGNORECASE)
_PATHS = {
    "disable_custom_all_reduce": re.compile(r"\bno[-_ ]?car\b", re.IGNORECASE),
    "enforce_disable_flashinfer_allreduce_fusion": re.compile(r"\bno[-_ ]?fi\b", re.IGNORECASE),
    "enable_mscclpp": re.compile(r"\bmscclpp\b", re.IGNORECASE),
    "enable_torch_symm_mem": re.compile(r"\bsymm\b", re.IGNORECASE),
}
"""How labels name the way of the all-reduces."""


@cache
def _backends() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """All-to-all backends of all releases, by their own names; the longest first, since some begin with others."""
    names = {name for version in (OLDEST, NEWEST) for name in moe_a2a_backends(version)} - {Layout().moe_a2a_backend}
    return tuple(
        (name, re.compile(rf"(?<![a-z0-9]){name.replace('_', '[-_]?')}(?![a-z0-9])", re.IGNORECASE))
        for name in sorted(names, key=lambda name: (-len(name), name))
    )


_PLACE = re.compile(r"(?:\bon|@)\s*(?P<place>[\w.*\u00d7-]+(?:\s+gpus?)?)\s*$", re.IGNORECASE)
_FILLER = re.compile(r"[\s,;+/&_-]+|\b(?:and|with)\b", re.IGNORECASE)

_IN_A_NAME = re.compile(
    r"(?<![a-z0-9])(?:(?:tp|pp|dp|ep|tep|dep)\d{1,4}(?:[-_+.x]|(?![a-z0-9])|(?=[tpde]?[tde]?p\d)))+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """flags: what is named, by layout field. num_gpus, cluster: what it is said to run on, as far as it is said.

    dp_is_attention: whether its data parallelism is said to be attention's.
    attn_tp, moe_tp: widths named apart from `tp`.
    """

    text: str
    flags: dict[str, Any]
    num_gpus: int | None = None
    cluster: str = ""
    dp_is_attention: bool = False
    attn_tp: int | None = None
    moe_tp: int | None = None

    @property
    def literal(self) -> Layout:
        """The launch flags of the same names. Attention's data parallelism has a flag of its own."""
        flags = dict(self.flags)
        if self.dp_is_attention and "attn_dp_size" not in flags:
            flags["attn_dp_size"] = flags.pop("dp_size", flags.get("tp_size", 1))
        if "tp_size" not in flags and (self.moe_tp or self.attn_tp):
            flags["tp_size"] = max(
                (self.moe_tp or 1) * int(flags.get("ep_size", 1)) * int(flags.get("moe_dp_size", 1)),
                (self.attn_tp or 1) * int(flags.get("attn_dp_size", 1)) * int(flags.get("attn_cp_size", 1)),
            )
        return Layout().changed(**flags)

    def literal_on(self, cluster: Cluster) -> Layout:
        """`literal`, over all nodes of `cluster` where one has too few GPUs."""
        layout = self.literal
        is_wider = layout.nnodes == 1 < cluster.num_nodes and layout.num_gpus > cluster.gpus_per_node
        return layout.changed(nnodes=cluster.num_nodes) if is_wider else layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One thing that a notation may mean, as launch flags and in words."""

    layout: Layout
    meaning: str


def read_notation(text: str) -> Notation:
    """Raises MalformedError where `text` holds anything else."""
    if re.search(r"(?<!\S)--\w", text):
        raise MalformedError(f"a notation holds no flags (got {text!r})")
    rest = text.strip()
    num_gpus, cluster = None, ""
    if place := _PLACE.search(rest):
        rest = rest[: place.start()]
        word = re.sub(r"\s+gpus?$", "", place["place"], flags=re.IGNORECASE)
        number = re.fullmatch(r"(\d{1,6})(?:gpus?)?", word, re.IGNORECASE)
        num_gpus, cluster = (int(number[1]), "") if number else (None, word)
    flags: dict[str, Any] = {}
    if fraction := _MEM_FRACTION.search(rest):
        flags["mem_fraction_static"] = float(fraction["fraction"])
        rest = rest[: fraction.start()] + " " + rest[fraction.end() :]
    for field, pattern in _PATHS.items():
        rest, num_words = pattern.subn(" ", rest)
        if num_words:
            flags[field] = True
    rest = _without_backend(rest, flags)
    rest, num_dp_words = _DP_ATTENTION.subn(" ", rest)
    widths: dict[str, int] = {}
    while match := _SIZE.search(rest):
        name = re.sub(r"[-_ ]", "", match["name"].lower()).replace("attention", "attn")
        _put(flags, widths, _FIELDS[name], int(match["size"]), text)
        rest = rest[: match.start()] + " " + rest[match.end() :]
    rest, num_attention_words = _ATTENTION_WORD.subn(" ", rest)
    rest, num_ep_words = _EVERY_EXPERT_APART.subn(" ", rest)
    if num_ep_words and "tp_size" in flags:
        flags.setdefault("ep_size", flags["tp_size"])
    left = _FILLER.sub(" ", rest).strip()
    if left or not (widths or flags.keys() - {"mem_fraction_static", "moe_a2a_backend", *_PATHS}):
        what = f"; not understood: {left!r}" if left else ""
        raise MalformedError(f"a layout is written as launch flags or as {EXAMPLE} (got {text!r}{what})")
    return Notation(
        text=text.strip(),
        flags=flags,
        num_gpus=num_gpus,
        cluster=cluster,
        dp_is_attention=num_dp_words + num_attention_words > 0,
        attn_tp=widths.get("attn_tp"),
        moe_tp=widths.get("moe_tp"),
    )


def _without_backend(text: str, flags: dict[str, Any]) -> str:
    for name, pattern in _backends():
        text, num_words = pattern.subn(" ", text)
        if num_words and flags.setdefault("moe_a2a_backend", name) != name:
            raise MalformedError(f"two all-to-all backends are written: {flags['moe_a2a_backend']} and {name}")
    return text


def _put(flags: dict[str, Any], widths: dict[str, int], field: str, size: int, text: str) -> None:
    whole = {"tep": ("tp_size", "ep_size"), "dep": ("tp_size", "ep_size", "attn_dp_size")}.get(field, (field,))
    for name in whole:
        known = widths if name in {"attn_tp", "moe_tp"} else flags
        if known.get(name, size) != size:
            raise MalformedError(f"{name} is written twice in {text!r}: {known[name]:g} and {size}")
        known[name] = size


def names_in(text: str) -> Iterator[Notation]:
    """The layouts that a name claims: `run_glm5_tp8_ep8.sh` claims `tp8_ep8`.

    One size alone is no claim: only two or more of them written together.
    """
    for match in _IN_A_NAME.finditer(text):
        try:
            found = read_notation(match[0].strip("-_+.x").replace(".", " ").replace("x", " "))
        except MalformedError:
            continue
        if len(found.flags) > 1:
            yield found


def readings(notation: Notation, num_gpus: int) -> tuple[Reading, ...]:
    """What `notation` may have meant on `num_gpus` GPUs, likeliest first; nothing where the flags use all of them
    and no other way of reading them does.
    """
    found: dict[Layout, Reading] = {}
    for reading in _readings(notation, num_gpus):
        found.setdefault(reading.layout, reading)
    found.pop(notation.literal, None)
    return tuple(found.values())


def _readings(notation: Notation, num_gpus: int) -> Iterator[Reading]:
    literal = notation.literal
    tp, pp, ep = literal.tp_size, max(literal.pp_size, 1), literal.ep_size
    named_dp = literal.dp_size if literal.dp_size > 1 else literal.attn_dp_size
    if num_gpus % pp:
        return
    width = num_gpus // pp
    whole = literal.changed(tp_size=width, dp_size=1)
    if ep > 1 and tp * ep == width:
        split = whole.changed(ep_size=ep)
        experts = (
            f"{_ways(tp)} tensor parallel experts in each of {_number(ep)} groups"
            if tp > 1
            else f"whole experts, spread over {_number(ep)} GPUs"
        )
        if named_dp == 1:
            yield Reading(layout=split, meaning=experts)
        if named_dp in {1, ep}:
            attention = f"attention {_ways(tp)} too," if tp > 1 else "and attention"
            yield Reading(
                layout=split.changed(attn_dp_size=ep),
                meaning=f"{experts}, {attention} in {_number(ep)} data-parallel groups",
            )
    if named_dp > 1 and tp * named_dp == width and ep in {1, named_dp, width}:
        yield Reading(
            layout=whole.changed(attn_dp_size=named_dp, ep_size=width if ep > 1 else 1),
            meaning=f"{_ways(tp)} tensor parallel attention in {_number(named_dp)} data-parallel groups",
        )
    if literal.dp_size > 1 and tp == width and width % literal.dp_size == 0:
        yield Reading(
            layout=whole.changed(attn_dp_size=literal.dp_size),
            meaning=f"attention data parallel {literal.dp_size} inside {width} GPUs, not {literal.dp_size} replicas",
        )
    if "tp_size" not in notation.flags and ep in {1, width}:
        yield Reading(layout=whole, meaning=f"over all {width} GPUs of a pipeline stage")


def _ways(number: int) -> str:
    return f"{_number(number)}-way"


def _number(number: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[number] if number < len(words) else str(number)
