from __future__ import annotations

import io
import os
import shlex
from pathlib import Path

import pytest

from search_spaces.errors import MalformedError, UserError
from search_spaces.layout import Layout
from search_spaces.sglang.flag_errors import FlagError
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner.launch_words import Asked, read_words


def asked(*words: str) -> Asked:
    (only,) = read_words(words)
    return only


@pytest.mark.parametrize(
    "command",
    [
        "python -m sglang.launch_server --model-path zai-org/GLM-5 --tp 8",
        "SGLANG_X=1 python3 -m sglang.launch_server --model-path=zai-org/GLM-5 --tp 8",
        "env SGLANG_X=1 sglang serve zai-org/GLM-5 --tp 8",
        "sglang serve --model-path zai-org/GLM-5 --tp 8",
        "docker run --gpus all --shm-size 32g -e SGLANG_X=1 lmsysorg/sglang:v0.5.23 "
        "python3 -m sglang.launch_server --model-path zai-org/GLM-5 --tp 8",
        "docker run --gpus all -p 30000:30000 my/image --model-path zai-org/GLM-5 --tp 8",
        "nohup numactl --all python -m sglang.launch_server --model zai-org/GLM-5 --tp 8",
        "bash -c 'cd /srv && sglang serve zai-org/GLM-5 --tp 8'",
        'srun -N 2 bash -c "python -m sglang.launch_server --model-path zai-org/GLM-5 --tp 8"',
    ],
)
def test_a_launch_command_gives_its_model_and_flags(command: str) -> None:
    for found in (asked(command), asked(*shlex.split(command))):
        assert found.model == "zai-org/GLM-5"
        assert found.flags[-2:] == ("--tp", "8")
        assert set(found.env) <= {"SGLANG_X"}
        assert ("SGLANG_X" in found.env) == ("SGLANG_X" in command)


@pytest.mark.parametrize(
    "words", [["--tp-size", "8", "--ep", "2"], ["--tp-size 8 --ep 2"], ["--tp-size 8 \\\n --ep 2\n"]]
)
def test_bare_flags_are_read_as_they_are(words: list[str]) -> None:
    assert asked(*words).flags == ("--tp-size", "8", "--ep", "2")


def test_leading_assignments_are_the_environment() -> None:
    found = asked("SGLANG_X=3", "--tp-size", "8")
    assert (found.env, found.flags) == ({"SGLANG_X": "3"}, ("--tp-size", "8"))


@pytest.mark.parametrize("words", [["TP4", "EP2"], ["TP4 EP2"], ["tp4_ep2"], ["tp=4", "ep=2"]])
def test_a_notation_is_told_from_flags(words: list[str]) -> None:
    found = asked(*words)
    assert found.notation is not None
    assert found.notation.literal == Layout(tp_size=4, ep_size=2)


def test_a_notation_may_be_followed_by_flags_of_the_layout() -> None:
    found = asked("TP8 EP8 --mem-fraction-static 0.9 --moe-a2a-backend deepep")
    notation = found.under(NEWEST).notation
    assert notation is not None
    assert notation.literal == Layout(tp_size=8, ep_size=8, mem_fraction_static=0.9, moe_a2a_backend="deepep")


def test_flags_behind_a_notation_are_those_of_the_release() -> None:
    """--torchao-config was removed in 0.5.18."""
    found = asked("TP4 --torchao-config int4wo-128 --mem-fraction-static 0.8")
    notation = found.under(EngineVersion.parse("0.5.17")).notation
    assert notation is not None
    assert notation.literal == Layout(tp_size=4, mem_fraction_static=0.8)
    with pytest.raises(FlagError, match="torchao-config"):
        found.under(NEWEST)


