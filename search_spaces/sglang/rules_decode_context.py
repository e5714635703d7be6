"""Rules on decode context parallelism and on distributed weight data parallelism."""

from __future__ import annotations

from search_spaces.sglang.rule import Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

DECODE = (
    Rule(
        id="disaggregation.ranks",
        stage=Stage.RESOLVE,
        source="arg_groups/pd_disaggregation_hook.py:136",
        concerns=frozenset({"disaggregation_mode"}),
        broken=lambda launch: (
            launch.asked.disaggregation_mode == "decode"
            and launch.asked.max_running_requests is not None
            and launch.asked.dp_size * launch.asked.attn_dp_size == 0
        ),
        message=says("a decode server shares out max_running_requests over dp_size * attn_dp_size, which is 0"),
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
        since=release_0_5(22),
    ),
    Rule(
        id="dcp.positive",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:244",
        concerns=frozenset({"dcp_size"}),
        broken=lambda launch: launch.asked.dcp_size < 1,
        message=lambda launch: f"dcp_size must be at least 1, but is {launch.asked.dcp_size}",
        exception="ValueError",
        engine_text=lambda launch: (
            "Decode context parallel size (--dcp-size / --decode-context-parallel-size) must be >= 1, but got "
            f"dcp_size={launch.asked.dcp_size}."
        ),
    ),
    Rule(
        id="dcp.with_prefill_cp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:250",
        concerns=frozenset({"dcp_size"}),
        broken=lambda launch: launch.asked.dcp_size > 1 and launch.asked.enable_prefill_cp,
        message=lambda launch: (
            f"decode and prefill context parallelism cannot be combined (dcp_size={launch.asked.dcp_size}, "
            "enable_prefill_cp)"
        ),
        exception="ValueError",
        engine_text=says("--dcp-size > 1 does not support --enable-prefill-cp."),
        since=release_0_5(22),
    ),
    Rule(
        id="dcp.backend",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:252",
        concerns=frozenset({"dcp_size", "dcp_comm_backend"}),
        broken=lambda launch: launch.asked.dcp_comm_backend in ("a2a", "fi_a2a") and launch.asked.dcp_size <= 1,
        message=lambda launch: (
            f"--dcp-comm-backend {launch.asked.dcp_comm_backend} needs dcp_size above 1, but it is "
            f"{launch.asked.dcp_size}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"--dcp-comm-backend {launch.asked.dcp_comm_backend} only affects the decode context-parallel "
            "attention reduction and therefore requires --dcp-size / --decode-context-parallel-size > 1, but got "
            f"dcp_size={launch.asked.dcp_size}."
        ),
    ),
)


