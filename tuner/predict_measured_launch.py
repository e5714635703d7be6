"""The launch that a measured line says: by flags, by a command, by a notation, by sizes, or by several that agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from search_spaces.errors import MalformedError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.flags import from_argv, to_argv
from search_spaces.verdict import Stage
from tuner.batch_lines import environment_of_line, launch_of_line
from tuner.checking import Checked, Server, check_flags, check_layout
from tuner.validate_campaigns import memory_flags
from tuner.validate_fields import word
from tuner.validate_sizes import sizes_of

SIZES = {"tp": "tp_size", "moe_ep": "ep_size", "attention_dp": "attn_dp_size", "pp": "pp_size"}
"""How lines for `tune validate` name the sizes of a layout, and the fields of `Layout`."""


def measured_launch(said: Mapping[str, Any], server: Server) -> tuple[Layout, tuple[tuple[str, str], ...]]:
    """The effective layout, and what of the environment chooses the way of the all-reduces.

    What was measured fitted, whatever the memory model says. The environment is that of the line, which is none of the
    launch that is asked about. Raises UserError, also where two ways of saying the layout contradict each other, and
    SkippedError for a value that is none.
    """
    has_launch = said.get("flags") is not None or said.get("argv") is not None
    is_sized = any(said.get(name) is not None for name in (*SIZES, "world_tp"))
    launch = launch_of_line(said if has_launch or not is_sized else {**said, "flags": {}}, server.version)
    server = replace(server, env={**launch.env, **environment_of_line(said)})
    if launch.notation is not None:
        written = launch.notation.literal_on(server.cluster)
        layout = _of_notation(written, _stated(said, written, server, has_launch=True))
        others = from_argv(launch.behind, server.version).others
        checked = check_layout(layout, server, others=others, suggest=False, memory_decides=False)
    else:
        checked = _of_flags(said, launch.flags, server, has_launch=has_launch)
    if checked.verdict.violations:
        broken = checked.verdict.violations[0]
        raise MalformedError(
            f"it was measured, but SGLang {server.version} refuses it ({broken.rule}): {broken.message}; say what it "
            "ran on with --engine-version, --model and --cluster"
        )
    for each in checked.uncounted:
        if each.changes_times:
            raise MalformedError(f"{each.words} {each.does}: predictions here are of servers without it")
    return checked.verdict.effective, server.setting.environment


def _of_flags(said: Mapping[str, Any], flags: tuple[str, ...], server: Server, *, has_launch: bool) -> Checked:
    """What the line says elsewhere stands in front of the flags, where the engine's own parser lets these win."""
    as_written = check_flags(flags, server, suggest=False, memory_decides=False)
    if _is_unreadable(as_written):
        return as_written
    written = as_written.verdict.requested
    stated = _stated(said, written, server, has_launch=has_launch)
    missing = {name: value for name, value in stated.items() if getattr(written, name) != value}
    if not missing:
        return as_written
    words = (*to_argv(_over_nodes(Layout().changed(**missing), written, server.cluster), server.version), *flags)
    checked = check_flags(words, server, suggest=False, memory_decides=False)
    if not _is_unreadable(checked):
        _refuse_others(checked.verdict.requested, stated)
    return checked


def _is_unreadable(checked: Checked) -> bool:
    return any(broken.stage is Stage.PARSE for broken in checked.verdict.violations)


def _over_nodes(missing: Layout, written: Layout, cluster: Cluster) -> Layout:
    """As a notation is read: over all nodes where one has too few GPUs."""
    is_wider = missing.num_gpus > cluster.gpus_per_node and written.nnodes == 1 < cluster.num_nodes
    return missing.changed(nnodes=cluster.num_nodes) if is_wider else missing


def _of_notation(written: Layout, stated: Mapping[str, Any]) -> Layout:
    """A notation says all sizes; what it leaves open may stand elsewhere."""
    plain = Layout()
    more = {
        name: value
        for name, value in stated.items()
        if name not in SIZES.values() and getattr(written, name) == getattr(plain, name)
    }
    layout = written.changed(**more)
    _refuse_others(layout, stated)
    return layout


def _refuse_others(layout: Layout, stated: Mapping[str, Any]) -> None:
    for name, value in stated.items():
        if (launched := getattr(layout, name)) != value:
            raise MalformedError(
                f"the line says {name} {value}, and its launch {launched}: they are the same thing, so leave one out"
            )


def _stated(said: Mapping[str, Any], written: Layout, server: Server, *, has_launch: bool) -> dict[str, Any]:
    """What the line says of its layout outside of its launch, by field. written: what the launch says."""
    found: dict[str, Any] = {}
    names = {name: field for name, field in SIZES.items() if said.get(name) is not None}
    if said.get("world_tp") is not None:
        names["world_tp"] = SIZES["tp"]
    if names:
        tp = {} if {"tp", "world_tp"} & names.keys() else {"tp": written.tp_size}
        # Replicas of a launch have GPUs of their own, which the sizes do not count.
        gpus = {"n_gpus": None} if has_launch else {}
        sizes, _ = sizes_of({**said, **tp, **gpus})
        found = {field: sizes[field] for field in names.values()}
    memory = memory_flags(said, Layout(), server.model, server.cluster.gpu)
    if said.get("mem_fraction_static") is not None:
        found["mem_fraction_static"] = memory["mem_fraction_static"]
    if word(said, "kv_cache_dtype"):
        found["kv_cache_dtype"] = memory["kv_cache_dtype"]
    return found
