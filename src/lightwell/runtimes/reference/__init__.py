"""The reference runtime: NumPy float32."""

from lightwell.runtimes.reference.runtime import ReferenceRuntime

__all__ = ["ReferenceRuntime"]
