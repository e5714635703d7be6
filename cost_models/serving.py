"""Steady state under load: a fixed number of requests in flight, each replaced when it ends."""

from __future__ import annotations

import math

from cost_models.compute import Rank
from cost_models.prediction import ServingPoint
from search_spaces.workload import Workload


def serving_point(rank: Rank, workload: Workload, kv_tokens: int, concurrency: int) -> ServingPoint:
    """What `concurrency` requests in flight see, shared out evenly over the replicas.

    rank: the busiest rank of one replica. kv_tokens: tokens that one KV pool of it holds.

    A running request waits between two tokens for one decode step and for its share of the others' prompts;
    a new one for a free place in the KV cache, for prompts ahead of it, and for its own.
    """
    layout, constants = rank.layout, rank.constants
    inputs, outputs = workload.input_tokens, workload.output_tokens
    waiting = math.ceil(concurrency / layout.dp_size)
    running = min(waiting, _most_running(rank, workload, kv_tokens))
    step_s = sum(rank.decode(running, inputs + outputs / 2).values())
    together = min(running, layout.attn_dp_size)
    prefill_s = rank.prefill_s(together, inputs)
    # Pipeline stages advance in lock-step, so a prompt holds up every micro-batch for as long as it travels:
    # with its time divided by the number of stages, two measured pipelines come out twice too fast.
    per_prompt_s = prefill_s / together
    tpot_s = step_s + constants.prefill_interference * (running - 1) * per_prompt_s / outputs
    ttft_s = (
        constants.ttft_floor_s
        + prefill_s * (1 + constants.ttft_queue * (running / together - 1))
        + constants.ttft_steps * step_s
    )
    if waiting > running:
        ttft_s += constants.ttft_kv_wait * (waiting / running - 1) * (outputs * tpot_s + ttft_s)
    return ServingPoint(
        concurrency=concurrency,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        output_tok_per_s=concurrency * outputs / (ttft_s + (outputs - 1) * tpot_s),
    )


def _most_running(rank: Rank, workload: Workload, kv_tokens: int) -> int:
    """Requests that one replica can run at once: what its KV pools hold, and what the user allows."""
    layout = rank.layout
    most = max(1, kv_tokens // workload.tokens_per_request) * layout.attn_dp_size
    if layout.max_running_requests is not None:
        most = min(most, max(1, layout.max_running_requests // layout.attn_dp_size) * layout.attn_dp_size)
    return most
