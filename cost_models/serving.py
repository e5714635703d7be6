"""Steady state under load: a fixed number of requests in flight, each replaced when it ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.constants import Constants
from cost_models.fleet import Fleet
from cost_models.routing import Floats
from cost_models.step import COLLECTIVES, Parts, decode_step, num_prefill_chunks, prefill_pass, total_s


class Steady(NamedTuple):
    """Arrays of shape (layouts, points).

    output_tok_per_s: of the whole deployment. running: requests that one replica runs at once. stalled_s: of the time
    per token, what passes in prefill of others' prompts. collectives_share, ttft_collectives_share: of the time per
    token and to first token, what passes in messages between GPUs. queued_s: of the time to first token, what passes
    before a place in the KV cache is free: while other requests are served.
    """

    ttft_s: Floats
    tpot_s: Floats
    output_tok_per_s: Floats
    running: Floats
    stalled_s: Floats
    collectives_share: Floats
    ttft_collectives_share: Floats
    queued_s: Floats


def steady(fleet: Fleet, concurrency: Floats, c: Constants) -> Steady:
    """What `concurrency` requests in flight see, shared out evenly over the replicas; its shape broadcasts to (n, c).

    A running request waits between two tokens for one decode step and for its share of the others' prompts;
    a new one for a free place in the KV cache, for prompts ahead of it, and for its own.

        stalled = prefill_interference ended / together * pass(together, hidden) / accepted
        TPOT = step / accepted + stalled
        TTFT = floor + pass(together) + ttft_queue (running - 1) pass(together) / together + ttft_steps step + place
        place = (waiting / running - 1) (TTFT without place + (output_tokens - 1) TPOT)
        tok/s = concurrency output_tokens / (TTFT + (output_tokens - 1) TPOT)

    Times in seconds; step and pass as in `cost_models.step`; ended: requests that end in a step,
    `(running - 1) accepted / output_tokens`; together: prompts in one pass, at least 1; waiting: requests of one
    replica, running or not. The last two follow from Little's law (Operations Research 9(3), 1961).

    In each step `running / output_tokens` requests end and as many prompts take their places, in one forward pass
    that holds up all (one prompt in some steps, where that is below 1). Pipeline stages advance in lock-step, so a
    prompt holds up every micro-batch for as long as it travels; the ranks of attention data parallelism meet in every
    MoE layer.
    """
    w = fleet.work
    waiting = np.ceil(concurrency / w.replicas)
    running = np.minimum(waiting, w.most_running)
    parts = decode_step(fleet, running, c)
    step_s = total_s(parts)
    ended = (running - 1) * w.accepted / w.output_tokens
    # What is sent at once ends at once, on all ranks of attention data parallelism. TensorRT-LLM lets a prompt wait
    # until all ranks have one: its eleven measured points lie at 0.7 to 1.2 times this prediction, else 0.4 to 1.2.
    meets = (w.is_burst > 0) | (w.is_trtllm > 0)
    together = np.maximum(np.where(meets, np.minimum(running, w.attn_dp), 1.0), ended)
    stall_s = total_s(prefill_pass(fleet, together, c, hidden=c.eager_hidden))
    stalled_s = c.prefill_interference * ended / together * stall_s / w.accepted
    tpot_s = step_s / w.accepted + stalled_s
    own = prefill_pass(fleet, together, c)
    own_s = total_s(own)
    queued_s = c.ttft_queue * (running - 1) * own_s / together
    if np.any(w.is_burst):
        # All prompts at once: the first chunk waits for itself, the last for all.
        chunks = num_prefill_chunks(fleet, running)
        all_s = total_s(prefill_pass(fleet, running, c)) * (1 + 1 / chunks) / 2
        queued_s = np.where(w.is_burst, all_s - own_s, queued_s)
    ttft_s = c.ttft_floor_s + c.inferencex_wait_s * w.is_inferencex + own_s + queued_s + c.ttft_steps * step_s
    sent_s = _sent_s(parts)
    first_sent_s = _sent_s(own) * (1 + queued_s / own_s) + c.ttft_steps * sent_s
    ttft_collectives_share = first_sent_s / ttft_s
    # Little's law: who waits for a place does not raise the rate at which those who have one are served.
    for_a_place = np.asarray((waiting / running - 1) * (ttft_s + (w.output_tokens - 1) * tpot_s))
    ttft_s = ttft_s + for_a_place
    return Steady(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        output_tok_per_s=concurrency * w.output_tokens / (ttft_s + (w.output_tokens - 1) * tpot_s),
        running=running,
        stalled_s=stalled_s,
        collectives_share=sent_s / w.accepted / tpot_s,
        ttft_collectives_share=ttft_collectives_share,
        queued_s=for_a_place,
    )


def _sent_s(parts: Parts) -> Floats:
    return np.asarray(sum(parts[name] for name in COLLECTIVES))
