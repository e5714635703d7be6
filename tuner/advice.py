"""What would get past an end, in one sentence: only what follows from what was seen."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.verdict import Stage
from tuner.fault import Fault
from tuner.outcome import Direction


def of_memory(direction: Direction, fault: Fault, stage: str, least_fraction: float | None) -> str:
    """Of a server that ran out of memory. least_fraction: what the engine says is needed at least, if it does."""
    if direction is Direction.RAISE_FRACTION and least_fraction is not None:
        return f"raise --mem-fraction-static above {least_fraction:g}"
    if direction is Direction.LOWER_FRACTION:
        return "lower --mem-fraction-static" + _BESIDE.get(fault, _AT_CAPTURE if stage == Stage.GRAPHS else "")
    return _BY_DIRECTION[direction]


_AT_CAPTURE = (
    ", or capture graphs for fewer requests (--cuda-graph-max-bs-decode, in older releases --cuda-graph-max-bs)"
)
_BESIDE: Mapping[Fault, str] = {
    Fault.PREFILL_MEMORY: ", or prefill in smaller chunks (--chunked-prefill-size)",
    Fault.EXCHANGE_BUFFER: ", as the buffer lies outside of it; where that does not help, allow fewer tokens per rank "
    "at once, or take another --moe-a2a-backend",
}
_BY_DIRECTION: Mapping[Direction, str] = {
    Direction.RAISE_FRACTION: "raise --mem-fraction-static: the weights leave too little of it",
    Direction.SPLIT_FURTHER: "spread the weights over more GPUs (--tp-size times --pp-size), or take a smaller format",
    Direction.FEWER_REQUESTS: "lower --max-running-requests or raise --schedule-conservativeness: the KV cache is "
    "full, and no memory fraction is the matter",
    Direction.MORE_HOST_MEMORY: "more memory on the host, or less of it in use (other loads, offloaded weights or KV "
    "cache)",
}


def of_silence(fault: Fault, stage: str) -> str:
    """Of a server that made no progress."""
    if fault is Fault.COMPILING:
        return "kernels were compiling: start again with the cache that is warmer now, or have more patience"
    if stage == Stage.INIT:
        return (
            "ranks wait for one another before anything is loaded: a test of collectives on this machine (tune probe) "
            "and NCCL_DEBUG=INFO tell a fault of the machine from one of the layout"
        )
    return ""


RULES_AT_FAULT = "the rules here called it legal: a fault of theirs, worth a report with the log"
ENGINE_AT_FAULT = (
    "an exception in the engine's own code, which did not foresee this launch: worth a report to it; other kernels may "
    "do (--moe-runner-backend, --attention-backend)"
)
