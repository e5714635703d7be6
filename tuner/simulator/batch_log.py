"""The lines in which a rank tells of its batches (managers/scheduler_components/metrics_reporter.py)."""

from __future__ import annotations

from tuner.simulator.log import Log
from tuner.simulator.scheduler import Plan, Rank, Retraction


class BatchLog:
    """Follows one rank. `throughput`: output tokens per simulated second between its last two decode lines."""

    def __init__(self, log: Log, rank_name: str, *, decode_interval: int, on_cpu: bool) -> None:
        self.throughput = 0.0
        self._log = log
        self._name = rank_name
        self._decode_interval = decode_interval
        self._graphs = "cpu graph: False" if on_cpu else "cuda graph: True"
        self._decode_steps = 0
        self._decoded_tokens = 0
        self._decode_line_s = 0.0
        self._prefill_line_s = 0.0

    def on_step(self, rank: Rank, plan: Plan, now_s: float) -> None:
        if plan.retraction is not None:
            self._tell_retraction(plan.retraction)
        if plan.prefill:
            self._tell_prefill(rank, plan, now_s)
        elif plan.decode:
            self._decoded_tokens += len(plan.decode)
            self._decode_steps += 1
            if self._decode_steps % self._decode_interval == 0:
                self._tell_decode(rank, len(plan.decode), now_s)

    def _tell_prefill(self, rank: Rank, plan: Plan, now_s: float) -> None:
        tokens = plan.load.prefill_tokens
        pending = sum(r.tokens_to_prefill for r in rank.waiting)
        self._say(
            f"Prefill batch, #new-seq: {len(plan.prefill)}, #new-token: {tokens}, #cached-token: 0, "
            f"token usage: {rank.token_usage:.2f}, #running-req: {len(rank.running)}, "
            f"#queue-req: {len(rank.waiting)}, #pending-token: {pending}, cuda graph: False, "
            f"input throughput (token/s): {_rate(tokens, now_s - self._prefill_line_s):.2f}"
        )
        self._prefill_line_s = now_s

    def _tell_decode(self, rank: Rank, num_running: int, now_s: float) -> None:
        self.throughput = _rate(self._decoded_tokens, now_s - self._decode_line_s)
        self._decoded_tokens = 0
        self._decode_line_s = now_s
        self._say(
            f"Decode batch, #running-req: {num_running}, #token: {rank.used_tokens}, "
            f"token usage: {rank.token_usage:.2f}, {self._graphs}, "
            f"gen throughput (token/s): {self.throughput:.2f}, #queue-req: {len(rank.waiting)}"
        )

    def _tell_retraction(self, retraction: Retraction) -> None:
        self._say(
            "KV cache pool is full. Retract requests. "
            f"#retracted_reqs: {len(retraction.requests)}, #new_tokens_gained: {retraction.tokens_gained}, "
            f"#new_token_ratio: {retraction.ratio_before:.4f} -> {retraction.ratio_after:.4f}"
        )

    def _say(self, message: str) -> None:
        self._log.line(message, rank=self._name)


def _rate(tokens: int, elapsed_s: float) -> float:
    return tokens / elapsed_s if elapsed_s > 0 else 0.0
