"""Log-probabilities of the real SGLang on CPUs: right layouts agree, spoilt weights are caught.

The same texts in float32: what the tolerance for it rests on.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from search_spaces.layout import Layout
from search_spaces.workload import Workload
from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT, HERE
from tuner import asking
from tuner.correctness import Reference
from tuner.correctness_judge import AnswerJudge, Judgement
from tuner.outcome import WrongAnswers
from tuner.patience import Patience
from tuner.server_control import server_info
from tuner.server_log import ServerLog
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch
from tuner.watched import StageTimes, Watched, await_ready
from tuner.watcher import Watcher

pytestmark = pytest.mark.engine

LOAD = Workload(input_tokens=400, output_tokens=64, concurrencies=(1,))
CHUNKED = ("--chunked-prefill-size", "128")
"""So that the longest prompt is read in pieces."""


class Heard(Watcher):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def on_notice(self, text: str) -> None:
        self.notices.append(text)


class Bench:
    """Starts one server after the other and has each judged."""

    def __init__(self, python: str, checkpoint: Path, folder: Path) -> None:
        self._python = python
        self._checkpoint = checkpoint
        self._folder = folder
        self.kept: list[Reference] = []
        self.heard = Heard()
        self._judge = AnswerJudge(
            model=asking.served(str(checkpoint)).model,
            workload=LOAD,
            baseline=Layout(),
            reference=None,
            keep=self.kept.append,
        )

    def judged(self, layout: Layout, *flags: str, checkpoint: Path | None = None) -> Judgement:
        launcher = LocalLauncher()
        port = launcher.free_port()
        words = ("--model-path", str(checkpoint or self._checkpoint), "--host", "127.0.0.1", "--port", str(port))
        launch = Launch(
            command=(self._python, "-m", "sglang.launch_server", *words, *ARGUMENTS, *CHUNKED, *flags),
            host="127.0.0.1",
            port=port,
            log_path=self._folder / f"{port}.log",
            env=ENVIRONMENT,
        )
        server = launcher.start(launch)
        try:
            watched = Watched(server=server, log=ServerLog(launch.log_path))
            failed = await_ready(watched, Patience(starting_s=600.0), Watcher(), StageTimes())
            assert failed is None, failed
            info = server_info(server.base_url)
            return self._judge.judge(server, layout, info, silence_limit_s=120.0, watcher=self.heard)
        finally:
            server.stop()


@pytest.fixture
def bench(engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Bench:
    return Bench(engine_python, tiny_checkpoint.folder, tmp_path)


@pytest.fixture
def spoilt(engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Path:
    """The checkpoint with one expert of one layer silenced."""
    folder = tmp_path / "spoilt"
    made = subprocess.run(
        [engine_python, HERE / "spoil_checkpoint.py", tiny_checkpoint.folder, folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder


def mean_of(judgement: Judgement) -> float:
    assert judgement.agreement is not None
    assert judgement.agreement.prefill is not None
    return judgement.agreement.prefill.mean


def test_the_same_launch_and_other_splits_agree_and_a_spoilt_checkpoint_does_not(bench: Bench, spoilt: Path) -> None:
    first = bench.judged(Layout())
    assert first.ended is None
    assert [reference.is_baseline for reference in bench.kept] == [True]
    assert first.agreement is not None
    assert first.agreement.decode is not None
    assert first.agreement.decode.largest < 1e-4

    again = bench.judged(Layout())
    assert (again.ended, mean_of(again) < 1e-5) == (None, True)

    split: Sequence[tuple[Layout, str]] = (
        (Layout(tp_size=2), "--tp-size 2"),
        (Layout(tp_size=2, ep_size=2, attn_dp_size=2), "--tp-size 2 --ep-size 2 --attn-dp-size 2"),
    )
    for layout, flags in split:
        judgement = bench.judged(layout, *flags.split())
        assert (judgement.ended, mean_of(judgement) < 1e-4) == (None, True), judgement

    wrong = bench.judged(Layout(), checkpoint=spoilt)
    assert isinstance(wrong.ended, WrongAnswers)
    assert mean_of(wrong) > 0.02
    assert "the baseline TP1" in wrong.ended.summary
    assert bench.heard.notices == []
    print(json.dumps({"again": mean_of(again), "spoilt": mean_of(wrong)}))  # noqa: T201


def test_weights_that_are_made_up_are_not_judged(bench: Bench) -> None:
    """With `--load-format dummy` each layout has weights of its own, and logits that are all but equal."""
    judgement = bench.judged(Layout(), "--load-format", "dummy")
    assert judgement == Judgement()
    assert "--load-format dummy" in bench.heard.notices[0]
