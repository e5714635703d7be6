"""`docker run` commands as people write them: what is read of them, what is put in, and what is refused."""

from __future__ import annotations

import shlex

import pytest

from search_spaces.errors import UserError
from tuner.servers.container_words import bearing, container_run_of, in_the_image

SERVER = "python3 -m sglang.launch_server --model-path /m --host 127.0.0.1 --port 4000"
IMAGE = "lmsysorg/sglang:v0.5.23"


def test_words_may_be_a_tuple() -> None:
    run = container_run_of(("docker", "container", "run", "--gpus", "all", IMAGE, *SERVER.split()))
    assert run is not None
    assert (run.verb, run.image, run.inner) == (("container", "run"), IMAGE, tuple(SERVER.split()))


def started(command: str, *, port: int = 4000, env: tuple[str, ...] = (), by_file: bool = False) -> list[str]:
    run = container_run_of(shlex.split(command))
    assert run is not None
    words, _ = bearing(run, name="n", owner="o", host="127.0.0.1", port=port, env=env, by_file=by_file)
    return list(words)


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ("docker run --gpus all --network host", "docker"),
        ("docker run -v a:b --network=host --gpus all --ipc=host", "docker"),
        ("docker run -itv a:b --net host --shm-size 32g", "docker"),
        ("sudo docker run --rm -it --net=host -va:b", "sudo docker"),
        (
            "sudo -E docker --context far container run --network host --ulimit memlock=-1",
            "sudo -E docker --context far",
        ),
        ("podman run --device nvidia.com/gpu=all --network host --tls-verify=false", "podman"),
        ("nerdctl --namespace k8s.io run --network host --gpus all", "nerdctl --namespace k8s.io"),
        ("podman --noout --syslog run --network host", "podman --noout --syslog"),
        ("docker -lerror -H tcp://box:1 run --network host", "docker -lerror -H tcp://box:1"),
        (
            "docker --context a --config b --log-level error container run --network host",
            "docker --context a --config b --log-level error",
        ),
        ("sudo -u docker docker run --network host", "sudo -u docker docker"),
        ("env A=b nice -n 5 /usr/bin/docker run --network host --privileged", "env A=b nice -n 5 /usr/bin/docker"),
    ],
)
def test_program_image_and_inner_command_are_found_behind_any_options(options: str, program: str) -> None:
    run = container_run_of(shlex.split(f"{options} {IMAGE} {SERVER}"))
    assert run is not None
    assert (" ".join(run.program), run.image, " ".join(run.inner)) == (program, IMAGE, SERVER)
    assert run.shares_the_network


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m sglang.launch_server",
        "conda run -n docker python -m x",
        "uv run docker",
        "bash -c 'python -m x'",
        "sudo -u docker python3 -m x",
    ],
)
def test_what_runs_no_container_is_none(command: str) -> None:
    assert container_run_of(shlex.split(command)) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("docker run -d img x", "log would be lost"),
        ("docker run -itd img x", "log would be lost"),
        ("docker run --detach img x", "log would be lost"),
        ("docker run --restart always img x", "a death would not be seen"),
        ("docker run --network none img x", "nothing could reach"),
        ("docker run --gpus all", "names no image"),
        ("docker exec box python3 -m sglang.launch_server", "`docker run` alone"),
        ("docker compose up", "`docker run` alone"),
        ("docker container exec box python3 -m sglang.launch_server", "`docker container exec` starts no server"),
        ("docker container start box", "`docker container start` starts no server"),
        ("docker", "`docker` starts no server that ends with the command"),
        ("podman --version", "`podman` starts no server"),
        ("env A=b docker", "`docker` starts no server"),
        ("docker image ls", "`docker image` starts no server"),
        ("docker container", "`docker container` starts no server"),
        ("docker container run", "names no image"),
        ("bash -c 'docker run --gpus all img x'", "without a shell"),
    ],
)
def test_a_container_that_could_not_be_ended_or_heard_is_refused(command: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        container_run_of(shlex.split(command))


def test_it_gets_a_name_and_a_label_and_loses_terminal_and_removal() -> None:
    words = started(f"docker run -it --rm --name mine --gpus all --network host {IMAGE} {SERVER}")
    assert words == [
        *("--name", "n", "--label", "layout-tune.owner=o", "--gpus", "all", "--network", "host", IMAGE),
        *SERVER.split(),
    ]


def test_on_a_network_of_its_own_the_port_is_published_on_loopback_and_all_addresses_listened_on_inside() -> None:
    words = started(f"docker run --gpus all {IMAGE} {SERVER}")
    assert words[words.index("--publish") + 1] == "127.0.0.1:4000:4000"
    assert words[-4:] == ["--host", "0.0.0.0", "--port", "4000"]


@pytest.mark.parametrize("publish", ["-p 4000:30000", "-p4000:30000", "--publish=127.0.0.1:4000:30000/tcp"])
def test_a_port_that_the_command_publishes_itself_is_listened_on_where_it_ends(publish: str) -> None:
    words = started(f"docker run {publish} {IMAGE} {SERVER}")
    assert sum("4000" in word for word in words) == 1
    assert words[-4:] == ["--host", "0.0.0.0", "--port", "30000"]


def test_variables_go_in_by_name_alone_and_secrets_that_stood_on_the_command_line_too() -> None:
    run = container_run_of(shlex.split(f"docker run -e HF_TOKEN=canary -e A=b --network host {IMAGE} {SERVER}"))
    assert run is not None
    words, given = bearing(run, name="n", owner="o", host="h", port=1, env=("OURS",), by_file=False)
    assert given == {"HF_TOKEN": "canary"}
    assert " ".join(words).count("--env OURS --env HF_TOKEN") == 1
    assert "A=b" in words
    assert "canary" not in " ".join(words)


def test_a_program_run_as_another_user_gets_no_variables_by_name() -> None:
    run = container_run_of(shlex.split(f"sudo docker run {IMAGE} {SERVER}"))
    assert run is not None
    assert run.is_by_another_user
    assert "--env" not in started(f"sudo docker run {IMAGE} {SERVER}", env=("OURS",), by_file=True)


def test_the_image_is_asked_without_gpus_ports_or_the_name_and_is_not_fetched_for_it() -> None:
    run = container_run_of(shlex.split(f"sudo docker run --gpus all -it -p 1:1 --name x -v a:b {IMAGE} python3 -m y"))
    assert run is not None
    words = in_the_image(run, "n", ("python3",), "code")
    assert words == (
        *(
            "sudo",
            "docker",
            "run",
            "--rm",
            "--pull",
            "never",
            "--name",
            "n",
            "-v",
            "a:b",
            IMAGE,
            "python3",
            "-c",
            "code",
        ),
    )
