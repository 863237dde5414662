"""``lightwell chat MODEL``: a conversation in the terminal.

Ctrl-C stops the answer that is being written, and at the prompt ends the program, as Ctrl-D does.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightwell.cli.session import Session, answer, open_session
from lightwell.errors import InvalidRequest, LightwellError
from lightwell.runtimes.base import KVCacheDtype
from lightwell.text import encode_chat

_HELP = """\
/system TEXT   set the instructions (without TEXT: remove them)
/clear         forget the conversation
/help          this list
/exit          leave (Ctrl-D too); Ctrl-C stops an answer"""

Message = dict[str, str]


def chat(
    model: str,
    system: str | None,
    temperature: float,
    seed: int | None,
    chat_template: Path | None,
    threads: int | None,
    kv_cache_dtype: KVCacheDtype,
    pack_cache: bool,
) -> None:
    """Read a line, answer it, remember both."""
    with suppress(ImportError):
        import readline  # noqa: F401  its import alone gives input() history and line editing

    session = open_session(model, chat_template, threads, kv_cache_dtype, pack_cache)
    if session.template is None:
        raise InvalidRequest(
            f"{model} has no chat template: give one with --chat-template FILE, or use `lightwell run --raw`."
        )
    print(f"{model} is ready. /help lists the commands.")
    instructions = _instructions(system)
    history: list[Message] = []
    while (line := _read()) is not None:
        command, _, rest = line.partition(" ")
        match command:
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/help":
                print(_HELP)
            case "/clear":
                history = []
            case "/system":
                instructions = _instructions(rest.strip())
            case _ if command.startswith("/"):
                print(f"There is no command {command}.\n{_HELP}")
            case _:
                history = _turn(session, instructions, history, line, temperature, seed)


def _instructions(text: str | None) -> list[Message]:
    return [{"role": "system", "content": text}] if text else []


def _read() -> str | None:
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def _turn(
    session: Session,
    instructions: list[Message],
    history: list[Message],
    line: str,
    temperature: float,
    seed: int | None,
) -> list[Message]:
    """Print the answer to ``line`` and return the history with both; an error is shown and changes nothing."""
    assert session.template is not None
    asked = [*history, {"role": "user", "content": line}]
    written = ""
    try:
        tokens = encode_chat(session.tokenizer, session.template, [*instructions, *asked])
        with _interruptible() as interrupted:
            for text in (pieces := answer(session, tokens, None, temperature, seed)):
                print(text, end="", flush=True)
                written += text
                if interrupted:
                    break
            pieces.close()
    except LightwellError as error:
        print(error.message)
        return history
    print()
    return [*asked, {"role": "assistant", "content": written}]


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """For the block, Ctrl-C only fills the list: an exception could tear a step of the engine apart."""
    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupted.append(number))
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
