from __future__ import annotations

from tuner.shell_script import unknown_in
from tuner.systemd_unit import commands, is_unit

UNIT = """
[Unit]
Description=GLM-5 tp8_ep8
[Service]
Environment="MODEL=zai-org/GLM-5" TP=8
Environment=EXTRA="--ep-size 2"
# a comment
ExecStartPre=/bin/true
ExecStart=-/usr/bin/python3 -m sglang.launch_server \\
    --model-path ${MODEL} --tp ${TP} \\
    # another
    $EXTRA --port $PORT
Restart=always
"""


def test_a_unit_starts_what_execstart_says_with_its_environment() -> None:
    assert is_unit(UNIT)
    (command,) = commands(UNIT)
    assert command.words[:-1] == (
        "/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "zai-org/GLM-5", "--tp", "8",
        "--ep-size", "2", "--port",
    )  # fmt: skip
    assert unknown_in(command.words[-1]) == "$PORT"
    assert command.env == {"MODEL": "zai-org/GLM-5", "TP": "8", "EXTRA": "--ep-size 2"}


def test_an_empty_execstart_forgets_the_earlier_ones() -> None:
    assert [c.words for c in commands("[Service]\nExecStart=a\nExecStart=\nExecStart=b c\n")] == [("b", "c")]


def test_a_file_of_variables_is_noted_since_it_is_not_read() -> None:
    (command,) = commands("[Service]\nEnvironment=TP=8\nEnvironmentFile=-/etc/sglang.env\nExecStart=run --tp $TP\n")
    assert command.words[-1] == "8"
    assert ["/etc/sglang.env" in note for note in command.notes] == [True]
    assert not any(each.notes for each in commands(UNIT))


def test_a_script_is_no_unit() -> None:
    assert not is_unit("#!/bin/sh\npython -m sglang.launch_server\n")


def test_what_the_unit_is_called_by_is_not_known() -> None:
    (command,) = commands("[Service]\nEnvironment=TP=%i\nExecStart=run --tp %i --name 5%% --ep ${TP}")
    assert [unknown_in(word) for word in command.words] == [None, None, "%i", None, None, None, "%i"]
    assert command.words[4] == "5%"
    assert command.env == {}


def test_a_semicolon_of_its_own_begins_another_command() -> None:
    found = commands("[Service]\nType=oneshot\nExecStart=-run --a 1 ; run --b ';'")
    assert [list(command.words) for command in found] == [["run", "--a", "1"], ["run", "--b", ";"]]
