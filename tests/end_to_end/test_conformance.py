"""SGLang's own code judges random launches, and this project has to judge them alike.

Every stage up to the constructed model is asked of the installed SGLang 0.5.23 on the CPU, under the facts of a
GPU. Hypothesis shrinks a disagreement to the fewest flags. By default the launches are the same on every run;

    LAYOUT_TUNE_CONFORMANCE_SEED=7 LAYOUT_TUNE_CONFORMANCE_EXAMPLES=2000 python -m pytest -m engine -k conformance

draws others, that many for each kind of GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings

from search_spaces.catalogue import load_gpu, load_model, model_files, model_names
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.rules import judge
from search_spaces.verdict import Verdict, Violation
from tests.engine_support.judging import engine_on
from tests.engine_support.launches import DRAWN, NOT_DRAWN, SIZES, RandomLaunch, launches
from tuner.agreement import compare, first_of
from tuner.installed_engine import Answer, InstalledEngine, Question

GPUS = ("a100", "l40s", "h100", "h200", "b200", "rtx-pro-6000")
"""Of every generation, and of both sizes of Hopper."""

SEED = os.environ.get("LAYOUT_TUNE_CONFORMANCE_SEED")
EXAMPLES = int(os.environ.get("LAYOUT_TUNE_CONFORMANCE_EXAMPLES", "60"))
TEXT_LENGTH = 60
"""So much of the engine's message is compared: later parts print whole configurations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exempt:
    """A disagreement that is known and right. example: a launch that still shows it; gpu: and on what."""

    reason: str
    source: str
    gpu: str
    model: str
    example: str
    covers: Callable[[RandomLaunch, Answer], bool]


EXEMPT = (
    Exempt(
        reason="MoRI is a package for AMD's GPUs, not a matter of the layout",
        source="layers/moe/token_dispatcher/moriep.py:962",
        gpu="h200",
        model="deepseek-v3",
        example="--tp-size 8 --moe-a2a-backend mori --chunked-prefill-size 4096",
        covers=lambda launch, answer: (
            launch.layout.moe_a2a_backend == "mori" and answer.error.startswith("Mori EP is not")
        ),
    ),
    Exempt(
        reason="bitsandbytes is a package that is installed by hand",
        source="layers/quantization/bitsandbytes.py:38",
        gpu="h200",
        model="llama-3.1-8b",
        example="--quantization bitsandbytes",
        covers=lambda launch, answer: (
            launch.layout.quantization == "bitsandbytes" and answer.error.startswith("Please install bitsandbytes")
        ),
    ),
    Exempt(
        reason="SGLang asks a scheme of weights for a setting of activations that it has not",
        source="layers/quantization/fp8_activation.py:48",
        gpu="b200",
        model="llama-3.1-8b",
        example="--quantization w4afp8",
        covers=lambda launch, answer: answer.error == "'W4AFp8Config' object has no attribute 'activation_scheme'",
    ),
)


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in model_names()}
    for name, folder in folders.items():
        for file, content in model_files(name).items():
            (folder / file).write_text(json.dumps(content))
    return folders


@pytest.fixture(scope="module", params=GPUS)
def engine(request: pytest.FixtureRequest, engine_python: str) -> Iterator[tuple[str, InstalledEngine]]:
    with engine_on(load_gpu(request.param), engine_python) as asked:
        yield request.param, asked


@pytest.mark.engine
def test_a_random_launch_is_judged_as_the_engine_judges_it(
    engine: tuple[str, InstalledEngine], model_folders: Mapping[str, Path]
) -> None:
    gpu, asked = engine

    @settings(
        max_examples=EXAMPLES,
        derandomize=SEED is None,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(launches(model_names()))
    def judged_alike(launch: RandomLaunch) -> None:
        verdict, answer = both(launch, gpu, asked, model_folders)
        if not any(exempt.covers(launch, answer) for exempt in EXEMPT):
            assert differences(verdict, answer) == [], f"{launch} on {gpu} (seed {SEED or 'of the test itself'})"

    (judged_alike if SEED is None else seed(int(SEED))(judged_alike))()


def both(
    launch: RandomLaunch, gpu: str, engine: InstalledEngine, folders: Mapping[str, Path]
) -> tuple[Verdict, Answer]:
    cluster = Cluster(gpu=load_gpu(gpu), gpus_per_node=4096, num_nodes=max(launch.layout.nnodes, 1))
    verdict = judge(launch.layout, load_model(launch.model), cluster, suggest=False, env=launch.env)
    question = Question(argv=("--model-path", str(folders[launch.model]), *launch.argv), env=launch.env)
    return verdict, next(iter(engine.ask([question])))


def differences(verdict: Verdict, answer: Answer) -> list[str]:
    """In verdict, stage and resolved values; and in what is said of a refusal."""
    found = [f"{d.name}: here {d.ours}, the engine {d.engine}" for d in compare(verdict, answer)]
    refused = first_of(verdict, answer.asked)
    if not found and refused is not None and not repeats(refused, answer):
        found.append(f"text of {refused.rule}: {refused.exception} {refused.engine_text!r}, {answer}")
    late = answer.found.get("refused_after_load")
    if late and verdict.is_legal:
        found.append(f"legal here, and refused by the engine once the weights are loaded: {late}")
    return found


def repeats(violation: Violation, answer: Answer) -> bool:
    says_the_same = answer.error.startswith(violation.engine_text[:TEXT_LENGTH])
    return (
        violation.exception == answer.exception and says_the_same and bool(violation.engine_text) == bool(answer.error)
    )


@pytest.mark.engine
@pytest.mark.parametrize("exempt", EXEMPT, ids=[exempt.reason for exempt in EXEMPT])
def test_an_exemption_is_still_needed(exempt: Exempt, engine_python: str, model_folders: Mapping[str, Path]) -> None:
    launch = RandomLaunch(model=exempt.model, layout=from_argv(exempt.example.split()).layout)
    with engine_on(load_gpu(exempt.gpu), engine_python) as asked:
        verdict, answer = both(launch, exempt.gpu, asked, model_folders)
    assert exempt.covers(launch, answer)
    assert differences(verdict, answer) != []


def test_every_flag_of_a_layout_is_drawn() -> None:
    assert {f.name for f in fields(Layout)} == {*SIZES, *DRAWN, *NOT_DRAWN}
