"""How a launch ends: exit codes and last words, as sglang 0.5.23 has them (entrypoints/engine.py,
managers/scheduler.py, mem_cache/kv_cache_configurator.py, model_executor/runner/decode_cuda_graph_runner.py)."""

from __future__ import annotations

import signal

import aiohttp
import pytest

KILLED = -signal.SIGKILL  # 137 for a shell
TP8 = ("--tp-size", "8", "--mem-fraction-static", "0.9")
SIGQUIT_AT_START = "Received sigquit from a child process. It usually means the child failed."


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tp-size", "8", "--frobnicate", "3"), "unrecognized arguments: --frobnicate 3"),
        (("--tp-size", "eight"), "argument --tp-size/--tensor-parallel-size: invalid int value: 'eight'"),
        (("--pp", "8"), "ambiguous option: --pp could match"),
        (("--context-length",), "argument --context-length: expected one argument"),
        (("--moe-a2a-backend", "telepathy"), "argument --moe-a2a-backend: invalid choice: 'telepathy'"),
        (("--clock-scale", "0"), "argument --clock-scale: must be above 0"),
        (("--port", "70000"), "argument --port: must be from 1 to 65535 (got 70000)"),
        (("--port", "0"), "argument --port: must be from 1 to 65535 (got 0)"),
        (("--port", "x"), "argument --port: invalid int value: 'x'"),
        (("--host", "a" * 70), "argument --host: is no name or address of a machine"),
        (("--node-rank", "1"), "--node-rank 1 is none of --nnodes 1"),
        (("--dist-init-addr", "box"), "must be host:port (got 'box')"),
        (("--dist-init-addr", "box:99999"), "must be from 1 to 65535 (got 99999)"),
        (("--mem-fraction-static", "nan"), "--mem-fraction-static nan is no fraction"),
    ],
)
def test_words_that_cannot_be_read_end_with_usage_and_2(launch, flags, message):
    with launch(*flags) as simulator:
        assert simulator.exit_code() == 2
        assert simulator.log.splitlines()[-1].startswith("sglang serve: error: ")
        assert message in simulator.log


def test_an_unknown_model_is_refused_with_the_known_ones(launch):
    with launch(model="kimi-k9") as simulator:
        assert simulator.exit_code() == 2
        assert "unknown model 'kimi-k9'; did you mean kimi-k3?" in simulator.log


@pytest.mark.parametrize(
    ("flags", "last_words"),
    [
        # The story's own case: TP is the world size, so EP 4 cannot fit into 2.
        (
            ("--tp-size", "2", "--ep-size", "4"),
            "ValueError: parallel topology is inconsistent (set by override_permanently):\n"
            "tp_size == moe_ep_size * moe_dp_size * moe_tp_size\n"
            "  2 != 4 * 1 * 0 (= 0)\n",
        ),
        # 2 // 1 // 4 = 0 was not caught before 0.5.21.
        (
            ("--tp-size", "2", "--ep-size", "4", "--engine-version", "0.5.20"),
            "ZeroDivisionError: integer division or modulo by zero\n",
        ),
        (("--tp-size", "8", "--attn-dp-size", "3"), "\nAssertionError\n"),
        (
            ("--tp-size", "4", "--dp-size", "2", "--attn-dp-size", "2"),
            "ValueError: --dp-size 2 with --attn-dp-size 2: data-parallel replicas combined with attention data "
            "parallelism are not supported.\n",
        ),
    ],
)
def test_what_the_launcher_refuses_ends_with_a_traceback_and_1(launch, flags, last_words):
    with launch(*flags) as simulator:
        assert simulator.exit_code() == 1
        assert "Traceback (most recent call last):" in simulator.log
        assert simulator.log.endswith(last_words)
        assert "Init parallel" not in simulator.log


