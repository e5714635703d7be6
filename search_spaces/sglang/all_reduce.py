"""How SGLang carries out the all-reduces of a layout: which implementation, since which release, and why.

The order of choice is that of `GroupCoordinator.all_reduce` (distributed/parallel_state.py:673): the fusion with the
norm that follows, MSCCL++, the custom all-reduce, PCIe-IPC, torch's symmetric memory, NCCL. Each but the last is for
groups, links and sizes of its own. Every release from 0.5.9 on was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from search_spaces.hardware import Cluster, LinkKind
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, EngineVersion, release_0_5

PCIE_IPC_SWITCH = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
SECOND_CUSTOM_SWITCH = "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"

SWITCHES: Mapping[str, str] = {
    SECOND_CUSTOM_SWITCH: "0 takes the first implementation of the custom all-reduce again (default since 0.5.12)",
    "SGLANG_USE_JIT_ALL_REDUCE": "1 takes the second implementation in 0.5.10 and 0.5.11",
    PCIE_IPC_SWITCH: "1 takes FlashInfer's staged peer writes where no NVLink is, since 0.5.21; off by default",
    "SGLANG_PCIE_IPC_MAX_NUMEL": "largest tensor of that path; otherwise the widest captured decode batch",
    "SGLANG_SKIP_P2P_CHECK": "1 believes the driver about peer access instead of trying it out",
    "SGLANG_MSCCLPP_MAX_BYTES": "largest message of MSCCL++ before 0.5.21; 1 MB by default",
    "NCCL_GRAPH_FILE, NCCL_P2P_LEVEL, NCCL_P2P_DISABLE": "how NCCL itself goes between the cards of one host",
}
"""Environment variables that change the path or its speed without any flag, with what they do."""

HEEDED = frozenset({PCIE_IPC_SWITCH, SECOND_CUSTOM_SWITCH})
"""Those that `all_reduce_choice` heeds; what the others do to a path or its speed is not known here."""

_FIRST_CUSTOM_SIZES = frozenset({2, 4, 6, 8})
_SECOND_CUSTOM_SIZES = frozenset(range(2, 9))
_PCIE_IPC_SIZES = frozenset({2, 4, 8})
_TORCH_SYMM_MEM_SIZES = frozenset({2, 4, 6, 8})
_NO_PEER_ACCESS = frozenset({"rtx-4090", "rtx-5090"})
"""Cards whose stock driver lets none read another's memory (github.com/tinygrad/open-gpu-kernel-modules)."""


