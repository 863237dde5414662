"""``lightwell serve``: take the port, plan the memory, start the engine, print the plan, serve until told to stop."""

import gc
from typing import TYPE_CHECKING, Any

from lightwell.host.process import spawn_worker
from lightwell.units import Tokens, format_bytes

if TYPE_CHECKING:  # what takes long to import is imported where it is needed, most of it while the engine starts
    import socket

    from lightwell.checkpoints.checkpoint import Checkpoint
    from lightwell.config import ServeConfig, SpeculativeConfig
    from lightwell.engine.options import PolicyOptions
    from lightwell.gateway.gateway import Gateway
    from lightwell.host.memory import KVPlan
    from lightwell.host.messages import EngineConfig, Hello
    from lightwell.host.process import WorkerProcess
    from lightwell.host.supervisor import Supervisor

_TIDY_AFTER_SECONDS = 1.0  # when those who waited for the model to load have their first tokens
_FAREWELL_SECONDS = 2.0  # what open requests get to tell their clients that the engine is given up


def serve(worker: "WorkerProcess | None" = None, /, **flags: Any) -> None:
    """Whatever cannot work is one StartupError before anything heavy starts. ``worker``: one that was started before
    the options were read."""
    worker = worker or spawn_worker()
    gc.disable()  # a start makes hundreds of thousands of objects that stay, and looking through them again takes long
    try:
        _plan_and_serve(worker, flags)
    finally:
        worker.connection.close()  # a worker without a server ends by itself


