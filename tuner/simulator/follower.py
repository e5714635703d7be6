"""A node above 0 once it has loaded: it says that it lives, and waits for node 0 to end.

As SGLang 0.5.23 does it: srt/entrypoints/engine.py:1264, and `launch_dummy_health_check_server` in srt/utils/common.py.
"""

from __future__ import annotations

import asyncio
import signal

from tuner.simulator.deaths import EXIT_EXCEPTION
from tuner.simulator.log import Log
from tuner.simulator.peers import Peers


async def follow(peers: Peers, log: Log, *, host: str, port: int) -> int:
    from aiohttp import web  # noqa: PLC0415

    async def alive(_request: web.Request) -> web.Response:
        return web.Response()

    def on_sigterm() -> None:
        log.line(
            f"SIGTERM received on node_rank {peers.rank}; waiting for the rank-0 ShutdownReq broadcast to stop the "
            "schedulers."
        )

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
    app = web.Application()
    for path in ("/ping", "/health", "/health_generate"):
        app.router.add_get(path, alive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        log.raw(f"ERROR:    {error}")
        await runner.cleanup()
        return EXIT_EXCEPTION
    await peers.told_to_end.wait()
    await runner.cleanup()
    return 0
