"""Real-shaped ends of servers, each with what it means. Texts are the engine's, torch's and the system's own."""

from __future__ import annotations

import pytest

from search_spaces.verdict import Stage
from tuner.diagnosis import Ended, diagnose
from tuner.fault import Fault
from tuner.outcome import Crashed, Direction, Environment, Hung, Illegal, OutOfMemory

SIGQUIT = "[2026-11-01 10:00:09] Received sigquit from a child process. It usually means the child failed.\n"


def scheduler(exception: str, frame: str = "model_executor/model_runner.py", line: int = 514) -> str:
    return (
        "[2026-11-01 10:00:00 TP0] Init parallel begin.\n"
        "[2026-11-01 10:00:08 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/x/sglang/srt/managers/scheduler.py", line 4021, in run_scheduler_process\n'
        "    scheduler = Scheduler(\n"
        f'  File "/x/sglang/srt/{frame}", line {line}, in __init__\n'
        "    super().__init__()\n"
        f"{exception}\n\n" + SIGQUIT
    )


def main_process(exception: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '  File "/x/sglang/srt/runtime_context.py", line 347, in publish\n'
        f"{exception}\n"
    )


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 3 has a total capacity of "
    "94.97 GiB of which 143.00 MiB is free. Including non-PyTorch memory, this process has 94.83 GiB memory in use."
)
TOPOLOGY = (
    "ValueError: parallel topology is inconsistent (set by override_permanently):\n"
    "tp_size == moe_ep_size * moe_dp_size * moe_tp_size\n  2 != 4 * 1 * 0 (= 0)"
)


@pytest.mark.parametrize(
    ("exception", "cause"),
    [
        (TOPOLOGY, "2 != 4 * 1 * 0"),
        ("ZeroDivisionError: integer division or modulo by zero", "ZeroDivisionError"),
        ("AssertionError", "AssertionError"),
        ("ValueError: --attn-dp-size must be positive (got 0).", "must be positive"),
    ],
)
def test_an_exception_of_the_main_process_before_anything_loads_is_a_refusal(exception: str, cause: str) -> None:
    outcome = diagnose(Ended(exit_code=1, log=main_process(exception), stage=Stage.RESOLVE))
    assert isinstance(outcome, Illegal)
    assert outcome.exit_code == 1
    assert cause in outcome.cause


def test_the_argument_parser_refuses_with_exit_code_2() -> None:
    log = "usage: sglang serve [-h]\nsglang serve: error: unrecognized arguments: --enable-piecewise-cuda-graph\n"
    outcome = diagnose(Ended(exit_code=2, log=log, stage=Stage.RESOLVE))
    assert isinstance(outcome, Illegal)
    assert outcome.stage == Stage.PARSE
    assert outcome.cause == "unrecognized arguments: --enable-piecewise-cuda-graph"


@pytest.mark.parametrize(
    "exception",
    [
        "AssertionError",
        "ValueError: The output_size of gate's and up's weight = 96 is not divisible by weight quantization "
        "block_n = 128.",
        "NotImplementedError: Runner backend triton requires a fused func for a2a backend deepep, but none is registered.",
    ],
)
def test_an_assertion_of_the_model_before_weights_are_read_is_a_refusal_although_the_code_is_137(
    exception: str,
) -> None:
    outcome = diagnose(Ended(exit_code=137, log=scheduler(exception), stage=Stage.INIT))
    assert isinstance(outcome, Illegal)
    assert outcome.cause.startswith(exception.split(":", maxsplit=1)[0])


def test_weights_that_do_not_fit_need_more_gpus_and_the_shortfall_is_read_off() -> None:
    outcome = diagnose(Ended(exit_code=137, log=scheduler(OOM), stage=Stage.WEIGHTS))
    assert isinstance(outcome, OutOfMemory)
    assert outcome.stage == Stage.WEIGHTS
    assert outcome.direction is Direction.SPLIT_FURTHER
    assert outcome.shortfall_bytes == (448 - 143) * 2**20


def test_no_room_for_the_kv_pool_asks_for_a_higher_fraction() -> None:
    text = (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. "
        "Raise --mem-fraction-static above 0.66 (minimum viable = 1 - available/pre = 0.6530)."
    )
    outcome = diagnose(Ended(exit_code=137, log=scheduler(text), stage=Stage.KV_POOL))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.stage, outcome.direction) == (Stage.KV_POOL, Direction.RAISE_FRACTION)


