"""What is gone of a GPU before weights load: the CUDA context and the communicators.

Logged by SGLang on cards of 140.4 GiB, as total less what is free before weights load: 2.1 GiB with four ranks
(github.com/sgl-project/sglang/pull/17392), 2.5 to 3.1 with eight (SemiAnalysisAI/InferenceX/issues/2128,
sgl-project/sglang/issues/6017 and pull/11716). vLLM logs 0.2 GiB beside its context with one rank and 2.1 with two and
four (github.com/llm-d-incubation/llm-d-planner, accuracy_report.md).
"""

from __future__ import annotations

from search_spaces.hardware import Gpu
from search_spaces.layout import Layout

_GIB = 2**30
CONTEXT_BYTES = _GIB // 2
"""What a CUDA context takes at the very least."""
_EXPECTED_CONTEXT_BYTES = _GIB
_LEAST_COMMUNICATORS_BYTES = _GIB
_COMMUNICATORS_BYTES = _GIB
_BYTES_PER_PEER = _GIB // 8
_PEERS_OF_A_NODE = 8


def expected_reserve_bytes(gpu: Gpu, layout: Layout) -> int:
    ranks = layout.tp_size * layout.pp_size
    if gpu.is_cpu:
        return 0
    if ranks == 1:
        return _EXPECTED_CONTEXT_BYTES
    return _EXPECTED_CONTEXT_BYTES + _COMMUNICATORS_BYTES + _BYTES_PER_PEER * min(ranks, _PEERS_OF_A_NODE)


def least_reserve_bytes(gpu: Gpu, layout: Layout) -> int:
    """The smallest plausible reserve: fitting is judged with it, so that nothing that may work is lost."""
    if gpu.is_cpu:
        return 0
    return CONTEXT_BYTES + (_LEAST_COMMUNICATORS_BYTES if layout.tp_size * layout.pp_size > 1 else 0)
