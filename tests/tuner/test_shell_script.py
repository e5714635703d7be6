from __future__ import annotations

import pytest

from tuner.shell_script import commands, shown, unknown_in


def words(text: str) -> list[list[str]]:
    return [list(command.words) for command in commands(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sglang serve m --tp 8", ["sglang", "serve", "m", "--tp", "8"]),
        ("sglang serve m \\\n  --tp 8 \\\n  --ep 2", ["sglang", "serve", "m", "--tp", "8", "--ep", "2"]),
        ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
        ("$ run --tp 8", ["run", "--tp", "8"]),
        ("run --tp 8 > log 2>&1 &", ["run", "--tp", "8"]),
        ("run --tp 8 # eight", ["run", "--tp", "8"]),
        ("--tp-size 8 \\\r\n --ep 2", ["--tp-size", "8", "--ep", "2"]),
    ],
)
def test_words_are_those_that_the_program_would_get(text: str, expected: list[str]) -> None:
    assert words(text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TP=8\nrun --tp $TP", ["run", "--tp", "8"]),
        ('TP=8\nrun --tp "${TP}"', ["run", "--tp", "8"]),
        ("run --tp ${TP:-8}", ["run", "--tp", "8"]),
        ("run ${DIR:-/models}/glm", ["run", "/models/glm"]),
        ("N=4\nrun --tp ${TP:-$N}", ["run", "--tp", "4"]),
        ('EXTRA="--ep 2 --pp 1"\nrun $EXTRA', ["run", "--ep", "2", "--pp", "1"]),
        ('A=(--tp 8 "--name" "x y")\nA+=(--ep 2)\nrun "${A[@]}"', ["run", "--tp", "8", "--name", "x y", "--ep", "2"]),
        ('NAME="glm $TP"\nTP=8\nrun a', ["run", "a"]),
        ('TP=8\nrun "tp $TP x"', ["run", "tp 8 x"]),
        ('run --tp 8 "$@"', ["run", "--tp", "8"]),
        ("if true; then TP=8; fi\nrun --tp $TP", ["run", "--tp", "8"]),
    ],
)
def test_what_the_script_sets_literally_is_expanded(text: str, expected: list[str]) -> None:
    assert words(text)[-1] == expected


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("run --tp $TP", "$TP"),
        ("run --tp ${TP}", "${TP}"),
        ("run --tp $(nproc)", "$(nproc)"),
        ("TP=$(nproc)\nrun --tp $TP", "$(nproc)"),
        ("if a; then TP=8; else TP=4; fi\nrun --tp $TP", "$TP"),
        ("run --tp $((4 * 2))", "$((4 * 2))"),
        ("run --tp ${#LIST}", "${#LIST}"),
    ],
)
def test_what_is_only_known_when_it_runs_is_marked(text: str, variable: str) -> None:
    last = commands(text)[-1].words[-1]
    assert unknown_in(last) == variable
    assert shown(last) == variable


def test_the_environment_is_what_is_exported_and_what_stands_before_the_command() -> None:
    (command,) = commands("export A=1\nB=2\nC=3 D='x y' run\n")
    assert command.env == {"A": "1", "C": "3", "D": "x y"}


def test_commands_within_conditions_loops_and_pipes_are_found() -> None:
    text = "for i in 1; do\n  if a; then run one; fi\ndone\nrun two | tee log\n(run three)"
    assert [w for w in words(text) if w[0] == "run"] == [["run", "one"], ["run", "two"], ["run", "three"]]


def test_nothing_is_run(tmp_path) -> None:
    commands(f"touch {tmp_path}/made\nrun $(touch {tmp_path}/made)")
    assert list(tmp_path.iterdir()) == []
