from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from search_spaces.errors import MalformedError, UserError
from search_spaces.layout import Layout
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
    monkeypatch.setattr("sys.stdin", io.StringIO(SCRIPT))
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
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        read_words(words)
    assert isinstance(refused.value, MalformedError)
    assert "\n" not in str(refused.value)
