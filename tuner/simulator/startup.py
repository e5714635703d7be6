"""From the command line to a loaded engine: SGLang's milestones in its order, and where it dies on the way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.layout import Layout
from search_spaces.model import Component
from search_spaces.sglang.rules import judge
from search_spaces.verdict import Stage, Verdict
from tuner.simulator.arguments import Arguments
from tuner.simulator.clock import VirtualClock
from tuner.simulator.deaths import (
    Failure,
    die_of,
    failure_of,
    graphs_do_not_fit,
    no_pool,
    pool_does_not_fit,
    pool_rounds_to_nothing,
    weights_do_not_fit,
)
from tuner.simulator.device_memory import GIB, MIB, DeviceMemory, device_memory
from tuner.simulator.log import Log
from tuner.simulator.peers import Peers, first_rank_of, neighbour_is_gone

# Simulated durations. INVENTED, of the order that such servers take.
_INIT_S = 9.0
_LOAD_BYTES_PER_S = 4e9
_LOAD_FIXED_S = 12.0
_POOL_S = 1.5
_CAPTURE_FIXED_S = 4.0
_CAPTURE_GRAPH_S = 0.4
_WARM_UP_S = 15.0

_LEAST_POOL_TOKENS = 8
"""A token in, a token out, and the six that SGLang keeps in reserve (managers/tp_worker.py:568)."""

_STARTS_NOTHING = frozenset({"size.positive", "nnodes.pp"})
"""Rules that the engine does not notice, and then waits for ranks that nobody started."""
_COMPUTES_WRONGLY = frozenset({"ep.floored", "attn_dp.architecture", "runner.cutlass.ep_unseen"})
"""Rules that the engine does not notice, and then answers nonsense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a server that came up holds. memory.pool_tokens: of one rank.

    startup_s: what each part of the start took, by SGLang's names.
    warm_up_failure: what its first forward pass will die of.
    """

    layout: Layout
    memory: DeviceMemory
    context_tokens: int
    running_requests: int
    computes_wrongly: bool
    startup_s: Mapping[str, Any]
    warm_up_failure: Failure | None


class Startup:
    def __init__(self, arguments: Arguments, clock: VirtualClock, log: Log, peers: Peers) -> None:
        self._arguments = arguments
        self._peers = peers
        self._clock = clock
        self._log = log
        self._verdict: Verdict = judge(
            arguments.layout,
            arguments.model,
            arguments.cluster,
            arguments.version,
            suggest=False,
            env=os.environ,
        )
        self._layout = self._verdict.effective
        self._spent_s: dict[str, float] = {}
        self._rank = first_rank_name(self._layout, peers.rank) if self._verdict.is_legal else "TP0"

    async def load(self) -> Loaded:
        """Ends the process where SGLang would end, and never returns where it would wait for ever."""
        self._check_arguments()
        await self._start_schedulers()
        memory = await self._load_weights()
        await self._allocate_pool(memory)
        await self._capture_graphs(memory)
        await self._peers.all_loaded()
        self._peers.on_gone = lambda: die_of(
            neighbour_is_gone(Stage.FORWARD), self._log, rank=self._rank, has_served=True
        )
        return self._loaded(memory)

    def _check_arguments(self) -> None:
        """What the main process refuses before it starts anything."""
        for stage in (Stage.PARSE, Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH):
            self._die_at(stage)
        for change in self._verdict.adjustments:
            self._log.line(f"{change.name} is adjusted from {change.before} to {change.after}.")
        asked = self._arguments
        told = {"model_path": asked.model_path, "host": asked.host, "port": asked.port}
        # SGLang prints its keys with all else.
        told |= {"api_key": asked.api_key or None, "admin_api_key": asked.admin_api_key or None}
        self._log.line(f"server_args={told}")

    async def _start_schedulers(self) -> None:
        self._say("Init parallel begin.")
        if self._breaks(_STARTS_NOTHING):
            await asyncio.Event().wait()
        self._die_at(Stage.INIT)
        self._peers.on_gone = lambda: self._die(neighbour_is_gone(Stage.INIT))
        await self._peers.meet()
        await self._spend("init", _INIT_S)
        self._say(f"Init parallel ends. elapsed={_INIT_S:.2f} s, mem usage=0.80 GB")

    async def _load_weights(self) -> DeviceMemory:
        args = self._arguments
        model = args.model
        memory = device_memory(model, args.cluster, self._layout, max_total_tokens=args.max_total_tokens)
        self._say(f"Load weight begin. avail mem={memory.before_load_bytes / GIB:.2f} GB")
        if args.start_hang:
            await asyncio.Event().wait()
        self._die_at(Stage.MODEL)
        self._die_at(Stage.WEIGHTS)
        load_s = _LOAD_FIXED_S + model.weight_bytes / _LOAD_BYTES_PER_S
        if memory.after_load_bytes < 0:
            await self._spend("weights", load_s * memory.before_load_bytes / memory.weight_bytes)
            expert_bytes = model.expert_params * model.bytes_per_param(Component.ROUTED)
            self._die(weights_do_not_fit(memory, max(expert_bytes / max(self._layout.moe_tp_size, 1), MIB)))
        await self._spend("weights", load_s)
        self._say(
            f"Load weight end. elapsed={load_s:.2f} s, type={model.architecture}, "
            f"avail mem={memory.after_load_bytes / GIB:.2f} GB, mem usage={memory.weight_bytes / GIB:.2f} GB."
        )
        return memory

    async def _allocate_pool(self, memory: DeviceMemory) -> None:
        if memory.pool_bytes <= 0:
            self._die(no_pool(memory))
        if memory.after_pool_bytes < 0:
            self._die(pool_does_not_fit(memory))
        self._die_at(Stage.KV_POOL)
        if memory.pool_tokens < _LEAST_POOL_TOKENS:
            self._die(pool_rounds_to_nothing(memory))
        await self._spend("pool", _POOL_S)
        self._say(
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {memory.pool_tokens}, "
            f"KV size: {memory.kv_bytes / GIB:.2f} GB"
        )
        self._say(f"Memory pool end. avail mem={memory.after_pool_bytes / GIB:.2f} GB")

    async def _capture_graphs(self, memory: DeviceMemory) -> None:
        if self._arguments.cluster.gpu.is_cpu:
            self._die_at(Stage.GRAPHS)
            return
        self._say(
            "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, "
            f"avail mem={memory.after_pool_bytes / GIB:.2f} GB"
        )
        self._die_at(Stage.GRAPHS)
        # In a pipeline no prefill graph is captured: its activations are first needed under load.
        needed = memory.capture_bytes + (memory.activation_bytes if self._layout.pp_size == 1 else 0.0)
        batch_sizes = capture_batch_sizes(self._layout.cuda_graph_max_bs_decode or 0)
        capture_s = _CAPTURE_FIXED_S + _CAPTURE_GRAPH_S * len(batch_sizes)
        if needed > memory.after_pool_bytes:
            await self._spend("graphs", capture_s * memory.after_pool_bytes / needed)
            self._die(graphs_do_not_fit(memory, needed / 16))
        await self._spend("graphs", capture_s)
        self._say(
            f"Capture target decode CUDA graph end. bs={batch_sizes}, elapsed={capture_s:.2f} s, "
            f"mem usage={memory.capture_bytes / GIB:.2f} GB, avail mem={memory.after_capture_bytes / GIB:.2f} GB."
        )

    def _loaded(self, memory: DeviceMemory) -> Loaded:
        args, layout = self._arguments, self._layout
        context = args.context_length or args.model.max_position_embeddings
        loaded = Loaded(
            layout=layout,
            memory=memory,
            context_tokens=context,
            running_requests=_running_requests(layout, memory.pool_tokens, context),
            startup_s={
                "load_weight": self._spent_s["weights"],
                "kv_cache_allocation": self._spent_s["pool"],
                "cuda_graph": {"decode": self._spent_s.get("graphs", 0.0)},
                "scheduler_e2e": sum(self._spent_s.values()),
            },
            computes_wrongly=self._breaks(_COMPUTES_WRONGLY),
            warm_up_failure=self._failure_at(Stage.FORWARD),
        )
        self._say(
            f"max_total_num_tokens={memory.pool_tokens}, chunked_prefill_size={layout.chunked_prefill_size}, "
            f"max_prefill_tokens={args.max_prefill_tokens}, max_running_requests={loaded.running_requests}, "
            f"context_len={context}, available_gpu_mem={memory.after_capture_bytes / GIB:.2f} GB"
        )
        return loaded

    def _breaks(self, rules: frozenset[str]) -> bool:
        return any(violation.rule in rules for violation in self._verdict.violations)

    def _failure_at(self, stage: Stage) -> Failure | None:
        return next((failure_of(v) for v in self._verdict.violations if v.stage is stage), None)

    def _die_at(self, stage: Stage) -> None:
        if failure := self._failure_at(stage):
            self._die(failure)

    def _die(self, failure: Failure) -> None:
        die_of(failure, self._log, rank=self._rank)

    def _say(self, message: str) -> None:
        self._log.line(message, rank=self._rank)

    async def _spend(self, part: str, seconds: float) -> None:
        self._spent_s[part] = seconds
        await self._clock.advance_to(self._clock.now_s + seconds)


async def warm_up(loaded: Loaded, clock: VirtualClock, log: Log) -> None:
    """The first forward pass, after the port is bound and before the server calls itself ready."""
    clock.stood_still()  # binding the port took this machine's time, not the simulated one's
    await clock.advance_to(clock.now_s + _WARM_UP_S)
    if loaded.warm_up_failure is not None:
        die_of(loaded.warm_up_failure, log, rank=rank_names(loaded.layout)[0])
    log.line("The server is fired up and ready to roll!")


def rank_names(layout: Layout) -> list[str]:
    """How the log calls the first rank of each DP group (managers/scheduler.py:6275)."""
    groups = layout.dp_size if layout.dp_size > 1 else layout.attn_dp_size
    names = []
    for group in range(groups):
        tp_rank = group * layout.attn_tp_size if layout.attn_dp_size > 1 else 0
        ep_ranks = layout.tp_size // layout.moe_dp_size
        ep_rank = (tp_rank % ep_ranks) // max(ep_ranks // layout.ep_size, 1)
        parts = (
            (f"DP{group}", groups > 1),
            ("PP0", layout.pp_size > 1),
            (f"TP{tp_rank}", layout.tp_size > 1),
            (f"EP{ep_rank}", layout.ep_size > 1),
        )
        names.append(" ".join(name for name, is_shown in parts if is_shown))
    return names


def first_rank_name(layout: Layout, node: int) -> str:
    """How the log calls the first rank of a node."""
    if node == 0:
        return rank_names(layout)[0]
    stage, tp_rank = first_rank_of(layout, node)
    ep_ranks = layout.tp_size // layout.moe_dp_size
    parts = (
        (f"DP{tp_rank // max(layout.attn_tp_size, 1)}", layout.attn_dp_size > 1),
        (f"PP{stage}", layout.pp_size > 1),
        (f"TP{tp_rank}", layout.tp_size > 1),
        (f"EP{(tp_rank % ep_ranks) // max(ep_ranks // layout.ep_size, 1)}", layout.ep_size > 1),
    )
    return " ".join(name for name, is_shown in parts if is_shown)


def capture_batch_sizes(largest: int) -> list[int]:
    """Decode batches for which graphs are captured by default."""
    steps = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, largest + 1, 32)]
    return [size for size in steps if size <= largest]


def _running_requests(layout: Layout, pool_tokens: int, context_tokens: int) -> int:
    """Of one rank (mem_cache/kv_cache_configurator.py:3119)."""
    asked = layout.max_running_requests
    if asked is not None:
        return max(1, min(max(1, asked // layout.attn_dp_size), pool_tokens // 2))
    return min(max(int(pool_tokens / context_tokens * 512), 2048), 4096, pool_tokens // 2)
