"""The engine's worker with an offload file that always pays: ``python -m tests.host.offloading_worker FD``.

A tiny model computes a block in less time than any disk takes for it, so a worker as it is would go without the file.
"""

from lightwell.host import offload, worker

if __name__ == "__main__":
    offload.time_moves = lambda *args: (0.0, 0.0)
    worker.main()
