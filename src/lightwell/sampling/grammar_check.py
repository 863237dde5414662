"""Whether grammars can be used, found out in a process of its own: ``python -m lightwell.sampling.grammar_check``.

A hostile grammar may take minutes and gigabytes, or overflow the stack. Here that ends this process, which the caller
takes for the answer. Frames are four bytes of length and then the content: first a GrammarVocabulary in msgpack; after
that grammars come in, and for each one goes out why it cannot be used, empty where it can.
"""

import importlib
import os
import resource
import struct
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from lightwell.errors import InvalidRequest
from lightwell.sampling.grammar import COMPILE_STACK_BYTES, GrammarVocabulary, Matcher, native_matcher, native_tokenizer
from lightwell.units import Bytes

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_CPU_SECONDS = 2  # counted in whole seconds, so it may be one more
MAX_MEMORY_BYTES: Bytes = 64 << 20
_STACK_BYTES: Bytes = COMPILE_STACK_BYTES // 4
_NICENESS = 10
_TRIED_TOKENS = 8  # what is too complex often shows with the first property of an object
_LENGTH = struct.Struct("<I")


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    return stream.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else None


def frame(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def complaint(tokenizer: "LLTokenizer", vocabulary: GrammarVocabulary, grammar: str) -> str:
    """Why the grammar cannot be used, empty where it can: what compiling says, and what the first tokens meet."""
    import numpy as np  # not where the gateway imports this file for its limits

    try:
        matcher = Matcher(native_matcher(tokenizer, grammar), vocabulary)
    except InvalidRequest as error:
        return error.message
    row = np.empty((1, -(-len(vocabulary.pieces) // 32)), np.uint32)
    for _ in range(_TRIED_TOKENS):
        if not matcher.fill(row) or matcher.finished:
            break
        matcher.advance([int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0])])
    return matcher.error


def _serve() -> None:
    if (first := read_frame(sys.stdin.buffer)) is None:
        return
    vocabulary = msgspec.msgpack.decode(first, type=GrammarVocabulary)
    tokenizer = native_tokenizer(vocabulary)
    importlib.import_module("numpy")  # takes more memory than a grammar may, so before the first limit
    while (content := read_frame(sys.stdin.buffer)) is not None:
        _limit()
        try:
            answer = complaint(tokenizer, vocabulary, content.decode())
        except MemoryError:
            os.abort()
        sys.stdout.buffer.write(frame(answer.encode(errors="replace")))
        sys.stdout.buffer.flush()


def _limit() -> None:
    """The next grammar may take this much more than what was taken so far; beyond it the system ends the process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_CPU_SECONDS, resource.RLIM_INFINITY))
    with suppress(OSError):  # only Linux says how much memory is taken
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[0])
        taken = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MAX_MEMORY_BYTES, resource.RLIM_INFINITY))


def main() -> None:
    os.nice(_NICENESS)  # nobody's stream should notice
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
