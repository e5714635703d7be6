"""Every rule has a real-shaped text that no rule before it takes, and says what is right of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.verdict import Stage
from tuner.diagnosis import Ended, diagnose, silent
from tuner.diagnosis_log import plain
from tuner.diagnosis_rules import KERNEL_LOG_RULES, RULES, rule_of
from tuner.fault import Fault
from tuner.outcome import (
    Crashed,
    Direction,
    Environment,
    Hung,
    Illegal,
    Outcome,
    OutOfMemory,
    advice_of,
    evidence_of,
    fault_of,
    rank_of,
)

SIGQUIT = "[2026-11-01 10:00:09] Received sigquit from a child process. It usually means the child failed.\n"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 3 has a total capacity of "
    "94.97 GiB of which 143.00 MiB is free."
)


def traceback(exception: str, *frames: str) -> str:
    shown = "".join(f'  File "/x/{frame}\n    call()\n' for frame in frames)
    return (
        "[2026-11-01 10:00:08 DP1 TP3 EP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'{shown}  File "/x/sglang/srt/managers/scheduler.py", line 4021, in run_scheduler_process\n'
        f"    scheduler = Scheduler(\n{exception}\n\n{SIGQUIT}"
    )


def ended(log: str, *, code: int = 137, stage: str = "concurrency 64", kernel_log: str = "") -> Outcome:
    return diagnose(Ended(exit_code=code, log=log, stage=stage, kernel_log=kernel_log))


DECODE = 'sglang/srt/model_executor/model_runner.py", line 2331, in forward_decode'
PREFILL = 'sglang/srt/model_executor/model_runner.py", line 2357, in forward_extend'
DEEPEP = 'deep_ep/buffer.py", line 112, in __init__'

TEXTS: list[tuple[str, type[Outcome], Fault, Direction | None]] = [
    (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.88. Raise "
        "--mem-fraction-static above 0.912 (minimum viable = 1 - available/pre = 0.9113).",
        OutOfMemory,
        Fault.GPU_MEMORY,
        Direction.RAISE_FRACTION,
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static=0.9",
        OutOfMemory,
        Fault.GPU_MEMORY,
        Direction.RAISE_FRACTION,
    ),
    ("AssertionError: max_running_request is zero", OutOfMemory, Fault.GPU_MEMORY, Direction.RAISE_FRACTION),
    (
        "ValueError: Not enough GPU memory for the hybrid (mamba/linear-attention) state cache: 0 slots.",
        OutOfMemory,
        Fault.GPU_MEMORY,
        Direction.RAISE_FRACTION,
    ),
    (
        "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 2048 tokens.\n"
        "Available full tokens: 704 (full_available_size=704 + full_evictable_size_=0)",
        OutOfMemory,
        Fault.KV_CACHE,
        Direction.FEWER_REQUESTS,
    ),
    (
        "AssertionError: No space left for only one request, self.token_to_kv_pool_allocator.available_size()=0",
        OutOfMemory,
        Fault.KV_CACHE,
        Direction.FEWER_REQUESTS,
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
        OutOfMemory,
        Fault.HOST_MEMORY,
        Direction.MORE_HOST_MEMORY,
    ),
    (traceback(OOM, DEEPEP), OutOfMemory, Fault.EXCHANGE_BUFFER, Direction.LOWER_FRACTION),
    (
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB.",
        OutOfMemory,
        Fault.GPU_MEMORY,
        Direction.LOWER_FRACTION,
    ),
    (traceback(OOM, DECODE), OutOfMemory, Fault.DECODE_MEMORY, Direction.LOWER_FRACTION),
    (traceback(OOM, PREFILL), OutOfMemory, Fault.PREFILL_MEMORY, Direction.LOWER_FRACTION),
    (OOM, OutOfMemory, Fault.GPU_MEMORY, Direction.LOWER_FRACTION),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", Crashed, Fault.ILLEGAL_ACCESS, None),
    (
        "torch.distributed.DistBackendError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, "
        "OpType=ALLREDUCE, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran for 600021 milliseconds",
        Hung,
        Fault.COLLECTIVE,
        None,
    ),
    ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", Hung, Fault.WATCHDOG, None),
    ("RuntimeError: DeepEP error: CPU recv timeout", Crashed, Fault.EXCHANGE, None),
    (
        "RuntimeError: Failed: CUDA error deep_ep.cpp:200 'peer access is not supported between these two devices'",
        Crashed,
        Fault.EXCHANGE,
        None,
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "code: -98, name: EADDRINUSE, message: address already in use",
        Environment,
        Fault.PORT,
        None,
    ),
    (
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "pre_model_load_memory=55.0, local_gpu_memory=70.1",
        Environment,
        Fault.GPU_OCCUPIED,
        None,
    ),
    ("OSError: /nowhere does not appear to have a file named config.json.", Environment, Fault.MODEL, None),
    (
        "ImportError: DeepEP is not available. Please install DeepEP package from "
        "https://github.com/deepseek-ai/deepep.",
        Environment,
        Fault.PACKAGE,
        None,
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, Last error: Error while creating "
        "shared memory segment /dev/shm/nccl-7xkfTb (size 9637888)",
        Environment,
        Fault.SHARED_MEMORY,
        None,
    ),
    ("OSError: [Errno 28] No space left on device: '.triton/cache'", Environment, Fault.DISK, None),
    ("RuntimeError: No CUDA GPUs are available", Environment, Fault.DRIVER, None),
    (
        "RuntimeError: CUDA driver exception (shared_memory.hpp:69): 800 (CUDA_ERROR_NOT_PERMITTED, operation not "
        "permitted)",
        Environment,
        Fault.PERMISSION,
        None,
    ),
    (
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        Environment,
        Fault.SHARED_MEMORY,
        None,
    ),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(10.0.0.1, 20000).",
        Environment,
        Fault.NETWORK,
        None,
    ),
    ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.", Environment, Fault.MODEL, None),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        Crashed,
        Fault.NO_KERNEL,
        None,
    ),
    ("RuntimeError: NCCL error: internal error - please report this issue", Crashed, Fault.COLLECTIVE, None),
    ("RuntimeError: CUDA error: unspecified launch failure", Crashed, Fault.KERNEL_ERROR, None),
    ("Fatal Python error: Segmentation fault", Crashed, Fault.NATIVE_CRASH, None),
    (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).",
        Crashed,
        Fault.UNKNOWN,
        None,
    ),
]


@pytest.mark.parametrize(("text", "kind", "fault", "direction"), TEXTS, ids=[each[0][:40] for each in TEXTS])
def test_a_text_means_what_its_rule_says(
    text: str, kind: type[Outcome], fault: Fault, direction: Direction | None
) -> None:
    log = text if "Scheduler hit" in text else f"{traceback(text)}"
    if ("Error" not in text.partition(":")[0] and "Exception" not in text.partition(":")[0]) or "watchdog" in text:
        log = f"{text}\n{SIGQUIT}"
    outcome = ended(log)
    assert isinstance(outcome, kind)
    assert fault_of(outcome) is fault
    if direction is not None:
        assert isinstance(outcome, OutOfMemory)
        assert outcome.direction is direction
        assert outcome.advice
    assert evidence_of(outcome)


def test_every_rule_is_met_first_by_one_of_the_texts() -> None:
    met = {id(rule_of(text)) for text, *_ in TEXTS}
    assert [rule.source for rule in RULES if id(rule) not in met] == []


def test_every_rule_names_its_source_and_those_that_can_be_helped_a_way_out() -> None:
    for rule in (*RULES, *KERNEL_LOG_RULES):
        assert rule.source
        assert rule.advice or rule.kind == "out of memory" or rule.fault is Fault.UNKNOWN


def test_the_rank_is_that_of_the_exception_which_came_first() -> None:
    assert rank_of(ended(traceback(OOM, DECODE))) == "DP1 TP3 EP1"
    assert rank_of(ended(f"{OOM}\n{SIGQUIT}")) == ""


def test_what_a_rank_says_whose_neighbour_is_gone_is_no_cause() -> None:
    """The one that died logs after those that notice."""
    noticed = traceback("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4242")
    died = traceback(OOM, DECODE).replace("DP1 TP3 EP1", "DP0 TP1")
    outcome = ended(noticed + died)
    assert isinstance(outcome, OutOfMemory)
    assert outcome.rank == "DP0 TP1"
    assert isinstance(ended(noticed), Crashed)


def test_an_exception_on_the_line_of_its_mark_is_read() -> None:
    log = (
        "[2026-05-01 10:00:00 TP0] Scheduler hit an exception: RuntimeError: Prefill out of memory. Try to lower your "
        f"batch size.\n{SIGQUIT}"
    )
    outcome = ended(log)
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.fault, outcome.rank) == (Fault.KV_CACHE, "TP0")
    assert outcome.cause.startswith("RuntimeError: Prefill out of memory.")


def test_colours_and_progress_bars_hide_nothing() -> None:
    log = "Loading shards:  12%\rLoading shards: 100%\r" + traceback(f"\x1b[31m{OOM}\x1b[0m")
    outcome = ended(log, stage=Stage.WEIGHTS)
    assert isinstance(outcome, OutOfMemory)
    assert outcome.shortfall_bytes == (448 - 143) * 2**20


@pytest.mark.parametrize(
    ("line", "kind", "fault"),
    [
        (
            "Out of memory: Killed process 4242 (sglang::schedul) total-vm:812345678kB, anon-rss:512345678kB",
            OutOfMemory,
            Fault.HOST_MEMORY,
        ),
        ("NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, GPU has fallen off the bus.", Environment, Fault.DRIVER),
        (
            "NVRM: Xid (PCI:0000:4e:00): 31, pid=4242, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
            Crashed,
            Fault.ILLEGAL_ACCESS,
        ),
    ],
)
def test_the_kernel_log_explains_a_death_without_words(line: str, kind: type[Outcome], fault: Fault) -> None:
    log = f"Subprocess scheduler_0 (pid=4242) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n{SIGQUIT}"
    outcome = ended(log, kernel_log=f"usb 1-1: new device\n{line}\n")
    assert isinstance(outcome, kind)
    assert fault_of(outcome) is fault
    assert line in evidence_of(outcome)


def test_a_gpu_that_failed_explains_whatever_the_server_says() -> None:
    line = "NVRM: Xid (PCI:0000:4e:00): 94, pid=4242, Contained: SM (0x1). ECC"
    assert isinstance(
        ended(traceback("RuntimeError: CUDA error: unspecified launch failure"), kernel_log=line), Environment
    )


def test_another_programs_death_says_nothing_and_137_alone_proves_nothing() -> None:
    outcome = ended("Decode batch\n", kernel_log="Out of memory: Killed process 99 (firefox) total-vm:1kB")
    assert isinstance(outcome, Environment)
    assert outcome.fault is Fault.FROM_OUTSIDE


def test_the_kernel_log_is_evidence_beside_the_servers_own_exception() -> None:
    line = "NVRM: Xid (PCI:0000:4e:00): 31, pid=4242, MMU Fault"
    outcome = ended(traceback("RuntimeError: CUDA error: an illegal memory access was encountered"), kernel_log=line)
    assert isinstance(outcome, Crashed)
    assert (outcome.fault, outcome.rank) == (Fault.ILLEGAL_ACCESS, "DP1 TP3 EP1")
    assert outcome.evidence[-1] == line


def test_advice_has_a_direction_and_the_engines_own_number() -> None:
    assert advice_of(ended(traceback(TEXTS[0][0]), stage=Stage.KV_POOL)) == "raise --mem-fraction-static above 0.912"
    assert "--chunked-prefill-size" in advice_of(ended(traceback(OOM, PREFILL)))
    assert "--cuda-graph-max-bs" in advice_of(ended(traceback(OOM), stage=Stage.GRAPHS))
    assert "more GPUs" in advice_of(ended(traceback(OOM), stage=Stage.WEIGHTS))
    assert "no memory fraction is the matter" in advice_of(ended(traceback(TEXTS[4][0])))


def test_a_refusal_of_what_the_rules_call_legal_is_said_to_be_their_fault() -> None:
    outcome = ended(traceback("AssertionError"), stage=Stage.INIT)
    assert isinstance(outcome, Illegal)
    assert (outcome.fault, outcome.rank) == (Fault.REFUSED, "DP1 TP3 EP1")
    assert "a fault of theirs" in outcome.advice


def test_an_exception_is_what_stands_behind_its_frames_whatever_its_name() -> None:
    """And never that of another rank, whose own may be a consequence."""
    first = traceback("zmq.error.Again: Resource temporarily unavailable").replace(SIGQUIT, "").replace("TP3", "TP5")
    outcome = ended(first + traceback(OOM, DECODE))
    assert isinstance(outcome, Crashed)
    assert (outcome.rank, outcome.cause) == ("DP1 TP5 EP1", "zmq.error.Again: Resource temporarily unavailable")


def test_a_traceback_that_is_cut_off_takes_no_exception_from_another_rank() -> None:
    cut = traceback("").partition("    scheduler = ")[0].replace("TP3", "TP5")
    outcome = ended(cut + traceback(OOM, DECODE))
    assert isinstance(outcome, OutOfMemory)
    assert outcome.rank == "DP1 TP3 EP1"
    alone = ended(cut)
    assert isinstance(alone, Crashed)
    assert (alone.rank, alone.fault) == ("DP1 TP5 EP1", Fault.UNKNOWN)


def test_what_was_raised_in_the_end_counts_before_what_it_was_raised_for() -> None:
    log = traceback(
        "ImportError: cannot import name 'flashinfer'\n\nDuring handling of the above exception, another exception "
        'occurred:\n\nTraceback (most recent call last):\n  File "/x/y.py", line 3, in f\n    g()\n'
        "RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    outcome = ended(log)
    assert isinstance(outcome, Crashed)
    assert outcome.fault is Fault.ILLEGAL_ACCESS


def test_without_a_scheduler_the_last_exception_ended_it() -> None:
    early = 'Traceback (most recent call last):\n  File "/x/a.py", line 1, in f\n    g()\nImportError: optional\n'
    late = early.replace("ImportError: optional", "OSError: [Errno 98] Address already in use").replace("a.py", "b.py")
    outcome = ended(f"{early}[2026-11-01 10:00:01] goes on without it\n{late}", code=1)
    assert isinstance(outcome, Environment)
    assert outcome.fault is Fault.PORT


def test_a_watchdogs_limit_and_line_are_kept() -> None:
    line = "[2026-11-01 10:00:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=600, self.soft=False)"
    outcome = ended(f"{line}\n{SIGQUIT}")
    assert isinstance(outcome, Hung)
    assert (outcome.silent_s, outcome.evidence) == (600.0, (line,))


def test_warnings_of_the_start_explain_no_signal() -> None:
    warning = "[2026-11-01 10:00:00] DeepEP is not installed: expert parallelism runs without it\n"
    native = ended(f"{warning}Decode batch\n", code=139)
    child = ended(f"{warning}Subprocess scheduler_0 (pid=9) crashed with exit code -11. Triggering SIGQUIT\n")
    assert [fault_of(native), fault_of(child)] == [Fault.NATIVE_CRASH, Fault.NATIVE_CRASH]
    missing = ended("/usr/bin/python3: No module named sglang.launch_server\n", code=1, stage=Stage.RESOLVE)
    assert fault_of(missing) is Fault.PACKAGE


def test_a_failed_gpu_comes_before_the_out_of_memory_killer() -> None:
    lines = (
        "Out of memory: Killed process 4242 (sglang::schedul) total-vm:8kB\n"
        "NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, GPU has fallen off the bus."
    )
    for log in ("Decode batch\n", traceback("RuntimeError: CUDA error: unspecified launch failure")):
        assert fault_of(ended(log, kernel_log=lines)) is Fault.DRIVER


def test_the_words_of_torchs_own_hook_are_read() -> None:
    """`[rank3]: ` stands before each line of an exception that nobody caught."""
    hooked = "".join(f"[rank3]: {line}\n" for line in traceback(OOM, DECODE).splitlines()[1:-2])
    log = f"[rank3]: Traceback (most recent call last):\n{hooked}"
    assert isinstance(ended(log, code=1), OutOfMemory)


@pytest.mark.parametrize(("code", "signal"), [(139, "SIGSEGV"), (134, "SIGABRT"), (135, "SIGBUS")])
def test_a_signal_without_words_is_named(code: int, signal: str) -> None:
    outcome = ended("Decode batch. #running-req: 3\n", code=code)
    assert isinstance(outcome, Crashed)
    assert outcome.fault is Fault.NATIVE_CRASH
    assert signal in outcome.cause


def test_silence_is_told_by_what_the_server_was_busy_with() -> None:
    compiling = silent(stage="warm-up", silent_s=900, log="Try DeepGEMM JIT Compiling for <GEMM> N=4096, K=7168\n")
    waiting = silent(stage=Stage.INIT, silent_s=180, log="[2026-02-01 10:00:00 TP0] Init torch distributed begin.\n")
    loaded = silent(stage="concurrency 4", silent_s=300, log="Decode batch. #running-req: 4\n")
    assert [each.fault for each in (compiling, waiting, loaded)] == [Fault.COMPILING, Fault.COLLECTIVE, Fault.SILENT]
    assert "NCCL_DEBUG" in waiting.advice
    assert "patience" in compiling.advice
    assert loaded.evidence == ("Decode batch. #running-req: 4",)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_log_however_broken_is_too_much(data: st.DataObject) -> None:
    texts = [text for text, *_ in TEXTS] + [
        SIGQUIT,
        "\x00\xff\x1b[",
        "Scheduler hit an exception",
        "Traceback (most recent call last)",
    ]
    parts = data.draw(st.lists(st.sampled_from(texts) | st.text(max_size=60), max_size=6))
    log = data.draw(st.sampled_from(["\n", "\r", ""])).join(parts)
    cut = data.draw(st.integers(0, len(log)))
    outcome = ended(log[cut:], code=data.draw(st.sampled_from([0, 1, 2, 137, 139, 143, 255, -1])))
    assert outcome.summary


def test_no_pattern_sees_a_line_that_it_could_run_away_on() -> None:
    """Of a megabyte of one line, of digits, or of unfinished sentences."""
    for piece in ("a" * 2**20, "1" * 2**20, "Tried to allocate " * 2**15, "[2026 TP0 " * 2**16, "OSError: " * 2**16):
        assert max(map(len, plain(f"{piece}\r{piece}\n{SIGQUIT}").splitlines())) <= 4000
        assert ended(f"{piece}\n{SIGQUIT}").stage == "concurrency 64"
        raised = ended(traceback(f"RuntimeError: {piece}"))
        assert raised.summary.count("RuntimeError") == 1


def test_the_page_on_ends_names_every_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ends.md").read_text(encoding="utf-8")
    table = page.partition("## Faults")[2]
    assert [fault for fault in Fault if str(fault) not in table] == []
