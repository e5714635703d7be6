"""What of a launch the memory model does not count."""

import shlex

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.layout import Layout
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.options import option_setting
from search_spaces.sglang.resolution import resolution_of
from search_spaces.sglang.target import Target
from search_spaces.sglang.uncounted import Effect, Part, Uncounted
from search_spaces.sglang.uncounted_environment import ENVIRONMENT
from search_spaces.sglang.uncounted_memory import OPTIONS, uncounted_memory
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.verdict import Stage

VERSIONS = [EngineVersion(NEWEST.major, NEWEST.minor, patch) for patch in range(OLDEST.patch, NEWEST.patch + 1)]


def found(
    flags: str = "",
    model: str = "qwen3-30b-a3b",
    gpu: str = "h100",
    version: str = "0.5.23",
    env: dict[str, str] | None = None,
) -> tuple[Uncounted, ...]:
    release = EngineVersion.parse(version)
    parsed = from_argv(shlex.split(flags), release)
    target = Target(model=load_model(model), gpu=load_gpu(gpu))
    effective = resolution_of(parsed.layout, target, release).effective
    return uncounted_memory(parsed.others, parsed.layout, effective, target, release, env or {})


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_one_of_the_parser_and_none_of_the_layout(option) -> None:
    assert any(option_setting(option.name, version) for version in VERSIONS)
    assert option.name not in vars(Layout())
    assert option.source
    assert option.stages


def test_a_plain_launch_leaves_nothing_uncounted() -> None:
    for model in ("qwen3-30b-a3b", "kimi-k2.6", "deepseek-v3", "qwen3.5-35b-a3b", "gpt-oss-120b", "gemma-4-26b-a4b"):
        assert found("--tp-size 2 --mem-fraction-static 0.9 --kv-cache-dtype fp8_e4m3", model) == ()


def test_offloading_to_the_cpu_frees_no_more_than_it_says() -> None:
    (offload,) = found("--cpu-offload-gb 40")
    assert (offload.words, offload.effect) == ("--cpu-offload-gb 40", Effect.FREES)
    assert (offload.stages, offload.most_bytes) == ({Stage.WEIGHTS, Stage.KV_POOL}, 40 * 2**30)


@pytest.mark.parametrize(
    "flags",
    [
        "--cpu-offload-gb 0",
        "--offload-group-size -1",
        "--load-format auto",
        "--load-format dummy",
        "--model-impl sglang",
        "--json-model-override-args '{}'",
        "--kv-canary none",
        "--weight-cache-mode off",
        "--quantization unquant",
        "--dtype bfloat16",
        "--swa-full-tokens-ratio 0.5",  # no sliding window
        "--mamba-full-memory-ratio 0.5",  # no states
        "--language-only",  # sees nothing
        "--enable-hierarchical-cache --hicache-ratio 2",  # in CPU memory
        "--enable-memory-saver --enable-weights-cpu-backup",  # copies beside those on the GPU
        "--delete-ckpt-after-loading --weight-loader-disable-mmap",
    ],
)
def test_values_that_move_nothing_are_not_told(flags: str) -> None:
    assert found(flags) == ()


def test_what_concerns_only_some_models_is_told_of_those() -> None:
    assert [each.words for each in found("--swa-full-tokens-ratio 0.5", "gpt-oss-120b")] == [
        "--swa-full-tokens-ratio 0.5"
    ]
    assert [each.words for each in found("--max-mamba-cache-size 64 --language-only", "qwen3.5-35b-a3b")] == [
        "--max-mamba-cache-size 64",
        "--language-only",
    ]


def test_fp8_made_of_a_plain_checkpoint_frees_memory_only_after_loading() -> None:
    """fp8.py:655 builds the weight in the model's own type, :1151 quantises it after loading."""
    (online,) = found("--quantization fp8")
    assert (online.effect, online.stages) == (Effect.FREES, {Stage.KV_POOL})
    (int8,) = found("--quantization w8a8_int8")  # w8a8_int8.py:188 builds it as INT8
    assert int8.stages == {Stage.WEIGHTS, Stage.KV_POOL}


