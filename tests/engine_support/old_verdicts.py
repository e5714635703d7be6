"""Writes tests/golden/legality_versions.json: what releases before 0.5.23 make of launches, asked of themselves.

    python -m tests.engine_support.old_verdicts ENGINE_PYTHON FOLDER

FOLDER holds the wheels (`pip download --no-deps sglang==0.5.N`). Chosen launches are put to every release, and a
few random ones to each; on two kinds of GPU a release, whose facts are repeated to it (old_release_side.py).
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from search_spaces.catalogue import load_gpu
from search_spaces.errors import UnsupportedError
from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.options import choices_of
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion, release_0_5
from tests.engine_support.environment import HERE

GOLDEN = Path(__file__).parents[1] / "golden" / "legality_versions.json"
CATALOGUE = Path(__file__).parents[2] / "search_spaces" / "catalogue" / "models"
SIDE = Path(__file__).parents[2] / "tuner" / "installed_engine_side.py"

SOURCE = (
    "Each release's own argument parsing, resolution, checks and derivation of ranks, run on a CPU with the facts of the "
    "named GPU repeated to it (tests/engine_support/old_release_side.py); wheels of sglang 0.5.9 to 0.5.22."
)

RESOLVED = (
    *("tp_size", "pp_size", "dp_size", "attn_dp_size", "attn_cp_size", "ep_size", "moe_dp_size"),
    *("moe_a2a_backend", "moe_runner_backend", "deepep_mode", "enable_dp_lm_head"),
    *("chunked_prefill_size", "page_size", "cuda_graph_max_bs_decode", "mem_fraction_static"),
)
"""Values that are kept of what a launch resolves to."""

CHOSEN = (
    ("glm-5-nvfp4", "--tp-size 8 --moe-a2a-backend flashinfer"),
    ("glm-5-nvfp4", "--tp-size 8 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass"),
    (
        "glm-5-nvfp4",
        "--tp-size 8 --dp-size 8 --enable-dp-attention --moe-a2a-backend flashinfer "
        "--moe-runner-backend flashinfer_cutlass",
    ),
    ("glm-5-nvfp4", "--tp-size 8 --dp-size 8 --enable-dp-attention --moe-a2a-backend flashinfer"),
    ("qwen3-30b-a3b", "--tp-size 8 --ep-size 3"),
    ("qwen3-30b-a3b", "--tp-size 2 --ep-size 4"),
    ("qwen3-30b-a3b", "--tp-size 4 --ep-size 0"),
    ("qwen3-30b-a3b", "--tp-size 8 --ep-size 4 --moe-dp-size 2"),
    ("qwen3-30b-a3b", "--tp-size 8 --attn-cp-size 2 --pp-size 2"),
    ("qwen3-30b-a3b", "--tp-size 8 --attn-cp-size 8 --dp-size 2"),
    ("qwen3-30b-a3b", "--tp-size 8 --dp-size 3 --enable-dp-attention"),
    ("qwen3-30b-a3b", "--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8 --enable-dp-lm-head"),
    ("qwen3-30b-a3b", "--tp-size 2 --dp-size 2 --enable-dp-lm-head"),
    ("qwen3-30b-a3b", "--tp-size 8 --enable-dp-attention"),
    ("qwen3-30b-a3b", "--tp-size 8 --attn-dp-size 4"),
    ("qwen3-30b-a3b", "--tp-size 8 --moe-dense-tp-size 8"),
    ("qwen3-30b-a3b", "--tp-size 4 --dp-size 2 --nnodes 2"),
    ("qwen3-30b-a3b", "--tp-size 8 --enable-two-batch-overlap"),
    ("qwen3-30b-a3b", "--tp-size 8 --cuda-graph-max-bs 64"),
    ("qwen3-30b-a3b", "--tp-size 8 --cuda-graph-max-bs-decode 64 --max-running-requests 16"),
    ("qwen3-30b-a3b", "--tp-size 8 --max-running-requests 16"),
    ("qwen3-30b-a3b", "--tp-size 8 --enable-piecewise-cuda-graph"),
    ("qwen3-30b-a3b", "--pp 2"),
    ("qwen3-30b-a3b", "--tp 8 --dcp-size 2"),
    ("qwen3-30b-a3b-fp8", "--tp-size 4 --ep-size 2 --moe-a2a-backend deepep"),
    ("qwen3-30b-a3b-fp8", "--tp-size 4 --moe-a2a-backend pplx"),
    ("qwen3-30b-a3b-fp8", "--tp-size 4 --dp-size 4 --enable-dp-attention --moe-a2a-backend megamoe"),
    ("qwen3-30b-a3b-fp8", "--tp-size 4 --moe-a2a-backend deepep_v2"),
    ("qwen3-30b-a3b-fp8", "--tp-size 8 --moe-runner-backend flashinfer_cutedsl"),
    ("deepseek-v3", "--tp-size 8"),
    ("deepseek-v3", "--tp-size 8 --dp-size 8 --enable-dp-attention --moe-a2a-backend deepep"),
    ("deepseek-v3", "--tp-size 8 --pp-size 2 --ep-size 8"),
    ("deepseek-v32", "--tp-size 8 --page-size 1"),
)
"""Asked on the first of a release's GPUs."""

