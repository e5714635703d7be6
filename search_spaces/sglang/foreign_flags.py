"""What flags and words that no release in the table of options knows are in the engine's own words."""

from __future__ import annotations

OTHER_ENGINES = {
    "--all2all-backend": "--moe-a2a-backend",
    "--block-size": "--page-size",
    "--enable-expert-parallel": "--ep-size",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--kv-cache-free-gpu-memory-fraction": "--mem-fraction-static",
    "--max-batch-size": "--max-running-requests",
    "--max-model-len": "--context-length",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-tokens": "--chunked-prefill-size",
}
"""What flags of vLLM (engine/arg_utils.py) and of TensorRT-LLM (trtllm-serve) are here."""

TP_SIZE = "TP_SIZE"
"""Stands for the launch's own --tp-size."""

SWITCHES = {
    "--enable-deepep-moe": ("--moe-a2a-backend", "deepep"),
    "--enable-ep-moe": ("--ep-size", TP_SIZE),
    "--enable-expert-parallel": ("--ep-size", TP_SIZE),
    "--enable-flashinfer-cutedsl-moe": ("--moe-runner-backend", "flashinfer_cutedsl"),
    "--enable-flashinfer-cutlass-moe": ("--moe-runner-backend", "flashinfer_cutlass"),
    "--enable-flashinfer-mla": ("--attention-backend", "flashinfer"),
    "--enable-flashinfer-mxfp4-moe": ("--moe-runner-backend", "flashinfer_mxfp4"),
    "--enable-flashinfer-trtllm-moe": ("--moe-runner-backend", "flashinfer_trtllm"),
    "--enable-flashmla": ("--attention-backend", "flashmla"),
    "--enable-triton-kernel-moe": ("--moe-runner-backend", "triton_kernel"),
}
"""Switches that became a flag with a value.

As the engine's releases before 0.5.9 said in their deprecation warnings (0.5.2 server_args.py, DeprecatedAction);
vLLM's --enable-expert-parallel spreads whole experts over all ranks.
"""

OTHER_WORDS = {("kv_cache_dtype", "fp8"): "fp8_e4m3", ("kv_cache_dtype", "fp8_e4m3fn"): "fp8_e4m3"}
"""Values by option, as vLLM (config/cache.py: fp8 is fp8_e4m3 on CUDA) and torch call them."""

BEFORE = {"--attn-dp-size": ("--dp-size", "N", "--enable-dp-attention")}
"""How releases that do not know a flag yet say the same."""
