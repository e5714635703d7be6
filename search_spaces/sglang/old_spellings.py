"""How releases before 0.5.23 wrote what is one field of `Layout` today.

Until 0.5.13 the parser kept a flag under its long name (0.5.13 server_args.py:7271, from_cli_args); until 0.5.19
prefill context parallelism had a switch and a mode for each kind of attention (0.5.14 server_args.py:4932).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.sglang.options import Option, option_setting
from search_spaces.sglang.versions import EngineVersion

FIELD_OF_DEST = {
    "attention_context_parallel_size": "attn_cp_size",
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "moe_data_parallel_size": "moe_dp_size",
    "piecewise_cuda_graph_max_tokens": "cuda_graph_max_bs_prefill",
    "piecewise_cuda_graph_tokens": "cuda_graph_bs_prefill",
    "pipeline_parallel_size": "pp_size",
    "tensor_parallel_size": "tp_size",
}
_DEST_OF_FIELD = {name: dest for dest, name in FIELD_OF_DEST.items()}

_GRAPHS_OFF = {
    "disable_cuda_graph": ("disable_decode_cuda_graph", "disable_prefill_cuda_graph"),
    "disable_piecewise_cuda_graph": ("disable_prefill_cuda_graph",),
}
"""Still so in 0.5.23 for the first (arg_groups/cuda_graph_hook.py:55)."""

_GRAPHS_ON = {
    "enable_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "tc_piecewise"),
    "enforce_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "tc_piecewise"),
    "enable_breakable_cuda_graph": ("cuda_graph_backend_prefill", "breakable"),
}
"""What 0.5.14 makes of them; in 0.5.9 the first is the only way to prefill graphs."""

_CP_MODE_OF_SWITCH = {
    "enable_prefill_context_parallel": "prefill_cp_mode",
    "enable_dsa_prefill_context_parallel": "dsa_prefill_cp_mode",
    "enable_nsa_prefill_context_parallel": "nsa_prefill_cp_mode",
}
_STRATEGY_OF_MODE = {"in-seq-split": "zigzag", "round-robin-split": "interleave"}

DESTS = frozenset({*_GRAPHS_OFF, *_GRAPHS_ON, *_CP_MODE_OF_SWITCH, *_CP_MODE_OF_SWITCH.values()})
"""What stands for other fields than its own name says."""


def fields_of(said: Mapping[str, Any], version: EngineVersion) -> dict[str, Any]:
    """The fields that the options in `said` (by dest) stand for."""
    found: dict[str, Any] = {}
    for dest, names in _GRAPHS_OFF.items():
        if said.get(dest):
            found |= dict.fromkeys(names, True)
    for dest, (name, backend) in _GRAPHS_ON.items():
        if said.get(dest):
            found[name] = backend
    for switch, dest in _CP_MODE_OF_SWITCH.items():
        if not said.get(switch):
            continue
        found["enable_prefill_cp"] = True
        option = option_setting(dest, version)
        mode = said.get(dest, option.default if option is not None else None)
        if mode in _STRATEGY_OF_MODE:
            found.setdefault("cp_strategy", _STRATEGY_OF_MODE[mode])
    return found


def words_for(changed: dict[str, Any], version: EngineVersion) -> list[str]:
    """Words for what `version` cannot say field by field; takes it out of `changed`."""
    words: list[str] = []
    if option_setting("disable_prefill_cuda_graph", version) is None and changed.get("disable_prefill_cuda_graph"):
        if changed.get("disable_decode_cuda_graph"):
            words.append("--disable-cuda-graph")
            del changed["disable_decode_cuda_graph"], changed["disable_prefill_cuda_graph"]
        elif option_setting("disable_piecewise_cuda_graph", version) is not None:
            words.append("--disable-piecewise-cuda-graph")
            del changed["disable_prefill_cuda_graph"]
    for dest, (name, backend) in _GRAPHS_ON.items():
        option = option_setting(dest, version)
        if changed.get(name) == backend and option is not None and option.sets:
            words.append(option.names[0])
            del changed[name]
    if option_setting("enable_prefill_cp", version) is None and changed.get("enable_prefill_cp"):
        for switch, dest in _CP_MODE_OF_SWITCH.items():
            option = option_setting(dest, version)
            modes = [] if option is None else [str(mode) for mode in option.choices or ()]
            mode = next((m for m in modes if _STRATEGY_OF_MODE[m] == changed.get("cp_strategy")), None)
            if mode is not None and option is not None:
                words += [f"--{switch.replace('_', '-')}", option.names[0], mode]
                del changed["enable_prefill_cp"], changed["cp_strategy"]
                break
    return words


def option_of_field(name: str, version: EngineVersion) -> Option | None:
    """The option that sets a field in `version`."""
    return option_setting(name, version) or option_setting(_DEST_OF_FIELD.get(name, name), version)