def test_a_failed_capture_asks_for_a_lower_fraction() -> None:
    text = (
        f"Exception: Capture cuda graph failed: {OOM.removeprefix('torch.OutOfMemoryError: ')}\nPossible solutions:\n"
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
    )
    outcome = diagnose(Ended(exit_code=137, log=scheduler(text), stage=Stage.GRAPHS))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.stage, outcome.direction) == (Stage.GRAPHS, Direction.LOWER_FRACTION)
    assert outcome.cause.startswith("Exception: Capture cuda graph failed")
    assert outcome.shortfall_bytes == (448 - 143) * 2**20


def test_memory_that_runs_out_under_load_asks_for_a_lower_fraction() -> None:
    outcome = diagnose(Ended(exit_code=137, log=scheduler(OOM), stage="concurrency 64"))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.stage, outcome.direction) == ("concurrency 64", Direction.LOWER_FRACTION)


def test_an_illegal_memory_access_is_a_crash_at_its_load() -> None:
    text = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    outcome = diagnose(Ended(exit_code=137, log=scheduler(text), stage="concurrency 64"))
    assert isinstance(outcome, Crashed)
    assert outcome.stage == "concurrency 64"


def test_a_watchdog_end_is_a_hang_with_its_limit() -> None:
    log = "[2026-11-01 10:00:00] Scheduler watchdog timeout (self.watchdog_timeout=600, self.soft=False)\n" + SIGQUIT
    outcome = diagnose(Ended(exit_code=137, log=log, stage="concurrency 16"))
    assert isinstance(outcome, Hung)
    assert outcome.stage == "concurrency 16"


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("OSError: [Errno 98] Address already in use", Stage.RESOLVE),
        ("ModuleNotFoundError: No module named 'sglang'", Stage.RESOLVE),
        ("OSError: /nowhere does not appear to have a file named config.json.", Stage.RESOLVE),
        ("OSError: [Errno 28] No space left on device", Stage.WEIGHTS),
        (
            "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
            "pre_model_load_memory=12.1",
            Stage.INIT,
        ),
    ],
)
def test_faults_of_the_environment_say_nothing_about_the_layout(text: str, stage: str) -> None:
    outcome = diagnose(Ended(exit_code=1, log=main_process(text), stage=stage))
    assert isinstance(outcome, Environment)
    assert outcome.cause == text


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect",
        "ValueError: The repository contains custom code. Please pass the argument `trust_remote_code=True`",
        "ValueError: Model architectures ['NewForCausalLM'] are not supported for now.",
    ],
)
def test_faults_that_hold_for_every_layout_refuse_none_of_them(text: str) -> None:
    assert isinstance(diagnose(Ended(exit_code=137, log=scheduler(text), stage=Stage.INIT)), Environment)


def test_an_unknown_runtime_error_at_start_is_a_crash_and_a_divisibility_a_refusal() -> None:
    unknown = diagnose(Ended(exit_code=137, log=scheduler("RuntimeError: something new"), stage=Stage.INIT))
    assert isinstance(unknown, Crashed)
    text = "RuntimeError: tensor_model_parallel_size (8) must be divisible by decode_context_parallel_size (3)"
    assert isinstance(diagnose(Ended(exit_code=137, log=scheduler(text), stage=Stage.INIT)), Illegal)


DEPRECATED = "AssertionError: forward_deepgemm_masked is deprecated"
"""https://github.com/sgl-project/sglang/issues/23729: attention DP with EP and DeepEP over bfloat16 experts."""
INVALID = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for MambaPoolConfig\nsize\n"
    "  Input should be greater than 0 [type=greater_than, input_value=0, input_type=int]"
)


@pytest.mark.parametrize(
    ("exception", "stage", "cause"),
    [
        (INVALID, Stage.KV_POOL, "1 validation error for MambaPoolConfig"),
        (INVALID, Stage.RESOLVE, "1 validation error for MambaPoolConfig"),
        ("NotImplementedError: no backend for this head size", Stage.KV_POOL, "no backend"),
        (DEPRECATED, Stage.GRAPHS, "forward_deepgemm_masked is deprecated"),
        (
            f"{DEPRECATED}\n\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n"
            '  File "/x/sglang/srt/model_executor/runner/decode_cuda_graph_runner.py", line 603, in capture\n'
            "    raise Exception(\n"
            "Exception: Capture cuda graph failed: forward_deepgemm_masked is deprecated",
            Stage.GRAPHS,
            "Capture cuda graph failed",
        ),
    ],
)
def test_what_is_checked_while_the_kv_cache_or_graphs_are_made_is_a_refusal_too(
    exception: str, stage: Stage, cause: str
) -> None:
    outcome = diagnose(Ended(exit_code=137, log=scheduler(exception), stage=stage))
    assert isinstance(outcome, Illegal), outcome
    assert (outcome.stage, outcome.fault) == (stage, Fault.REFUSED)
    assert cause in outcome.cause


