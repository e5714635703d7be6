"""Texts by which ends of servers are told apart, as data.

Each quotes what the engine (paths under `sglang/srt/` of 0.5.23 unless another release or project is named), torch,
NCCL, CUDA or the system prints, says what such an end means, and what would get past it. They are tried in order
against the exception that came first.
"""

from __future__ import annotations

from search_spaces.verdict import Stage
from tuner.diagnosis_rule import Rule, crash, environment, hang, oom
from tuner.fault import Fault
from tuner.outcome import Direction

_GPU_OOM = (
    r"(?:CUDA|HIP|NPU|XPU|MUSA) out of memory|OutOfMemoryError|allocation failed with OOM on device"
    r"|CUDA error: out of memory|cudaErrorMemoryAllocation"
)
_TORCH = "torch: c10/cuda/CUDACachingAllocator.cpp, and its vendors' likes"
_NO_SHM = "give the container shared memory (--ipc=host or --shm-size 32g): NCCL and the engine use /dev/shm"
_NCCL = (
    "NCCL_DEBUG=INFO in the server's environment makes NCCL name the cause; a collective's test on this machine (tune "
    "probe) tells a fault of the machine from one of the layout"
)
_EXCHANGE_TIMEOUT = (
    "first calls compile kernels on some ranks while others wait: start again with the kernel cache that is warm now, "
    "or raise the backend's own time-out"
)
_OTHER_KERNELS = "other kernels may work: --moe-runner-backend, --attention-backend, --disable-custom-all-reduce"

