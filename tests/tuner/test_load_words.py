"""From words to a load: lengths, ranges, files and rates, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from search_spaces.catalogue import load_model
from search_spaces.errors import UserError
from search_spaces.workload import Workload
from tuner.load_mix import LEAST_OPEN, LONGEST_TRACE_S, MOST_OPEN, MOST_OPEN_SIMULATED, LoadMix, load_told
from tuner.load_words import LoadWords, load_of

LADDER = (1, 4)


def load(**words: Any) -> tuple[Workload, LoadMix]:
    return load_of(LoadWords(**words), LADDER, seed=0)


def written(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_without_words_all_requests_are_alike() -> None:
    workload, mix = load()
    assert workload == Workload(concurrencies=LADDER)
    assert mix == LoadMix()
    assert load_told(workload, mix) == "1024 tokens in, 512 out"


def test_a_range_is_predicted_for_by_its_mean_and_drawn_in_full() -> None:
    workload, mix = load(input_tokens="100:300", output_tokens="20")
    assert (workload.input_tokens, workload.output_tokens) == (200, 20)
    lengths = {each.input_tokens for each in mix.asked}
    assert (min(lengths), max(lengths)) == (100, 300)
    assert {each.output_tokens for each in mix.asked} == {20}
    assert mix.longest_tokens(workload) == 320
    assert load_told(workload, mix) == "100 to 300 tokens in, 20 out, drawn evenly"


def test_a_trace_gives_lengths_to_the_ladder_and_arrivals_to_a_run_of_their_own(tmp_path: Path) -> None:
    lines = [f'{{"arrival_s": {i / 2}, "input_tokens": {10 + i}, "output_tokens": 4}}' for i in range(3)]
    workload, mix = load(trace=written(tmp_path, "t.jsonl", *lines))
    assert (workload.input_tokens, workload.output_tokens) == (11, 4)
    assert [each.due_s for each in mix.in_turn] == [None] * 3
    (run,) = mix.open_runs(workload, is_simulated=False)
    assert run.requests_per_s == 2.0
    assert [each.due_s for each in run.asked] == [0.0, 0.5, 1.0]


def test_a_long_trace_is_sent_for_ten_minutes(tmp_path: Path) -> None:
    lines = [f'{{"arrival_s": {100 * i}, "input_tokens": 10, "output_tokens": 4}}' for i in range(20)]
    workload, mix = load(trace=written(tmp_path, "t.jsonl", *lines))
    (run,) = mix.open_runs(workload, is_simulated=False)
    assert max(each.due_s or 0.0 for each in run.asked) == LONGEST_TRACE_S
    assert len(mix.in_turn) == 20
    cut = mix.with_cut_told(is_simulated=False)
    told = "20 requests of t.jsonl, arriving over 1900 s (sent as they came: the first 7, over 600 s)"
    assert load_told(workload, cut) == told
    assert cut.identity == mix.identity


def test_a_trace_of_many_requests_is_cut_on_a_simulated_server_and_one_that_is_sent_whole_says_nothing(
    tmp_path: Path,
) -> None:
    lines = [f'{{"arrival_s": {i / 10}, "input_tokens": 10, "output_tokens": 4}}' for i in range(500)]
    workload, mix = load(trace=written(tmp_path, "t.jsonl", *lines))
    cut = mix.with_cut_told(is_simulated=True)
    assert load_told(workload, cut).endswith("(sent as they came: the first 400, over 39.9 s)")
    assert mix.with_cut_told(is_simulated=False) == mix
    _, by_rate = load(trace=tmp_path / "t.jsonl", request_rate="2")
    assert by_rate.with_cut_told(is_simulated=True) == by_rate


def test_a_trace_of_which_one_request_would_be_sent_as_it_came_is_refused(tmp_path: Path) -> None:
    lines = [f'{{"arrival_s": {s}, "input_tokens": 10, "output_tokens": 4}}' for s in (0, 700)]
    with pytest.raises(UserError, match="in which there is one request"):
        load(trace=written(tmp_path, "t.jsonl", *lines))


def test_rates_are_runs_of_a_minute_within_bounds() -> None:
    workload, mix = load(request_rate="0.1,2,900")
    runs = list(mix.open_runs(workload, is_simulated=False))
    assert [run.requests_per_s for run in runs] == [0.1, 2.0, 900.0]
    assert [len(run.asked) for run in runs] == [LEAST_OPEN, 120, MOST_OPEN]
    simulated = list(mix.open_runs(workload, is_simulated=True))
    assert [len(run.asked) for run in simulated] == [LEAST_OPEN, 120, MOST_OPEN_SIMULATED]
    due_s = [each.due_s or 0.0 for each in runs[2].asked]
    assert len(due_s) / due_s[-1] == pytest.approx(900, rel=0.1)


def test_requests_that_take_long_are_sent_for_four_times_as_long_and_begin_with_the_same_ones() -> None:
    workload, mix = load(request_rate="2")
    (usual,) = mix.open_runs(workload, is_simulated=False, request_s=15.0)
    (longer,) = mix.open_runs(workload, is_simulated=False, request_s=40.0)
    assert (len(usual.asked), len(longer.asked)) == (120, 320)
    assert longer.asked[:120] == usual.asked


def test_another_seed_is_another_load_where_it_draws_arrivals_and_only_there() -> None:
    def identity(seed: int, **words: Any) -> dict[str, object]:
        return load_of(LoadWords(**words), LADDER, seed=seed)[1].identity

    assert identity(0, request_rate="2") != identity(4, request_rate="2")
    assert identity(0, request_rate="2") == identity(0, request_rate="2")
    assert identity(0) == identity(4)
    assert identity(0, input_tokens="100:300") != identity(4, input_tokens="100:300")


def test_the_longest_length_is_told_as_it_was_given() -> None:
    workload, _ = load(input_tokens="999999999")
    with pytest.raises(UserError, match=r"a request of 999999999 \+ 512"):
        workload.check_against(load_model("kimi-k2.6"))


def test_another_load_is_another_identity(tmp_path: Path) -> None:
    prompts = written(tmp_path, "p.txt", "one", "two")
    others = [
        {"input_tokens": "100:300"},
        {"input_tokens": "100:301"},
        {"prompts": prompts},
        {"request_rate": "2"},
        {"noise": 0.05},
        {"is_whole_ladder": True},
    ]
    identities = [str(load(**words)[1].identity) for words in ({}, *others)]
    assert len(set(identities)) == len(identities)
    assert load(prompts=prompts)[1].identity == load(prompts=prompts)[1].identity


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"input_tokens": "many"}, "--input-tokens"),
        ({"output_tokens": "9:"}, "--output-tokens"),
        ({"input_tokens": "300:100"}, "300 to 100"),
        ({"output_tokens": "1"}, "2 output tokens"),
        ({"noise": 1.0}, "--noise"),
        ({"noise": float("nan")}, "--noise"),
        ({"request_rate": "2,1"}, "--request-rate"),
        ({"request_rate": "0"}, "--request-rate"),
        ({"request_rate": "inf"}, "--request-rate"),
        ({"request_rate": "1e308"}, "between 0.05 and 1000"),
        ({"request_rate": "1000000"}, "between 0.05 and 1000"),
        ({"request_rate": "1e-300"}, "between 0.05 and 1000"),
        ({"request_rate": "1e-320"}, "between 0.05 and 1000"),
        ({"request_rate": "0.001,1"}, "between 0.05 and 1000"),
        ({"request_rate": "9" * 400}, "--request-rate"),
        ({"request_rate": "\uff11"}, "--request-rate"),
        ({"request_rate": "1_0"}, "--request-rate"),
        ({"request_rate": "1.00001,1.00002"}, "alike but for rounding"),
        ({"input_tokens": "1:99999999999999999999999"}, "nine digits"),
        ({"input_tokens": "1:" + "9" * 5000}, "nine digits"),
        ({"output_tokens": "9" * 5000}, "nine digits"),
        ({"input_tokens": "\uff11"}, "--input-tokens"),
        ({"trace": Path("t.jsonl"), "input_tokens": "5"}, "leave --input-tokens out"),
        ({"trace": Path("t.jsonl"), "prompts": Path("p.txt")}, "leave --prompts out"),
        ({"prompts": Path("p.txt"), "input_tokens": "5"}, "leave --input-tokens out"),
        ({"prompts": Path("p.txt"), "output_tokens": "5:6"}, "no range"),
        ({"trace": Path("nowhere.jsonl")}, "nowhere.jsonl cannot be read"),
    ],
)
def test_what_makes_no_load_is_refused_by_name(words: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(**words)


def test_a_trace_without_time_between_its_requests_is_refused(tmp_path: Path) -> None:
    line = '{"timestamp": 5, "input_length": 10, "output_length": 4}'
    with pytest.raises(UserError, match="at the same time"):
        load(trace=written(tmp_path, "t.jsonl", line, line))


def test_the_longest_request_must_be_one_that_the_model_takes(tmp_path: Path) -> None:
    model = load_model("kimi-k2.6")
    lines = ['{"input_tokens": 10, "output_tokens": 4}', '{"input_tokens": 9999999, "output_tokens": 4}']
    workload, mix = load(trace=written(tmp_path, "t.jsonl", *lines))
    with pytest.raises(UserError, match=r"t\.jsonl:2: a request of 9999999"):
        mix.check_against(workload, model, ())
    workload, mix = load(prompts=written(tmp_path, "p.txt", "one"))
    mix.check_against(workload, model, ())
    for word in ("--skip-tokenizer-init", "--skip-tokenizer", "--skip-t"):
        with pytest.raises(UserError, match="--skip-tokenizer-init"):
            mix.check_against(workload, model, (word,))
    for word in ("--skip-server-warmup", "--skip-", "--skip-tokenizer-initial"):
        mix.check_against(workload, model, (word,))
