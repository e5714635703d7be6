"""A server that is ready at once and answers `/generate` as it is told. Run as `answering_server.py PORT JSON`.

JSON: `status` and no answer but words; `text` instead of JSON; `meta`, what `meta_info` holds; `dies`, the code with which
it ends when it is asked; `sleeps`, it never answers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPT = json.loads(sys.argv[2])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if "dies" in SCRIPT:
            os._exit(SCRIPT["dies"])
        if "sleeps" in SCRIPT:
            threading.Event().wait()
        if "status" in SCRIPT:
            self._answer(SCRIPT["status"], b"no such thing")
        elif "text" in SCRIPT:
            self._answer(200, SCRIPT["text"].encode())
        else:
            self._answer(200, json.dumps({"meta_info": SCRIPT.get("meta", {})}).encode())

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.daemon_threads = True
server.serve_forever()
