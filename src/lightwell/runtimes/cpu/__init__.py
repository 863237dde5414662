"""The CPU runtime: models recorded into a native plan."""

from lightwell.runtimes.cpu.runtime import CpuRuntime

__all__ = ["CpuRuntime"]