def test_a_checkpoint_in_the_scheme_that_is_named_is_counted_as_it_is() -> None:
    assert found("--quantization fp8", "qwen3-30b-a3b-fp8") == ()
    assert found("--quantization modelopt_fp4", "deepseek-v3-nvfp4", "b200") == ()
    assert found("--quantization nvfp4_online", "deepseek-v3", "b200")[0].stages >= {Stage.WEIGHTS}


def test_a_wider_type_adds_and_a_narrower_one_frees() -> None:
    (wide,) = found("--dtype float32")
    assert wide.effect is Effect.ADDS


def test_torchao_is_told_of_the_releases_that_have_it() -> None:
    assert found("--torchao-config int4wo-128", version="0.5.17")[0].stages == {Stage.KV_POOL}
    assert option_setting("torchao_config", EngineVersion.parse("0.5.18")) is None


def test_environment_variables_count_where_they_are_on() -> None:
    assert found(env={"SGLANG_ENABLE_EMBED_REPLICATION": "0", "HOME": "/root"}) == ()
    on = {"SGLANG_ENABLE_EMBED_REPLICATION": "true"}
    assert found(env=on) == ()  # one rank holds all of it anyway
    (embedding,) = found("--tp-size 2", env=on)
    assert embedding.effect is Effect.ADDS
    assert len({(each.name, each.part) for each in ENVIRONMENT}) == len(ENVIRONMENT)


def test_what_goes_to_the_cpu_means_nothing_on_a_cpu() -> None:
    assert found("--cpu-offload-gb 40 --device cpu", gpu="cpu") == ()
    assert len(found("--cpu-offload-gb 40 --device cpu")) == 2


def test_an_option_says_what_it_moves() -> None:
    """What only divides the KV cache cannot make up for weights."""
    (offload,) = found("--cpu-offload-gb 40")
    (windows,) = found("--swa-full-tokens-ratio 0.5", "gpt-oss-120b")
    (device,) = found("--device cpu")
    assert (offload.part, windows.part, device.part) == (Part.WEIGHTS, Part.CACHE, Part.SERVER)
    assert [each.is_another_server for each in (offload, windows, device)] == [False, False, True]


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        ("--encoder-only", "qwen3-235b-a22b"),  # pd_disaggregation_hook.py:352
        ("--enable-hisparse", "deepseek-v3.2"),  # hisparse_hook.py:80: not without --disable-radix-cache
        ("--enable-hisparse --disable-radix-cache", "qwen3-30b-a3b"),
        ("--enable-kv-cache-sharding", "qwen3-30b-a3b"),  # kv_shard_hook.py:31: prefill servers
        ("--kt-weight-path /w", "llama-3.1-70b"),
        ("--enable-paged-experts --paged-experts-num-resident 16 --tp-size 2", "qwen3-30b-a3b"),
        ("--load-format expert_pack", "qwen3-30b-a3b"),
        ("--swa-full-tokens-ratio 0.1 --disable-hybrid-swa-memory", "qwen3-30b-a3b"),
    ],
)
def test_what_the_engine_refuses_or_has_nothing_for_is_not_told(flags: str, model: str) -> None:
    assert found(flags, model) == ()


def test_a_wider_type_grows_weights_at_least_by_the_ratio_of_bytes() -> None:
    (wide,) = found("--dtype float32")
    assert (wide.least_growth, wide.decides) == (2.0, True)
    assert found("--dtype float32", "qwen3-30b-a3b-fp8")[0].least_growth == 1.0


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("--cpu-offload-gb 40", True),
        ("--quantization fp8", True),
        ("--dtype float32", True),
        ("--device cpu", True),
        ("--enable-lora", True),
        ("--load-format gguf", True),
        ("--load-format fastsafetensors", False),  # how weights are read
        ("--kv-canary log", False),
        ("--cuda-graph-config '{}'", False),
    ],
)
def test_it_is_known_whether_steps_take_another_time(flags: str, changes: bool) -> None:
    (each,) = found(flags)
    assert each.changes_times is changes
