"""The engine's worker with a fake runtime that is slow and ends badly: ``python -m tests.host.mortal_worker FD``.

$MORTAL is "HOW TOKEN PAUSE": what happens at the first step that computes this token (kill, hang, raise, garble: say
nonsense and go on, half: say half a frame and die), and the seconds that every other step takes.
"""

import os
import signal
import sys
import time

from lightwell.host import build, worker
from lightwell.runtimes.fake import FakeRuntime

HOW, TOKEN, PAUSE = os.environ["MORTAL"].split()


class MortalRuntime(FakeRuntime):
    def execute(self, step, logits=None):
        if int(TOKEN) in step.tokens:
            _end(int(sys.argv[1]))
        time.sleep(float(PAUSE))
        return super().execute(step, logits)


def _end(connection: int) -> None:
    match HOW:
        case "hang":
            time.sleep(3600)
        case "raise":
            raise RuntimeError("the runtime fails")
        case "garble":
            os.write(connection, b"\x05\0\0\0hello")
            return
        case "half":
            os.write(connection, b"\xff\0\0\0half")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    build.make_runtime = lambda *args: MortalRuntime()
    worker.main()
