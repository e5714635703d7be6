"""`tune check` and `tune space` as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine_support.environment import ENVIRONMENT

STORY = ("--model", "kimi-k2.6", "--cluster", "8xrtx-pro-6000")


def tune(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(__file__).parent / 'no_gpu'}:{Path(sys.executable).parent}:{os.defpath}"
    return subprocess.run(
        [sys.executable, "-m", "tuner", *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": path, **env},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def checked(*words: str, code: int | None = None, **options: str) -> dict[str, Any]:
    done = tune("check", "--json", *words, **options)
    assert code is None or done.returncode == code, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_exit_code_tells_legal_adjusted_and_illegal_apart_from_words_that_cannot_be_used() -> None:
    assert tune("check", *STORY, "--", "--tp", "8", "--mem-fraction-static", "0.94").returncode == 0
    assert (
        tune("check", *STORY, "--", "--tp", "8", "--attn-dp-size", "2", "--mem-fraction-static", "0.9").returncode == 0
    )
    assert tune("check", *STORY, "--", "--tp", "8", "--ep", "3").returncode == 3
    assert tune("check", *STORY, "--", "--tp", "4", "--ep", "2").returncode == 3
    assert tune("check", *STORY, "--", "hello").returncode == 2
    assert tune("check", "--model", "kimi-k9", "--", "TP8").returncode == 2
    assert tune("check").returncode == 2


def test_the_report_is_on_stdout_and_what_was_assumed_on_stderr() -> None:
    done = tune("check", "--", "TP8 mem0.9")
    assert done.stdout.startswith("legal")
    assert "no model is named" in done.stderr
    assert "8xrtx-pro-6000" in done.stderr
    assert tune("check", *STORY, "--", "TP8 mem0.9").stderr == ""


def test_a_pipe_gets_plain_text() -> None:
    assert "\x1b[" not in tune("check", *STORY, "--", "TP4 EP2", FORCE_COLOR="1").stdout


def test_tp4_ep2_on_eight_cards_is_told_what_it_would_do_and_what_was_probably_meant() -> None:
    done = tune("check", *STORY, "--", "TP4 EP2")
    assert done.returncode == 3
    for said in (
        "illegal at weight load",
        "4 of 8 GPUs stay idle",
        "--tp-size 8 --ep-size 2",
        "four-way tensor parallel experts in each of two groups",
        "--tp-size 8 --attn-dp-size 2 --ep-size 2",
        "[0,2][1,3]",
    ):
        assert said in done.stdout
    told = checked("--", "TP4 EP2 on 8", code=3)
    assert (told["cluster"], told["fits"]) == ("8xrtx-pro-6000", False)
    assert [meant["flags"].split(" --mem")[0] for meant in told["meant"]] == [
        "--tp-size 8 --ep-size 2",
        "--tp-size 8 --attn-dp-size 2 --ep-size 2",
    ]
    assert all(meant["verdict"] != "illegal" for meant in told["meant"])


NVFP4 = "glm-5-nvfp4"


def test_a_script_called_tp8_ep8_is_told_what_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "tp8_ep8.sh"
    script.write_text(
        "#!/bin/bash\nTP=8\nexport SGLANG_X=1\n"
        'python3 -m sglang.launch_server --model-path /models/DeepSeek-V3 --tp-size $TP \\\n  --port $PORT "$@"\n'
    )
    told = checked("--cluster", "8xh200", "--", str(script), code=0)
    assert (told["model"], told["effective"]["ep_size"]) == ("deepseek-v3", 1)
    assert "tp8_ep8" in told["notes"][0]
    assert "EP1" in told["notes"][0]
    assert "--ep-size" in told["notes"][0]


def test_the_same_script_with_a_spanning_backend_is_what_it_says_under_the_versions_of_its_time(tmp_path: Path) -> None:
    script = tmp_path / "tp8_ep8.sh"
    script.write_text(
        "sglang serve m --tp-size 8 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass\n"
    )
    where = ("--cluster", "8xb200", "--model", NVFP4)
    old = checked(*where, "--engine-version", "0.5.12", "--", str(script), code=0)
    new = checked(*where, "--", str(script), code=3)
    assert old["effective"]["ep_size"] == 8
    assert any("only because --moe-a2a-backend flashinfer makes it so" in note for note in old["notes"])
    assert new["violations"][0]["rule"] == "flashinfer.attn_dp"
    assert {each["outcome"].split(":")[0].split(" ")[0] for each in new["versions"]} == {"adjusted", "illegal"}


def test_a_launch_on_stdin_names_its_own_model() -> None:
    command = "docker run --gpus all -e A=1 lmsysorg/sglang python3 -m sglang.launch_server \\\n --model-path zz/Qwen3-30B-A3B-FP8 --tp 8\n"
    told = checked("--cluster", "8xh100", "--", "-", stdin=command, code=3)
    assert told["model"] == "qwen3-30b-a3b-fp8"
    assert told["suggestions"][:2] == ["--tp-size 8 --ep-size 4", "--tp-size 8 --ep-size 8"]


def test_a_mistyped_flag_gets_the_nearest_one() -> None:
    done = tune("check", *STORY, "--", "--tp-sizee", "8")
    assert done.returncode == 3
    assert "--tp-size" in done.stdout
    assert "unrecognized arguments: --tp-sizee 8" in done.stdout


def test_launch_flags_before_the_dashes_are_told_where_they_go() -> None:
    done = tune("check", "--tp-size", "8")
    assert done.returncode == 2
    assert "come after --" in done.stderr


def test_several_launches_in_one_script_are_each_answered(tmp_path: Path) -> None:
    script = tmp_path / "two.sh"
    script.write_text("sglang serve m --tp 8 &\nsglang serve m --tp 8 --ep 3 &\n")
    done = tune("check", "--json", "--model", "deepseek-v3", "--cluster", "8xh200", "--", str(script))
    assert done.returncode == 3
    assert [told["verdict"] for told in json.loads(done.stdout)] == ["legal", "illegal"]


def test_a_batch_is_answered_from_a_file_or_a_pipe(tmp_path: Path) -> None:
    line = {"id": 1, "model": "deepseek-v3", "gpu": "h200", "n_gpus": 8, "flags": {"tp-size": 8}}
    file = tmp_path / "launches.jsonl"
    file.write_text(json.dumps(line) + "\n")
    from_file, from_pipe = tune("check", "--batch", str(file)), tune("check", "--batch", "-", stdin=json.dumps(line))
    assert (from_file.returncode, from_file.stderr) == (0, "")
    assert json.loads(from_file.stdout)["verdict"] == "legal"
    assert from_file.stdout == from_pipe.stdout
    assert tune("check", "--batch", str(tmp_path / "none.jsonl")).returncode == 2
    assert tune("check", "--batch", str(file), "--", "TP8").returncode == 2
    bad = tune("check", "--batch", "-", stdin="{\n" + json.dumps(line))
    assert bad.returncode == 2
    assert [("error" in json.loads(told)) for told in bad.stdout.splitlines()] == [True, False]


def test_the_space_is_counted_listed_and_its_refusals_explained() -> None:
    done = tune("space", *STORY, "--limit", "5")
    assert done.returncode == 0
    first = done.stdout.splitlines()[0]
    assert "legal layouts of kimi-k2.6 on 8xrtx-pro-6000" in first
    assert "more: --all shows them" in done.stdout
    assert "attn_dp.with_dp" in done.stdout
    document = json.loads(tune("space", *STORY, "--json").stdout)
    assert first.startswith(f"{len(document['layouts'])} legal layouts")
    assert document["considered"] >= len(document["layouts"]) + sum(r["count"] for r in document["refused"].values())
    assert all(refused["example"] for refused in document["refused"].values())
    pinned = json.loads(
        tune("space", *STORY, "--pin", "ep_size=8", "--pin", "mem_fraction_static=0.94", "--json").stdout
    )
    assert all("--ep-size 8" in layout["flags"] or "a2a" in layout["flags"] for layout in pinned["layouts"])
    assert any(layout["fits"] for layout in pinned["layouts"])
    assert tune("space", "--pin", "width=8").returncode == 2


def test_a_piped_table_is_whole_and_what_fits_comes_first() -> None:
    done = tune(
        "space", "--model", "deepseek-v32", "--cluster", "8xh200", "--pin", "cuda_graph_max_bs_decode=128", "--all"
    )
    lines = done.stdout.splitlines()
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    assert any("--attn-dp-size 8 --moe-a2a-backend deepep --cuda-graph-max-bs-decode 128" in line for line in lines)
    column = next(line for line in lines if line.startswith("layout")).index("fits")
    fits = [line[column : column + 3] for line in lines if line.startswith("TP")]
    assert fits == sorted(fits, key=lambda word: word != "yes")
    assert len(set(fits)) > 1


def test_a_refusal_says_which_flag_would_cure_it() -> None:
    said = " ".join(tune("space", "--model", "deepseek-v32", "--cluster", "8xh200", "--limit", "1").stdout.split())
    assert "legal with --pin cuda_graph_max_bs_decode=128" in said
    assert "legal with --pin deepep_mode=low_latency" in said


def test_every_listed_layout_is_judged_legal_again() -> None:
    document = json.loads(tune("space", "--model", "qwen3-30b-a3b-fp8", "--cluster", "4xh100", "--json").stdout)
    lines = [
        json.dumps({"id": n, "model": "qwen3-30b-a3b-fp8", "gpu": "h100", "n_gpus": 4, "argv": layout["flags"]})
        for n, layout in enumerate(document["layouts"])
    ]
    told = [json.loads(line) for line in tune("check", "--batch", "-", stdin="\n".join(lines)).stdout.splitlines()]
    assert {answer["argument_stages"] for answer in told} <= {"legal", "adjusted"}
    assert [answer["fits"] for answer in told] == [layout["fits"] for layout in document["layouts"]]


def test_the_rules_are_listed_with_their_source_for_each_version() -> None:
    newest = json.loads(tune("space", "--rules", "--json").stdout)
    oldest = json.loads(tune("space", "--rules", "--json", "--engine-version", "0.5.9").stdout)
    assert len(newest) > 100
    assert all(rule["source"] for rule in newest)
    assert {rule["rule"] for rule in newest} != {rule["rule"] for rule in oldest}
    assert "ep.divides" in tune("space", "--rules").stdout


@pytest.mark.engine
def test_the_installed_engine_is_asked_and_heard(engine_python: str) -> None:
    words = ("--installed", "--engine-command", f"{engine_python} -m sglang.launch_server", "--model", "qwen3-30b-a3b")
    env = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parents[2]}"}
    for flags, stage in (("--tp-size 4 --ep-size 2", None), ("--tp-size 4 --ep-size 3", "topology check")):
        told = checked(*words, "--cluster", "4xcpu", "--", *flags.split(), **env)
        assert told["installed"]["stage"] == stage
        assert not any(each["name"] == "verdict" for each in told["installed"]["differences"])
        assert told["installed"]["decides"]
    elsewhere = checked(*words, "--cluster", "8xh200", "--", "--tp-size", "4", **env)
    assert not elsewhere["installed"]["decides"]


def test_an_engine_that_cannot_be_asked_is_said_in_one_line(tmp_path: Path) -> None:
    done = tune(
        "check", "--installed", "--engine-command", f"{sys.executable} -m sglang.launch_server", *STORY, "--", "TP8"
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "SGLang" in done.stderr


def test_what_the_engine_does_not_notice_is_said_in_a_sentence() -> None:
    told = tune("check", *STORY, "--", "--tp-size", "0").stdout
    assert told.startswith("illegal, not detected by the engine: ")
    assert "at not detected" not in told
    refused = tune("check", *STORY, "--", "--tp-size", "-1").stdout
    assert refused.startswith("illegal at scheduler start: ")
    assert "0 is not a rank of -1" in refused


def test_a_release_without_flags_for_a_layout_refuses_it() -> None:
    told = checked("--engine-version", "0.5.12", *STORY, "--", "TP4 DP2 ADP2", code=3)
    assert next(broken["rule"] for broken in told["violations"]) == "flag.absent"


def test_a_launch_of_any_size_is_answered_at_once() -> None:
    done = tune("check", "--", "--tp-size", "1000000000")
    assert done.returncode == 2
    assert "no launch is taken to have more than 4096" in done.stderr
    assert tune("check", *STORY, "--", "--tp", "8", "--pp-size", "1000000").returncode == 3


def test_a_pin_that_nothing_legal_has_is_told_with_its_rule() -> None:
    done = tune("space", *STORY, "--pin", "mem_fraction_static=5")
    assert done.returncode == 3
    assert "all are refused by mem_fraction." in done.stderr
