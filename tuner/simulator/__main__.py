"""`python -m tuner.simulator`: one simulated SGLang server, from its first log line to its end."""

from __future__ import annotations

import asyncio
import signal
import sys
import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

from tuner.simulator.arguments import Arguments, read_arguments, usage_error
from tuner.simulator.batch_log import BatchLog
from tuner.simulator.clock import VirtualClock
from tuner.simulator.deaths import EXIT_EXCEPTION, die_of, illegal_access, step_does_not_fit
from tuner.simulator.engine import Engine, Fault, Faults, Replica
from tuner.simulator.faults import FaultError, next_fault
from tuner.simulator.follower import follow
from tuner.simulator.log import Log
from tuner.simulator.peers import Peers
from tuner.simulator.scheduler import Limits, Rank
from tuner.simulator.serving import Bounds
from tuner.simulator.startup import Loaded, Startup, rank_names, warm_up
from tuner.simulator.timing import StepTimer

_ATTENTION_DP_CONSERVATIVENESS = 0.3


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serves until it is told to end, or dies; `argv` without the program's name."""
    arguments = read_arguments(sys.argv[1:] if argv is None else argv)
    sys.exit(asyncio.run(_serve(arguments)))


async def _serve(arguments: Arguments) -> int:
    clock = VirtualClock(arguments.clock_scale)
    try:
        fault = next_fault(arguments.faults_path, host=arguments.host, port=arguments.port, scale=arguments.clock_scale)
    except FaultError as error:
        usage_error(str(error))
    log = Log(clock, fault.on_line)
    because = f" ({arguments.reason})" if arguments.reason else ""
    log.line(f"SIMULATED SGLang {arguments.version}: no GPU is used; times are simulated seconds{because}")
    peers = Peers(rank=arguments.node_rank, count=arguments.layout.nnodes, meet=arguments.dist_init_addr)
    loaded = await Startup(arguments, clock, log, peers).load()
    if peers.rank:
        return await follow(peers, log, host=arguments.host, port=arguments.port)

    # The web framework is only needed by launches that come this far.
    from aiohttp import web  # noqa: PLC0415
    from aiohttp.typedefs import Handler  # noqa: PLC0415

    from tuner.simulator.http import Server, Status  # noqa: PLC0415
    from tuner.simulator.server_facts import ServerFacts  # noqa: PLC0415

    engine = _engine(arguments, loaded, clock, log)
    bounds = Bounds(
        vocab_size=arguments.model.vocab_size,
        context_tokens=loaded.context_tokens,
        pool_tokens=loaded.memory.pool_tokens,
        takes_text=not arguments.skip_tokenizer_init,
        computes_wrongly=loaded.computes_wrongly or arguments.answers_wrongly(loaded.layout),
        rounding=zlib.crc32(repr(loaded.layout).encode()),
    )
    facts = ServerFacts(arguments, loaded, engine, bounds)
    server = Server(
        engine,
        facts,
        bounds,
        enable_metrics=arguments.enable_metrics,
        api_key=arguments.api_key,
        admin_api_key=arguments.admin_api_key,
    )
    server.on_chunk = fault.on_chunk
    # Only with cancellation does a handler learn that its client is gone.
    app = server.app()

    @web.middleware
    async def while_busy(request: web.Request, handler: Handler) -> web.StreamResponse:
        return web.Response(status=503, text="busy") if fault.is_busy else await handler(request)

    app.middlewares.insert(0, while_busy)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, arguments.host, arguments.port, backlog=2048).start()
    except OSError as error:
        log.raw(f"ERROR:    {error}")
        await runner.cleanup()
        return EXIT_EXCEPTION
    address = f"http://{arguments.host}:{arguments.port}"
    log.raw(f"INFO:     Uvicorn running on {address} (Press CTRL+C to quit) [simulated]")
    await warm_up(loaded, clock, log)
    facts.startup_s = clock.now_s
    server.status = Status.UP
    serving = asyncio.create_task(engine.run())
    told = asyncio.create_task(_told_to_leave())
    either: set[asyncio.Future[Any]] = {serving, told}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    server.status = Status.LEAVING
    log.line(f"SIGTERM received. signum={told.result()}. Draining requests and shutting down...")
    _tell_remaining(engine, log)
    if engine.rids:
        await engine.drained()
        _tell_remaining(engine, log)
    serving.cancel()
    await peers.tell_the_end()
    await runner.cleanup()
    return 0


def _tell_remaining(engine: Engine, log: Log) -> None:
    remaining = engine.rids
    log.line(
        f"Gracefully exiting... Remaining number of requests {len(remaining)}. "
        f"Remaining requests remaining_rids={remaining}."
    )


async def _told_to_leave() -> int:
    """Returns the number of the first signal that asks the process to end."""
    loop = asyncio.get_running_loop()
    told = asyncio.Queue[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.put_nowait, number)
    return await told.get()


def _engine(arguments: Arguments, loaded: Loaded, clock: VirtualClock, log: Log) -> Engine:
    layout, memory = loaded.layout, loaded.memory
    on_cpu = arguments.cluster.gpu.is_cpu
    by_attention_dp = layout.attn_dp_size > 1
    limits = Limits(
        pool_tokens=memory.pool_tokens,
        page_tokens=layout.page_size or 1,
        running_requests=loaded.running_requests,
        prefill_chunk_tokens=layout.chunked_prefill_size or 0,
        prefill_tokens=arguments.max_prefill_tokens,
        conservativeness=arguments.schedule_conservativeness
        * (_ATTENTION_DP_CONSERVATIVENESS if by_attention_dp else 1.0),
    )
    names = iter(rank_names(layout))
    replicas = []
    for number in range(layout.dp_size):
        ranks = [Rank(limits) for _ in range(layout.attn_dp_size)]
        logs = [BatchLog(log, next(names), decode_interval=arguments.decode_log_interval, on_cpu=on_cpu) for _ in ranks]
        # Replicas are alike but for their noise.
        timer = StepTimer(arguments.model, arguments.cluster, layout, seed=arguments.seed + 1000003 * number)
        replicas.append(Replica(ranks, timer, logs))

    def on_fault(fault: Fault) -> NoReturn:
        failure = illegal_access() if fault is Fault.ILLEGAL_ACCESS else step_does_not_fit(memory)
        die_of(failure, log, rank=rank_names(layout)[0], has_served=True)

    return Engine(
        replicas,
        clock=clock,
        stream_interval=arguments.stream_interval,
        faults=Faults(
            crash_at_running=arguments.crash_at_running,
            hang_at_running=arguments.hang_at_running,
            step_tokens=memory.step_tokens,
        ),
        on_fault=on_fault,
    )


if __name__ == "__main__":
    main()