ENGINE_VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}

GPUS = ("b200", "h200", "rtx-pro-6000", "a100")
MODELS = (
    *("deepseek-v3", "deepseek-v3-nvfp4", "deepseek-v32", "glm-4.5", "glm-4.5-air-fp8", "glm-5-nvfp4"),
    *("gpt-oss-120b", "mixtral-8x7b", "qwen3-235b-a22b-fp8", "qwen3-30b-a3b", "qwen3-30b-a3b-fp8"),
)
"""Without those whose type the environment's transformers knows only from code in their repository."""

SPARSE_READ_SINCE = release_0_5(12)
"""Earlier releases, put together with the environment's transformers, take DeepSeek V3.2 for DeepSeek V3."""

RANDOM_LAUNCHES = 24


def random_layout(chance: random.Random, version: EngineVersion) -> Layout:
    fields: dict[str, Any] = {"tp_size": chance.choice((1, 2, 4, 8, 8, 8, 3, 6, 16))}

    def sometimes(likely: float, name: str, values: Iterable[Any]) -> None:
        if chance.random() < likely:
            fields[name] = chance.choice(tuple(values))

    backends = set(choices_of("moe_a2a_backend", version)) - {"ascend_fuseep", "ascend_tp", "mori"}
    runners = {
        "auto",
        "cutlass",
        "deep_gemm",
        "flashinfer_cutlass",
        "flashinfer_cutedsl",
        "flashinfer_trtllm",
        "triton",
    }
    sometimes(0.5, "ep_size", (1, 2, 4, 8, 3, 16))
    sometimes(0.2, "pp_size", (2, 4, 3))
    sometimes(0.4, "attn_dp_size", (2, 4, 8, 3))
    sometimes(0.15, "attn_cp_size", (2, 4))
    sometimes(0.15, "moe_dp_size", (2, 4))
    if "attn_dp_size" not in fields:
        sometimes(0.2, "dp_size", (2,))
    sometimes(0.35, "moe_a2a_backend", sorted(backends))
    sometimes(0.35, "moe_runner_backend", sorted(runners & set(choices_of("moe_runner_backend", version))))
    sometimes(0.2, "deepep_mode", choices_of("deepep_mode", version))
    sometimes(0.2, "chunked_prefill_size", (-1, 2048, 4096, 1000))
    sometimes(0.15, "page_size", (1, 16, 32, 64, 128))
    sometimes(0.15, "max_running_requests", (1, 16, 64, 1024))
    sometimes(0.15, "cuda_graph_max_bs_decode", (16, 64, 512, 1024))
    sometimes(0.2, "mem_fraction_static", (0.8, 0.9))
    sometimes(0.1, "moe_dense_tp_size", (1, 2, 8))
    sometimes(0.1, "enable_dp_lm_head", (True,))
    sometimes(0.1, "nnodes", (2, 3))
    return Layout(**fields)


