"""The command line. Each command is a file of its own, imported when it is called, so that --help answers at once."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

import lightwell
from lightwell.cli.entry import report_errors

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
bench = typer.Typer(no_args_is_help=True, help="Measure decode, prefill, offload, a server under load, or the machine.")
app.add_typer(bench, name="bench")
config = typer.Typer(no_args_is_help=True, help="What the server would be started with.")
app.add_typer(config, name="config")
batch = typer.Typer(no_args_is_help=True, help="Many requests in a file, answered by a running server.")
app.add_typer(batch, name="batch")
keys = typer.Typer(no_args_is_help=True, help="API keys: who may use the server.")
app.add_typer(keys, name="keys")
prices = typer.Typer(no_args_is_help=True, help="What a million tokens of a model cost.")
app.add_typer(prices, name="prices")
limits = typer.Typer(no_args_is_help=True, help="How much a key, a team or a model may use.")
app.add_typer(limits, name="limits")
instructions = typer.Typer(no_args_is_help=True, help="What chats of a key, a team or a model begin with.")
app.add_typer(instructions, name="instructions")

Model = Annotated[str, typer.Argument(help="A name from `lightwell models`, a path, or hf:org/repo/file.gguf.")]
Threads = Annotated[int | None, typer.Option(help="Compute threads; by default the physical cores it may use.")]
KVCacheDtype = Annotated[
    Literal["f16", "int8"], typer.Option(help="What keys and values are kept in; int8 takes half the memory.")
]
PackCache = Annotated[
    bool, typer.Option(envvar="LIGHTWELL_PACK_CACHE", help="Keep packed weights on disk for the next start.")
]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")]
Seed = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same answer; drawn if not given.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer; by default the room left.")]
TemplateFile = Annotated[Path | None, typer.Option("--chat-template", help="A jinja file to use for chats.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of text.")]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Context window in tokens; by default the model's.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Lightwell: an LLM inference server that you can see into."""
    if version:
        print(lightwell.__version__)
        raise typer.Exit


