"""Layouts for which an earlier release has no flags: what was not asked for by flags can ask for too much."""

from __future__ import annotations

from search_spaces.layout import Layout
from search_spaces.sglang.old_spellings import option_of_field
from search_spaces.sglang.rule import Launch, Rule
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Evidence, Stage

_SIZES = ("tp_size", "pp_size", "dp_size", "attn_cp_size", "ep_size", "moe_dp_size", "dcp_size", "dwdp_size", "nnodes")
_DEFAULT = Layout()


def _unspelled(launch: Launch) -> list[str]:
    asked = launch.asked
    return [
        f"{name}={getattr(asked, name)}"
        for name in _SIZES
        if getattr(asked, name) != getattr(_DEFAULT, name) and option_of_field(name, launch.version) is None
    ]


def _has_both_dp(launch: Launch) -> bool:
    return launch.asked.attn_dp_size != 1 and launch.asked.dp_size != 1


def _message(launch: Launch) -> str:
    if missing := _unspelled(launch):
        return f"SGLang {launch.version} has no flag for {', '.join(missing)}"
    return (
        f"SGLang {launch.version} spells attention data parallelism --dp-size with --enable-dp-attention, which leaves "
        f"no flag for replicas (dp_size={launch.asked.dp_size}, attn_dp_size={launch.asked.attn_dp_size})"
    )


SPELLING = (
    Rule(
        id="flag.absent",
        stage=Stage.PARSE,
        source="server_args.py (add_cli_args)",
        broken=lambda launch: _has_both_dp(launch) or bool(_unspelled(launch)),
        message=_message,
        exception="SystemExit(2)",
        needs=frozenset(),
        until=release_0_5(21),
        evidence=Evidence.READ,
    ),
)
