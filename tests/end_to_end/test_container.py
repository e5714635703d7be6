"""`tune` with the real SGLang in containers of a small real `docker`: its release is asked of the image, its port is
published, and no container is left.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT
from tests.tuner.servers.containers.daemon import docker_daemon


@pytest.fixture
def docker() -> Iterator[dict[str, str]]:
    with docker_daemon() as env:
        yield env


def tune(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "COV_"))}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tuner",
            "--objective",
            "c1_latency",
            "--engine",
            "sglang",
            "--trials",
            "1",
            "--confirmations",
            "0",
            *words,
        ],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("docker run -d --gpus all img python3 -m sglang.launch_server", "log would be lost"),
        ("docker exec box python3 -m sglang.launch_server", "`docker run` alone"),
        ("docker run --gpus all img python3 -m sglang.launch_server", "does not see"),
    ],
)
def test_a_container_that_cannot_serve_is_refused_before_anything_is_started(
    tmp_path: Path, docker: dict[str, str], command: str, said: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 2048}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "num_experts": 16}
    more = {"num_experts_per_tok": 4, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
    (model / "config.json").write_text(json.dumps({**config, **sizes, **heads, **more}))
    words = ("--model", str(model), "--cluster", "1xcpu", "--engine-command", command, "--concurrency", "1")
    refused = tune(tmp_path, *words, "--input-tokens", "32", "--output-tokens", "16", **docker)
    assert refused.returncode == 2, refused.stderr
    assert said in refused.stderr


@pytest.mark.engine
def test_a_study_in_containers_asks_the_image_publishes_the_port_and_leaves_nothing(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, docker: dict[str, str]
) -> None:
    settings = " ".join(f"-e {shlex.quote(f'{name}={value}')}" for name, value in ENVIRONMENT.items())
    folder = tiny_checkpoint.folder
    command = f"docker run --rm -it {settings} -v {folder}:{folder}:ro image {engine_python} -m sglang.launch_server"
    canary = "canary-in-a-container-5c2e"
    done = tune(
        tmp_path,
        *("--model", str(folder), "--cluster", "1xcpu", "--json", "--engine-command", command),
        *("--engine-args", f"{' '.join(ARGUMENTS)} --api-key {canary}"),
        *("--input-tokens", "32", "--output-tokens", "16", "--concurrency", "1,2"),
        **docker,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["engine_version"] == "0.5.23"
    assert document["winner"]["value"] > 0
    assert "published on 127.0.0.1" in done.stderr
    listed = subprocess.run(
        ["docker", "ps", "-aq"], env={**os.environ, **docker}, capture_output=True, text=True, check=True
    )
    assert listed.stdout == ""
    assert canary not in done.stdout + done.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file() and canary.encode() in p.read_bytes()] == []
