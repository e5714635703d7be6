"""What a server can die of."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """A closed set: finer than the kind of an outcome, which says what it means for the layout."""

    UNKNOWN = "unknown"
    REFUSED = "configuration refused"
    GPU_MEMORY = "GPU memory"
    PREFILL_MEMORY = "GPU memory in prefill"
    DECODE_MEMORY = "GPU memory in decode"
    EXCHANGE_BUFFER = "all-to-all buffer"
    KV_CACHE = "KV cache exhausted"
    HOST_MEMORY = "host memory"
    ILLEGAL_ACCESS = "illegal memory access"
    KERNEL_ERROR = "CUDA error"
    NO_KERNEL = "kernel missing"
    COLLECTIVE = "collective communication"
    EXCHANGE = "all-to-all communication"
    NETWORK = "network"
    WATCHDOG = "watchdog"
    SILENT = "no progress"
    COMPILING = "kernels still compiling"
    ENGINE_ERROR = "exception of the engine"
    NATIVE_CRASH = "crash outside of Python"
    PACKAGE = "package missing"
    MODEL = "model missing"
    PORT = "port in use"
    PERMISSION = "permission"
    DISK = "disk full"
    SHARED_MEMORY = "shared memory"
    GPU_OCCUPIED = "GPU in use by others"
    DRIVER = "GPU or driver"
    CONTAINER = "container not started"
    FROM_OUTSIDE = "ended from outside"
    WRONG_ANSWERS = "wrong answers"