@app.command()
def serve(
    model: Annotated[str | None, typer.Argument(help="What to serve; by default smollm2.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; by default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="By default 8000; 0 takes any free one.")] = None,
    served_model_name: Annotated[list[str] | None, typer.Option(help="What clients call the model.")] = None,
    chat_template: TemplateFile = None,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="hermes, llama3, mistral or gemma; by default what fits the template.")
    ] = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most sequences in a step; by default 64.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Most tokens in a step; by default 512.")] = None,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="Such as 2GiB; by default two full conversations.")
    ] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="f16 (the default) or int8, half of its size.")] = None,
    kv_offload: Annotated[
        str | None, typer.Option(help="Keep so much of what leaves the KV cache on disk, such as 4GiB.")
    ] = None,
    threads: Threads = None,
    pin_threads: Annotated[bool | None, typer.Option(help="Keep each on a core of its own; off by default.")] = None,
    enable_prefix_caching: Annotated[bool | None, typer.Option(help="Reuse computed prefixes; on by default.")] = None,
    watermark: Annotated[float | None, typer.Option(help="Share of blocks kept free at admission.")] = None,
    speculative_config: Annotated[
        str | None, typer.Option(help='Guess tokens: \'{"method": "ngram"}\', or a draft_model with its "model".')
    ] = None,
    when_full: Annotated[str | None, typer.Option(help="preempt (the default), queue or reject.")] = None,
    batching: Annotated[str | None, typer.Option(help="continuous (the default) or static.")] = None,
    kv_allocation: Annotated[str | None, typer.Option(help="paged (the default) or reserved.")] = None,
    objective: Annotated[str | None, typer.Option(help="latency, balanced (the default) or throughput.")] = None,
    target_itl: Annotated[str | None, typer.Option(help="Time between tokens to aim at, such as 50ms.")] = None,
    target_ttft: Annotated[str | None, typer.Option(help="Time to first token to aim at, such as 1s.")] = None,
    long_prefill_threshold: Annotated[int | None, typer.Option(help="Tokens from which a prompt gives way.")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longest prompt that is taken.")] = None,
    default_max_tokens: Annotated[int | None, typer.Option(help="Longest chat answer, where none is asked.")] = None,
    max_output_tokens: Annotated[int | None, typer.Option(help="Longest answer that may be asked for.")] = None,
    stop_repetition: Annotated[bool | None, typer.Option(help="End answers that loop; off by default.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Where keys and usage are kept: a SQLite file or postgresql://user@host/name.")
    ] = None,
    require_keys: Annotated[bool | None, typer.Option(help="Ask callers on this machine for a key, too.")] = None,
    api_key: Annotated[str | None, typer.Option(help="One more key, which may do everything.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Where several servers count their limits together.")] = None,
    max_queue: Annotated[int | None, typer.Option(help="Requests that may wait; by default 1000.")] = None,
    stream_chunk_tokens: Annotated[int | None, typer.Option(help="Most tokens in an event under load.")] = None,
    stream_chunk_ms: Annotated[float | None, typer.Option(help="Longest wait of a token for others.")] = None,
    pack_cache: Annotated[bool | None, typer.Option(help="Keep packed weights on disk; on by default.")] = None,
    shutdown_timeout_seconds: Annotated[float | None, typer.Option(help="How long a drain may take.")] = None,
    step_timeout_seconds: Annotated[
        float | None, typer.Option(help="Restart an engine whose step takes longer; by default 300, 0 is never.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve a model behind the OpenAI API. Options are also LIGHTWELL_... variables and lines of lightwell.toml."""
    from lightwell.cli.serve import serve as command

    flags = dict(locals())
    del flags["command"]
    command(**flags)


@app.command()
def run(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="What to ask; '-' reads it from standard input.")],
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    chat_template: TemplateFile = None,
    threads: Threads = None,
    kv_cache_dtype: KVCacheDtype = "f16",
    pack_cache: PackCache = True,
) -> None:
    """Answer one prompt and exit."""
    from lightwell.cli.run import run as command

    text = sys.stdin.read() if prompt == "-" else prompt
    command(model, text, max_tokens, temperature, seed, raw, chat_template, threads, kv_cache_dtype, pack_cache)


@app.command()
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="Instructions that stand before the conversation.")] = None,
    temperature: Temperature = 0.7,
    seed: Seed = None,
    chat_template: TemplateFile = None,
    threads: Threads = None,
    kv_cache_dtype: KVCacheDtype = "f16",
    pack_cache: PackCache = True,
) -> None:
    """Talk to a model in the terminal."""
    from lightwell.cli.chat import chat as command

    command(model, system, temperature, seed, chat_template, threads, kv_cache_dtype, pack_cache)


@app.command()
def pull(model: Model) -> None:
    """Fetch a model's file into the cache, verified."""
    from lightwell.cli.models import pull as command

    command(model)


@app.command()
def models() -> None:
    """List the models that can be named, and which are here already."""
    from lightwell.cli.models import models as command

    command()


@app.command()
def cache(clear: Annotated[bool, typer.Option("--clear", help="Remove all of them.")] = False) -> None:
    """List the packed weights that are kept on disk for the next start."""
    from lightwell.cli.cache import cache as command

    command(clear)


class QuantizedFormat(StrEnum):
    """GGUF's names of the formats that can be written."""

    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"


