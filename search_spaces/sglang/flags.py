"""A layout as the engine's command-line flags, and back.

Option strings and the abbreviations that argparse accepts are those of sglang 0.5.23
(srt/arg_groups/fields/); where an older version spells one otherwise, the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.verdict import Adjustment


class FlagError(MalformedError):
    """Flags that the engine's own argument parser refuses too, with exit code 2.

    `engine_text` is what the engine prints.
    """

    def __init__(self, engine_text: str) -> None:
        super().__init__(f"SGLang cannot read these flags: {engine_text}")
        self.engine_text = engine_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFlags:
    """rest: every word that is not about the layout, verbatim and in order.
    adjustments: what reading a deprecated spelling moved.
    """

    layout: Layout
    rest: tuple[str, ...]
    adjustments: tuple[Adjustment, ...] = ()


def _switch(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Flag:
    """One option of the engine that sets `field`; the first name is the one to write."""

    field: str
    names: tuple[str, ...]
    read: Callable[[str], Any]
    since: EngineVersion = OLDEST
    until: EngineVersion = NEWEST

    @property
    def takes_value(self) -> bool:
        return self.read is not _switch

    def is_known_to(self, version: EngineVersion) -> bool:
        return self.since <= version <= self.until


_ATTN_DP_SINCE = EngineVersion(0, 5, 22)
_GRAPH_BY_PHASE_SINCE = EngineVersion(0, 5, 14)
_GRAPH_BY_PHASE_BEFORE = EngineVersion(0, 5, 13)

_FLAGS = (
    _Flag("tp_size", ("--tp-size", "--tensor-parallel-size"), int),
    _Flag("pp_size", ("--pp-size", "--pipeline-parallel-size"), int),
    _Flag("dp_size", ("--dp-size", "--data-parallel-size"), int),
    _Flag("attn_dp_size", ("--attn-dp-size", "--attention-data-parallel-size"), int, _ATTN_DP_SINCE),
    _Flag("attn_cp_size", ("--attn-cp-size", "--attention-context-parallel-size"), int),
    _Flag("ep_size", ("--ep-size", "--expert-parallel-size", "--ep"), int),
    _Flag("moe_dp_size", ("--moe-dp-size", "--moe-data-parallel-size"), int),
    _Flag("moe_a2a_backend", ("--moe-a2a-backend",), str),
    _Flag("mem_fraction_static", ("--mem-fraction-static",), float),
    _Flag("chunked_prefill_size", ("--chunked-prefill-size",), int),
    _Flag("page_size", ("--page-size",), int),
    _Flag("max_running_requests", ("--max-running-requests",), int),
    _Flag("cuda_graph_max_bs_decode", ("--cuda-graph-max-bs-decode",), int, _GRAPH_BY_PHASE_SINCE),
    _Flag("cuda_graph_max_bs_decode", ("--cuda-graph-max-bs",), int, OLDEST, _GRAPH_BY_PHASE_BEFORE),
    _Flag("moe_runner_backend", ("--moe-runner-backend",), str),
    _Flag("deepep_mode", ("--deepep-mode",), str),
    _Flag("moe_dense_tp_size", ("--moe-dense-tp-size",), int),
    _Flag("enable_dp_lm_head", ("--enable-dp-lm-head",), _switch),
    _Flag("ep_num_redundant_experts", ("--ep-num-redundant-experts",), int),
    _Flag("disable_custom_all_reduce", ("--disable-custom-all-reduce",), _switch),
    _Flag("nnodes", ("--nnodes",), int),
)

_DP_ATTENTION = "--enable-dp-attention"
_DP_ATTENTION_SOURCE = "arg_groups/parallel_hook.py:39"

_NEIGHBOURS = frozenset(
    {
        "--attention-backend",
        "--chat-template",
        "--cuda-graph-backend-decode",
        "--cuda-graph-backend-prefill",
        "--cuda-graph-max-bs-prefill",
        "--debug-cuda-graph",
        "--deepep-config",
        "--disable-aiter-allreduce-fusion-in-decode",
        "--disable-chunked-prefix-cache",
        "--disable-cuda-graph",
        "--enable-dp-attention-local-control-broadcast",
        "--ep-dispatch-algorithm",
        "--expert-balancedness-report-mode",
        "--mamba-backend",
        "--max-ep-size",
        "--max-total-tokens",
        "--media-url-max-file-size-mb",
        "--nccl-init-addr",
        "--paged-experts-num-resident",
        "--pp-async-batch-depth",
        "--pp-max-micro-batch-size",
    }
)
"""Enough of the engine's other options to make ambiguous every abbreviation that 0.5.23 finds ambiguous."""


