"""Memory is judged only as far as what the launch says is counted."""

import json
import shlex

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.verdict import Stage, Status
from tuner.check_batch import answers
from tuner.check_document import document
from tuner.check_memory import uncounted_notes
from tuner.check_text import outcome, report
from tuner.checked_launch import CheckedLaunch, check_launch
from tuner.checking import Checked, Server, check_anew, check_flags
from tuner.launch_words import read_words


def server(model: str = "qwen3-235b-a22b", cluster: str = "4xh100", **env: str) -> Server:
    return Server(model=load_model(model), cluster=parse_cluster(cluster), env=env)


def check(flags: str, *where: str, **env: str) -> Checked:
    return check_flags(shlex.split(flags), server(*where, **env))


def launch(words: str, *where: str) -> CheckedLaunch:
    (asked,) = read_words(shlex.split(words))
    return check_launch(asked, server(*where))


def notes(words: str, *where: str) -> str:
    return "\n".join(launch(words, *where).notes)


def rules(checked: Checked) -> list[str]:
    return [broken.rule for broken in checked.verdict.violations]


def test_weights_that_go_to_the_cpu_make_no_launch_illegal() -> None:
    """30.4 GiB too much on each GPU, of which 40 may be kept in CPU memory."""
    plain, offloaded = check("--tp-size 4"), check("--tp-size 4 --cpu-offload-gb 40")
    assert (rules(plain), plain.fits) == (["memory.weights"], False)
    assert (offloaded.verdict.status, offloaded.fits) == (Status.LEGAL, None)
    assert document(offloaded)["fits"] is None
    assert document(offloaded)["kv_tokens"] is None
    assert "memory not judged" in outcome(offloaded)


def test_it_is_said_why_memory_is_not_judged_and_what_would_be_missing() -> None:
    told = notes("--tp-size 4 --cpu-offload-gb 40")
    assert "--cpu-offload-gb 40 keeps up to 40 GiB of each GPU's weights in CPU memory, which is not counted" in told
    assert "memory is not judged; without it, weights must fit on one GPU: 109.54 GiB do not fit" in told
    text = "\n".join(map(str, report(launch("--tp-size 4 --cpu-offload-gb 40"))))
    assert text.startswith("legal, memory not judged: --tp-size 4 |")
    assert "as they are counted: not judged" in text
    assert "tokens of KV cache" not in text


def test_offloading_less_than_is_missing_does_not_help() -> None:
    checked = check("--tp-size 4 --cpu-offload-gb 1")
    assert (rules(checked), checked.fits) == (["memory.weights"], False)
    assert "--cpu-offload-gb 1 keeps up to 1 GiB of each GPU's weights in CPU memory, which is not enough" in notes(
        "--tp-size 4 --cpu-offload-gb 1"
    )


def test_offloading_about_what_is_missing_is_left_open() -> None:
    """Up to one tensor more than the limit goes."""
    assert check("--tp-size 4 --cpu-offload-gb 30").fits is None


def test_freed_weights_leave_what_graphs_need() -> None:
    checked = check("--mem-fraction-static 0.99 --cpu-offload-gb 10", "qwen3-30b-a3b", "1xh100")
    assert (rules(checked), checked.fits) == (["memory.graphs"], False)


def test_rules_still_decide_where_memory_is_not_judged() -> None:
    checked = check("--tp-size 4 --ep-size 3 --cpu-offload-gb 40")
    assert checked.verdict.violations[0].rule == "ep.divides"
    assert checked.suggestions_fit is None
    assert checked.verdict.suggestions
    for near in checked.verdict.suggestions:
        again = check_anew(checked, near)
        assert again.verdict.is_legal
        assert again.fits is None