@app.command()
def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model in F32, F16 or BF16, named like MODEL.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="The GGUF file to write.")],
    format: Annotated[QuantizedFormat, typer.Option(help="What the matrices become.")],
    force: Annotated[bool, typer.Option("--force", help="Replace DEST where it is there already.")] = False,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Take a source that is quantized already.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a model in 8 or 4 bits as a GGUF file, and say what each matrix loses."""
    from lightwell.cli.quantize import quantize as command

    command(source, destination, format, force, allow_requantize, json)


@app.command()
def perplexity(
    model: Model,
    text: Annotated[Path, typer.Argument(help="A file of UTF-8 text, such as wikitext-2's wiki.test.raw.")],
    context: Annotated[int, typer.Option(min=4, help="Tokens of a chunk; its second half is scored.")] = 512,
    chunks: Annotated[int | None, typer.Option(min=1, help="Only the first chunks; by default the whole text.")] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """How well a model predicts a text, as llama.cpp measures it: to see what a quantized format costs."""
    from lightwell.cli.perplexity import perplexity as command

    command(model, text, context, chunks, threads, json)


@keys.command("create")
def keys_create(
    user: Annotated[str, typer.Argument(help="Whose key it is.")],
    team: Annotated[str, typer.Option(help="Its members share files, batches, limits and cached prefixes.")] = "",
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    model: Annotated[list[str] | None, typer.Option(help="May use only this one; may be repeated.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May make keys and set limits.")] = False,
    truncation: Annotated[
        Literal["refuse", "drop_oldest", "summarize"] | None,
        typer.Option(help="What to do with its conversations that do not fit."),
    ] = None,
    expires_in: Annotated[str | None, typer.Option(help="Such as 30d; by default never.")] = None,
    json: Json = False,
) -> None:
    """Make a key, and print it, once."""
    from lightwell.cli.keys import create as command

    command(
        json,
        user=user,
        team=team,
        name=name,
        models=model or None,
        admin=admin,
        truncation=truncation,
        expires_in=expires_in,
    )


@keys.command("list")
def keys_list(json: Json = False) -> None:
    """Show all keys, by their beginnings."""
    from lightwell.cli.keys import listed as command

    command(json)


KeyId = Annotated[str, typer.Argument(help="The id that `list` shows.")]


@keys.command("rotate")
def keys_rotate(
    key: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the old one still works.")] = "24h",
    json: Json = False,
) -> None:
    """Make a new key in place of an old one, which works a while longer."""
    from lightwell.cli.keys import rotate as command

    command(key, overlap, json)


@keys.command("revoke")
def keys_revoke(key: KeyId) -> None:
    """Have a key work no longer, from this second on."""
    from lightwell.cli.keys import revoke as command

    command(key)


@app.command()
def usage(
    by: Annotated[str, typer.Option(help="Some of day, key, user, team, model, by commas.")] = "day,key,model",
    since: Annotated[str | None, typer.Option(help="A day, such as 2026-01-31 (UTC).")] = None,
    until: Annotated[str | None, typer.Option(help="The day after the last.")] = None,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="For a spreadsheet.")] = False,
) -> None:
    """Requests, tokens and cost, summed up."""
    from lightwell.cli.usage import usage as command

    command(by, since, until, "json" if json else "csv" if csv else "table")


PricedModel = Annotated[str, typer.Argument(help="The name it is served by.")]


@prices.command("set")
def prices_set(
    model: PricedModel,
    input: Annotated[float, typer.Option(min=0, help="Dollars for a million prompt tokens.")],
    output: Annotated[float, typer.Option(min=0, help="Dollars for a million tokens of answers.")],
    cached_input: Annotated[
        float | None, typer.Option(min=0, help="Dollars for a million cached prompt tokens; by default as the others.")
    ] = None,
    batch_discount: Annotated[float, typer.Option(min=0, max=1, help="The share that batches are cheaper by.")] = 0.5,
) -> None:
    """Set what a model costs, from now on."""
    from lightwell.cli.usage import set_price as command

    command(model, input, output, cached_input, batch_discount)


@prices.command("list")
def prices_list() -> None:
    """Show the price sheet."""
    from lightwell.cli.usage import list_prices as command

    command()


@prices.command("clear")
def prices_clear(model: PricedModel) -> None:
    """Have a model cost nothing."""
    from lightwell.cli.usage import clear_price as command

    command(model)


@prices.command("suggest")
def prices_suggest(
    model: Model,
    gpu_hour: Annotated[float, typer.Option("--gpu-hour", "--machine-hour", min=0, help="Dollars for an hour of it.")],
    utilization: Annotated[float, typer.Option(min=0.01, max=1, help="The share of the time it is at work.")] = 1.0,
    prompt_tokens_per_second: Annotated[float | None, typer.Option(min=0.01, help="By default measured.")] = None,
    output_tokens_per_second: Annotated[float | None, typer.Option(min=0.01, help="By default measured.")] = None,
    threads: Threads = None,
) -> None:
    """Prices at which the machine earns what it costs, from how fast it is."""
    from lightwell.cli.usage import suggest as command

    command(model, gpu_hour, utilization, prompt_tokens_per_second, output_tokens_per_second, threads)


Subject = Annotated[str, typer.Argument(help="key:ID, team:NAME or model:NAME.")]


LimitSubject = Annotated[str, typer.Argument(help="key:ID, team:NAME, model:NAME, or default for every key.")]


@limits.command("set")
def limits_set(
    subject: LimitSubject,
    requests_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Of prompts and answers together.")] = None,
    concurrent_requests: Annotated[int | None, typer.Option(min=1)] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Of one request.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="Of one request.")] = None,
    dollars_per_day: Annotated[float | None, typer.Option(min=0)] = None,
    dollars_per_month: Annotated[float | None, typer.Option(min=0)] = None,
) -> None:
    """Set the limits of a key, a team or a model, in place of those it had."""
    from lightwell.cli.limits import put as command

    limits = dict(locals())
    del limits["command"], limits["subject"]
    command(subject, limits)


@limits.command("list")
def limits_list(json: Json = False) -> None:
    """Show all of them."""
    from lightwell.cli.limits import listed as command

    command(json)


@limits.command("clear")
def limits_clear(subject: LimitSubject) -> None:
    """Take away those of one key, team or model."""
    from lightwell.cli.limits import clear as command

    command(subject)


@instructions.command("set")
def instructions_set(
    subject: Subject, text: Annotated[str, typer.Argument(help="The text; '-' reads it from standard input.")]
) -> None:
    """Have the chats of a key, a team or a model begin with a text, in place of the one they had."""
    from lightwell.cli.instructions import put as command

    command(subject, sys.stdin.read() if text == "-" else text)


@instructions.command("list")
def instructions_list() -> None:
    """Show all of them."""
    from lightwell.cli.instructions import listed as command

    command()


@instructions.command("clear")
def instructions_clear(subject: Subject) -> None:
    """Remove those of one key, team or model."""
    from lightwell.cli.instructions import clear as command

    command(subject)


ServerUrl = Annotated[str, typer.Option("--url", envvar="OPENAI_BASE_URL", help="The server.")]
BatchId = Annotated[str, typer.Argument(help="What `submit` printed.")]
_HERE = "http://127.0.0.1:8000"


@batch.command("submit")
def batch_submit(
    file: Annotated[Path, typer.Argument(help="One JSON object a line: custom_id, method, url, body.")],
    endpoint: Annotated[str, typer.Option(help="Which API the lines are for.")] = "/v1/chat/completions",
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    url: ServerUrl = _HERE,
) -> None:
    """Hand a file of requests to a server; prints the id of the batch."""
    from lightwell.cli.batch import submit as command

    command(url, file, endpoint, wait)


@batch.command("status")
def batch_status(
    batch: Annotated[str | None, typer.Argument(help="What `submit` printed; by default all.")] = None,
    url: ServerUrl = _HERE,
) -> None:
    """How far batches are, and what is wrong with their files."""
    from lightwell.cli.batch import status as command

    command(url, batch)


@batch.command("fetch")
def batch_fetch(
    batch: BatchId,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="By default standard output.")] = None,
    errors: Annotated[bool, typer.Option("--errors", help="The requests that failed, and why.")] = False,
    url: ServerUrl = _HERE,
) -> None:
    """The answers of a batch, one a line."""
    from lightwell.cli.batch import fetch as command

    command(url, batch, output, errors)


@config.command("check")
def config_check(json: Json = False) -> None:
    """Check lightwell.toml and the LIGHTWELL_ variables; say of every setting what it is and where it comes from."""
    from lightwell.cli.config import check as command

    command(json)


Repeat = Annotated[int, typer.Option(min=1, help="Runs; the median is what counts.")]


@bench.command("decode")
def bench_decode(
    model: Model,
    batch: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens for each sequence.")] = 256,
    context: Annotated[int, typer.Option(min=0, help="Tokens that each sequence has before.")] = 0,
    repeat: Repeat = 5,
    threads: Threads = None,
    kv_cache_dtype: KVCacheDtype = "f16",
    json: Json = False,
) -> None:
    """Tokens per second of decoding, without server or scheduler."""
    from lightwell.cli.bench import decode as command

    command(model, batch, tokens, context, repeat, threads, kv_cache_dtype, json)


@bench.command("prefill")
def bench_prefill(
    model: Model,
    tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt.")] = 512,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens in one step.")] = 512,
    repeat: Repeat = 5,
    threads: Threads = None,
    kv_cache_dtype: KVCacheDtype = "f16",
    json: Json = False,
) -> None:
    """Tokens per second of reading a prompt, without server or scheduler."""
    from lightwell.cli.bench import prefill as command

    command(model, tokens, chunk, repeat, threads, kv_cache_dtype, json)


@bench.command("serve")
def bench_serve(
    model: Model,
    url: Annotated[str | None, typer.Option(help="A running server; by default one is started for the run.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Streams open at once.")] = 16,
    requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="About this many tokens in each prompt.")] = 200,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 128,
    shared_tokens: Annotated[int, typer.Option(min=0, help="Tokens that all prompts begin with, besides.")] = 0,
    threads: Threads = None,
    kv_cache_dtype: KVCacheDtype = "f16",
    json: Json = False,
) -> None:
    """Output tokens per second, TTFT and ITL of a server under load, over HTTP."""
    from lightwell.cli.bench_serve import bench_serve as command
    from lightwell.cli.load import Load

    load = Load(concurrency, requests, prompt_tokens, output_tokens, shared_tokens)
    command(model, url, load, threads, kv_cache_dtype, json)


@bench.command("stall")
def bench_stall(
    model: Model,
    streams: Annotated[int, typer.Option(min=1, help="Answers being written.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=2, help="Length of the prompt that arrives.")] = 6000,
    target_itl: Annotated[str, typer.Option(help="Time between tokens to aim at.")] = "50ms",
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; all their times count together.")] = 1,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Time between tokens of running answers while a long prompt is read, with --target-itl and without."""
    from lightwell.cli.bench_stall import Stall
    from lightwell.cli.bench_stall import bench_stall as command
    from lightwell.units import parse_seconds

    try:
        target = parse_seconds(target_itl)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--target-itl") from None
    if not command(model, Stall(streams, prompt_tokens, target, repeat), threads, json):
        raise typer.Exit(1)


