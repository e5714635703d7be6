from __future__ import annotations

import json
from typing import Any

import pytest

from search_spaces.errors import UserError
from search_spaces.sglang.versions import EngineVersion
from tuner.check_job import CheckRequest, run
from tuner.commands.check import check


def told(capsys: pytest.CaptureFixture[str], *words: str, cluster: str = "8xh200", **request: Any) -> dict[str, Any]:
    run(CheckRequest(words=words, cluster=cluster, **request), json_output=True)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(
    "words",
    [
        "--tp eight",
        "--tp many",
        "--tp8",
        "--tp 8 --enable-deepep-moe --deepep-mode normal",
        "--tensor-parallel-size 8 --gpu-memory-utilization 0.9 --max-model-len 32768 --enable-expert-parallel",
        "--tp 8 \u2013-trust-remote-code \u2014mem-fraction-static 0.9",
        "--xyzzy",
    ],
)
def test_flags_that_cannot_be_read_get_a_legal_layout_where_the_model_has_one(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = told(capsys, *words.split(), model="deepseek-v3.2")
    assert refused["stage"] == "argument parsing"
    assert refused["suggestions"]
    for flags in refused["suggestions"]:
        again = told(capsys, *flags.split(), model="deepseek-v3.2")
        assert (again["verdict"] != "illegal", again["fits"]) == (True, True), flags


def test_an_images_release_is_whose_rules_apply_unless_another_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = "docker run --gpus all lmsysorg/sglang:v0.5.9 sglang serve deepseek-ai/DeepSeek-V3.2 --tp 8"
    assert told(capsys, words)["engine_version"] == "0.5.9"
    assert told(capsys, words, version=EngineVersion(0, 5, 20))["engine_version"] == "0.5.20"


def test_lines_of_the_newest_release_are_said_to_be_its(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tp", "8", "--ep", "3")
    notes = [
        " ".join(told(capsys, *words, model="deepseek-v3", version=version)["notes"])
        for version in (EngineVersion(0, 5, 9), EngineVersion(0, 5, 23))
    ]
    assert ["lines are those of SGLang 0.5.23" in note for note in notes] == [True, False]


def test_a_server_that_sees_half_the_gpus_is_judged_on_those(capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, "CUDA_VISIBLE_DEVICES=0,1,2,3 sglang serve deepseek-ai/DeepSeek-V3.2 --tp 8")
    assert document["cluster"] == "4xh200"
    assert document["violations"][0]["rule"] == "cluster.too_small"
    assert any("4 of 8" in note for note in document["notes"])


def test_a_launch_for_more_nodes_than_the_cluster_has_is_told_which_cluster_it_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = told(capsys, "--nnodes", "2", "--tp", "16", model="deepseek-v3")
    assert any("--cluster 2x8xh200" in note for note in document["notes"])
    assert not told(capsys, "--nnodes", "2", "--tp", "16", model="deepseek-v3", cluster="2x8xh200")["notes"]


@pytest.mark.parametrize(
    ("path", "is_noted"),
    [
        ("deepseek-ai/DeepSeek-V3.2", True),
        ("/models/DeepSeek-V3.2", True),
        ("/models/Kimi-K2.6", False),
        ("/mnt/a/model", False),
    ],
)
def test_a_launch_that_names_another_model_than_the_one_said_is_noted(
    path: str, is_noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    document = told(capsys, "--model-path", path, "--tp", "8", model="kimi-k2.6")
    assert document["model"] == "kimi-k2.6"
    assert any(path in note for note in document["notes"]) == is_noted


@pytest.mark.parametrize(
    "path", ["/data/hf/models--moonshotai--Kimi-K2.6/snapshots/0123abcd", "/models/Kimi-K2.6", "/models/Kimi-K2___6/"]
)
def test_a_path_of_another_machine_is_known_by_the_models_name_in_it(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(CheckRequest(words=("--model-path", path, "--tp", "8"), cluster="8xb200"), json_output=True)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["model"] == "kimi-k2.6"
    assert "taken for kimi-k2.6" in captured.err


@pytest.mark.parametrize("words", [["--config", "a.yaml"], ["--config=a.yaml", "--tp", "8"]])
def test_a_model_that_only_a_file_names_is_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="--model"):
        told(capsys, *words)
    assert told(capsys, *words, "--model-path", "deepseek-ai/DeepSeek-V3")["model"] == "deepseek-v3"


@pytest.mark.parametrize(
    "arguments",
    [
        {"words": ["--tp", "8"], "model": "nonsense-9b"},
        {"words": ["hello"]},
        {"words": ["TP8"], "cluster": "many"},
        {"words": ["TP8"], "engine_version": "0.5.24"},
    ],
)
def test_words_that_cannot_be_used_are_a_document_too(
    arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as refused:
        check(**arguments, json_output=True)
    assert json.loads(capsys.readouterr().out) == {"error": str(refused.value)}