@pytest.mark.parametrize(
    ("words", "said"), [("TP8 EP8 --tp 4", "tp_size is written twice: 8 and 4"), ("TP8 --xyzzy", "--xyzzy")]
)
def test_flags_behind_a_notation_that_cannot_be_read_are_said_in_one_line(words: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        asked(words).under(NEWEST)
    assert "\n" not in str(refused.value)


FLAGS = ("--model-path", "m", "--tp", "8")


@pytest.mark.parametrize(
    "text",
    [
        "Use this:\n```bash\nsglang serve --model-path m --tp 8\n```\nand it works\n",
        "~~~\nsglang serve --model-path m \\\n  --tp 8\n~~~",
        "```\r\nsglang serve --model-path m --tp 8\r\n```\r\n",
        "`sglang serve --model-path m --tp 8`",
    ],
)
def test_what_stands_in_fences_is_read(text: str) -> None:
    assert asked(text).flags == FLAGS


@pytest.mark.parametrize("words", [["bash", "{}", "8"], ["TP=8", "bash", "-x", "{}"], ["TP=8 {} 4"], ["sh {} 8"]])
def test_a_script_is_read_with_what_it_is_started_with(words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("sglang serve --model-path m --tp ${TP:-$1}\n")
    assert asked(*(word.format(script) for word in words)).flags == FLAGS


@pytest.mark.parametrize(
    ("command", "num_gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 sglang serve m --tp 8", 4),
        ("CUDA_VISIBLE_DEVICES=0,1,-1,3 sglang serve m --tp 8", 2),
        ("export CUDA_VISIBLE_DEVICES=4,5\nsglang serve m --tp 8", 2),
        ("docker run --gpus 4 lmsysorg/sglang:latest --model-path m", 4),
        ("docker run --gpus '\"device=0,3\"' lmsysorg/sglang:latest --model-path m", 2),
        ("docker run --gpus=device=0 lmsysorg/sglang:latest --model-path m", 1),
        ("docker run --gpus all -e CUDA_VISIBLE_DEVICES=0,1 lmsysorg/sglang:latest bash -c 'sglang serve m'", 2),
        ("docker run --gpus all lmsysorg/sglang:latest --model-path m", None),
        ("sglang serve m --tp 8", None),
    ],
)
def test_the_gpus_that_a_server_may_see_are_counted(command: str, num_gpus: int | None) -> None:
    visible = asked(command).visible_gpus
    assert (None if visible is None else visible.num_gpus) == num_gpus


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lmsysorg/sglang:v0.5.9", "0.5.9"),
        ("registry.example:5000/lmsysorg/sglang:v0.5.12.post1-cu129-amd64", "0.5.12"),
        ("lmsysorg/sglang:latest", "None"),
        ("my/image:0.5.9", "None"),
    ],
)
def test_an_images_tag_is_the_release(image: str, version: str) -> None:
    assert str(asked(f"docker run --gpus all {image} sglang serve m --tp 8").container.version) == version


def test_an_image_of_an_unknown_release_is_refused_with_the_nearest() -> None:
    container = asked("docker run lmsysorg/sglang:v0.4.9 sglang serve m").container
    with pytest.raises(MalformedError, match=r"v0\.4\.9.*nearest is 0\.5\.9.*--engine-version"):
        _ = container.version


SCRIPT = """#!/bin/bash
TP=8
ARGS=(--tp-size "$TP" --moe-a2a-backend flashinfer)
python3 -m sglang.launch_server --model-path nvidia/GLM-5-NVFP4 "${ARGS[@]}" \\
    --host $HOST --port ${PORT} --node-rank "$RANK" --served-model-name "$NAME"
"""


def test_a_script_is_read_with_its_name(tmp_path: Path) -> None:
    script = tmp_path / "glm5_tp8_ep8.sh"
    script.write_text(SCRIPT)
    found = asked(str(script))
    assert found.flags == (
        "--model-path", "nvidia/GLM-5-NVFP4", "--tp-size", "8", "--moe-a2a-backend", "flashinfer",
    )  # fmt: skip
    assert [claim.flags for claim in found.claims] == [{"tp_size": 8, "ep_size": 8}]
    assert found.origin == "glm5_tp8_ep8.sh"


def test_a_name_inside_the_script_is_a_claim_too(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("sglang serve m --tp 8 --served-model-name glm-tp8-ep8\n")
    assert [claim.text for claim in asked(str(script)).claims] == ["tp8-ep8"]


def test_a_served_name_in_a_pasted_command_is_a_claim() -> None:
    found = asked("sglang", "serve", "m", "--tp", "8", "--served-model-name", "glm_tp8_ep8")
    assert [claim.text for claim in found.claims] == ["tp8_ep8"]


def test_a_unit_file_is_read(tmp_path: Path) -> None:
    unit = tmp_path / "sglang.service"
    unit.write_text("[Service]\nEnvironment=TP=8\nExecStart=/usr/bin/sglang serve m \\\n  --tp ${TP}\n")
    found = asked(str(unit))
    assert (found.model, found.flags) == ("m", ("--tp", "8"))


def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SCRIPT.encode())))
    assert asked("-").model == "nvidia/GLM-5-NVFP4"