def test_suggestions_count_on_what_frees_the_kv_cache_only_where_nothing_fits_without_it() -> None:
    flags = "--mem-fraction-static 0.7 --ep-size 3 --quantization"
    online = check(f"{flags} fp8", "qwen3-30b-a3b", "1xh100")
    assert online.verdict.violations[0].stage is Stage.PUBLISH
    assert online.verdict.suggestions
    for near in online.verdict.suggestions:
        again = check_anew(online, near)
        assert again.verdict.is_legal
        assert again.fits is online.suggestions_fit


def test_the_other_flags_count_in_every_release_and_every_reading() -> None:
    assert launch("--tp-size 4 --cpu-offload-gb 40").history[-1].outcome == "legal"
    assert launch("TP4 --cpu-offload-gb 40").checked.fits is None
    assert rules(launch("TP4").checked) == ["memory.weights"]


def test_weights_quantised_after_loading_have_to_fit_first() -> None:
    checked = check("--tp-size 4 --quantization fp8")
    assert (rules(checked), checked.fits) == (["memory.weights"], False)
    told = notes("--tp-size 4 --quantization fp8")
    assert "only once all of them are loaded as they are stored, which does not help at weight load" in told


def test_weights_quantised_after_loading_leave_room_for_a_kv_cache() -> None:
    """56.9 GiB of BF16 are less than the GPU has, and more than half of it."""
    where = ("qwen3-30b-a3b", "1xh100")
    plain, online = (check(f"--mem-fraction-static 0.7 {more}", *where) for more in ("", "--quantization fp8"))
    assert (rules(plain), plain.fits) == (["memory.kv_pool"], False)
    assert (online.verdict.status, online.fits) == (Status.LEGAL, None)


def test_int8_made_while_loading_may_fit_at_once() -> None:
    assert check("--quantization w8a8_int8", "llama-3.1-70b", "1xh100").fits is None


def test_what_adds_memory_is_said_where_it_fits() -> None:
    where = ("qwen3-30b-a3b", "2xh100")
    flags = "--tp-size 2 --enable-lora --max-lora-rank 64 --lora-target-modules all"
    assert check(flags, *where).fits is True
    assert "--enable-lora loads adapters, which is not counted: it may not fit" in notes(flags, *where)
    assert rules(check("--tp-size 4 --enable-lora --max-lora-rank 64 --lora-target-modules all")) == ["memory.weights"]


def test_nothing_is_said_to_fit_under_another_configuration() -> None:
    """Fewer layers or more: they are not read."""
    override = """--json-model-override-args '{"num_hidden_layers": 4}'"""
    assert check(f"--tp-size 4 {override}").fits is None
    assert check(f"--tp-size 2 {override}", "qwen3-30b-a3b", "2xh100").fits is None
    assert check(f"--tp-size 4 {override}").verdict.is_legal
    assert "--config names a file of settings, which is not counted" in notes("--tp-size 4 --config server.yaml")


_TP4 = ("qwen3-235b-a22b", "4xh100", "--tp-size 4")  # lacks 30.4 GiB of 109.5 GiB of weights
_ONE_H100 = ("qwen3-30b-a3b", "1xh100")
_PAGED = "--enable-paged-experts --paged-experts-num-resident"
_ALMOST = ("deepseek-v4-flash", "4xh200", "--tp-size 4 --mem-fraction-static 0.418")  # lacks KV cache alone


