"""SGLang's choice of all-reduce: a case on either side of each release that changed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.hardware import Fabric, Route
from search_spaces.layout import Layout
from search_spaces.sglang.all_reduce import (
    PCIE_IPC_SWITCH,
    AllReducePath,
    all_reduce_choice,
    all_reduce_path,
    attention_all_reduce_path,
    other_path_flags,
)
from search_spaces.sglang.resolution import resolve
from search_spaces.sglang.versions import NEWEST, OLDEST, release_0_5
from search_spaces.space import enumerate_space

CUSTOM, NCCL, FUSION = AllReducePath.CUSTOM, AllReducePath.NCCL, AllReducePath.FLASHINFER_FUSION
RELEASES = [release_0_5(patch) for patch in range(OLDEST.patch, NEWEST.patch + 1)]


def path_of(model, cluster, version=NEWEST, environment=None, **flags):
    served, machines = load_model(model), parse_cluster(cluster)
    layout = Layout(**{"nnodes": machines.num_nodes, **flags})
    effective, _ = resolve(layout, served, machines, version)
    return all_reduce_path(served, machines, effective, version, environment=environment)


@pytest.mark.parametrize(
    ("model", "cluster", "patch", "flags", "path"),
    [
        # Custom: over NVLink for the group sizes that its implementation knows.
        ("mixtral-8x7b", "8xh200", 23, {"tp_size": 8}, CUSTOM),
        ("mixtral-8x7b", "8xh200", 9, {"tp_size": 8}, CUSTOM),
        ("mixtral-8x7b", "8xh200", 23, {"tp_size": 8, "disable_custom_all_reduce": True}, NCCL),
        ("mixtral-8x7b", "2x8xh200", 23, {"tp_size": 16}, NCCL),
        ("mixtral-8x7b", "2x8xh200", 23, {"tp_size": 8, "pp_size": 2}, CUSTOM),
        ("mixtral-8x7b", "8xh200", 23, {"tp_size": 1}, AllReducePath.NONE),
        # Groups of three came with the second implementation.
        ("mixtral-8x7b", "3xh200", 11, {"tp_size": 3}, NCCL),
        ("mixtral-8x7b", "3xh200", 12, {"tp_size": 3}, CUSTOM),
        # PCIe: never on more than two; on two in every release but one.
        ("kimi-k2.6", "8xrtx-pro-6000", 23, {"tp_size": 8}, NCCL),
        ("kimi-k2.6", "8xrtx-pro-6000", 9, {"tp_size": 8}, NCCL),
        ("qwen3-30b-a3b", "2xrtx-pro-6000", 11, {"tp_size": 2}, CUSTOM),
        ("qwen3-30b-a3b", "2xrtx-pro-6000", 12, {"tp_size": 2}, NCCL),
        ("qwen3-30b-a3b", "2xrtx-pro-6000", 13, {"tp_size": 2}, CUSTOM),
        ("qwen3-30b-a3b", "2xrtx-4090", 23, {"tp_size": 2}, NCCL),
        ("qwen3-30b-a3b", "2xcpu", 23, {"tp_size": 2}, AllReducePath.SHARED_MEMORY),
        # The fusion: by architecture and release, not with attention data parallelism or an all-to-all backend.
        ("deepseek-v3", "8xh200", 9, {"tp_size": 8}, FUSION),
        ("deepseek-v3", "8xh200", 23, {"tp_size": 8}, FUSION),
        ("deepseek-v3", "8xh200", 23, {"tp_size": 8, "attn_dp_size": 8}, CUSTOM),
        ("deepseek-v3", "8xh200", 23, {"tp_size": 8, "moe_a2a_backend": "deepep"}, CUSTOM),
        ("deepseek-v3", "8xh200", 23, {"tp_size": 8, "enforce_disable_flashinfer_allreduce_fusion": True}, CUSTOM),
        ("deepseek-v3", "8xa100", 23, {"tp_size": 8}, CUSTOM),
        ("deepseek-v3", "8xh20", 12, {"tp_size": 8}, CUSTOM),
        ("deepseek-v3", "8xh20", 13, {"tp_size": 8}, FUSION),
        ("deepseek-v3.2", "8xh200", 10, {"tp_size": 8}, CUSTOM),
        ("deepseek-v3.2", "8xh200", 11, {"tp_size": 8}, FUSION),
        ("qwen3-vl-235b-a22b", "8xh200", 13, {"tp_size": 8}, CUSTOM),
        ("qwen3-vl-235b-a22b", "8xh200", 14, {"tp_size": 8}, FUSION),
        ("deepseek-v4-flash", "8xb200", 17, {"tp_size": 8}, CUSTOM),
        ("deepseek-v4-flash", "8xb200", 18, {"tp_size": 8}, FUSION),
        ("mimo-v2-flash", "4xb200", 22, {"tp_size": 4}, CUSTOM),
        ("mimo-v2-flash", "4xb200", 23, {"tp_size": 4}, FUSION),
        # Over several nodes only on compute capability 10.x, since 0.5.14.
        ("deepseek-v3-nvfp4", "2x8xb200", 13, {"tp_size": 16}, NCCL),
        ("deepseek-v3-nvfp4", "2x8xb200", 14, {"tp_size": 16}, FUSION),
        ("deepseek-v3", "2x8xh200", 23, {"tp_size": 16}, NCCL),
        # MSCCL++ by size of the group.
        ("mixtral-8x7b", "4xh200", 20, {"tp_size": 4, "enable_mscclpp": True}, CUSTOM),
        ("mixtral-8x7b", "4xh200", 21, {"tp_size": 4, "enable_mscclpp": True}, AllReducePath.MSCCLPP),
        ("mixtral-8x7b", "8xh200", 9, {"tp_size": 8, "enable_mscclpp": True}, AllReducePath.MSCCLPP),
        ("mixtral-8x7b", "4x8xh200", 13, {"tp_size": 32, "enable_mscclpp": True}, NCCL),
        ("mixtral-8x7b", "4x8xh200", 14, {"tp_size": 32, "enable_mscclpp": True}, AllReducePath.MSCCLPP),
        # Symmetric memory stands behind the custom all-reduce.
        ("mixtral-8x7b", "8xh200", 23, {"tp_size": 8, "enable_torch_symm_mem": True}, CUSTOM),
        (
            "mixtral-8x7b",
            "8xh200",
            23,
            {"tp_size": 8, "enable_torch_symm_mem": True, "disable_custom_all_reduce": True},
            AllReducePath.TORCH_SYMM_MEM,
        ),
    ],
)
def test_the_path_of_a_launch(model, cluster, patch, flags, path):
    assert path_of(model, cluster, release_0_5(patch), **flags) is path


def test_pcie_ipc_needs_its_switch_and_0_5_21():
    on = {PCIE_IPC_SWITCH: "1"}
    story = ("kimi-k2.6", "8xrtx-pro-6000")
    assert path_of(*story, release_0_5(20), on, tp_size=8) is NCCL
    assert path_of(*story, release_0_5(21), on, tp_size=8) is AllReducePath.PCIE_IPC
    assert path_of(*story, NEWEST, {PCIE_IPC_SWITCH: "0"}, tp_size=8) is NCCL
    # On two GPUs the custom all-reduce comes first.
    assert path_of("qwen3-30b-a3b", "2xrtx-pro-6000", NEWEST, on, tp_size=2) is CUSTOM


@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_more_than_two_gpus_without_nvlink_never_had_the_custom_all_reduce(version):
    for size in (4, 8):
        assert path_of("kimi-k2.6", f"{size}xrtx-pro-6000", version, tp_size=size) is NCCL


def test_the_second_implementation_can_be_switched_off():
    off = {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"}
    assert path_of("mixtral-8x7b", "3xh200", NEWEST, off, tp_size=3) is NCCL
    assert path_of("mixtral-8x7b", "8xh200", NEWEST, off, tp_size=8) is CUSTOM
    assert path_of("qwen3-30b-a3b", "2xrtx-pro-6000", release_0_5(12), off, tp_size=2) is CUSTOM


def test_what_is_known_of_the_fabric_decides_over_the_kind_of_card():
    model, pair = load_model("qwen3-30b-a3b"), parse_cluster("2xrtx-pro-6000")
    apart = replace(pair, fabric=Fabric(source="nvidia-smi", route=Route.SOCKETS, has_peer_access=False))
    layout = Layout(tp_size=2)
    assert all_reduce_path(model, pair, layout) is CUSTOM
    assert all_reduce_path(model, apart, layout) is NCCL


@pytest.mark.parametrize(("patch", "path"), [(21, NCCL), (22, CUSTOM)])
def test_groups_of_attention_smaller_than_tp_have_a_path_of_their_own(patch, path):
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    layout = Layout(tp_size=8, attn_dp_size=4)
    assert attention_all_reduce_path(model, cluster, layout, release_0_5(patch)) is path
    assert attention_all_reduce_path(model, cluster, Layout(tp_size=8, attn_dp_size=8)) is AllReducePath.NONE


def test_a_choice_says_why_and_where_it_is_written():
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    choice = all_reduce_choice(model, cluster, Layout(tp_size=8))
    assert "more than two GPUs without NVLink" in choice.reason
    assert PCIE_IPC_SWITCH in choice.reason
    assert choice.source == "distributed/device_communicators/custom_all_reduce_utils.py:492"


@pytest.mark.parametrize(
    ("model", "cluster", "layout", "flags"),
    [
        ("kimi-k2.6", "8xrtx-pro-6000", Layout(tp_size=8), ()),
        ("kimi-k2.6", "8xrtx-pro-6000", Layout(tp_size=1, pp_size=8), ()),
        ("kimi-k2.6", "8xrtx-pro-6000", Layout(tp_size=2, pp_size=4), ("disable_custom_all_reduce",)),
        ("kimi-k2.6", "8xrtx-pro-6000", Layout(tp_size=8, attn_dp_size=4), ()),
        ("mixtral-8x7b", "8xh200", Layout(tp_size=8), ()),
        ("deepseek-v3", "8xh200", Layout(tp_size=8), ("enforce_disable_flashinfer_allreduce_fusion",)),
    ],
)
def test_only_flags_that_change_a_path_plausibly_are_worth_a_trial(model, cluster, layout, flags):
    served, machines = load_model(model), parse_cluster(cluster)
    effective, _ = resolve(layout, served, machines)
    found = other_path_flags(served, machines, effective)
    assert tuple(name for changes in found for name in changes) == flags
    for changes in found:
        other, _ = resolve(layout.changed(**changes), served, machines)
        assert all_reduce_path(served, machines, effective) is not all_reduce_path(served, machines, other)


def test_a_space_with_paths_holds_each_layout_once_more_where_its_path_has_another():
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    plain = enumerate_space(model, cluster, mem_fractions=(0.9,))
    wide = enumerate_space(model, cluster, mem_fractions=(0.9,), all_reduce_paths=True)
    added = [c for c in wide.candidates if c not in plain.candidates]
    fused = [c for c in plain.candidates if all_reduce_path(model, cluster, c.effective) is FUSION]
    assert [c.requested.enforce_disable_flashinfer_allreduce_fusion for c in added] == [True] * len(fused)
    assert [c for c in wide.candidates if c not in added] == list(plain.candidates)
    assert (wide.considered, wide.refused, wide.baseline) == (plain.considered, plain.refused, plain.baseline)


def test_paths_are_varied_at_one_memory_fraction():
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    plain, wide = (enumerate_space(model, cluster, all_reduce_paths=wanted) for wanted in (False, True))
    added = [c for c in wide.candidates if c not in plain.candidates]
    assert {c.requested.mem_fraction_static for c in added} == {0.9}


def test_a_pinned_path_is_not_varied():
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    pins = {"enforce_disable_flashinfer_allreduce_fusion": False, "mem_fraction_static": 0.9}
    wide = enumerate_space(model, cluster, pins=pins, all_reduce_paths=True)
    assert wide.candidates == enumerate_space(model, cluster, pins=pins).candidates


def test_labels_tell_ways_of_the_all_reduce_apart():
    assert Layout(tp_size=2, disable_custom_all_reduce=True).label == "TP2 noCAR"
    assert Layout(tp_size=8, enforce_disable_flashinfer_allreduce_fusion=True).label == "TP8 noFI"