@bench.command("batching")
def bench_batching(
    model: Annotated[str, typer.Argument(help="What to run; by default smollm2.")] = "smollm2",
    trace: Annotated[Path | None, typer.Option(help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens.")] = None,
    virtual: Annotated[bool, typer.Option("--virtual", help="A modelled accelerator in virtual time.")] = False,
    requests: Annotated[int | None, typer.Option(min=1, help="How many of the trace.")] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Throughput, TTFT and wasted KV memory of static and continuous batching, reserved and paged."""
    from lightwell.cli.bench_batching import bench_batching as command

    command(model, trace, virtual, requests, threads, json)


@bench.command("machine")
def bench_machine(
    size: Annotated[list[str] | None, typer.Option(help="Working set to read, such as 96MiB; may be repeated.")] = None,
    repeat: Repeat = 5,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """What this machine can do at most: read bandwidth, and the peak of each number format."""
    from lightwell.cli.bench_machine import machine as command

    command(size or ["96MiB", "1GiB"], repeat, threads, json)


@bench.command("start")
def bench_start(
    model: Model,
    repeat: Repeat = 5,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Seconds from the start of a server's process to its first token, with and without the pack cache."""
    from lightwell.cli.bench_start import bench_start as command

    command(model, repeat, threads, json)


@bench.command("speculate")
def bench_speculate(
    model: Model,
    draft: Annotated[str | None, typer.Option(help="A smaller model that guesses; by default prompt lookup.")] = None,
    output_tokens: Annotated[int, typer.Option(min=2, max=1024, help="Tokens of each answer.")] = 200,
    repeat: Repeat = 3,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Tokens per second of one stream with speculation and without, and how many guesses were right."""
    from lightwell.cli.bench_speculate import speculate as command

    command(model, draft, output_tokens, repeat, threads, json)


@bench.command("offload")
def bench_offload(
    model: Model,
    tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt.")] = 2000,
    repeat: Repeat = 5,
    threads: Threads = None,
    kv_cache_dtype: KVCacheDtype = "f16",
    json: Json = False,
) -> None:
    """What a KV block takes to come back from the offload file, beside computing it again."""
    from lightwell.cli.bench_offload import bench_offload as command

    command(model, tokens, repeat, threads, kv_cache_dtype, json)


def main() -> None:
    """Run the command line, whatever it is; entry.py does the same for most, sooner for some."""
    report_errors(app)


if __name__ == "__main__":
    main()