def test_several_servers_are_asked_about_each_but_the_nodes_of_one_once() -> None:
    text = (
        "sglang serve m --tp 16 --nnodes 2 --node-rank 0 --dist-init-addr a:1 &\n"
        "sglang serve m --tp 16 --nnodes 2 --node-rank 1 --dist-init-addr a:1 &\n"
        "sglang serve m --tp 8 --port 2\n"
    )
    assert [found.flags[1] for found in read_words([text])] == ["16", "8"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to check"),
        (["hello"], "TP8 EP8"),
        (["no/such/script.sh"], "no such file"),
        (["sglang serve m --tp $TP"], r"--tp is \$TP.*not set"),
        (["sglang serve m --tensor-parallel-size=$TP"], r"--tensor-parallel-size is .*\$TP.*not set"),
        (["sglang serve m --moe-a2a-backend ${BACKEND}"], r"\$\{BACKEND\}"),
        (["sglang serve m $EXTRA"], r"\$EXTRA.*may hold flags"),
        (["echo hello; echo again"], "starts no SGLang server"),
        (["--tp", "$TP"], r"--tp is \$TP.*not set"),
        (["--tp=${TP}"], r"--tp is .*\$\{TP\}.*not set"),
        (["export TP=$(a | b)\nsglang serve m --tp $TP"], r"--tp is \$\(a \| b\), and"),
        (['A=(--tp 8)\nif a; then A+=(--dp 8); fi\nsglang serve m "${A[@]}"'], "under a condition"),
        (["bash", "no_such.sh"], "no_such.sh: no such file"),
        (["vllm", "serve", "m"], "starts vLLM"),
        (["python -m vllm.entrypoints.openai.api_server --model m"], "starts vLLM"),
        (["docker run vllm/vllm-openai:v0.11 --model m"], "starts vLLM"),
        (["trtllm-serve m"], "starts TensorRT-LLM"),
        (["python -m sglang.bench_one_batch --model-path m --tp 8"], "bench_one_batch .*starts no server"),
        (["python", "-m", "sglang_router.launch_router"], "router"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        read_words(words)
    assert isinstance(refused.value, MalformedError)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "mention",
    [
        "pkill -f sglang.launch_server",
        "sudo pkill -9 -f sglang.launch_server",
        "ps aux | grep sglang.launch_server",
        "pgrep -f sglang.launch_server",
        'echo "usage: python -m sglang.launch_server --model-path x --tp 3"',
        "ssh node 'pkill -f sglang.launch_server'",
        "# python -m sglang.launch_server --model-path x --tp 7",
    ],
)
def test_a_mention_of_the_server_is_no_launch(mention: str) -> None:
    assert asked(f"{mention}\nsglang serve m --tp 8").flags == ("--tp", "8")
    with pytest.raises(MalformedError):
        read_words([mention])


def test_flags_behind_a_broken_continuation_are_no_part_of_the_launch() -> None:
    found = asked("sglang serve m --tp 8 \\\n  # --ep 2 \\\n  --dp 8")
    assert found.flags == ("--tp", "8")
    assert "--dp" in found.notes[0]


def test_what_is_no_file_of_text_is_told_for_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "bytes.sh").write_bytes(b"run \0\1")
    told = {"": "is a folder", "pipe": "is a pipe", "loop": "cannot be read", "bytes.sh": "is no text"}
    for name, said in told.items():
        with pytest.raises(MalformedError, match=said):
            read_words([str(tmp_path / name)])
    with pytest.raises(MalformedError, match="no regular file"):
        read_words(["/dev/null"])
    with pytest.raises(MalformedError, match="nothing to run"):
        read_words(["bash"])


def test_unknown_flags_in_the_place_of_a_model_are_no_model() -> None:
    assert asked("sglang serve $MODEL --tp 8").model == "$MODEL"
    for start in ("python -m sglang.launch_server $ARGS", 'sglang serve "${A[@]}"'):
        with pytest.raises(MalformedError, match="may hold flags"):
            read_words([f"if a; then A=(--tp 8); fi\n{start}"])
