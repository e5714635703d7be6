"""What is found out of a server before it is measured, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from search_spaces.errors import UserError
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.workload import Workload
from tuner import server_control
from tuner.measured_server import FoundServer, base_url_of, found_server, layout_said
from tuner.server_keys import NO_KEYS, ServerKeys

WORKLOAD = Workload(input_tokens=64, output_tokens=16, concurrencies=(1,))


def found(url: str, *, keys: ServerKeys = NO_KEYS, model: str | None = None) -> FoundServer:
    return found_server(url, keys, model, WORKLOAD)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:30000", "http://127.0.0.1:30000"),
        ("http://box:30000/", "http://box:30000"),
        ("https://box", "https://box"),
        ("http://[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_an_address_is_taken_with_or_without_its_scheme(text: str, url: str) -> None:
    assert base_url_of(text) == url


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://127.0.0.1:30000/v1", "without a path: http://127.0.0.1:30000"),
        ("http://127.0.0.1:30000?a=b", "without a path"),
        ("http://me:secret@127.0.0.1:30000", "--api-key-env"),
        ("ftp://127.0.0.1", "http://127.0.0.1:30000"),
        ("http://a b", "named by its address"),
        ("http://[::1", "no address"),
        ("http://box:99999", "no address"),
    ],
)
def test_what_is_no_address_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said.replace("?", "[?]")) as refused:
        base_url_of(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_where_nothing_answers_that_is_said(url: str) -> None:
    with pytest.raises(UserError, match=f"nothing answers at {url}: .+"):
        found(url)


@contextmanager
def other_server(answers: dict[str, Any], *, certificate: Path | None = None) -> Iterator[str]:
    """One that knows these paths alone, by HTTP, or HTTPS with a certificate that nobody trusts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path)).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


INFO = {"tp_size": 8, "model_path": "kimi-k2.6", "version": "0.5.23"}


@pytest.mark.parametrize(
    ("answers", "model", "said"),
    [
        ({}, None, "no SGLang server: 404"),
        ({"/version": {"version": "0.11.0"}}, None, "vLLM 0[.]11[.]0"),
        ({"/server_info": [1]}, None, "no SGLang server"),
        ({"/server_info": {"a": 1}}, None, "names no tp_size"),
        ({"/server_info": {**INFO, "model_path": "/models/own"}, "/generate": {}}, None, "name the model with --model"),
        ({"/get_server_info": {**INFO, "max_total_num_tokens": 50}}, None, "KV cache has 50 tokens"),
        ({"/server_info": {**INFO, "max_req_input_len": 10}}, None, "at most 10 tokens"),
        ({"/server_info": INFO, "/generate": "valid range is [0, 2048)."}, None, "163840 token ids, .* has 2048"),
        (
            {"/server_info": {**INFO, "model_path": "glm-4.6"}, "/generate": {}},
            "kimi-k2.6",
            "--model kimi-k2.6 has 163840",
        ),
        (
            {"/server_info": INFO, "/generate": {}},
            "qwen3-30b-a3b",
            "--model qwen3-30b-a3b has 151936 token ids, but .* serves kimi-k2.6, which has 163840",
        ),
        (
            {"/server_info": {**INFO, "model_path": "/models/own"}, "/generate": "valid range is [0, 2000000)."},
            "kimi-k2.6",
            "--model kimi-k2.6 has 163840 token ids, but the model .* has 2000000",
        ),
        (
            {"/server_info": {**INFO, "model_path": "qwen3-235b-a22b"}, "/generate": {}},
            "qwen3-30b-a3b",
            "it says qwen3-235b-a22b, with num_layers 94 instead of 48",
        ),
        ({"/server_info": INFO}, None, "refuses a request"),
        (
            {"/server_info": {**INFO, "max_total_num_tokens": math.inf}},
            None,
            "no SGLang server: .* max_total_num_tokens inf",
        ),
        ({"/server_info": {**INFO, "max_total_num_tokens": -1}}, None, "says max_total_num_tokens -1"),
        ({"/server_info": {**INFO, "tp_size": "8"}}, None, "says tp_size '8'"),
        ({"/server_info": {**INFO, "ep_size": 4.5}}, None, "says ep_size 4.5"),
        ({"/server_info": {**INFO, "pp_size": 10**23}}, None, "says pp_size 1000000"),
    ],
)
def test_what_is_no_sglang_server_or_cannot_take_the_load_is_refused(
    answers: dict[str, Any], model: str | None, said: str
) -> None:
    with other_server(answers) as url, pytest.raises(UserError, match=said):
        found(url, model=model)


def test_an_answer_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_control, "MOST_ANSWER_BYTES", 2**20)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def send() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):  # until nobody reads any more
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n[")
                while True:
                    connection.sendall(b"1," * 2**15)

        sending = threading.Thread(target=send)
        sending.start()
        with pytest.raises(UserError, match="no SGLang server: its /server_info is an answer of more than 1 MiB"):
            found(f"http://127.0.0.1:{listening.getsockname()[1]}")
        sending.join()


def test_the_server_s_own_word_on_its_vocabulary_is_taken_where_its_model_is_not_known() -> None:
    answers = {"/server_info": {**INFO, "model_path": "/models/own"}, "/generate": "valid range is [0, 2048)."}
    with other_server(answers) as url:
        server = found(url)
    assert (server.vocab_size, server.model, server.layout.label) == (2048, "/models/own", "TP8")
    assert not server.is_simulated


def test_a_certificate_that_nobody_trusts_is_refused_and_one_that_is_named_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl, to make a certificate")
    pem, certificate = tmp_path / "own.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", pem, "-out", certificate, *subject]
    subprocess.run(made, check=True, capture_output=True)
    pem.write_text(pem.read_text() + certificate.read_text())
    with other_server({"/server_info": {**INFO, "max_req_input_len": 10}}, certificate=pem) as url:
        with pytest.raises(UserError, match=r"is not trusted: certificate verify failed: self.signed"):
            found(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pytest.raises(UserError, match="at most 10 tokens"):
            found(url)
    with other_server({}) as url, pytest.raises(UserError, match="speaks no TLS"):
        found(url.replace("http", "https"))


def test_the_layout_is_read_from_what_a_server_says_of_its_arguments() -> None:
    said = {"tp_size": 8, "ep_size": 4, "dp_size": 1, "mem_fraction_static": 0.9, "enable_dp_attention": False, "x": 1}
    assert layout_said(said, NEWEST) == Layout(tp_size=8, ep_size=4, mem_fraction_static=0.9)


def test_attention_data_parallelism_is_read_as_older_releases_spell_it() -> None:
    said = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}
    assert layout_said(said, EngineVersion.parse("0.5.9")).attn_dp_size == 8


def test_a_value_that_no_flag_takes_leaves_the_sizes() -> None:
    said = {"tp_size": 8, "ep_size": 2, "moe_a2a_backend": "of a release to come"}
    assert layout_said(said, NEWEST) == Layout(tp_size=8, ep_size=2)