def _plan_and_serve(worker: "WorkerProcess", flags: dict[str, Any]) -> None:
    import logging

    from lightwell.checkpoints import open_checkpoint
    from lightwell.checkpoints.catalog import pull
    from lightwell.config import ServeConfig
    from lightwell.gateway.listen import listen
    from lightwell.host.memory import plan_kv
    from lightwell.host.supervisor import Supervisor

    config = ServeConfig.load(**flags)
    logging.basicConfig(level=config.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    listener = listen(config.host, config.port)
    path = pull(config.model)
    checkpoint = open_checkpoint(path)
    context = min(config.max_model_len or checkpoint.spec.context_tokens, checkpoint.spec.context_tokens)
    speculation, draft = _draft(config)
    plan = plan_kv(checkpoint, context, config.kv_cache_memory, config.kv_cache_dtype, draft=draft)
    engine = _engine_config(config, str(path), plan, context, speculation)
    supervisor = Supervisor(engine, worker, config.step_timeout_seconds)
    import uvloop

    from lightwell.gateway.authenticate import Access, is_loopback
    from lightwell.gateway.counters import MemoryCounters, RedisCounters
    from lightwell.gateway.fair_queue import FairQueue
    from lightwell.gateway.gateway import Gateway
    from lightwell.gateway.grouping import Grouping
    from lightwell.gateway.lengths import LengthLimits
    from lightwell.gateway.served import ServedModel
    from lightwell.gateway.store import Store
    from lightwell.text import load_template, load_tokenizer

    served = ServedModel(
        engine=supervisor,
        tokenizer=load_tokenizer(checkpoint),
        template=load_template(checkpoint, config.chat_template),
        names=config.served_model_name or [config.model],
        lengths=LengthLimits(config.max_prompt_tokens, config.default_max_tokens, config.max_output_tokens),
        tool_call_parser=config.tool_call_parser,
    )
    here = is_loopback(listener.getsockname()[0])
    access = Access(required=config.require_keys or not here, fixed_key=config.api_key)
    running = config.max_num_seqs + config.max_num_seqs // 4  # so that the next ones are there when a step has room
    gateway = Gateway(
        [served],
        Store(config.store),
        access=access,
        counters=RedisCounters(config.redis_url) if config.redis_url else MemoryCounters(),
        line=FairQueue(running, config.max_queue),
        grouping=Grouping(config.stream_chunk_tokens, config.stream_chunk_ms / 1000),
    )
    checkpoint.release_pages()
    del checkpoint  # with the texts of its vocabulary, which the tokenizer has its own copies of
    gc.freeze()
    gc.enable()
    uvloop.run(_serve(config, plan, listener, supervisor, gateway))


def _engine_config(
    config: "ServeConfig", path: str, plan: "KVPlan", context: Tokens, speculation: "SpeculativeConfig | None"
) -> "EngineConfig":
    from lightwell.host.messages import EngineConfig

    return EngineConfig(
        model=path,
        name=config.model,
        kv_blocks=plan.blocks,
        context_tokens=context,
        threads=config.threads,
        max_sequences=config.max_num_seqs,
        max_step_tokens=config.max_num_batched_tokens,
        watermark=config.watermark,
        prefix_cache=config.enable_prefix_caching,
        pack_cache=config.pack_cache,
        pin_threads=config.pin_threads,
        kv_cache_dtype=config.kv_cache_dtype,
        speculation=speculation,
        kv_offload=config.kv_offload,
        policies=policy_options(config),
    )


def _draft(config: "ServeConfig") -> "tuple[SpeculativeConfig | None, Checkpoint | None]":
    """What the engine is told about speculation, with the draft model's file in place of its name."""
    from msgspec import structs

    from lightwell.checkpoints import open_checkpoint
    from lightwell.checkpoints.catalog import pull

    asked = config.speculative_config
    if asked is None or asked.model is None:
        return asked, None
    path = pull(asked.model)
    return structs.replace(asked, model=str(path)), open_checkpoint(path)


def policy_options(config: "ServeConfig") -> "PolicyOptions":
    from lightwell.engine.options import PolicyOptions

    return PolicyOptions(**{name: getattr(config, name) for name in PolicyOptions.__struct_fields__})


async def _serve(
    config: "ServeConfig", plan: "KVPlan", listener: "socket.socket", supervisor: "Supervisor", gateway: "Gateway"
) -> None:
    import asyncio
    import time

    from lightwell.errors import EngineDied
    from lightwell.gateway.app import create_app
    from lightwell.gateway.batches.runner import BatchRunner
    from lightwell.gateway.counters import RedisCounters
    from lightwell.gateway.serve import serve as serve_http
    from lightwell.host.memory import return_free_memory

    # Serving begins at once: while the model loads, /health says so and requests get a 503.
    serving = asyncio.create_task(
        serve_http(create_app(gateway), listener, gateway.drain, config.shutdown_timeout_seconds)
    )
    background = [asyncio.create_task(gateway.ledger.run())]
    if isinstance(gateway.counters, RedisCounters):
        background.append(asyncio.create_task(gateway.counters.run(time.time)))
    batches = asyncio.create_task(BatchRunner(gateway, config.max_num_seqs).run())
    try:
        starting = asyncio.create_task(supervisor.start())
        await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            asyncio.get_running_loop().call_later(_TIDY_AFTER_SECONDS, return_free_memory)
            print(startup_report(config, plan, starting.result(), listener), flush=True)
            if secret := await first_admin_key(gateway):
                print(f"\n  The first administrator's key, shown only now: {secret}", flush=True)
            living = asyncio.create_task(supervisor.given_up())
            await asyncio.wait({serving, living}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                gateway.drain.begin()
                await gateway.drain.drained(_FAREWELL_SECONDS)
                raise EngineDied(
                    "The engine's process died five times without producing a token in between; giving up. "
                    "Its last words are above."
                )
    finally:
        serving.cancel()
        batches.cancel()
        await asyncio.wait({batches})
        await supervisor.stop()
        await gateway.ledger.flush()
        for task in background:
            task.cancel()
        await gateway.models[0].grammars.end()
        await gateway.store.close()


async def first_admin_key(gateway: "Gateway") -> str | None:
    """A key to make others with, where keys are required and nobody could; else None."""
    import time

    from lightwell.gateway.keys import hashed, new_key, new_secret

    if not gateway.access.required or gateway.access.fixed_key is not None:
        return None
    keys, now = (await gateway.store.database()).keys, time.time()
    if await keys.has_admin(now):
        return None
    secret = new_secret()
    await keys.add(new_key(secret, now, user="admin", name="first", admin=True), hashed(secret))
    return secret


def startup_report(config: "ServeConfig", plan: "KVPlan", hello: "Hello", listener: "socket.socket") -> str:
    """What the server took from the machine, and where it listens."""
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    rows = {
        "model": hello.model,
        "weights": format_bytes(hello.weight_bytes),
        "KV cache": f"{format_bytes(plan.bytes)}: {plan.blocks} blocks of {hello.block_tokens} tokens, "
        f"{plan.full_conversations:.1f} conversations of {hello.context_tokens} tokens",
        "workspace": format_bytes(hello.workspace_bytes),
        **hello.details,
        "page": f"{address}/",
        "OpenAI API": f"{address}/v1",
    }
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
