"""The real SGLang on CPUs, under layouts that no other test starts, and the facts about it that `tuner` uses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.server import STOP_LIMIT_S, EngineServer, engine_server

pytestmark = pytest.mark.engine


def generate(server: EngineServer, checkpoint: TinyCheckpoint, *, num_tokens: int, stream: bool) -> list[str]:
    """The lines of the answer that aren't empty."""
    body = {
        "input_ids": checkpoint.input_ids,
        "sampling_params": {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True},
        "stream": stream,
    }
    with server.request("/generate", body) as response:
        return [line for line in response.read().decode().splitlines() if line]


@pytest.mark.parametrize(
    "flags", ["--tp-size 2 --ep-size 2 --attn-dp-size 2", "--pp-size 2"], ids=["expert parallel", "pipeline"]
)
def test_a_layout_on_two_ranks_gives_the_tokens_that_transformers_gives(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, flags: str
) -> None:
    with engine_server(engine_python, tiny_checkpoint.folder, *flags.split(), log=tmp_path / "server.log") as server:
        server.wait_until_ready()
        (answer,) = generate(server, tiny_checkpoint, num_tokens=len(tiny_checkpoint.output_ids), stream=False)
        assert json.loads(answer)["output_ids"] == tiny_checkpoint.output_ids
        assert server.answer("/server_info")["internal_states"][0]["world_size"] == 2


def test_one_rank_streams_what_has_been_generated_so_far_and_ends_in_order_when_told_to(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    with engine_server(engine_python, tiny_checkpoint.folder, log=tmp_path / "server.log") as server:
        server.wait_until_ready()
        *chunks, last = generate(server, tiny_checkpoint, num_tokens=4, stream=True)
        assert last == "data: [DONE]"
        answers = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
        # A busy server may put several tokens into one chunk.
        for answer in answers:
            num_tokens = answer["meta_info"]["completion_tokens"]
            assert answer["output_ids"] == tiny_checkpoint.output_ids[:num_tokens]
        assert [answer["meta_info"]["finish_reason"] for answer in answers[:-1]] == [None] * len(chunks[:-1])
        assert answers[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
        assert answers[-1]["meta_info"]["completion_tokens"] == 4

        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
        _, alive = psutil.wait_procs(server.living_processes(), timeout=STOP_LIMIT_S)
        assert not alive


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--tp-size 2 --ep-size 4", "ValueError: parallel topology is inconsistent"),
        ("--tp-size 2 --attn-dp-size 3", "assert cfg.tp_size % cfg.attn_dp_size == 0"),
    ],
    ids=["expert parallel", "attention data parallel"],
)
def test_an_illegal_layout_ends_with_exit_code_1_before_any_rank_starts(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, flags: str, words: str
) -> None:
    log = tmp_path / "server.log"
    with engine_server(engine_python, tiny_checkpoint.folder, *flags.split(), log=log) as server:
        assert server.exit_code() == 1
    said = log.read_text()
    assert words in said
    assert "Init parallel begin" not in said
