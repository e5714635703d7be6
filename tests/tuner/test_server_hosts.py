"""What `--host` asks for besides, and what is said of it."""

from __future__ import annotations

import pytest

from search_spaces.errors import MalformedError, UserError
from tuner.server_hosts import Named, check_named, check_python, hosts_lines, ssh_host
from tuner.servers.host import LocalHost

NOTHING = Named(cluster=None, engine_command=None, engine_version=None)


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("root:s3cr3tvalue@127.0.0.1", "root:***@127.0.0.1"),
        ("ssh://root:s3cr3tvalue@box:22", "ssh://root:***@box:22"),
        ("root:s3@cr3tvalue@box", "root:***@box"),
    ],
)
def test_a_password_in_a_destination_is_refused_and_not_shown(word: str, shown: str) -> None:
    with pytest.raises(MalformedError, match="holds no password") as caught:
        ssh_host(word)
    assert shown in str(caught.value)
    assert "cr3tvalue" not in str(caught.value)


@pytest.mark.parametrize("word", ["", "-oProxyCommand=id", "a b", "a;id", "u@h\nx", "root@", "localhost:22"])
def test_what_is_no_destination_of_ssh_is_refused_with_the_form(word: str) -> None:
    with pytest.raises(MalformedError, match=r"--host is \[user@\]host, or ssh://"):
        ssh_host(word)


def test_what_would_have_to_be_found_out_elsewhere_has_to_be_named() -> None:
    with pytest.raises(UserError, match="--cluster and --engine-command and --engine-version have to be named too"):
        check_named("--host box", NOTHING, is_simulated=False)
    with pytest.raises(UserError, match="so --engine-version has to be named too"):
        check_named(
            "--host box", Named(cluster="8xh200", engine_command="python3", engine_version=None), is_simulated=False
        )
    check_named("--host box", NOTHING, is_simulated=True)
    check_named(
        "--host box", Named(cluster="8xh200", engine_command="python3", engine_version="0.5.23"), is_simulated=False
    )


def test_where_servers_run_is_said_with_what_it_means_for_the_figures() -> None:
    assert hosts_lines(()) == []
    (line,) = hosts_lines(("box",))
    assert line.startswith("servers run on box")
    assert "every time includes the way there" in line


def test_this_machine_has_a_python_that_will_do() -> None:
    check_python(LocalHost(), "--host")
