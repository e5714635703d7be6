"""Lines of measured sweeps, good and hostile."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.setting import Client, ServingEngine
from cost_models.uncertainty import Trait, traits_of
from search_spaces.sglang.versions import NEWEST, OLDEST
from tuner.validate_fields import Reason
from tuner.validate_rows import MeasuredRow, Skipped, bundled_lines, bundled_rows, read_rows

POINT = {
    "id": "made-up",
    "source": "this test",
    "engine": "sglang",
    "engine_version": "0.5.10",
    "model": "deepseek-ai/DeepSeek-R1",
    "gpu": "H200 SXM 141GB",
    "precision": "fp8",
    "isl": 1000,
    "osl": 500,
    "concurrency": 16,
    "n_gpus": 8,
    "world_tp": 8,
    "moe_ep": 4,
    "attention_dp": 2,
    "pp": 1,
    "tpot_ms": 20.0,
    "ttft_ms": 400.0,
}
INFERENCEX = {"source": "github:ai-dynamo/aiconfigurator@0:silicon_sample.csv", "date": "2026-03-25", "isl": 1024}


def line(**changes: object) -> str:
    return json.dumps({**POINT, **changes})


def one(**changes: object) -> MeasuredRow | Skipped:
    (answer,) = read_rows([line(**changes)])
    return answer


def test_a_line_is_read_into_typed_values_in_seconds():
    row = one()
    assert isinstance(row, MeasuredRow)
    assert row.engine is ServingEngine.SGLANG
    assert str(row.setting.version) == "0.5.10"
    assert row.model.name == "deepseek-r1"
    assert row.cluster.name == "8xh200"
    assert (row.layout.tp_size, row.layout.ep_size, row.layout.attn_dp_size, row.layout.pp_size) == (8, 4, 2, 1)
    assert (row.input_tokens, row.output_tokens, row.concurrency) == (1000, 500, 16)
    assert (row.tpot_s, row.ttft_s) == (0.02, 0.4)
    assert row.layout.mem_fraction_static == 0.95
    assert row.layout.chunked_prefill_size is not None
    assert not row.used_for_fitting


def test_throughput_is_that_of_a_closed_loop():
    row = one()
    assert isinstance(row, MeasuredRow)
    assert row.output_tok_per_s == pytest.approx(16 * 500 / (0.4 + 499 * 0.02))


def test_without_a_time_to_first_token_there_is_no_throughput():
    row = one(ttft_ms=None)
    assert isinstance(row, MeasuredRow)
    assert (row.ttft_s, row.output_tok_per_s) == (None, None)


def test_a_stated_throughput_is_taken_as_it_stands():
    both, alone = one(output_tok_s=1234.5), one(output_tok_s=1234.5, tpot_ms=None, ttft_ms=None)
    assert isinstance(both, MeasuredRow)
    assert isinstance(alone, MeasuredRow)
    assert (both.tpot_s, both.output_tok_per_s) == (0.02, 1234.5)
    assert (alone.tpot_s, alone.output_tok_per_s) == (None, 1234.5)


def test_flags_are_read_as_the_release_reads_them_beside_the_sizes():
    row = one(flags={"attention-backend": "flashinfer", "page-size": 64, "enable-torch-compile": True})
    assert isinstance(row, MeasuredRow)
    assert (row.layout.attention_backend, row.layout.page_size) == ("flashinfer", 64)
    assert row.layout.enable_torch_compile
    assert row.split == (8, 4, 2, 1)
    assert row.other_flags == ("--attention-backend", "flashinfer", "--page-size", "64", "--enable-torch-compile")


def test_what_a_line_with_flags_leaves_out_is_the_engines_default():
    guessed, launched = one(gpu="B200"), one(gpu="B200", flags={})
    stated = one(gpu="B200", flags={"mem-fraction-static": 0.7, "kv-cache-dtype": "fp8_e5m2"})
    over = one(gpu="B200", flags={"mem-fraction-static": 0.7}, mem_fraction_static=0.6, kv_cache_dtype="fp8_e4m3")
    rows = [each for each in (guessed, launched, stated, over) if isinstance(each, MeasuredRow)]
    found = [(row.layout.mem_fraction_static, row.layout.kv_cache_dtype) for row in rows]
    assert found[0] == (0.95, "fp8_e4m3")
    assert found[1][0] is not None
    assert 0.7 < found[1][0] < 0.95
    assert found[1][1] == "auto"
    assert found[2:] == [(0.7, "fp8_e5m2"), (0.6, "fp8_e4m3")]


def test_attention_data_parallelism_that_is_switched_on_without_a_size_is_none():
    """0.5.3 srt/server_args.py:950, 0.5.6.post2 :1564, 0.5.9 :2110: with dp_size 1 the engine switches it off."""
    row = one(moe_ep=1, attention_dp=1, flags={"enable-dp-attention": True})
    assert isinstance(row, MeasuredRow)
    assert row.split == (8, 1, 1, 1)


@pytest.mark.parametrize("none", [0, None])
def test_zero_and_null_stand_for_no_such_parallelism(none):
    row = one(moe_ep=none, attention_dp=none, pp=none)
    assert isinstance(row, MeasuredRow)
    assert row.split == (8, 1, 1, 1)


def test_whole_numbers_may_be_written_with_a_point():
    row = one(isl=1000.0, world_tp=8.0)
    assert isinstance(row, MeasuredRow)
    assert (row.input_tokens, row.layout.tp_size) == (1000, 8)


def test_nodes_are_equal_and_the_fewest_of_eight_gpus_at_most():
    row = one(world_tp=9, n_gpus=9, moe_ep=1, attention_dp=1)
    assert isinstance(row, MeasuredRow)
    assert (row.layout.nnodes, row.cluster.num_nodes, row.cluster.gpus_per_node) == (3, 3, 3)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"cpu-offload-gb": 40}, "--cpu-offload-gb"),
        ({"device": "cpu"}, "--device"),
        ({"json-model-override-args": '{"num_hidden_layers": 4}'}, "--json-model-override-args"),
        ({"enable-lora": True, "lora-paths": ["a=b"]}, "--enable-lora, --lora-paths"),
    ],
)
def test_a_line_of_a_server_that_is_not_modelled_is_set_aside(flags, named):
    """It would be compared with a launch without them, or be said not to fit."""
    skipped = one(flags=flags)
    assert isinstance(skipped, Skipped)
    assert skipped.reason == f"flags that the model does not know: {named}"


def test_weights_that_are_quantised_by_the_engine_are_not_modelled():
    skipped = one(model="Qwen/Qwen3-30B-A3B", precision="bf16", flags={"quantization": "fp8"}, moe_ep=1, attention_dp=1)
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "flags that the model does not know: --quantization"


def test_flags_that_leave_the_server_what_it_is_are_compared():
    assert isinstance(one(flags={"cpu-offload-gb": 0, "log-level": "info", "swa-full-tokens-ratio": 0.5}), MeasuredRow)


def test_more_than_eight_gpus_are_several_nodes():
    row = one(world_tp=16, n_gpus=16)
    assert isinstance(row, MeasuredRow)
    assert row.cluster.name == "2x8xh200"
    assert row.layout.nnodes == 2


@pytest.mark.parametrize(
    ("changes", "ratio", "client"),
    [
        ({**INFERENCEX, "osl": 8192}, 0.9, Client.INFERENCEX),
        ({**INFERENCEX, "osl": 1024, "date": None}, 0.9, Client.INFERENCEX),
        ({**INFERENCEX, "osl": 1024, "source": "https://github.com/SemiAnalysisAI/InferenceX"}, 0.9, Client.INFERENCEX),
        ({**INFERENCEX, "osl": 512}, 1.0, Client.STEADY),
        ({**INFERENCEX, "osl": 1024, "source": "my own"}, 1.0, Client.STEADY),
        ({**INFERENCEX, "osl": 1024, "random_range_ratio": 1.0}, 1.0, Client.INFERENCEX),
        ({"random_range_ratio": 0.5}, 0.75, Client.STEADY),
        ({"random_range_ratio": 0}, 0.5, Client.STEADY),
        ({**INFERENCEX, "isl": 2000, "osl": 100, "date": None}, 1.0, Client.BURST),
        ({**INFERENCEX, "isl": 2000, "osl": 100}, 1.0, Client.STEADY),
        ({**INFERENCEX, "isl": 2000, "osl": 100, "date": None, "engine": "vllm"}, 1.0, Client.STEADY),
        ({**INFERENCEX, "isl": 2048, "osl": 128, "date": None}, 1.0, Client.STEADY),
        ({"isl": 2000}, 1.0, Client.STEADY),
        ({"client": "burst"}, 1.0, Client.BURST),
        ({"client": "inferencex"}, 0.9, Client.INFERENCEX),
    ],
)
def test_public_campaigns_are_told_by_their_source_and_lengths_unless_the_line_says(changes, ratio, client):
    row = one(**changes)
    assert isinstance(row, MeasuredRow)
    assert row.input_tokens == round(ratio * changes.get("isl", 1000))
    assert row.output_tokens == round(ratio * changes.get("osl", 500))
    assert row.setting.client is client


@pytest.mark.parametrize(
    ("version", "date", "known", "patch"),
    [
        ("0.5.10.post1", None, "0.5.10", 10),
        ("v0.5.23", None, "0.5.23", 23),
        ("0.5.6.post2", None, str(OLDEST), 6),
        ("0.5.99", None, str(NEWEST), NEWEST.patch),
        ("0.4.9", None, str(OLDEST), 0),
        ("", "2025-11-10", str(OLDEST), 5),
        ("main branch", "2026-06-12", "0.5.13", 13),
        ("", "2026-06-12T08:00:00Z", "0.5.13", 13),
        ("", "<=2026-05-01", "0.5.9", 9),
        ("", "2025-04/05 (snapshot 2026-01-09)", "0.5.9", 9),
        ("", "March 2026", "0.5.9", 9),
        (None, None, "0.5.9", 9),
        ("sglang 0.5.10", None, "0.5.10", 10),
        ("99.99", None, str(NEWEST), NEWEST.patch),
        ("99.99.99", None, str(NEWEST), NEWEST.patch),
        ("0.5", None, "0.5.9", 9),
        ("0.5", "2026-06-12", "0.5.13", 13),
        ("main", None, "0.5.9", 9),
    ],
)
def test_the_release_is_the_stated_one_or_the_newest_of_its_day(version, date, known, patch):
    row = one(engine_version=version, date=date)
    assert isinstance(row, MeasuredRow)
    assert (str(row.setting.version), row.setting.patch) == (known, patch)


@pytest.mark.parametrize(
    ("version", "is_known"),
    [
        ("0.5.9", True), ("v0.5.10.post1", True), ("0.5.3rc0", True), ("0.4.6.post1", True), ("", True), (None, True),
        ("main", False), ("0.5", False), ("99.99", False), ("99.99.99", False), ("0.5.99", False), ("nightly", False),
    ],
)  # fmt: skip
def test_a_word_that_no_release_has_is_a_doubt_of_its_line(version, is_known):
    row = one(engine_version=version, date="2026-03-25")
    assert isinstance(row, MeasuredRow)
    assert row.setting.is_release_known is is_known
    assert (Trait.RELEASE in traits_of(row.model, row.cluster, row.layout, row.setting)) is (
        not 5 <= row.setting.patch <= 10 or not is_known
    )


def test_releases_of_other_engines_are_no_doubt():
    row = one(engine="vllm", engine_version="0.18.0")
    assert isinstance(row, MeasuredRow)
    assert row.setting.is_release_known


@pytest.mark.parametrize(("word", "engine"), [("vLLM", "vllm"), ("TensorRT-LLM", "trtllm"), ("trtllm", "trtllm")])
def test_other_engines_lend_their_layouts(word, engine):
    row = one(engine=word, engine_version="1.2.0rc6")
    assert isinstance(row, MeasuredRow)
    assert row.engine == engine
    assert row.setting.version == NEWEST


@pytest.mark.parametrize(
    ("changes", "kv_cache_dtype"),
    [
        ({}, "auto"),
        ({"gpu": "B200"}, "fp8_e4m3"),
        ({"gpu": "B200", "precision": "bf16"}, "auto"),
        ({"model": "zai-org/GLM-5-FP8"}, "fp8_e4m3"),
        ({"gpu": "B200", "kv_cache_dtype": "bfloat16"}, "bfloat16"),
        ({"kv_cache_dtype": "FP8_E5M2"}, "fp8_e5m2"),
        ({"engine": "vllm", "kv_cache_dtype": "fp8"}, "fp8_e4m3"),
    ],
)
def test_the_cache_of_quantised_models_on_blackwell_is_fp8_unless_the_line_says_otherwise(changes, kv_cache_dtype):
    row = one(**changes)
    assert isinstance(row, MeasuredRow)
    assert row.layout.kv_cache_dtype == kv_cache_dtype


def test_a_stated_memory_fraction_is_taken():
    row = one(mem_fraction_static=0.82)
    assert isinstance(row, MeasuredRow)
    assert row.layout.mem_fraction_static == 0.82


def test_what_ran_but_is_illegal_here_is_read_and_marked():
    legal, illegal = one(), one(world_tp=6, n_gpus=6, moe_ep=6, attention_dp=1)
    assert isinstance(legal, MeasuredRow)
    assert isinstance(illegal, MeasuredRow)
    assert (legal.is_legal, illegal.is_legal) == (True, False)


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        ({"engine": "lmdeploy"}, Reason.UNKNOWN_ENGINE, "unknown engine 'lmdeploy'"),
        ({"engine": 7}, Reason.BAD_VALUE, "engine is a word (got 7)"),
        ({"model": "gpt-5"}, Reason.UNKNOWN_MODEL, "unknown model 'gpt-5'"),
        ({"model": ["r1"]}, Reason.BAD_VALUE, "model is a word"),
        ({"precision": "int2"}, Reason.UNKNOWN_MODEL, "unknown precision 'int2'"),
        ({"gpu": "TPU v5"}, Reason.UNKNOWN_GPU, "unknown GPU 'TPU v5'"),
        ({"gpu": "MI300X"}, Reason.UNKNOWN_GPU, "ROCm"),
        ({"mode": "disagg"}, Reason.DISAGGREGATED, "different GPUs"),
        ({"disagg": {"prefill": 4}}, Reason.DISAGGREGATED, "different GPUs"),
        ({"layout_status": "columns disagree"}, Reason.UNCLEAR_LAYOUT, "layout_status is columns disagree"),
        ({"n_gpus": 16}, Reason.UNCLEAR_LAYOUT, "n_gpus is 16, but world_tp times pp is 8"),
        ({"moe_ep": 3}, Reason.UNCLEAR_LAYOUT, "moe_ep must divide world_tp, but 3 does not divide 8"),
        ({"attention_dp": 5}, Reason.UNCLEAR_LAYOUT, "attention_dp must divide world_tp"),
        ({"flag": "stalled"}, "flagged: stalled", "flagged: stalled"),
        ({"tpot_ms": None}, Reason.BAD_VALUE, "tpot_ms is missing, and output_tok_s as well"),
        (
            {"output_tok_s": 0},
            Reason.BAD_VALUE,
            "output_tok_s is a number of tokens per second from 0.001 to 1e+09 (got 0)",
        ),
        ({"output_tok_s": 1e-300}, Reason.BAD_VALUE, "output_tok_s is a number of tokens per second"),
        ({"output_tok_s": 1e10}, Reason.BAD_VALUE, "output_tok_s is a number of tokens per second"),
        ({"output_tok_s": "many"}, Reason.BAD_VALUE, "output_tok_s is a number of tokens per second"),
        ({"flags": "--page-size 64"}, Reason.BAD_VALUE, "flags is an object"),
        ({"flags": {"": 1}}, Reason.BAD_VALUE, "a flag is named as SGLang names it"),
        ({"flags": {"page-size": "many"}}, Reason.BAD_VALUE, "flags: SGLang cannot read these flags"),
        ({"flags": {"page-size": 10**30}}, Reason.BAD_VALUE, "page_size is a number of 31 digits"),
        ({"flags": {"tp-size": 4}}, Reason.UNCLEAR_LAYOUT, "flags says tp_size: sizes are fields of their own"),
        ({"flags": {"dp-size": 2}}, Reason.UNCLEAR_LAYOUT, "flags says dp_size"),
        ({"flags": {"speculative-algorithm": "EAGLE"}}, Reason.SPECULATIVE, "how many tokens a step of it yields"),
        ({"tpot_ms": 0}, Reason.BAD_VALUE, "tpot_ms is a time in ms from 0.001 to 1e+09 (got 0)"),
        ({"tpot_ms": 1e-300}, Reason.BAD_VALUE, "tpot_ms is a time in ms from 0.001 to 1e+09 (got 1e-300)"),
        ({"tpot_ms": 2e9}, Reason.BAD_VALUE, "tpot_ms is a time in ms"),
        ({"ttft_ms": 1e-9}, Reason.BAD_VALUE, "ttft_ms is a time in ms from 0.001 to 1e+09 (got 1e-09)"),
        ({"tpot_ms": -3.0}, Reason.BAD_VALUE, "tpot_ms is a time"),
        ({"tpot_ms": "20"}, Reason.BAD_VALUE, "tpot_ms is a time in ms from 0.001 to 1e+09 (got '20')"),
        ({"tpot_ms": True}, Reason.BAD_VALUE, "tpot_ms is a time"),
        ({"ttft_ms": 1e300}, Reason.BAD_VALUE, "ttft_ms is a time"),
        ({"isl": 0}, Reason.BAD_VALUE, "isl is a whole number from 1"),
        ({"osl": 10.5}, Reason.BAD_VALUE, "osl is a whole number"),
        ({"concurrency": 10**30}, Reason.BAD_VALUE, "concurrency is a whole number from 1 to 8192"),
        ({"concurrency": "16"}, Reason.BAD_VALUE, "concurrency is a whole number"),
        ({"world_tp": 0}, Reason.BAD_VALUE, "world_tp is a whole number"),
        ({"world_tp": 10**9}, Reason.BAD_VALUE, "world_tp is a whole number"),
        ({"world_tp": 1000, "n_gpus": None}, Reason.BAD_VALUE, "world_tp is a whole number from 1 to 256 (got 1000)"),
        ({"n_gpus": 1000}, Reason.BAD_VALUE, "n_gpus is a whole number from 1 to 256 (got 1000)"),
        (
            {"world_tp": 256, "pp": 2, "n_gpus": None},
            Reason.BAD_VALUE,
            "world_tp times pp is 512: clusters of more than",
        ),
        ({"random_range_ratio": 2}, Reason.BAD_VALUE, "random_range_ratio is a share"),
        ({"client": "curl"}, Reason.BAD_VALUE, "client is one of steady, inferencex, burst"),
        ({"mem_fraction_static": 90}, Reason.BAD_VALUE, "mem_fraction_static is a share"),
        ({"mem_fraction_static": 0}, Reason.BAD_VALUE, "mem_fraction_static is a share above 0 and below 1 (got 0)"),
        ({"mem_fraction_static": 1}, Reason.BAD_VALUE, "mem_fraction_static is a share above 0 and below 1 (got 1)"),
        (
            {"flags": {"mem-fraction-static": 2}},
            Reason.BAD_VALUE,
            "flags: mem-fraction-static is a share above 0 and below 1 (got 2.0)",
        ),
        ({"flags": {"mem-fraction-static": "nan"}}, Reason.BAD_VALUE, "flags: mem-fraction-static is a share above 0"),
        ({"flags": {"page-size": -3}}, Reason.BAD_VALUE, "flags: "),
        ({"flags": {"kv-cache-dtype": "fp3"}}, Reason.BAD_VALUE, "invalid choice: 'fp3'"),
        ({"kv_cache_dtype": "fp3"}, Reason.BAD_VALUE, "kv_cache_dtype is one of auto, fp8_e5m2, fp8_e4m3,"),
        ({"kv_cache_dtype": "fp3"}, Reason.BAD_VALUE, "(got 'fp3')"),
        ({"kv_cache_dtype": 8}, Reason.BAD_VALUE, "kv_cache_dtype is a word (got 8)"),
        ({"date": "yesterday"}, Reason.BAD_VALUE, "date is a day, e.g. 2026-03-25 (got 'yesterday')"),
        ({"date": "2026-02-31"}, Reason.BAD_VALUE, "date is no day of the calendar (got '2026-02-31')"),
        ({"date": 20260325}, Reason.BAD_VALUE, "date is a word (got 20260325)"),
        ({"used_for_fitting": "yes"}, Reason.BAD_VALUE, "used_for_fitting is true or false (got 'yes')"),
        ({"mode": ["agg"]}, Reason.BAD_VALUE, "mode is a word"),
        ({"flag": 7}, Reason.BAD_VALUE, "flag is a word (got 7)"),
        ({"flag": True}, Reason.FLAGGED, "flagged"),
    ],
)
def test_a_line_that_cannot_be_compared_is_skipped_with_its_reason(changes, reason, message):
    skipped = one(**changes)
    assert isinstance(skipped, Skipped)
    assert skipped.reason == reason
    assert message in skipped.message
    assert skipped.line == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\x00\xff\xfe binary", "not UTF-8"),
        (b"not json", "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"tpot_ms": NaN}', "not JSON"),
        (b'{"tpot_ms": 1e999}', "beyond what a float holds"),
        (b"[" * 100_000, "not JSON"),
        (b'{"isl": 1' + b"0" * 5000 + b"}", "not JSON"),
        (line().encode("utf-16"), "looks like UTF-16: save it as UTF-8"),
        (line().encode("utf-16-le"), "looks like UTF-16: save it as UTF-8"),
        (line().encode("utf-16-be"), "looks like UTF-16: save it as UTF-8"),
        (line().encode("utf-32"), "looks like UTF-32: save it as UTF-8"),
        (line().encode("utf-32-be"), "looks like UTF-32: save it as UTF-8"),
    ],
)
def test_a_line_that_cannot_be_read_is_skipped_with_its_number(text, message):
    good, bad = read_rows([line(), text])
    assert isinstance(good, MeasuredRow)
    assert isinstance(bad, Skipped)
    assert (bad.line, bad.reason) == (2, Reason.UNREADABLE)
    assert message in bad.message


def test_blank_lines_and_a_mark_of_the_byte_order_are_passed_over():
    answers = list(read_rows([b"\xef\xbb\xbf" + line().encode(), b"  ", b"", line(id="other").encode()]))
    assert [type(each) for each in answers] == [MeasuredRow, MeasuredRow]
    assert [each.line for each in answers] == [1, 4]


def test_the_same_line_twice_counts_once():
    first, second = read_rows([line(flag=None), json.dumps(dict(reversed(POINT.items())))])
    assert isinstance(first, MeasuredRow)
    assert isinstance(second, Skipped)
    assert second.reason == Reason.DUPLICATE


@pytest.mark.parametrize("flag", ["stalled", True])
def test_flagged_lines_are_read_where_they_are_asked_for(flag):
    (row,) = read_rows([line(flag=flag)], with_flagged=True)
    assert isinstance(row, MeasuredRow)


@pytest.mark.parametrize("flag", [False, None, "", "  "])
def test_no_flag_is_none_however_it_is_written(flag):
    assert isinstance(one(flag=flag), MeasuredRow)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line()[:-1] + ', "tpot_ms": 2.0}', "tpot_ms stands twice on the line: 20.0 and 2.0"),
        (line()[:-1] + ', "tpot_ms": 20.0}', "tpot_ms stands twice"),
        (line()[:-1] + ', "flags": {"page-size": 1, "page-size": 64}}', "page-size stands twice on the line: 1 and 64"),
    ],
)
def test_a_line_that_says_one_thing_twice_is_skipped(text, message):
    (skipped,) = read_rows([text])
    assert isinstance(skipped, Skipped)
    assert skipped.reason == Reason.BAD_VALUE
    assert message in skipped.message
    assert skipped.engine == "sglang"


FOR_PREDICT = {"argv": "--tp-size 8", "concurrency": 16, "tpot_ms": 20.0}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({**POINT, "engine": None}, "engine is missing: sglang, vllm or trtllm"),
        ({**POINT, "engine": " "}, "engine is missing: sglang, vllm or trtllm"),
        ({**POINT, "gpu": None}, "gpu is missing: e.g. h200"),
        ({**POINT, "world_tp": None}, "tp is missing: GPUs of one pipeline stage"),
        ({**POINT, "tpot_ms": None}, "tpot_ms is missing, and output_tok_s as well"),
        ({**POINT, "isl": None, "osl": None}, "isl and osl are missing"),
        ({}, "engine, model, gpu, isl, osl, concurrency, tp and tpot_ms are missing"),
        (
            FOR_PREDICT,
            "engine, model, gpu, isl, osl and tp are missing: a line for `tune predict --measured` leaves them to the "
            "command, here each line says them",
        ),
    ],
)
def test_all_that_a_line_lacks_is_said_in_one_sentence(said, message):
    (skipped,) = read_rows([json.dumps(said)])
    assert isinstance(skipped, Skipped)
    assert (skipped.reason, skipped.message) == (Reason.BAD_VALUE, message)


def test_a_skipped_line_says_what_it_was_about_as_far_as_that_is_known():
    skipped = one(tpot_ms=None, gpu=7)
    assert isinstance(skipped, Skipped)
    assert (skipped.engine, skipped.model, skipped.gpu) == ("sglang", "deepseek-ai/DeepSeek-R1", "")


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())


OTHERS = ["output_tok_s", "flags", "mode", "disagg", "flag", "layout_status", "client", "date", "used_for_fitting"]
OTHERS += ["kv_cache_dtype", "mem_fraction_static", "random_range_ratio", "tp"]


@given(st.dictionaries(st.sampled_from([*sorted(POINT), *OTHERS]), VALUES, max_size=3))
def test_no_value_ends_the_reading(changes):
    (answer,) = read_rows([json.dumps({**POINT, **changes})])
    assert isinstance(answer, MeasuredRow | Skipped)


FLAGS = ["page-size", "mem-fraction-static", "max-running-requests", "kv-cache-dtype", "enable-dp-attention", "pp-size"]


@given(st.dictionaries(st.sampled_from(FLAGS) | st.text(max_size=5), VALUES, max_size=3))
def test_no_flag_ends_the_reading(flags):
    (answer,) = read_rows([line(flags=flags)])
    assert isinstance(answer, MeasuredRow | Skipped)


@given(st.binary(max_size=60).filter(lambda data: bool(data.strip())))
def test_no_bytes_end_the_reading(data):
    (answer,) = read_rows([data])
    assert isinstance(answer, Skipped)


def test_every_bundled_line_is_read_or_says_why_not():
    answers = list(read_rows(bundled_lines()))
    reasons = {each.reason.split(":")[0] for each in answers if isinstance(each, Skipped)}
    assert reasons <= {"flagged", Reason.UNCLEAR_LAYOUT}
    assert sum(isinstance(each, Skipped) for each in answers) < 0.15 * len(answers)


def test_bundled_lines_name_their_sources_and_are_no_repeats():
    lines = [json.loads(each) for each in bundled_lines()]
    assert all(each["source"].startswith(("github:", "https://github.com/")) for each in lines)
    assert all(value is not None for each in lines for value in each.values())


def test_a_bundled_line_counts_the_requests_that_its_name_says_or_is_set_aside():
    """Some sources count them per rank, others in all."""
    named = [(re.search(r"_c(\d+)_", each["id"]), each) for each in map(json.loads, bundled_lines())]
    differ = [each for match, each in named if match and int(match[1]) != each["concurrency"]]
    assert len(differ) >= 9
    assert all(each.get("flag") or each.get("layout_status") == "columns disagree" for each in differ)
    assert any(each.get("flag") == "concurrency is per rank" for each in differ)


def test_of_no_bundled_row_that_is_compared_most_requests_wait():
    """By Little's law, from its own times."""
    for row in bundled_rows():
        if row.tpot_s is not None and row.ttft_s is not None:
            running_s = row.output_tokens * row.tpot_s
            assert running_s > 0.5 * (row.ttft_s + running_s), row


def test_no_bundled_line_that_is_set_aside_is_said_to_be_fitted_on():
    lines = [json.loads(each) for each in bundled_lines()]
    assert not any(each.get("used_for_fitting") and (each.get("flag") or each.get("layout_status")) for each in lines)
    assert all(row.layout.attn_dp_size == 1 for row in bundled_rows() if row.used_for_fitting)


def test_bundled_rows_hold_both_rows_for_fitting_and_others():
    rows = bundled_rows()
    sglang = [row for row in rows if row.engine is ServingEngine.SGLANG]
    assert all(row.model.is_moe and row.is_legal for row in rows)
    assert len([row for row in sglang if row.used_for_fitting]) >= 70
    assert len([row for row in sglang if not row.used_for_fitting and row.tpot_s is not None]) >= 30
    alone = [row for row in rows if row.tpot_s is None]
    assert len(alone) >= 45
    assert not any(row.used_for_fitting for row in alone)