MEMORY_RULES: tuple[Rule, ...] = (
    oom(
        Fault.GPU_MEMORY,
        r"Loaded weights leave no GPU memory for the KV cache",
        "mem_cache/kv_cache_configurator.py:3043",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    oom(
        Fault.GPU_MEMORY,
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "model_executor/pool_configurator.py:94",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    oom(
        Fault.GPU_MEMORY,
        r"max_running_request is zero|Memory pool size is too small",
        "managers/tp_worker.py:420",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    oom(
        Fault.GPU_MEMORY,
        r"ybrid \(mamba/linear-attention\) state cache|The DSV4 SWA pool cap .* leaves no room",
        "mem_cache/kv_cache_configurator.py:3154, :3394; model_executor/pool_configurator.py:1680",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    # The KV pool is there and full: what is asked of it is too much.
    oom(
        Fault.KV_CACHE,
        r"(?:Prefill|Decode) out of memory\. Try to lower your batch size",
        "mem_cache/allocation.py:239, :613",
        direction=Direction.FEWER_REQUESTS,
    ),
    oom(
        Fault.KV_CACHE,
        r"No space left for only one request",
        "managers/schedule_batch.py of 0.5.6",
        direction=Direction.FEWER_REQUESTS,
    ),
    oom(
        Fault.HOST_MEMORY,
        r"DefaultCPUAllocator: (?:can't|not enough)|\[Errno 12\] Cannot allocate memory|^MemoryError|std::bad_alloc",
        "torch: c10/core/CPUAllocator.cpp; the system's ENOMEM",
        direction=Direction.MORE_HOST_MEMORY,
    ),
    # Buffers of all-to-all backends lie outside the static fraction, and most have one size whatever the fraction is.
    oom(
        Fault.EXCHANGE_BUFFER,
        _GPU_OOM,
        "layers/moe/token_dispatcher/deepep.py:350; deep_ep/buffer.py",
        direction=Direction.LOWER_FRACTION,
        frames=r"deep_ep/buffers?\.py|get_deepep_buffer|[Nn][Vv][Ss][Hh][Mm][Ee][Mm]|ElasticBuffer",
    ),
    oom(
        Fault.GPU_MEMORY,
        rf"Capture (?:cuda|CUDA) graph failed: (?:{_GPU_OOM}|.*OutOfMemoryError)",
        "model_executor/runner/decode_cuda_graph_runner.py:603",
        Stage.GRAPHS,
        Direction.LOWER_FRACTION,
    ),
    oom(Fault.DECODE_MEMORY, _GPU_OOM, _TORCH, frames=r"in (?:forward_decode|_forward_decode|run_decode)\b"),
    oom(
        Fault.PREFILL_MEMORY, _GPU_OOM, _TORCH, frames=r"in (?:forward_extend|_forward_extend|forward_split_prefill)\b"
    ),
    oom(Fault.GPU_MEMORY, _GPU_OOM, _TORCH),
)

CRASH_RULES: tuple[Rule, ...] = (
    crash(
        Fault.ILLEGAL_ACCESS,
        r"illegal memory access|cudaErrorIllegalAddress|misaligned address|device-side assert",
        "CUDA runtime, errors 700, 716 and 710",
        f"a fault of a kernel at this load, which memory fractions do not cure: {_OTHER_KERNELS}",
    ),
    hang(
        Fault.COLLECTIVE,
        r"Watchdog caught collective operation timeout",
        "torch: distributed/c10d/ProcessGroupNCCL.cpp",
        _NCCL,
    ),
    hang(
        Fault.WATCHDOG,
        r"watchdog timeout",
        "utils/watchdog.py:154",
        "a step took longer than --watchdog-timeout: where kernels compile on first use it is to be raised, else ranks "
        "wait for one another",
    ),
    crash(
        Fault.EXCHANGE,
        r"DeepEP error: (?:CPU recv timeout|timeout)|[Mm]ooncake.* timeout|timeout \(dispatch CPU\)",
        "deep_ep: csrc/deep_ep.cpp",
        _EXCHANGE_TIMEOUT,
    ),
    crash(
        Fault.EXCHANGE,
        r"peer access is not supported between these two devices|nvshmem.*(?:fail|error)"
        r"|num_max_dispatch_tokens_per_rank'",
        "deep_ep: csrc/deep_ep.cpp, NVSHMEM",
        "this all-to-all backend does not run on these GPUs, or not with so many tokens at once: another "
        "--moe-a2a-backend does",
    ),
)

ENVIRONMENT_RULES: tuple[Rule, ...] = (
    environment(
        Fault.PORT,
        r"[Aa]ddress already in use|\[Errno 98\]|EADDRINUSE|is used by a process already",
        "asyncio, uvicorn, zmq, torch's TCPStore; utils/network.py:95",
        "something else listens there: another try takes other ports",
    ),
    environment(
        Fault.GPU_OCCUPIED,
        r"memory capacity is unbalanced\. Some GPUs may be occupied",
        "distributed/bootstrap.py:441",
        "nvidia-smi says which processes hold the GPUs' memory",
    ),
    environment(
        Fault.MODEL,
        r"does not appear to have a file named|Repo id must be|is not a local folder and is not a valid model"
        r"|OSError: .*(?:config\.json|couldn't connect)|Cannot find any model weights|gated repo"
        r"|RepositoryNotFoundError",
        "transformers: utils/hub.py; model_loader/loader.py; huggingface_hub: errors.py",
        "the model is to be where the server looks for it, with its weights, and readable to it",
    ),
    environment(
        Fault.PACKAGE,
        r"ModuleNotFoundError|ImportError|No module named|is not installed\b|is not available\. Please install",
        "the interpreter; layers/moe/token_dispatcher/deepep.py:382, moriep.py:962, flashinfer.py:160",
        "a package of this backend is missing where the server runs: another backend does without it",
    ),
    environment(
        Fault.SHARED_MEMORY,
        r"out of shared memory|[Bb]us error|shared memory segment|/dev/shm\b.*(?:[Ff]ail|No space)",
        "torch: utils/data; NCCL: misc/shmutils.cc",
        _NO_SHM,
    ),
    environment(
        Fault.DISK,
        r"No space left on device|\[Errno 28\]",
        "the file system",
        "kernel caches and downloads need room (HF_HOME, TRITON_CACHE_DIR, /tmp)",
    ),
    environment(
        Fault.DRIVER,
        r"No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver version is insufficient|uncorrectable ECC error"
        r"|CUDA error: (?:unknown error|initialization error|invalid device ordinal|system not yet initialized)"
        r"|fallen off the bus|GPU is lost",
        "torch: cuda/__init__.py; CUDA runtime, errors 35, 101, 214 and 802",
        "nvidia-smi and the kernel log (NVRM) say what is wrong with the GPU or its driver",
    ),
    environment(
        Fault.PERMISSION,
        r"CUDA_ERROR_NOT_PERMITTED|operation not permitted|\[Errno 13\]|Permission denied",
        "CUDA driver, error 800; the system's EACCES",
        "the container or user lacks a right (for memory that GPUs share: --privileged, --cap-add SYS_PTRACE or IMEX "
        "channels); the same awaits every layout that needs it on this host",
    ),
    environment(
        Fault.SHARED_MEMORY,
        r"unhandled system error|ncclSystemError",
        "NCCL: a call of the system failed",
        f"{_NO_SHM}; {_NCCL}",
    ),
    environment(
        Fault.NETWORK,
        r"client socket has (?:timed out|failed)|Connection refused|No route to host|Name or service not known"
        r"|ncclRemoteError|remote process exited or there was a network error",
        "torch: distributed TCPStore; NCCL",
        "the nodes must reach --dist-init-addr and each other; NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name the "
        "interface",
    ),
    environment(
        Fault.MODEL,
        r"trust_remote_code=True|Model architectures \[.*\] are not supported",
        "transformers: dynamic_module_utils.py; models/registry.py",
        "--engine-args --trust-remote-code, or a release that knows the architecture",
    ),
)

KERNEL_LOG_RULES: tuple[Rule, ...] = (
    environment(
        Fault.DRIVER,
        r"NVRM: Xid (?:\([^)]*\): )?(?:48|64|74|79|94|95|119|120),",
        "NVIDIA's table of Xid errors: memory faults, NVLink, fallen off the bus, firmware",
        "the GPU, its link or its firmware failed: nvidia-smi -q tells its state; a reset or another machine cures it",
    ),
    oom(
        Fault.HOST_MEMORY,
        r"Out of memory: Killed process \d+ \((?:sglang|python|pt_main|ray|uvicorn)"
        r"|oom-kill:constraint=.*task=(?:sglang|python|pt_main)",
        "Linux: mm/oom_kill.c",
        direction=Direction.MORE_HOST_MEMORY,
    ),
    crash(
        Fault.ILLEGAL_ACCESS,
        r"NVRM: Xid (?:\([^)]*\): )?(?:13|31),",
        "NVIDIA's table of Xid errors: exception of a kernel, page fault",
        f"a fault of a kernel at this load, which memory fractions do not cure: {_OTHER_KERNELS}",
    ),
)
"""For the kernel's log. A GPU that failed explains whatever the server says; the others count where it says nothing."""

LAST_RULES: tuple[Rule, ...] = (
    crash(
        Fault.NO_KERNEL,
        r"no kernel image is available|requires (?:an? )?SM|[Uu]nsupported (?:compute capability|GPU architecture|arch)"
        r"|is only supported on (?:SM|Hopper|Blackwell)|invalid device function|CUDA compute capability .* required",
        "CUDA runtime, errors 98 and 209; layers/attention/attention_registry.py:244, multiplex/pdmux_context.py:67",
        f"these kernels are not built for this GPU: {_OTHER_KERNELS}",
    ),
    crash(
        Fault.COLLECTIVE,
        r"NCCL (?:error|failure)|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage",
        "NCCL",
        _NCCL,
    ),
    crash(Fault.KERNEL_ERROR, r"CUDA error: |CUBLAS_STATUS_|cuDNN error", "CUDA runtime", _OTHER_KERNELS),
    crash(
        Fault.NATIVE_CRASH,
        r"crashed with exit code -(?:4|6|7|8|11)\b"
        r"|Segmentation fault|SIGSEGV|SIGABRT|Aborted \(core dumped\)|terminate called after throwing",
        "the interpreter's faulthandler; libstdc++",
        _OTHER_KERNELS,
    ),
    # Seen only where no scheduler left an exception of its own: then nothing says why it died.
    crash(
        Fault.UNKNOWN,
        r"scheduler died during initialization|Subprocess \S+ .*crashed with exit code",
        "entrypoints/engine.py; utils/watchdog.py",
    ),
)

RULES: tuple[Rule, ...] = (*MEMORY_RULES, *CRASH_RULES, *ENVIRONMENT_RULES, *LAST_RULES)


def rule_of(text: str, *, without: frozenset[Fault] = frozenset()) -> Rule | None:
    """The first that `text`, of an exception or of last lines, meets. without: faults that it cannot stand for."""
    return next((rule for rule in RULES if rule.fault not in without and rule.is_met_by(text)), None)