def unheeded(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Switches that are set and that no prediction takes into account, in words."""
    return tuple(
        f"{name}={environment[name]} is not taken into account ({what})"
        for names, what in SWITCHES.items()
        for name in names.split(", ")
        if name in environment and name not in HEEDED
    )


class AllReducePath(StrEnum):
    NONE = "none"
    """One rank: nothing is reduced."""
    CUSTOM = "custom"
    """SGLang's own kernels: every rank reads its peers' memory; up to 8 or 16 MiB, NCCL beyond."""
    PCIE_IPC = "pcie_ipc"
    """FlashInfer's staged peer writes over PCIe, for decode batches; NCCL beyond."""
    NCCL = "nccl"
    FLASHINFER_FUSION = "flashinfer_fusion"
    """One kernel with the residual and the norm, up to 2048 tokens; what stands for CUSTOM or NCCL beyond."""
    MSCCLPP = "mscclpp"
    TORCH_SYMM_MEM = "torch_symm_mem"
    SHARED_MEMORY = "shared_memory"
    """Ranks on the CPUs of one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceChoice:
    """source: path:line under `sglang/srt/` of 0.5.23, unless it names another release."""

    path: AllReducePath
    reason: str
    source: str


def all_reduce_path(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    version: EngineVersion = NEWEST,
    *,
    environment: Mapping[str, str] | None = None,
) -> AllReducePath:
    """The path of the TP group's all-reduces in decode, for an effective layout."""
    return all_reduce_choice(model, cluster, layout, version, environment=environment).path


def all_reduce_choice(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    version: EngineVersion = NEWEST,
    *,
    environment: Mapping[str, str] | None = None,
) -> AllReduceChoice:
    """The path of the TP group's all-reduces in decode and what led to it.

    layout: effective. environment: of the server; what it does not hold has the engine's defaults.
    """
    group = _Group(
        target=Target(model=model, gpu=cluster.gpu),
        cluster=cluster,
        layout=layout,
        version=version,
        environment=environment or {},
        num_ranks=layout.tp_size,
    )
    return group.simple() or group.fused() or group.mscclpp() or group.custom() or group.without_custom()


def attention_all_reduce_path(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    version: EngineVersion = NEWEST,
    *,
    environment: Mapping[str, str] | None = None,
) -> AllReducePath:
    """The path of the all-reduce after attention, among the ranks that share one attention.

    It is the TP group itself where they are one. A smaller group has the custom all-reduce since 0.5.22
    (distributed/parallel_state.py:2821), before that NCCL alone.
    """
    if layout.attn_tp_size == layout.tp_size:
        return all_reduce_path(model, cluster, layout, version, environment=environment)
    group = _Group(
        target=Target(model=model, gpu=cluster.gpu),
        cluster=cluster,
        layout=layout,
        version=version,
        environment=environment or {},
        num_ranks=layout.attn_tp_size,
    )
    found = group.simple()
    if found is None and version >= release_0_5(22):
        found = group.custom()
    return AllReducePath.NCCL if found is None else found.path


def other_path_flags(
    model: Model, cluster: Cluster, layout: Layout, version: EngineVersion = NEWEST
) -> tuple[Mapping[str, bool], ...]:
    """Flags worth a trial each because they send an effective layout's all-reduces another plausible way.

    Two are. Without the fusion SGLang's own all-reduce runs, on NVLink: which of the two is faster changed between
    releases (github.com/sgl-project/sglang/issues/17237). Without that, NCCL runs on two GPUs over PCIe: peer reads
    that are slow on one host (a fork of vLLM served 2.5 times as many tokens without them,
    github:local-inference-lab/rtx6kpro@e2c2b957:models/kimi-k26.md) are fast on another.
    Not worth one: NCCL instead of kernels over NVLink, three to five times as slow at decode sizes wherever it was
    measured; --enable-torch-symm-mem, which only comes behind those; --enable-mscclpp, whose package the engine does
    not bring; what changes small groups of attention alone. More than two GPUs on PCIe have NCCL alone, and a switch
    that is no flag (`PCIE_IPC_SWITCH`).
    """
    path = all_reduce_path(model, cluster, layout, version)
    if path is AllReducePath.FLASHINFER_FUSION and version >= release_0_5(10):
        return ({"enforce_disable_flashinfer_allreduce_fusion": True},)
    if path is AllReducePath.CUSTOM and cluster.gpu.link is not LinkKind.NVLINK:
        return ({"disable_custom_all_reduce": True},)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Neighbouring ranks that reduce among themselves. Each method is one path: chosen, or None."""

    target: Target
    cluster: Cluster
    layout: Layout
    version: EngineVersion
    environment: Mapping[str, str]
    num_ranks: int

    @property
    def spans_nodes(self) -> bool:
        return self.num_ranks > self.cluster.gpus_per_node

    @property
    def has_nvlink(self) -> bool:
        return self.cluster.gpu.link is LinkKind.NVLINK

    @property
    def has_peer_access(self) -> bool:
        fabric = self.cluster.fabric
        if fabric is not None and fabric.has_peer_access is not None:
            return fabric.has_peer_access
        return self.cluster.gpu.key not in _NO_PEER_ACCESS

    def since(self, patch: int) -> bool:
        return self.version >= release_0_5(patch)

    def simple(self) -> AllReduceChoice | None:
        """What needs no choice."""
        if self.num_ranks <= 1:
            return AllReduceChoice(
                path=AllReducePath.NONE, reason="one rank", source="distributed/parallel_state.py:692"
            )
        if self.target.is_cpu:
            return AllReduceChoice(
                path=AllReducePath.SHARED_MEMORY,
                reason="ranks on one host's CPUs reduce in shared memory",
                source="distributed/parallel_state.py:695",
            )
        return None

    def fused(self) -> AllReduceChoice | None:
        backend = self.layout.flashinfer_allreduce_fusion_backend
        is_known = self.target.is_sm90 or self.target.is_sm100
        if backend is None or not is_known or self.layout.attn_dp_size > 1:
            return None
        if self.spans_nodes and not (self.target.is_sm100 and self.since(14)):
            return None
        return AllReduceChoice(
            path=AllReducePath.FLASHINFER_FUSION,
            reason=(
                f"FlashInfer fuses the all-reduce with the norm after it ({backend}); "
                "--enforce-disable-flashinfer-allreduce-fusion takes it off"
            ),
            source="layers/layer_boundary/residual/add_norm.py:144",
        )

    def mscclpp(self) -> AllReduceChoice | None:
        if not self.layout.enable_mscclpp or self.num_ranks not in _mscclpp_sizes(self.version):
            return None
        return AllReduceChoice(
            path=AllReducePath.MSCCLPP,
            reason="--enable-mscclpp, in captured graphs; needs the package mscclpp",
            source="distributed/device_communicators/pymscclpp.py:324",
        )

    def custom(self) -> AllReduceChoice | None:
        if self.layout.disable_custom_all_reduce or self.spans_nodes or self._obstacle() is not None:
            return None
        if self.has_nvlink:
            reason = f"all {self.num_ranks} GPUs see each other over NVLink"
        else:
            reason = "two GPUs that read each other's memory over PCIe"
        return AllReduceChoice(
            path=AllReducePath.CUSTOM,
            reason=f"{reason}; --disable-custom-all-reduce takes it off",
            source="distributed/device_communicators/custom_all_reduce.py:373",
        )

    def without_custom(self) -> AllReduceChoice:
        """Where neither fusion nor custom all-reduce runs."""
        why, source = self._why_not_custom()
        if self._takes_pcie_ipc():
            return AllReduceChoice(
                path=AllReducePath.PCIE_IPC,
                reason=f"{why}, and {PCIE_IPC_SWITCH} is set",
                source="distributed/device_communicators/pcie_ipc_ar.py:96",
            )
        if self._takes_torch_symm_mem():
            return AllReduceChoice(
                path=AllReducePath.TORCH_SYMM_MEM,
                reason=f"{why}, and --enable-torch-symm-mem is set",
                source="distributed/device_communicators/torch_symm_mem.py:57",
            )
        hint = ""
        if not self.has_nvlink and self.since(21) and self.num_ranks in _PCIE_IPC_SIZES and self.has_peer_access:
            hint = f"; {PCIE_IPC_SWITCH}=1 would take FlashInfer's kernels for PCIe"
        return AllReduceChoice(path=AllReducePath.NCCL, reason=why + hint, source=source)

    def _why_not_custom(self) -> tuple[str, str]:
        utils = "distributed/device_communicators/custom_all_reduce_utils.py"
        if self.layout.disable_custom_all_reduce:
            return "--disable-custom-all-reduce", "distributed/bootstrap.py:252"
        if self.spans_nodes:
            return f"{self.num_ranks} ranks span nodes of {self.cluster.gpus_per_node} GPUs", f"{utils}:462"
        return self._obstacle() or ("", utils)

    def _obstacle(self) -> tuple[str, str] | None:
        """What keeps the custom all-reduce off inside one node, with its source."""
        utils = "distributed/device_communicators/custom_all_reduce_utils.py"
        is_first_only = not self.since(12) or self.environment.get(SECOND_CUSTOM_SWITCH) == "0"
        sizes = _FIRST_CUSTOM_SIZES
        if self.has_nvlink and not is_first_only:
            sizes = _SECOND_CUSTOM_SIZES
        if self.num_ranks not in sizes:
            return f"the custom all-reduce knows groups of {_listed(sizes)}, not {self.num_ranks}", f"{utils}:469"
        if self.has_nvlink:
            return None
        if self.num_ranks > 2:
            return "the custom all-reduce is off on more than two GPUs without NVLink", f"{utils}:492"
        if not self.has_peer_access:
            return "the GPUs cannot read each other's memory", f"{utils}:504"
        if self.version == release_0_5(12) and not is_first_only:
            # The second implementation wants NVLink, and this release alone does not fall back to the first.
            return (
                "0.5.12 has the custom all-reduce for NVLink only",
                "0.5.12 distributed/device_communicators/custom_all_reduce_v2.py:49",
            )
        return None

    def _takes_pcie_ipc(self) -> bool:
        is_on = self.environment.get(PCIE_IPC_SWITCH, "").lower() in {"1", "true", "yes", "y", "t", "on"}
        in_reach = self.since(21) and self.num_ranks in _PCIE_IPC_SIZES and not self.spans_nodes
        return is_on and in_reach and self.has_peer_access

    def _takes_torch_symm_mem(self) -> bool:
        is_known = self.target.is_sm90 or self.target.is_sm100
        in_reach = self.num_ranks in _TORCH_SYMM_MEM_SIZES and not self.spans_nodes and self.has_nvlink
        return self.layout.enable_torch_symm_mem and is_known and in_reach


def _mscclpp_sizes(version: EngineVersion) -> frozenset[int]:
    """Groups that MSCCL++ takes (distributed/device_communicators/pymscclpp.py: line 92 of 0.5.9, 23 of 0.5.14)."""
    if version >= release_0_5(21):
        return frozenset({4, 8, 16, 32, 64})
    return frozenset({8, 16, 32}) if version >= release_0_5(14) else frozenset({8, 16})


def _listed(sizes: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))