@pytest.mark.parametrize(
    ("model", "cluster", "flags", "option", "rule"),
    [
        (*_TP4, "--kt-weight-path /w", "memory.weights"),
        (*_TP4, "--load-format gguf", "memory.weights"),
        (*_TP4, "--modelopt-quant fp8", "memory.weights"),
        (*_TP4, "--device cpu", "memory.weights"),
        ("deepseek-v3", "4xh200", "--tp-size 4", "--offload-group-size 4 --offload-num-in-group 2", "memory.weights"),
        ("qwen3-235b-a22b-fp8", "1xh200", "", f"{_PAGED} 16", "memory.weights"),
        ("kimi-k2.6", "4xh100", "--tp-size 4", "--encoder-only", "memory.weights"),
        (*_ONE_H100, "--mem-fraction-static 0.7", "--quantization fp8", "memory.kv_pool"),
        (*_ONE_H100, "--mem-fraction-static 0.7", "--cpu-offload-gb 1", "memory.kv_pool"),
        (*_ALMOST, "--swa-full-tokens-ratio 0.05", "memory.kv_pool"),
        ("kimi-k2.6", "8xrtx-pro-6000", "--tp-size 8", "--language-only", "memory.kv_pool"),
        (*_ONE_H100, "--mem-fraction-static 0.99", "--cuda-graph-config '{}'", "memory.graphs"),
    ],
)
def test_what_may_free_what_is_missing_leaves_it_open(
    model: str, cluster: str, flags: str, option: str, rule: str
) -> None:
    plain, freed = check(flags, model, cluster), check(f"{flags} {option}", model, cluster)
    assert (rules(plain), plain.fits) == ([rule], False)
    assert (rules(freed), freed.fits) == ([], None)
    assert freed.excused is not None
    assert freed.excused.rule == rule


@pytest.mark.parametrize(
    ("model", "cluster", "flags", "option", "rule"),
    [
        # what never touches weights, where these alone are too large
        ("qwen3-30b-a3b-fp8", "2xh100", "--tp-size 2 --mem-fraction-static 0.1", option, "memory.kv_pool")
        for option in (
            "--enable-dsa-cache-layer-split",
            "--enable-hisparse --disable-radix-cache",
            "--enable-kv-cache-sharding",
            "--enable-deepseek-v4-fp4-indexer",
        )
    ]
    + [
        ("gpt-oss-120b", "1xh100", "--mem-fraction-static 0.3", "--swa-full-tokens-ratio 0.1", "memory.kv_pool"),
        ("qwen3.5-35b-a3b", "1xh100", "--mem-fraction-static 0.5", "--mamba-ssm-dtype bfloat16", "memory.kv_pool"),
        ("deepseek-v4-flash", "4xh200", "--tp-size 4 --mem-fraction-static 0.2", "--swa-full-tokens-ratio 0.05",
         "memory.kv_pool"),
        # what frees too little
        (*_ONE_H100, "--mem-fraction-static 0.6", "--cpu-offload-gb 1", "memory.kv_pool"),
        (*_ONE_H100, "--mem-fraction-static 0.3", "--quantization fp8", "memory.kv_pool"),
        ("deepseek-v3", "4xh200", "--tp-size 4", "--offload-group-size 400 --offload-num-in-group 2", "memory.weights"),
        ("qwen3-235b-a22b-fp8", "1xh200", "", f"{_PAGED} 120", "memory.weights"),
        ("kimi-k2.6", "4xh100", "--tp-size 4", "--language-only", "memory.weights"),
        # what has nothing to move, or is refused
        ("kimi-k2.6", "4xh100", "--tp-size 4", "--language-model-only", "memory.weights"),
        (*_TP4, "--encoder-only", "memory.weights"),
        (*_TP4, "--load-format layered", "memory.weights"),
        (*_TP4, "--offload-group-size 4", "memory.weights"),
        (*_TP4, f"{_PAGED} 16", "memory.weights"),
        ("llama-3.1-70b", "1xh100", "", "--kt-weight-path /w", "memory.weights"),
        ("llama-3.1-70b", "1xh100", "", f"{_PAGED} 16", "memory.weights"),
        (*_TP4, "--model-impl transformers", "memory.weights"),
    ],
)  # fmt: skip
def test_what_cannot_free_what_is_missing_excuses_nothing(
    model: str, cluster: str, flags: str, option: str, rule: str
) -> None:
    checked = check(f"{flags} {option}", model, cluster)
    assert (rules(checked), checked.fits, checked.excused) == ([rule], False, None)


