"""The user's words: what they become, and the one clear line when they cannot be used."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.catalogue import parse_cluster
from search_spaces.errors import UserError
from search_spaces.hardware import Fabric, Route
from search_spaces.sglang.versions import NEWEST
from tuner import asking

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 2048,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def folder_with(tmp_path: Path, text: str) -> str:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    return str(folder)


def choose(word: str = "auto", **changes: Any) -> asking.Chosen:
    words: dict[str, Any] = {
        "cluster_word": None,
        "engine_command": None,
        "engine_args": "",
        "engine_version": None,
        "clock_scale": None,
    }
    return asking.choose_engine(word, **{**words, **changes})


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    found = asking.served(folder_with(tmp_path, json.dumps(QWEN)))
    assert (found.model.name, found.model.num_experts, found.model.dtype_bytes) == ("my-model", 16, 4)


@pytest.mark.parametrize("word", ["kimi-k2.6", "Kimi-K2.6", "moonshotai/Kimi-K2.6", "KIMI_K2.6"])
def test_a_catalogue_name_is_a_model_that_the_engine_downloads(word: str) -> None:
    found = asking.served(word)
    assert (found.model.name, found.model_path.lower()) == ("kimi-k2.6", "moonshotai/kimi-k2.6")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[1]", "not a JSON object"),
        ("{}", "architectures"),
        (json.dumps({**QWEN, "architectures": ["PhiForCausalLM"]}), "PhiForCausalLM"),
        (json.dumps({k: v for k, v in QWEN.items() if k != "num_experts"}), "num_experts"),
        (json.dumps({**QWEN, "num_experts": -1}), "num_experts"),
        (json.dumps({**QWEN, "hidden_size": "wide"}), "hidden_size"),
    ],
)
def test_a_config_that_cannot_be_used_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        asking.served(folder_with(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["kimi-k9", "./nowhere", "/dev/null", ""])
def test_a_model_that_is_not_there_is_refused(word: str) -> None:
    with pytest.raises(UserError):
        asking.served(word)


def test_an_unknown_model_is_answered_with_the_known_names() -> None:
    with pytest.raises(UserError, match=r"did you mean kimi-k3\? Near it: .*kimi-k2\.6"):
        asking.served("kimi-k9")


def test_with_neither_gpus_nor_sglang_auto_simulates_the_story_and_says_what_was_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    chosen = choose()
    assert chosen.engine.is_simulated
    assert chosen.cluster.name == "8xrtx-pro-6000"
    assert "no GPU was found" in chosen.engine.simulated_because
    assert "SGLang is not installed" in chosen.engine.simulated_because


def test_sglang_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="no GPU was found"):
        choose("sglang", cluster_word="8xh200", engine_command=f"{sys.executable} -m sglang.launch_server")


def with_program(folder: Path, name: str, text: str = "#!/bin/sh\nexit 9\n") -> None:
    program = folder / name
    program.write_text(text)
    program.chmod(0o755)


NVIDIA_SMI = "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H200, 143771'; done\n"


@pytest.fixture
def eight_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_program(tmp_path, "nvidia-smi", NVIDIA_SMI)
    with_program(tmp_path, "docker")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("eight_h200")
def test_with_gpus_and_an_engine_auto_takes_both() -> None:
    chosen = choose(engine_command="docker run sglang")
    assert not chosen.engine.is_simulated
    assert chosen.cluster.name == "8xh200"
    assert chosen.engine.program == ("docker", "run", "sglang")
    assert "could not be told" in chosen.notices[0]


@pytest.mark.usefixtures("eight_h200")
def test_with_gpus_but_no_sglang_and_nothing_named_the_story_is_played_all_the_same() -> None:
    chosen = choose(is_story=True)
    assert chosen.engine.is_simulated
    assert chosen.engine.simulated_because == "SGLang is not installed in this Python"
    assert chosen.cluster.name == "8xrtx-pro-6000"
    assert choose().cluster.name == "8xh200"


@pytest.mark.usefixtures("eight_h200")
@pytest.mark.parametrize("cluster", ["8xb200", "16xh200"])
def test_a_cluster_that_is_not_this_machine_cannot_be_tried_here(cluster: str) -> None:
    with pytest.raises(UserError, match="this machine has 8 GPUs"):
        choose("sglang", cluster_word=cluster, engine_command="docker run sglang")


@pytest.mark.usefixtures("eight_h200")
@pytest.mark.parametrize("word", ["auto", "sglang"])
@pytest.mark.parametrize("program", ["no-such-program -m x", "/no-such-program", "A=b python3 -m x", "/tmp"])
def test_a_program_that_is_not_here_is_known_before_any_work(word: str, program: str) -> None:
    with pytest.raises(UserError, match="--engine-command: there is no program"):
        choose(word, engine_command=program)


def test_elsewhere_the_program_is_not_looked_for_here() -> None:
    words = {"cluster_word": "8xh200", "engine_version": str(NEWEST), "engine_command": "/no-such-program x"}
    assert choose("sglang", is_elsewhere=True, **words).engine.program == ("/no-such-program", "x")


@pytest.mark.parametrize("word", ["auto", "sglang"])
@pytest.mark.parametrize("command", ["", "  "])
def test_an_engine_command_without_a_word_is_refused(word: str, command: str) -> None:
    with pytest.raises(UserError, match="--engine-command is empty"):
        choose(word, cluster_word="1xcpu", engine_command=command)
    with pytest.raises(UserError, match="--engine-command is empty"):
        asking.engine_program(command)


def test_an_engine_command_that_a_simulation_would_not_heed_is_refused_or_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="--engine-command starts a real engine, and --engine simulated was asked for"):
        choose("simulated", engine_command="python3 -m sglang.launch_server")
    monkeypatch.setenv("PATH", "")
    chosen = choose("auto", engine_command="python3 -m sglang.launch_server")
    assert chosen.engine.is_simulated
    assert chosen.notices == ("--engine-command is not used: the engine is simulated",)
    assert choose("auto").notices == ()


@pytest.mark.usefixtures("eight_h200")
def test_a_clock_that_a_real_engine_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match="--clock-scale is of the simulated engine, and this is SGLang"):
        choose("sglang", engine_command="docker run sglang", clock_scale=100.0)
    assert choose("simulated", clock_scale=100.0).engine.clock_scale == 100.0
    assert choose("simulated").engine.clock_scale == asking.DEFAULT_CLOCK_SCALE


@pytest.mark.usefixtures("eight_h200")
def test_on_cpus_no_gpu_is_needed_and_the_device_is_named() -> None:
    chosen = choose("sglang", cluster_word="2xcpu", engine_command="docker run sglang", engine_args="--dtype float32")
    assert chosen.engine.extra_args == ("--device", "cpu", "--dtype", "float32")


def test_a_key_that_no_request_can_carry_is_refused_before_a_server_asks_for_it() -> None:
    for args in ("--api-key 'ké-123'", "--admin-api-key='a-123\n'"):
        with pytest.raises(UserError, match="--engine-args holds a key that no request can carry") as refused:
            choose("simulated", engine_args=args)
        assert "123" not in str(refused.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--port 3", "--port"),
        ("--tp-size 2", "--tp-size"),
        ("--mem-fraction-static=0.5", "--mem-fraction-static"),
        ("'", "shell words"),
    ],
)
def test_engine_args_may_not_hold_what_the_tuner_decides(args: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose("simulated", engine_args=args)


@pytest.mark.parametrize("word", ["vllm", "", "SGLANG "])
def test_an_unknown_engine_is_answered_with_the_known_ones(word: str) -> None:
    with pytest.raises(UserError, match=r"auto, .*sglang, .*simulated"):
        choose(word)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("2h", 7200), ("45s", 45), ("1.5h", 5400), ("10", 600), (None, None)]
)
def test_a_budget_is_a_time(text: str | None, seconds: float | None) -> None:
    assert asking.time_s_of("--budget", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "soon", "5d", "m", "nan", "inf", "\uff15m", "1_0", "1e3"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--budget"):
        asking.time_s_of("--budget", text)


@pytest.mark.parametrize("text", ["9" * 400 + "h", "9" * 400 + "s", "8761h", "525601"])
@pytest.mark.parametrize("option", ["--budget", "--patience"])
def test_a_time_of_more_than_a_year_is_refused_in_a_short_line(option: str, text: str) -> None:
    with pytest.raises(UserError, match=f"{option} is at most a year, 8760h") as caught:
        asking.time_s_of(option, text)
    assert len(str(caught.value)) < 160
    assert asking.time_s_of(option, "8760h") == 365 * 24 * 3600


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("1s", 1), ("5", 300), ("20m", 1200)])
def test_patience_is_a_time_and_a_bare_number_minutes(text: str | None, seconds: float | None) -> None:
    assert asking.patience_s_of(text) == seconds


@pytest.mark.parametrize("text", ["0.001s", "0.9s", "0.0001m"])
def test_a_patience_in_which_no_server_can_say_anything_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--patience is at least 1s"):
        asking.patience_s_of(text)


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("tp=8", "tp_size"),
        ("--tp=8", "tp_size"),
        ("tensor-parallel-size=8", "tp_size"),
        ("pp=8", "pp_size"),
        ("dp=8", "dp_size"),
        ("ep=8", "ep_size"),
        ("max_running_requests=8", "max_running_requests"),
        ("nonsense=8", "nonsense"),
    ],
)
def test_a_pin_may_be_named_as_the_flag_is(word: str, field: str) -> None:
    assert asking.pins_of([word]) == {field: 8}


def test_pins_are_read_as_numbers_where_they_are() -> None:
    assert asking.pins_of(["tp_size=8", "--mem-fraction-static=0.9", "moe_a2a_backend=none"]) == {
        "tp_size": 8,
        "mem_fraction_static": 0.9,
        "moe_a2a_backend": "none",
    }


@pytest.mark.parametrize("words", [["tp_size"], ["=8"], ["tp_size="], ["tp_size=8", "tp-size=4"]])
def test_a_pin_that_cannot_be_read_is_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match="--pin"):
        asking.pins_of(words)


@pytest.mark.parametrize("text", ["--tp-size eight", "--tp-size 8 --nonsense 3", "'", ""])
def test_a_baseline_is_layout_flags_only(text: str) -> None:
    with pytest.raises(UserError):
        asking.layout_of("--baseline", text, NEWEST)


def test_a_ladder_may_have_spaces() -> None:
    assert asking.concurrencies_of("1, 4,16") == (1, 4, 16)


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1;2", "\uff11,\uff14", "1_0", "+1", "1,-4", "9" * 5000])
def test_a_ladder_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--concurrency"):
        asking.concurrencies_of(text)


def test_a_cluster_file_brings_what_was_measured(tmp_path: Path) -> None:
    box = tmp_path / "box.json"
    box.write_text('{"gpu": "h200", "gpus_per_node": 4, "fabric": {"source": "by hand", "route": "nvlink"}}')
    cluster = choose(cluster_word=str(box)).cluster
    assert cluster == replace(parse_cluster("4xh200"), fabric=Fabric(source="by hand", route=Route.NVLINK))