WEIGHT_DATA = (
    Rule(
        id="dwdp.is_tp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:441",
        concerns=frozenset({"dwdp_size"}),
        broken=lambda launch: launch.asked.dwdp_size > 1 and launch.asked.dwdp_size != launch.asked.tp_size,
        message=lambda launch: (
            f"dwdp_size must be 1 or tp_size (dwdp_size={launch.asked.dwdp_size}, tp_size={launch.asked.tp_size})"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"dwdp_size ({launch.asked.dwdp_size}) must equal tp_size ({launch.asked.tp_size})",
    ),
    Rule(
        id="dwdp.with_decode",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:444",
        concerns=frozenset({"dwdp_size"}),
        broken=lambda launch: launch.asked.dwdp_size > 1 and launch.asked.disaggregation_mode == "decode",
        message=says("weight data parallelism is for prefill, not for --disaggregation-mode decode"),
        exception="AssertionError",
        engine_text=says("DWDP requires --disaggregation-mode null or prefill"),
    ),
    Rule(
        id="dwdp.with_eplb",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:448",
        concerns=frozenset({"dwdp_size"}),
        broken=lambda launch: launch.asked.dwdp_size > 1 and launch.asked.enable_eplb,
        message=says("weight data parallelism keeps experts where they are: enable_eplb cannot be combined with it"),
        exception="AssertionError",
        engine_text=says("EPLB dynamic migration conflicts with static DWDP partitioning"),
    ),
    Rule(
        id="dwdp.with_speculation",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:451",
        concerns=frozenset({"dwdp_size"}),
        broken=lambda launch: launch.asked.dwdp_size > 1 and launch.asked.speculative_algorithm is not None,
        message=says("weight data parallelism cannot be combined with speculative decoding"),
        exception="AssertionError",
        engine_text=says("DWDP does not support speculative decoding (MTP/draft workers)"),
    ),
    Rule(
        id="dwdp.with_pp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:454",
        concerns=frozenset({"dwdp_size"}),
        broken=lambda launch: launch.asked.dwdp_size > 1 and launch.asked.pp_size != 1,
        message=lambda launch: (
            f"weight data parallelism cannot be combined with pipeline parallelism (pp_size={launch.asked.pp_size})"
        ),
        exception="AssertionError",
        engine_text=says("DWDP requires pp_size == 1"),
    ),
    Rule(
        id="dwdp.with_two_batch_overlap",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:455",
        concerns=frozenset({"dwdp_size"}),
        broken=lambda launch: launch.asked.dwdp_size > 1 and launch.asked.enable_two_batch_overlap,
        message=says("weight data parallelism cannot be combined with enable_two_batch_overlap"),
        exception="AssertionError",
        engine_text=says("DWDP's prefetch event protocol does not support two-batch overlap"),
    ),
)

SPARSE = (
    Rule(
        id="dcp.sparse_disaggregation",
        stage=Stage.RESOLVE,
        source="arg_groups/model_overrides/deepseek_v2.py:35",
        concerns=frozenset({"dcp_size"}),
        broken=lambda launch: (
            launch.target.is_dsa and launch.asked.dcp_size > 1 and launch.asked.disaggregation_mode != "null"
        ),
        message=says("sparse attention cannot combine decode context parallelism with disaggregation"),
        exception="ValueError",
        engine_text=says("DSA DCP does not support PD disaggregation."),
        since=release_0_5(22),
    ),
    Rule(
        id="dcp.sparse_topk",
        stage=Stage.RESOLVE,
        source="arg_groups/model_overrides/deepseek_v2.py:37",
        concerns=frozenset({"dcp_size"}),
        broken=lambda launch: (
            launch.target.is_dsa and launch.asked.dcp_size > 1 and launch.asked.speculative_eagle_topk not in (None, 1)
        ),
        message=lambda launch: (
            "sparse attention under decode context parallelism drafts in a line: speculative_eagle_topk must be 1, "
            f"but is {launch.asked.speculative_eagle_topk}"
        ),
        exception="ValueError",
        engine_text=says("DSA DCP requires --speculative-eagle-topk 1."),
        since=release_0_5(22),
    ),
)

GROUPS = (
    Rule(
        id="dcp.platform",
        stage=Stage.INIT,
        source="distributed/parallel_state.py:2656",
        concerns=frozenset({"dcp_size"}),
        broken=lambda launch: launch.asked.dcp_size > 1 and launch.cluster.gpu.is_cpu,
        message=lambda launch: f"CPUs have no decode context parallelism (dcp_size={launch.asked.dcp_size})",
        exception="RuntimeError",
        engine_text=says("Decode context parallel (decode_context_parallel_size > 1) is currently only supported on"),
    ),
    Rule(
        id="dcp.divides",
        stage=Stage.INIT,
        source="distributed/parallel_state.py:2665",
        concerns=frozenset({"dcp_size"}),
        broken=lambda launch: launch.asked.dcp_size > 1 and launch.asked.tp_size % launch.asked.dcp_size != 0,
        message=lambda launch: (
            f"dcp_size must divide tp_size, but {launch.asked.dcp_size} does not divide {launch.asked.tp_size}"
        ),
        exception="RuntimeError",
        engine_text=lambda launch: (
            f"tensor_model_parallel_size ({launch.asked.tp_size}) must be divisible by "
            f"decode_context_parallel_size ({launch.asked.dcp_size})"
        ),
    ),
)
