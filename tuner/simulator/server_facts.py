"""What the server tells of itself: `/server_info`, `/v1/models`, `/v1/loads` and `/metrics`."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from tuner.simulator.arguments import Arguments
from tuner.simulator.device_memory import GIB
from tuner.simulator.engine import Engine
from tuner.simulator.serving import Bounds
from tuner.simulator.startup import Loaded


class ServerFacts:
    def __init__(self, arguments: Arguments, loaded: Loaded, engine: Engine, bounds: Bounds) -> None:
        self._arguments = arguments
        self._loaded = loaded
        self._engine = engine
        self._bounds = bounds
        self.startup_s: float | None = None
        """How long the whole start took; None while it goes on."""

    @property
    def simulated(self) -> dict[str, Any]:
        """The mark of a simulation. An unpaced clock's scale is null: JSON has no infinity."""
        scale = self._arguments.clock_scale
        mark: dict[str, Any] = {
            "clock_scale": scale if math.isfinite(scale) else None,
            "cluster": self._arguments.cluster.name,
            "seed": self._arguments.seed,
        }
        if self._arguments.reason:
            mark["reason"] = self._arguments.reason
        return mark

    def server_info(self) -> dict[str, Any]:
        pool_tokens = self._loaded.memory.pool_tokens
        return {
            **self._resolved(),
            "launch_command": " ".join(self._arguments.launch_words),
            "max_total_num_tokens": pool_tokens,
            "max_req_input_len": self._bounds.prompt_tokens,
            "status": "ready" if self.startup_s is not None else "starting",
            "startup_time": {**self._loaded.startup_s, "tokenizer_e2e": self.startup_s},
            "internal_states": [self._internal_state(i) for i in range(len(self._engine.ranks))],
            "version": str(self._arguments.version),
            "simulated": self.simulated,
        }

    def models(self) -> dict[str, Any]:
        name = self._arguments.served_model_name
        card = {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._loaded.context_tokens,
            "simulated": self.simulated,
        }
        return {"object": "list", "data": [card]}

    def loads(self) -> dict[str, Any]:
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": str(self._arguments.version),
            "accelerator": self._arguments.cluster.gpu.name,
            "num_accelerators": self._loaded.layout.num_gpus // len(self._engine.ranks),
            "loads": [self._load(i) for i in range(len(self._engine.ranks))],
            "simulated": self.simulated,
        }

    def metrics(self) -> str:
        """Prometheus text."""
        memory, totals = self._loaded.memory, self._engine.totals
        by_rank: dict[str, list[float]] = {
            "num_running_reqs": [r.num_running for r in self._engine.ranks],
            "num_queue_reqs": [len(r.waiting) for r in self._engine.ranks],
            "num_used_tokens": [r.used_tokens for r in self._engine.ranks],
            "token_usage": [r.token_usage for r in self._engine.ranks],
            "gen_throughput": [log.throughput for log in self._engine.logs],
            "cache_hit_rate": [0.0 for _ in self._engine.ranks],
            "max_total_num_tokens": [memory.pool_tokens for _ in self._engine.ranks],
            "weight_memory_usage_gb": [memory.weight_bytes / GIB for _ in self._engine.ranks],
            "kv_cache_memory_usage_gb": [memory.kv_bytes / GIB for _ in self._engine.ranks],
            "graph_memory_usage_gb": [memory.capture_bytes / GIB for _ in self._engine.ranks],
        }
        counters: dict[str, int] = {
            "prompt_tokens_total": totals.prompt_tokens,
            "generation_tokens_total": totals.output_tokens,
            "num_requests_total": totals.requests,
            "num_aborted_requests_total": totals.aborted_requests,
            "num_retracted_requests_total": totals.retracted_requests,
        }
        model = f'engine_type="unified",model_name="{self._arguments.served_model_name}"'
        has_dp = len(self._engine.ranks) > 1
        ranks = [
            f'{model},moe_ep_rank="0",pp_rank="0",tp_rank="0"' + (f',dp_rank="{i}"' if has_dp else "")
            for i in range(len(self._engine.ranks))
        ]
        lines = [
            "# SIMULATED: no GPU is used; times are simulated seconds",
            "# TYPE sglang:simulated gauge",
            f"sglang:simulated{{{model}}} 1.0",
        ]
        for name, values in by_rank.items():
            lines.append(f"# TYPE sglang:{name} gauge")
            lines += [f"sglang:{name}{{{labels}}} {float(value)}" for labels, value in zip(ranks, values, strict=True)]
        for name, count in counters.items():
            lines += [f"# TYPE sglang:{name} counter", f"sglang:{name}{{{model}}} {float(count)}"]
        return "\n".join(lines) + "\n"

    def _resolved(self) -> dict[str, Any]:
        """The arguments as the engine resolved them, flat."""
        args = self._arguments
        return {
            **asdict(self._loaded.layout),
            "model_path": args.model_path,
            "served_model_name": args.served_model_name,
            "host": args.host,
            "port": args.port,
            "stream_interval": args.stream_interval,
            "context_length": args.context_length,
            "max_total_tokens": args.max_total_tokens,
            "max_prefill_tokens": args.max_prefill_tokens,
            "schedule_conservativeness": args.schedule_conservativeness,
            "enable_metrics": args.enable_metrics,
            "skip_tokenizer_init": args.skip_tokenizer_init,
            "random_seed": args.seed,
            "api_key": args.api_key or None,  # SGLang tells them, whoever has got this far
            "admin_api_key": args.admin_api_key or None,
        }

    def _internal_state(self, rank: int) -> dict[str, Any]:
        memory = self._loaded.memory
        return {
            **self._resolved(),
            "startup_time": dict(self._loaded.startup_s),
            "world_size": self._loaded.layout.num_gpus,
            "effective_max_running_requests_per_dp": self._loaded.running_requests,
            "last_gen_throughput": self._engine.logs[rank].throughput,
            "memory_usage": {
                "weight": round(memory.weight_bytes / GIB, 3),
                "kvcache": round(memory.kv_bytes / GIB, 3),
                "startup_available": round(memory.after_capture_bytes / GIB, 3),
                "token_capacity": memory.pool_tokens,
                "token_capacity_swa": None,
                "graph": {"decode": round(memory.capture_bytes / GIB, 3)},
            },
        }

    def _load(self, index: int) -> dict[str, Any]:
        rank, memory = self._engine.ranks[index], self._loaded.memory
        return {
            "dp_rank": index,
            "num_running_reqs": rank.num_running,
            "num_waiting_reqs": len(rank.waiting),
            "num_used_tokens": rank.used_tokens,
            "max_total_num_tokens": rank.limits.pool_tokens,
            "max_running_requests": rank.limits.running_requests,
            "token_usage": round(rank.token_usage, 4),
            "gen_throughput": round(self._engine.logs[index].throughput, 2),
            "cache_hit_rate": 0.0,
            "utilization": round(rank.num_running / rank.limits.running_requests, 4),
            "memory": {
                "weight_gb": round(memory.weight_bytes / GIB, 3),
                "kv_cache_gb": round(memory.kv_bytes / GIB, 3),
                "graph_gb": round(memory.capture_bytes / GIB, 3),
                "token_capacity": memory.pool_tokens,
            },
            "queues": {"waiting": len(rank.waiting)},
        }
