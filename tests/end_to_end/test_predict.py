"""`tune predict` as a user runs it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

STORY = ("--model", "kimi-k2.6", "--cluster", "8xrtx-pro-6000")
SMALL = ("--model", "qwen3-30b-a3b-fp8", "--cluster", "2xh100")


def tune(*words: str, stdin: str = "", folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(__file__).parent / 'no_gpu'}:{Path(sys.executable).parent}:{os.defpath}"
    usual = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "LC_ALL"}}
    return subprocess.run(
        [sys.executable, "-m", "tuner", "predict", *words],
        cwd=folder,
        env={**usual, "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": path, **env},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def document(*words: str, code: int = 0, **options: Any) -> Any:
    done = tune(*words, "--json", **options) if "--" not in words else tune("--json", *words, **options)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_the_exit_code_tells_predicted_refused_and_unusable_apart() -> None:
    assert tune(*STORY, "--", "TP8", "EP8", "mem0.9").returncode == 0
    assert tune(*STORY, "--", "--tp", "8", "--ep", "3").returncode == 3
    assert tune(*STORY, "--", "TP4", "EP2").returncode == 3
    assert tune(*STORY, "--input-tokens", "200000", "--", "--tp 8 --mem-fraction-static 0.8").returncode == 3
    assert tune("--model", "deepseek-v3", "--cluster", "8xh100").returncode == 3
    assert tune("--model", "kimi-k9", "--", "TP8").returncode == 2
    assert tune(*STORY, "--", "hello").returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--objective", "beauty"), "unknown objective"),
        (("--concurrency", "4,0"), "counts requests in flight, from 1 on (got 0)"),
        (("--concurrency", ""), "rising numbers"),
        (("--concurrency", "1,many"), "rising numbers"),
        (("--accept-length", "0.5"), "acceptance length"),
        (("--input-tokens", "0"), "at least 1 input token"),
        (("--pin", "tp_size=3"), "no layout uses all"),
        (("--plot", "a.gif"), "--plot writes a file"),
        (("--limit", "-1"), "--limit"),
        (("--measured", "no.jsonl"), "cannot be read"),
        (("--study", "none"), "there is no study storage"),
        (("--study", "none", "--measured", "m"), "two sources"),
        (("--storage", "sqlite:///x.db"), "goes with --study"),
        (("--batch", "no.jsonl"), "--batch takes everything"),
        (("--pin", "tp_size=2", "--", "TP2"), "leave the launch's own words out"),
        (("--engine-version", "9.9"), "9.9"),
    ],
)
def test_words_that_cannot_be_used_end_in_one_line_and_exit_code_2(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = tune(*SMALL, *words, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1
    assert not list(tmp_path.iterdir())


def test_without_flags_every_legal_layout_is_ranked_and_drawn() -> None:
    done = tune(*SMALL, "--limit", "3")
    assert done.returncode == 0
    assert "ranked by peak_throughput" in done.stdout
    assert "tok/s per GPU (up) over tok/s per user (right)" in done.stdout
    assert "Pareto front" in done.stdout
    assert "more: --all shows them" in done.stdout
    assert "\x1b[" not in done.stdout
    assert done.stderr == ""


def test_the_document_has_every_layout_whatever_the_limit() -> None:
    told = document(*SMALL, "--limit", "1", "--objective", "c1_latency")
    assert len(told["layouts"]) > 5
    values = [row["value"] for row in told["layouts"]]
    assert values == sorted(values)
    assert told["layouts"][0]["unit"] == "ms"
    one = document(*SMALL, "--", *told["layouts"][0]["flags"].split())
    assert one["prediction"]["points"][0]["tpot_ms"] == pytest.approx(values[0])


def test_pins_and_a_longer_ladder_are_heeded() -> None:
    told = document(*SMALL, "--pin", "tp_size=2", "--concurrency", "1,2000")
    assert {row["label"].split()[0] for row in told["layouts"]} == {"TP2"}
    assert [point["concurrency"] for point in told["layouts"][0]["points"]] == [1, 2000]


def test_concurrencies_are_taken_in_any_order_and_only_those_asked_for_are_shown() -> None:
    for words, shown in (("128", [128]), ("16,4,4,1", [1, 4, 16])):
        told = document(*SMALL, "--concurrency", words, "--", "TP2")
        assert [point["concurrency"] for point in told["prediction"]["points"]] == shown
        assert told["workload"]["concurrencies"] == shown
        ranking = document(*SMALL, "--concurrency", words)
        assert len(ranking["layouts"]) > 5
        assert (ranking["beyond_ladder"] is None) is (words == "128")


def test_every_file_of_measurements_counts(tmp_path: Path) -> None:
    points = document(*SMALL, "--", "TP2")["prediction"]["points"]
    for number in range(2):
        line = {"argv": "TP2", "concurrency": points[number]["concurrency"], "tpot_ms": points[number]["tpot_ms"]}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(line))
    words = ("--measured", "0.jsonl", "--measured", "1.jsonl")
    calibration = document(*SMALL, *words, "--", "TP2", folder=tmp_path)["prediction"]["calibration"]
    assert [each["concurrency"] for each in calibration["points"]] == [1, 2]
    text = tune(*SMALL, *words, "--", "TP2", folder=tmp_path).stdout
    assert "0.jsonl and 1.jsonl" in " ".join(text.split())
    assert "as predicted before calibration" in text


def test_a_tight_launch_is_predicted_with_a_warning_and_exit_code_0() -> None:
    done = tune(*STORY, "--", "TP8", "mem0.95")
    assert done.returncode == 0
    assert done.stdout.startswith("legal, but likely to run out of memory while graphs are captured: ")


def test_other_ways_of_the_all_reduces_are_ranked_where_they_are_asked_for() -> None:
    usual, more = document(*SMALL), document(*SMALL, "--all-reduce-paths")
    assert len(more["layouts"]) > len(usual["layouts"])


def test_speculation_is_faster_the_more_is_accepted() -> None:
    launch = ("--", *["--tp", "8", "--speculative-algorithm", "EAGLE", "--mem-fraction-static", "0.8"])
    deep = ("--model", "deepseek-v3", "--cluster", "8xh200")
    slow, fast = (document(*deep, "--accept-length", length, *launch) for length in ("1", "2.6"))
    assert fast["prediction"]["points"][0]["tpot_ms"] < slow["prediction"]["points"][0]["tpot_ms"]


def test_an_ascii_locale_and_a_stream_of_other_letters_get_ascii() -> None:
    for env in ({"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}):
        for words in ((), ("--", "TP2")):
            done = tune(*SMALL, *words, **env)
            assert done.returncode == 0
            assert done.stdout.isascii()
            assert "?" not in done.stdout


def on_a_terminal(columns: int, *words: str, **env: str) -> str:
    """What `tune predict` shows on a terminal of that width."""
    watching, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    usual = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LC_ALL"}}
    running = subprocess.Popen(
        [sys.executable, "-m", "tuner", "predict", *words],
        env={**usual, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm-256color", **env},
        stdout=terminal,
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(watching, 65536):
            shown += part
    os.close(watching)
    assert running.wait(timeout=60) == 0
    return shown.decode()


def test_a_terminal_gets_colours_unless_it_wants_none_and_a_table_as_wide_as_it_is() -> None:
    coloured = on_a_terminal(90, *SMALL)
    assert "\x1b[34m" in coloured
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in coloured.replace("\r", "").split("\n")) <= 90
    assert "█" in coloured
    grey = on_a_terminal(90, *SMALL, NO_COLOR="1")
    assert "\x1b[" not in grey
    assert "  a  TP" in grey
    table = [line for line in grey.replace("\r", "").split("\n") if re.match(r" ?\d+  ", line)]
    assert len(table) > 5
    assert max(map(len, table)) <= 90


def test_a_plot_is_drawn_into_a_file(tmp_path: Path) -> None:
    done = tune(*SMALL, "--plot", "plot.svg", folder=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "plot.svg").read_text().count("<svg") == 1
    assert "drawn in plot.svg" in done.stderr


def test_measurements_narrow_the_intervals(tmp_path: Path) -> None:
    plain = document(*SMALL, "--", "TP2")
    points = plain["prediction"]["points"]
    lines = [
        {"argv": "TP2", "concurrency": p["concurrency"], "tpot_ms": 1.3 * p["tpot_ms"]} for p in (points[0], points[-1])
    ]
    file = tmp_path / "measured.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    for words, stdin in ((str(file), ""), ("-", file.read_text())):
        moved = document(*SMALL, "--measured", words, "--", "TP2", stdin=stdin)["prediction"]
        assert moved["calibration"]["num_points"] == 2
        for old, new in zip(points, moved["points"], strict=True):
            assert new["tpot_ms"] > old["tpot_ms"]
            ratio = new["interval"]["tpot_ms"][1] / new["interval"]["tpot_ms"][0]
            assert ratio < old["interval"]["tpot_ms"][1] / old["interval"]["tpot_ms"][0]
    text = tune(*SMALL, "--measured", str(file), "--", "TP2").stdout
    assert re.search(r"calibrated by 2 measured points of 1 layout .* by a factor 1\.\d\d", " ".join(text.split()))
    ranked = tune(*SMALL, "--measured", str(file)).stdout
    assert "calibrated by 2 measured points" in ranked


def test_a_batch_is_answered_line_by_line() -> None:
    line = {"id": 1, "model": "qwen3-30b-a3b-fp8", "gpu": "h100", "n_gpus": 2, "argv": "TP2"}
    line |= {"isl": 512, "osl": 128, "concurrency": 4}
    done = tune("--batch", "-", stdin=f"{json.dumps(line)}\n\n{json.dumps({**line, 'isl': 0})}\n")
    assert done.returncode == 2
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["id"], first["verdict"]) == (1, "legal")
    assert first["tpot_ms"] > 0
    assert "isl is a count" in second["error"]
    assert "1 of 2 lines" in done.stderr


def test_an_error_is_a_document_too() -> None:
    assert "error" in document("--model", "kimi-k9", "--cluster", "8xh200", code=2)


def test_nothing_heavy_is_imported_on_the_way_to_a_ranking() -> None:
    # Typer brings pydantic along.
    heavy = {"mlflow", "optuna", "scipy", "sqlalchemy", "matplotlib", "pandas", "aiohttp", "tree_sitter"}
    code = (
        "import sys; from tuner.app import run; run(sys.argv[1:]); "
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", *SMALL],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == "[]"