def test_the_kv_cache_is_sized_after_capture_only_where_attention_is_not_latent() -> None:
    """arg_groups/overrides.py:1791."""
    switch = {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}
    freed = check("--mem-fraction-static 0.99", *_ONE_H100, **switch)
    assert (rules(freed), freed.fits) == ([], None)
    latent = check("--tp-size 8 --mem-fraction-static 0.99", "deepseek-v3", "8xh200", **switch)
    assert (rules(latent), latent.fits) == (["memory.graphs"], False)


def test_what_is_not_judged_is_not_said_to_be_tight() -> None:
    open_ends = [
        check("--mem-fraction-static 0.99 --cuda-graph-config '{}'", *_ONE_H100),
        check("--mem-fraction-static 0.97 --device cpu", *_ONE_H100),
        check("--mem-fraction-static 0.7 --quantization fp8", *_ONE_H100),
    ]
    assert not any(checked.is_tight for checked in open_ends)
    assert "likely to run out" not in " ".join(map(outcome, open_ends))
    assert check("--mem-fraction-static 0.97", *_ONE_H100).is_tight


def test_weights_of_twice_the_bytes_are_counted() -> None:
    """113.7 GiB of FP32 on a card of 79.2 GiB; 56.9 GiB on each of two, with room that is not known."""
    wide, two = check("--dtype float32", *_ONE_H100), check("--tp-size 2 --dtype float32", "qwen3-30b-a3b", "2xh100")
    assert (rules(wide), wide.fits) == (["memory.weights"], False)
    assert "113.72 GiB do not fit into 79.15 GiB" in wide.verdict.violations[0].message
    assert (rules(two), two.fits) == ([], None)


def test_another_device_is_another_server() -> None:
    cpu = check("--device cpu", *_ONE_H100)
    assert (cpu.verdict.is_legal, cpu.fits, cpu.is_another_server) == (True, None, True)
    assert not check("", *_ONE_H100).is_another_server


def test_one_variable_is_told_once() -> None:
    fitting = Server(
        model=load_model("qwen3-30b-a3b"),
        cluster=parse_cluster("1xh100"),
        env={"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"},
    )
    assert len(uncounted_notes(check_flags([], fitting))) == 1


def test_a_smaller_format_of_the_same_model_is_named_where_it_fits() -> None:
    assert "qwen3-235b-a22b-fp8 would fit: 55.1 GiB of weights per GPU" in notes("--tp-size 4")
    sibling = check("--tp-size 4", "qwen3-235b-a22b-fp8")
    assert (sibling.verdict.is_legal, sibling.fits) == (True, True)


def test_no_format_is_named_that_is_refused_or_too_large_itself() -> None:
    assert "would fit" not in notes("--tp-size 2", "qwen3-235b-a22b", "2xh100")
    assert "would fit" not in notes("--tp-size 8", "glm-5", "8xh100")  # 744 GB in FP8, and no NVFP4 on Hopper
    assert "would fit" not in notes("--tp-size 4 --ep-size 3")
    assert "would fit" not in notes("--tp-size 8", "qwen3-235b-a22b", "8xh100")


def test_a_batch_says_the_same() -> None:
    asked = {"id": 1, "model": "qwen3-235b-a22b", "cluster": "4xh100"}
    lines = [
        json.dumps({**asked, "flags": {"tp-size": 4, "cpu-offload-gb": 40}}),
        json.dumps({**asked, "flags": {"tp-size": 4}}),
        json.dumps({**asked, "argv": "TP4 --cpu-offload-gb 40"}),
    ]
    offloaded, plain, notation = (each.fields for each in answers(lines))
    assert (offloaded["verdict"], offloaded["fits"]) == ("legal", None)
    assert "memory is not judged" in offloaded["notes"][0]
    assert (plain["verdict"], plain["fits"]) == ("illegal", False)
    assert "qwen3-235b-a22b-fp8 would fit" in plain["notes"][0]
    assert (notation["verdict"], notation["fits"]) == ("legal", None)
