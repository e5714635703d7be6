"""What a person reads of a verdict."""

from __future__ import annotations

import shlex

import pytest
from rich.text import Text

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.sglang.versions import EngineVersion
from tuner.check_text import report
from tuner.checked_launch import CheckedLaunch, check_launch
from tuner.checking import Server
from tuner.launch_words import Asked


def launch(flags: str, model: str, cluster: str, version: str = "0.5.23") -> CheckedLaunch:
    server = Server(model=load_model(model), cluster=parse_cluster(cluster), version=EngineVersion.parse(version))
    return check_launch(Asked(flags=tuple(shlex.split(flags))), server)


def told(flags: str, model: str, cluster: str) -> str:
    return "\n".join(map(str, report(launch(flags, model, cluster))))


def part(text: str, title: str) -> str:
    """The lines below `title`, up to an empty one."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(title))
    end = next((number for number in range(start, len(lines)) if not lines[number]), len(lines))
    return "\n".join(lines[start:end])


def test_what_overrides_the_users_words_stands_apart_from_what_the_engine_fills_in() -> None:
    text = told("--tp 8 --dp 8 --enable-dp-attention --chunked-prefill-size 4096", "deepseek-v3", "8xh200")
    assert "attn_dp_size" in part(text, "read as other flags")
    assert "4096 -> 512" in part(text, "overrides what was asked for")
    assert "schedule_conservativeness" in part(text, "filled in by the engine")
    assert "overrides what" not in told("--tp 8", "deepseek-v32", "8xh200")


def test_the_choices_that_matter_are_said_in_one_line() -> None:
    line = part(told("--tp 8", "deepseek-v32", "8xb200"), "chosen by the engine")
    for said in ("attention_backend dsa", "kv_cache_dtype fp8_e4m3", "mem_fraction_static 0.844", "up to 512 requests"):
        assert said in line
    given = part(told("--tp 8 --mem-fraction-static 0.8", "deepseek-v32", "8xb200"), "chosen by the engine")
    assert "mem_fraction_static" not in given


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--tp 2 --dp 4", "on 8 of 8 GPUs, 2 in each of 4 replicas"),
        ("--tp 8 --dp 8", "on 64 GPUs, 8 in each of 8 replicas, of which 8xh200 has 8"),
        ("--tp 4", "on 4 of 8 GPUs"),
        ("--tp 16", "on 16 GPUs, of which 8xh200 has 8"),
    ],
)
def test_gpus_are_counted_in_all_and_for_each_replica(flags: str, said: str) -> None:
    assert said in told(flags, "qwen3-30b-a3b", "8xh200")


@pytest.mark.parametrize(
    ("flags", "cluster", "said"),
    [
        ("--tp 8", "8xh100", "they do not fit"),
        ("--tp 8 --mem-fraction-static 0.5", "8xh200", "nothing is left for a KV cache at mem fraction 0.5"),
        ("--tp 8 --mem-fraction-static 0.98", "8xh200", "too little is left for CUDA graphs at mem fraction 0.98"),
    ],
)
def test_what_does_not_fit_says_what_there_is_no_room_for(flags: str, cluster: str, said: str) -> None:
    assert said in told(flags, "deepseek-v3", cluster)


def test_a_release_alone_is_no_range_and_ends_in_the_words_of_the_headline() -> None:
    checked = launch("--tp 8 --mem-fraction-static 0.94", "kimi-k2.6", "8xh100")
    lines = part("\n".join(map(str, report(checked))), "under other versions").splitlines()
    assert lines[1].startswith("  0.5.9: ")
    for span in checked.history:
        status = launch(
            "--tp 8 --mem-fraction-static 0.94", "kimi-k2.6", "8xh100", str(span.first)
        ).checked.verdict.status
        assert span.outcome.startswith(str(status))


def test_a_cache_too_small_to_serve_with_is_warned_of() -> None:
    *_, note = launch("--tp 8 --mem-fraction-static 0.94", "kimi-k2.6", "8xh100").notes
    assert "5,452 tokens serves next to nothing" in note
    assert "2 of 2,048 tokens" in note
    assert launch("--tp 8", "deepseek-v3", "8xh200").notes == ()


def test_a_draft_that_is_not_counted_is_said_to_be() -> None:
    flags = "--tp 8 --speculative-algorithm EAGLE3 --speculative-draft-model-path /draft"
    text = told(flags, "deepseek-v3", "8xh200")
    assert "the draft model's weights and KV cache are not counted" in text
    assert not any(line.endswith(": fits") for line in text.splitlines())


def test_the_headline_is_never_folded() -> None:
    title = report(launch("--tp 8", "deepseek-v3", "8xh200"))[0]
    assert isinstance(title, Text)
    assert title.no_wrap