@pytest.mark.parametrize(
    ("flags", "reached", "cause"),
    [
        (
            # The story's other case: four GPUs hold the weights of eight.
            ("--tp-size", "4", "--ep-size", "2", "--mem-fraction-static", "0.9"),
            "Load weight begin",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ",
        ),
        (("--tp-size", "16"), "Init parallel begin", "torch.AcceleratorError: CUDA error: invalid device"),
        (
            ("--tp-size", "8", "--moe-a2a-backend", "deepep"),
            "Load weight begin",
            "NotImplementedError: Runner backend MoeRunnerBackend.MARLIN requires a fused func",
        ),
        (
            ("--tp-size", "8", "--ep-size", "8", "--mem-fraction-static", "0.7"),
            "Load weight end",
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. "
            "Raise --mem-fraction-static above 0.775 (minimum viable = 1 - available/pre = 0.77",
        ),
        (
            ("--tp-size", "8", "--ep-size", "8", "--mem-fraction-static", "1.5"),
            "Load weight end",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6",
        ),
        (
            ("--tp-size", "8", "--ep-size", "8", "--mem-fraction-static", "0.97"),
            "Capture target decode CUDA graph begin",
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate ",
        ),
        (
            # Attention DP needs more beside the static fraction than a plain launch.
            ("--tp-size", "8", "--attn-dp-size", "2", "--ep-size", "8", "--mem-fraction-static", "0.94"),
            "Capture target decode CUDA graph begin",
            "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
        ),
    ],
)
def test_a_scheduler_that_dies_at_start_takes_the_launcher_with_it(launch, flags, reached, cause):
    with launch(*flags) as simulator:
        assert simulator.exit_code() == KILLED
        log = simulator.log
        before, _, after = log.partition("Scheduler hit an exception: Traceback (most recent call last):")
        assert reached in before.splitlines()[-1] or reached in before.splitlines()[-2]
        assert cause in after
        assert log.splitlines()[-1].endswith(SIGQUIT_AT_START)


def test_out_of_memory_names_the_card_as_torch_sees_it(launch):
    with launch("--tp-size", "4") as simulator:
        simulator.exit_code()
        assert "GPU 0 has a total capacity of 94.97 GiB of which " in simulator.log


def test_a_pipeline_that_is_too_tight_dies_under_load(launch):
    flags = ("--tp-size", "4", "--pp-size", "2", "--attn-dp-size", "2", "--mem-fraction-static", "0.94")
    with launch(*flags) as simulator:
        simulator.wait_ready()
        body = {"input_ids": [7] * 30000, "sampling_params": {"max_new_tokens": 4}}
        assert simulator.status("/generate", body) is None
        assert simulator.exit_code() == KILLED
        assert "torch.OutOfMemoryError: CUDA out of memory" in simulator.log
        assert simulator.log.splitlines()[-1].endswith("It usually means one child failed.")


def test_a_crash_under_load_is_an_illegal_access_and_comes_when_asked_for(launch):
    with launch(*TP8, "--inject-crash-at-running", "3") as simulator:
        simulator.wait_ready()
        simulator.closed_loop(concurrency=2, num_requests=6, prompt_tokens=50, output_tokens=20)
        with pytest.raises(ExceptionGroup) as failed:
            simulator.closed_loop(concurrency=3, num_requests=6, prompt_tokens=50, output_tokens=20)
        assert failed.group_contains(aiohttp.ClientError)
        assert simulator.exit_code() == KILLED
        assert "torch.AcceleratorError: CUDA error: an illegal memory access was encountered" in simulator.log
        assert "SIGQUIT received." in simulator.log.splitlines()[-1]


def test_a_stage_that_is_never_started_is_waited_for_until_someone_ends_it(launch):
    # Three stages on two nodes: the third belongs to neither.
    flags = ("--tp-size", "2", "--pp-size", "3", "--nnodes", "2")
    with launch(*flags, cluster="2x8xh200", model="qwen3-30b-a3b") as simulator:
        simulator.wait_until(lambda: "Init parallel begin" in simulator.log)
        assert simulator.status("/ready") is None
        simulator.process.send_signal(signal.SIGTERM)
        assert simulator.exit_code() == -signal.SIGTERM


def test_a_start_that_hangs_stays_at_loading(launch):
    with launch(*TP8, "--inject-start-hang") as simulator:
        simulator.wait_until(lambda: "Load weight begin" in simulator.log)
        assert simulator.status("/ready") is None
        assert simulator.process.poll() is None


def test_a_server_that_hangs_answers_nothing_that_needs_its_scheduler(launch):
    with launch(*TP8, "--inject-hang-at-running", "1") as simulator:
        simulator.wait_ready()
        body = {"input_ids": [7], "sampling_params": {"max_new_tokens": 4}}
        for path, sent in (("/generate", body), ("/server_info", None), ("/health", None)):
            with pytest.raises(TimeoutError):
                simulator.status(path, sent, timeout_s=0.5)
        assert simulator.status("/v1/models") == 200
        assert simulator.process.poll() is None


def test_a_port_that_is_taken_ends_with_1(launch):
    with launch(*TP8) as simulator:
        simulator.wait_ready()
        with launch(*TP8, port=simulator.port) as second:
            assert second.exit_code() == 1
            assert "address already in use" in second.log
