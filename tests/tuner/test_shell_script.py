from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import MalformedError
from tuner.shell_script import commands, shown, unknown_in, why_unknown


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
        ('if [ -z "$TP" ]; then TP=8; fi\nrun --tp $TP', ["run", "--tp", "8"]),
        ('[ -n "$TP" ] || TP=8\nrun --tp $TP', ["run", "--tp", "8"]),
        ('cd /x && A="--tp 8" && run $A', ["run", "--tp", "8"]),
        ("A=1\nif b; then A=2; fi\nA=3\nrun $A", ["run", "3"]),
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
        ("export TP=$(a -L | wc -l)\nrun --tp $TP", "$(a -L | wc -l)"),
        ("run --tp $1", "$1"),
    ],
)
def test_what_is_only_known_when_it_runs_is_marked(text: str, variable: str) -> None:
    last = commands(text)[-1].words[-1]
    assert unknown_in(last) == variable
    assert shown(last) == variable


@pytest.mark.parametrize(
    "text",
    [
        'A=(--tp 8)\nif [ "$1" = dp ]; then A+=(--dp 8); fi\nrun "${A[@]}"',
        'A="--tp 8"\n[ -n "$D" ] && A="$A --dp 8"\nrun $A',
        'A="--tp 8"\n[[ -n $D ]] && A+=" --dp 8"\nrun $A',
        'A="--tp 8"\ntest -n "$D" || A+=" --dp 8"\nrun $A',
        "A=(--tp 8)\nfor each in 1 2; do A+=(--y); done\nrun ${A[@]}",
        'if a; then A="--dp 8"; fi\nrun --tp 8 $A',
        'command -v x && A="--dp 8"; run $A',
    ],
)
def test_what_hangs_on_a_condition_is_not_known(text: str) -> None:
    last = commands(text)[-1].words[-1]
    assert unknown_in(last) in {"$A", "${A[@]}"}
    assert "condition" in why_unknown(last)


def test_a_script_gets_its_arguments_and_its_environment() -> None:
    text = 'run --tp ${TP:-8} --pp ${1:-2} "$@"'
    assert list(commands(text)[0].words) == ["run", "--tp", "8", "--pp", "2"]
    (command,) = commands(text, ["4", "--ep"], {"TP": "16"})
    assert list(command.words) == ["run", "--tp", "16", "--pp", "4", "4", "--ep"]
    assert command.env == {"TP": "16"}


@given(st.text("ab$&|=+()[]{}\"' \n;if<>", max_size=30))
def test_any_text_is_read(text: str) -> None:
    with suppress(MalformedError):
        found = commands(text)
        assert all(isinstance(word, str) for command in found for word in command.words)


def test_the_environment_is_what_is_exported_and_what_stands_before_the_command() -> None:
    (command,) = commands("export A=1\nB=2\nC=3 D='x y' run\n")
    assert command.env == {"A": "1", "C": "3", "D": "x y"}


def test_commands_within_conditions_loops_and_pipes_are_found() -> None:
    text = "for i in 1; do\n  if a; then run one; fi\ndone\nrun two | tee log\n(run three)"
    assert [w for w in words(text) if w[0] == "run"] == [["run", "one"], ["run", "two"], ["run", "three"]]


def test_nothing_is_run(tmp_path) -> None:
    commands(f"touch {tmp_path}/made\nrun $(touch {tmp_path}/made)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('if [ "$A" = 1 ]; then TP=8; fi\nrun --tp $TP', "under a condition"),
        ('TP=4\n[ "$A" = 1 ] && TP=3\nrun --tp $TP', "under a condition"),
        ("TP=4\ncase $A in a) TP=8;; esac\nrun --tp $TP", "under a condition"),
        ("TP=8\nread TP\nrun --tp $TP", "read in"),
        ("TP=8\nread -r TP\nrun --tp ${TP:-4}", "read in"),
        ("TP=8\nsource ./env.sh\nrun --tp $TP", "set by ./env.sh"),
        (". env.sh\nrun --tp ${TP:-8}", "set by env.sh"),
        ("TP=8\nfor TP in 2 4; do run --tp $TP; done", "under a condition"),
        ("TP=1\nwhile a; do run --tp $TP; TP=2; done", "under a condition"),
    ],
)
def test_what_may_have_changed_is_not_known(text: str, said: str) -> None:
    assert said in why_unknown(commands(text)[-1].words[-1])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TP=3\nunset TP\nrun --tp ${TP:-8}", "8"),
        ("TP=4\nif a; then TP=8; run --tp $TP; fi", "8"),
        ("if a; then TP=8; else TP=8; fi\nrun --tp $TP", "8"),
        ("if a; then TP=4; elif b; then TP=8; run --tp $TP; fi", "8"),
        ('[ -z "$TP" ] && TP=8\nrun --tp $TP', "8"),
        ("TP=8\n(TP=3)\nrun --tp $TP", "8"),
        ("source venv/bin/activate\nrun --tp ${TP:-8}", "8"),
        ("source env.sh\nTP=8\nrun --tp $TP", "8"),
    ],
)
def test_what_certainly_holds_is_known(text: str, value: str) -> None:
    assert commands(text)[-1].words[-1] == value


def test_a_comment_ends_a_continued_command() -> None:
    assert words("run x \\\n  # --tp 3 \\\n  --ep 8") == [["run", "x"], ["--ep", "8"]]
    assert words("# run --tp 7\nrun --tp 8") == [["run", "--tp", "8"]]


@pytest.mark.parametrize("text", ['a\nrun --model-path "x --tp 8', "a\nrun 'x --tp 8", 'a\nrun "b\nc "d"'])
def test_a_quote_that_does_not_close_is_named_with_its_line(text: str) -> None:
    with pytest.raises(MalformedError, match=r"opens on line [23] does not close"):
        commands(text)


@pytest.mark.parametrize("text", ["a && " * 3000 + "a", "( " * 3000 + "a" + " )" * 3000])
def test_text_nested_too_deeply_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(MalformedError, match="nested too deeply"):
        commands(text)
