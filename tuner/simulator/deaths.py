"""How SGLang dies: what it prints last, and the exit code.

Exit codes are those of sglang 0.5.23. An exception while arguments are resolved or checked ends the
launcher with 1. A scheduler that dies, at start or under load, prints its exception and sends SIGQUIT to
the launcher, which then kills itself with its whole tree: SIGKILL, which shells report as 137.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import dataclass
from typing import NoReturn

from search_spaces.verdict import Stage, Violation
from tuner.simulator.arguments import usage_error
from tuner.simulator.device_memory import GIB, MIB, DeviceMemory
from tuner.simulator.log import Log

EXIT_EXCEPTION = 1
_LAUNCHER_STAGES = frozenset({Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH})
_PLACE = re.compile(r"^(?P<path>[\w./-]+\.py)(?::(?P<line>\d+))?")

CAPTURE_ADVICE = (
    "Possible solutions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
    "3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. "
    "(Not recommended. Huge performance loss)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
)

ILLEGAL_ACCESS_TEXT = (
    "CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception of the engine.

    place: path:line under `sglang/srt/`, where the engine raises it. cause: the one it was raised from.
    """

    stage: Stage
    exception: str
    text: str
    place: str
    cause: Failure | None = None

    @property
    def traceback(self) -> str:
        place = _PLACE.match(self.place)
        path, line = (place["path"], place["line"] or "1") if place else ("managers/scheduler.py", "1")
        raised = f"{self.exception}: {self.text}" if self.text else self.exception
        own = f'Traceback (most recent call last):\n  File "sglang/srt/{path}", line {line}, in simulated\n{raised}'
        if self.cause is None:
            return own
        between = "During handling of the above exception, another exception occurred:"
        return f"{self.cause.traceback}\n\n{between}\n\n{own}"


def failure_of(violation: Violation) -> Failure:
    return Failure(
        stage=violation.stage,
        exception=violation.exception,
        text=violation.engine_text,
        place=violation.source,
    )


def die_of(failure: Failure, log: Log, *, rank: str, has_served: bool = False) -> NoReturn:
    """Prints what SGLang prints and ends this process the way SGLang's ends."""
    if failure.stage is Stage.PARSE:
        usage_error(failure.text)
    if failure.stage in _LAUNCHER_STAGES:
        log.raw(failure.traceback)
        sys.exit(EXIT_EXCEPTION)
    log.line(f"Scheduler hit an exception: {failure.traceback}\n", rank=rank)
    if has_served:
        log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    else:
        log.line("Received sigquit from a child process. It usually means the child failed.")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable: SIGKILL cannot be survived")


def weights_do_not_fit(memory: DeviceMemory, request_bytes: float) -> Failure:
    """request_bytes: size of the tensor that found no room."""
    return _out_of_memory(
        memory,
        Stage.WEIGHTS,
        request_bytes,
        free_bytes=memory.before_load_bytes % request_bytes,
        place="layers/quantization/unquant.py:300",
    )


def no_pool(memory: DeviceMemory) -> Failure:
    least = memory.least_fraction
    return Failure(
        stage=Stage.KV_POOL,
        exception="ValueError",
        text=(
            "Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={memory.mem_fraction_static:g}. Raise --mem-fraction-static above "
            f"{least + 0.0005:.3f} (minimum viable = 1 - available/pre = {least:.4f}). If using speculative "
            "decoding, draft weights are now counted."
        ),
        place="mem_cache/kv_cache_configurator.py:3043",
    )


def pool_rounds_to_nothing(memory: DeviceMemory) -> Failure:
    return Failure(
        stage=Stage.KV_POOL,
        exception="RuntimeError",
        text=(
            "Not enough memory. Please try to increase --mem-fraction-static. "
            f"Current value: mem_fraction_static={memory.mem_fraction_static:g}"
        ),
        place="mem_cache/pool_configurator.py:94",
    )


def pool_does_not_fit(memory: DeviceMemory) -> Failure:
    """A fraction above 1 asks for a pool that is larger than what the weights have left."""
    return _out_of_memory(
        memory,
        Stage.KV_POOL,
        memory.kv_bytes,
        free_bytes=memory.after_load_bytes,
        place="mem_cache/memory_pool.py:2000",
    )


def graphs_do_not_fit(memory: DeviceMemory, request_bytes: float) -> Failure:
    cause = _out_of_memory(
        memory,
        Stage.GRAPHS,
        request_bytes,
        free_bytes=max(memory.after_pool_bytes, 0.0) % request_bytes,
        place="model_executor/runner/decode_cuda_graph_runner.py:600",
    )
    return Failure(
        stage=Stage.GRAPHS,
        exception="Exception",
        text=f"Capture cuda graph failed: {cause.text}\n{CAPTURE_ADVICE}",
        place="model_executor/runner/decode_cuda_graph_runner.py:603",
        cause=cause,
    )


def step_does_not_fit(memory: DeviceMemory) -> Failure:
    """A prefill whose activations find no room beside weights, pool and graphs."""
    free = max(memory.after_capture_bytes, 0.0)
    return _out_of_memory(
        memory,
        Stage.FORWARD,
        memory.activation_bytes - free / 2,
        free_bytes=free / 2,
        place="model_executor/model_runner.py:2100",
    )


def illegal_access() -> Failure:
    return Failure(
        stage=Stage.FORWARD,
        exception="torch.AcceleratorError",
        text=ILLEGAL_ACCESS_TEXT,
        place="managers/scheduler_output_processor_mixin.py:120",
    )


def _out_of_memory(
    memory: DeviceMemory, stage: Stage, request_bytes: float, *, free_bytes: float, place: str
) -> Failure:
    """In torch's words (c10/cuda/CUDACachingAllocator.cpp, c10/core/impl/alloc_cpu.cpp)."""
    if memory.is_host:
        text = (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
            f"to allocate {request_bytes:.0f} bytes. Error code 12 (Cannot allocate memory)"
        )
        return Failure(stage=stage, exception="RuntimeError", text=text, place=place)
    used = memory.total_bytes - free_bytes
    allocated = used - (memory.total_bytes - memory.before_load_bytes)
    text = (
        f"CUDA out of memory. Tried to allocate {_amount(request_bytes)}. GPU 0 has a total capacity of "
        f"{memory.total_bytes / GIB:.2f} GiB of which {_amount(free_bytes)} is free. Including non-PyTorch "
        f"memory, this process has {used / GIB:.2f} GiB memory in use. Of the allocated memory "
        f"{allocated * 0.995 / GIB:.2f} GiB is allocated by PyTorch, and {_amount(allocated * 0.005)} is reserved "
        "by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
    return Failure(stage=stage, exception="torch.OutOfMemoryError", text=text, place=place)


def _amount(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.2f} MiB"