def to_argv(layout: Layout, version: EngineVersion = NEWEST) -> tuple[str, ...]:
    """The flags that launch `layout`; only what differs from the engine's default.

    Raises UnsupportedError where `version` has no words for it.
    """
    default = Layout()
    words: list[str] = []
    for flag in _FLAGS:
        value = getattr(layout, flag.field)
        if not flag.is_known_to(version) or value == getattr(default, flag.field):
            continue
        words += [flag.names[0], str(value)] if flag.takes_value else [flag.names[0]]
    if version >= _ATTN_DP_SINCE or layout.attn_dp_size == 1:
        return tuple(words)
    if layout.dp_size != 1:
        raise UnsupportedError(
            f"SGLang {version} spells attention data parallelism --dp-size and so cannot combine it with "
            f"replicas (dp_size={layout.dp_size}, attn_dp_size={layout.attn_dp_size})"
        )
    return (*words, "--dp-size", str(layout.attn_dp_size), _DP_ATTENTION)


def from_argv(argv: Sequence[str], version: EngineVersion = NEWEST) -> ParsedFlags:
    """Reads layout flags as the engine's argparse does: `--flag value`, `--flag=value`, unique beginnings.

    `--dp-size N --enable-dp-attention` becomes attention data parallelism of N, as the engine makes it
    (0.5.23 arg_groups/parallel_hook.py:39). The last mention of a flag wins.

    Raises FlagError.
    """
    values: dict[str, Any] = {}
    rest: list[str] = []
    asks_dp_attention = False
    words = iter(argv)
    for word in words:
        name, explicit = _split(word)
        option = _option(name, version) if name.startswith("--") and name != "--" else None
        if option is None:
            rest.append(word)
        elif option == _DP_ATTENTION:
            _refuse_value(_DP_ATTENTION, explicit)
            asks_dp_attention = True
        else:
            flag = next(flag for flag in _FLAGS if option in flag.names and flag.is_known_to(version))
            values[flag.field] = _value(flag, explicit, words)
    layout = replace(Layout(), **values)
    if not asks_dp_attention or layout.attn_dp_size != 1 or layout.dp_size == 1:
        return ParsedFlags(layout=layout, rest=tuple(rest))
    groups = layout.dp_size
    return ParsedFlags(
        layout=replace(layout, attn_dp_size=groups, dp_size=1),
        rest=tuple(rest),
        adjustments=(
            Adjustment(name="dp_size", before=str(groups), after="1", source=_DP_ATTENTION_SOURCE),
            Adjustment(name="attn_dp_size", before="default 1", after=str(groups), source=_DP_ATTENTION_SOURCE),
        ),
    )


def _split(word: str) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    return name, value if equals else None


def _option(name: str, version: EngineVersion) -> str | None:
    """The layout option that `name` stands for; None where it is not one."""
    known = {option for flag in _FLAGS if flag.is_known_to(version) for option in flag.names}
    known.add(_DP_ATTENTION)
    if name in known:
        return name
    if name in _NEIGHBOURS:
        return None
    begun = sorted(option for option in known | _NEIGHBOURS if option.startswith(name))
    if len(begun) > 1 and not known.isdisjoint(begun):
        raise FlagError(f"ambiguous option: {name} could match {', '.join(begun)}")
    if begun and begun[0] in known:
        return begun[0]
    if any(name in flag.names for flag in _FLAGS):
        raise FlagError(f"unrecognized arguments: {name} (not an option of SGLang {version})")
    return None


def _value(flag: _Flag, explicit: str | None, words: Iterator[str]) -> Any:
    name = "/".join(flag.names)
    if not flag.takes_value:
        _refuse_value(name, explicit)
        return True
    text = next(words, None) if explicit is None else explicit
    if text is None or (explicit is None and text.startswith("--")):
        raise FlagError(f"argument {name}: expected one argument")
    try:
        return flag.read(text)
    except ValueError:
        raise FlagError(f"argument {name}: invalid {flag.read.__name__} value: {text!r}") from None


def _refuse_value(name: str, explicit: str | None) -> None:
    if explicit is not None:
        raise FlagError(f"argument {name}: ignored explicit argument {explicit!r}")
