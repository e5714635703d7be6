"""How the tests start the real SGLang on a machine with no GPU.

The tests' own Python needs nothing of SGLang's: the engine lives in an environment of its own (install.sh).
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent

ENVIRONMENT = {
    "PYTHONPATH": str(HERE / "shim"),
    # SGLang's own switch, and the one that the shim goes by.
    "SGLANG_USE_CPU_ENGINE": "1",
    # One entry a rank, and more entries than ranks are fine (srt/utils/numa_utils.py:490), so that one value
    # serves every layout of up to 8 ranks. Without it there may be no more ranks than NUMA nodes. Only
    # SGLang's own CPU kernels would bind threads to these cores, and the wheel has none.
    "SGLANG_CPU_OMP_THREADS_BIND": "|".join("0" * 8),
    "OMP_NUM_THREADS": "1",
    # Without it torch's compiler takes the shim's Triton for a real one:
    # ModuleNotFoundError: No module named 'triton.compiler'
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}
"""To be laid over the environment of any process that starts the engine."""

ARGUMENTS = (
    *("--device", "cpu"),
    # What transformers computed its reference in.
    *("--dtype", "float32"),
    # Without it the KV cache is sized from the host's memory.
    *("--max-total-tokens", "8192"),
    # The checkpoint has no tokenizer: requests carry `input_ids`, answers carry `output_ids` and no `text`.
    "--skip-tokenizer-init",
)
"""To be added to any launch of the checkpoint that make_checkpoint.py writes."""