def launches(version: EngineVersion) -> Iterator[tuple[str, str, str]]:
    """GPU, model and flags."""
    chance = random.Random(version.patch)
    gpus = [GPUS[version.patch % len(GPUS)], GPUS[(version.patch + 1) % len(GPUS)]]
    for model, argv in CHOSEN:
        yield gpus[0], model, argv
    for _ in range(RANDOM_LAUNCHES):
        layout = random_layout(chance, version)
        gpu, model = chance.choice(gpus), chance.choice(MODELS)
        try:
            yield gpu, model, shlex.join(to_argv(layout, version))
        except UnsupportedError:
            continue


def answers(
    engine_python: str, package: Path, gpu: str, questions: Iterable[tuple[str, str]], models: Path
) -> Iterator[dict[str, Any]]:
    """What the release under `package` says of (model, flags), in order."""
    card = load_gpu(gpu)
    lines = [
        json.dumps({"id": number, "argv": ["--model-path", str(models / model), *shlex.split(argv)]})
        for number, (model, argv) in enumerate(questions)
    ]
    path = os.pathsep.join((str(package), str(HERE / "shim"), str(HERE)))
    done = subprocess.run(
        [
            *(engine_python, "-W", "ignore", str(HERE / "old_release_side.py"), str(SIDE)),
            json.dumps({"name": gpu, "sm": card.sm, "memory_mib": card.memory_mib}),
        ],
        input="\n".join(lines) + "\n",
        env=os.environ | ENGINE_VARIABLES | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    introduction, *said = map(json.loads, done.stdout.splitlines())
    if "missing" in introduction:
        raise RuntimeError(introduction["missing"])
    return iter(said)


def case(version: EngineVersion, gpu: str, model: str, argv: str, said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"release": str(version), "gpu": gpu, "model": model, "argv": argv}
    if said["stage"] is not None:
        found |= {"stage": said["stage"].upper(), "exception": said["exception"], "error": said["error"][:160]}
        return found | {"at": said["at"]}
    values = dict(said["resolved"])
    values.setdefault("cuda_graph_max_bs_decode", values.get("cuda_graph_max_bs"))
    return found | {"resolved": {name: values[name] for name in RESOLVED if values.get(name) is not None}}


def configs(folder: Path) -> None:
    for source in CATALOGUE.glob("*.json"):
        (folder / source.stem).mkdir()
        (folder / source.stem / "config.json").write_text(json.dumps(json.loads(source.read_text())["config"]))


def cases_of(engine_python: str, package: Path, version: EngineVersion, models: Path) -> list[dict[str, Any]]:
    asked = list(launches(version))
    found = []
    for gpu in dict.fromkeys(gpu for gpu, _, _ in asked):
        questions = [(model, argv) for at, model, argv in asked if at == gpu]
        for (model, argv), said in zip(questions, answers(engine_python, package, gpu, questions, models), strict=True):
            is_misread = model == "deepseek-v32" and version < SPARSE_READ_SINCE
            if not is_misread and "died" not in said and "Transformers does not recognize" not in said["error"]:
                found.append(case(version, gpu, model, argv, said))
    return found


def main(engine_python: str, wheels: Path) -> None:
    found: list[dict[str, Any]] = []
    for version in map(release_0_5, range(OLDEST.patch, NEWEST.patch)):
        (wheel,) = wheels.glob(f"sglang-{version}-*.whl")
        with tempfile.TemporaryDirectory() as folder:
            package, models = Path(folder) / "package", Path(folder) / "models"
            models.mkdir()
            configs(models)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(package)
            found += cases_of(engine_python, package, version, models)
        lines = ",\n".join(json.dumps(each, sort_keys=True) for each in found)
        GOLDEN.write_text(f'{{"source": {json.dumps(SOURCE)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
