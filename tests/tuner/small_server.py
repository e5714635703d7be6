"""A server that answers like SGLang until it is asked to generate. Run as `small_server.py PORT JSON`.

JSON: `busy`, how many times `/health` answers 503 first; `info`, what `/server_info` says; `wants`, the
authorization without which it says nothing; `dies`, what it prints before it
ends with code 1 instead of serving; `complains`, what it prints when it is asked to generate, which it answers with 500;
`ends`, whether it then answers nothing more until it ends with code 1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SCRIPT = json.loads(sys.argv[2])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Handler(BaseHTTPRequestHandler):
    busy = SCRIPT.get("busy", 0)

    def do_GET(self) -> None:
        if self.path == "/server_info" and self.headers.get("Authorization", "") != SCRIPT.get("wants", ""):
            self._answer(401, {"error": "Unauthorized"})
        elif self.path == "/server_info":
            self._answer(200, SCRIPT["info"])
        elif self.path == "/health":
            Handler.busy -= 1
            self._answer(200 if Handler.busy < 0 else 503, {})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/generate":
            say(SCRIPT.get("complains", ""))
            if SCRIPT.get("ends"):
                self.server.server_close()
                time.sleep(0.5)
                os._exit(1)
            self._answer(500, {"error": "no"})
        else:
            self._answer(200, {})

    def _answer(self, status: int, body: object) -> None:
        if status == 503:
            say("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.")
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


if "dies" in SCRIPT:
    say(SCRIPT["dies"])
    sys.exit(1)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