@pytest.mark.parametrize("stage", [Stage.KV_POOL, Stage.GRAPHS, "concurrency 8"])
@pytest.mark.parametrize(
    "exception", ["KeyError: 'swa_head_num'", "AttributeError: 'NoneType' object has no attribute 'shape'"]
)
def test_what_the_engine_did_not_foresee_is_an_exception_of_its_own(exception: str, stage: str) -> None:
    outcome = diagnose(Ended(exit_code=137, log=scheduler(exception), stage=stage))
    assert isinstance(outcome, Crashed)
    assert (outcome.fault, outcome.cause) == (Fault.ENGINE_ERROR, exception)
    assert outcome.advice


def test_an_assertion_under_load_is_no_refusal() -> None:
    outcome = diagnose(Ended(exit_code=137, log=scheduler("AssertionError: token table"), stage="concurrency 8"))
    assert isinstance(outcome, Crashed)
    assert outcome.fault is Fault.ENGINE_ERROR


def test_a_scheduler_that_segfaults_is_a_crash_although_the_parent_ends_by_sigkill() -> None:
    log = (
        "[2026-11-01 10:00:00] Subprocess scheduler_0 (pid=12) crashed with exit code -11. "
        "Triggering SIGQUIT for cleanup...\n" + SIGQUIT
    )
    assert isinstance(diagnose(Ended(exit_code=137, log=log, stage="concurrency 16")), Crashed)
    assert isinstance(diagnose(Ended(exit_code=137, log=SIGQUIT, stage="concurrency 16")), Crashed)


def test_a_warning_long_before_the_end_is_not_its_cause() -> None:
    log = "host NCCL WARN something benign\nRuntimeError was avoided: CUDA error: no\n" + "line\n" * 100
    assert isinstance(diagnose(Ended(exit_code=137, log=log, stage="concurrency 16")), Environment)


def test_sigkill_without_an_exception_came_from_outside() -> None:
    log = "[2026-11-01 10:00:00] server_args=ServerArgs(custom_sigquit_handler=None)\n[TP0] Load weight begin.\n"
    outcome = diagnose(Ended(exit_code=137, log=log, stage=Stage.WEIGHTS))
    assert isinstance(outcome, Environment)
    assert "SIGKILL" in outcome.cause


@pytest.mark.parametrize("code", [0, 137, 143])
def test_what_other_processes_say_after_a_kill_is_not_its_cause(code: int) -> None:
    log = "Ignore import error: ModuleNotFoundError: No module named 'x'\n" + main_process("KeyError: '/mp-1'")
    assert isinstance(diagnose(Ended(exit_code=code, log=log, stage="warm-up")), Environment)
    assert "outside" in diagnose(Ended(exit_code=code, log=log, stage="warm-up")).summary


def test_137_with_an_exception_is_that_exception_and_not_the_kernel() -> None:
    outcome = diagnose(Ended(exit_code=137, log=scheduler("RuntimeError: something new"), stage="concurrency 4"))
    assert isinstance(outcome, Crashed)
    assert outcome.cause == "RuntimeError: something new"


def test_the_first_rank_that_failed_is_the_cause() -> None:
    log = scheduler(OOM) + scheduler("RuntimeError: NCCL error: remote process exited")
    outcome = diagnose(Ended(exit_code=137, log=log, stage=Stage.WEIGHTS))
    assert isinstance(outcome, OutOfMemory)


def test_evidence_holds_the_exception_and_where_it_was_raised() -> None:
    outcome = diagnose(
        Ended(
            exit_code=137,
            log=scheduler("AssertionError", "layers/moe/fused_moe_triton/layer.py", 414),
            stage=Stage.INIT,
        )
    )
    assert isinstance(outcome, Illegal)
    assert outcome.evidence[0] == "AssertionError"
    assert any("layer.py" in line and "414" in line for line in outcome.evidence)


def test_an_end_nobody_knows_is_a_crash_with_the_last_lines() -> None:
    outcome = diagnose(Ended(exit_code=9, log="one\n\ntwo\n", stage="warm-up"))
    assert isinstance(outcome, Crashed)
    assert outcome.evidence == ("one", "two")
    assert "exit code 9" in outcome.cause


def test_a_scheduler_that_died_in_silence_is_no_refusal() -> None:
    text = "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL)"
    assert isinstance(diagnose(Ended(exit_code=1, log=main_process(text), stage=Stage.INIT)), Crashed)
