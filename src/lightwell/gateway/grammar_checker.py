"""GrammarChecker: asks a process of its own whether grammars can be used, before any of them reaches the engine.

The process starts with the first grammar. A grammar that ends it, by its limits or by a crash, is refused, and the next
one finds a new process.
"""

import asyncio
import hashlib
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from contextlib import suppress

import msgspec

from lightwell.errors import InvalidRequest
from lightwell.sampling.grammar import MAX_GRAMMAR_BYTES, grammar_vocabulary
from lightwell.sampling.grammar_check import MAX_CPU_SECONDS, MAX_MEMORY_BYTES, frame
from lightwell.text.tokenizer import Tokenizer
from lightwell.units import Seconds

_KEPT_ANSWERS = 1024
_TIMEOUT: Seconds = 60.0  # far more than its processor time, which is what is bounded: the machine may be busy
_TOO_MUCH = (
    f"it takes more than {MAX_CPU_SECONDS} s or {MAX_MEMORY_BYTES >> 20} MiB to compile, or is nested too deeply. "
    "Make it smaller: fewer optional properties and alternatives, smaller numbers, shorter chains of references."
)


class GrammarChecker:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._answers: OrderedDict[bytes, str] = OrderedDict()

    async def check(self, grammar: str, param: str) -> None:
        """Raises InvalidRequest, naming ``param``, with the reason why the grammar cannot be used."""
        if reason := await self._complaint(grammar):
            raise InvalidRequest(f"{param!r} cannot constrain an answer: {reason}", param=param)

    async def end(self) -> None:
        """End the process if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _complaint(self, grammar: str) -> str:
        try:
            content = grammar.encode()
        except UnicodeEncodeError:
            return "it is not valid Unicode (a lone surrogate)."
        if len(content) > MAX_GRAMMAR_BYTES:
            return f"it is {len(content)} bytes long; {MAX_GRAMMAR_BYTES} are the most."
        key = hashlib.sha256(content).digest()
        async with self._lock:
            if key not in self._answers:
                self._answers[key] = await self._ask(content)
            self._answers.move_to_end(key)
            if len(self._answers) > _KEPT_ANSWERS:
                self._answers.popitem(last=False)
            return self._answers[key]

    async def _ask(self, content: bytes) -> str:
        process = self._process = self._process or await self._start()
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await _exchange(process, content)
        except TimeoutError:
            await self.end()
            return _TOO_MUCH
        except (asyncio.IncompleteReadError, ConnectionError):
            self._process = None
            if (code := await process.wait()) >= 0:  # no signal ended it, so it was no limit and no overflow
                raise RuntimeError(f"the process that checks grammars ended with code {code}") from None
            return _TOO_MUCH
        except asyncio.CancelledError:  # what it answers would be taken for the answer about the next grammar
            await self.end()
            raise

    async def _start(self) -> Process:
        vocabulary = msgspec.msgpack.encode(grammar_vocabulary(self._tokenizer))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lightwell.sampling.grammar_check", stdin=PIPE, stdout=PIPE
        )
        assert process.stdin is not None
        process.stdin.write(frame(vocabulary))
        return process


async def _exchange(process: Process, content: bytes) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(frame(content))
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(4), "little")
    return (await process.stdout.readexactly(length)).decode()
