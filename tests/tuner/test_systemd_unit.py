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


def test_a_script_is_no_unit() -> None:
    assert not is_unit("#!/bin/sh\npython -m sglang.launch_server\n")
