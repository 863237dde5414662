"""What the KV cache is divided into. Apart from base.py, so that the server's process can do without NumPy.

It takes a tenth of a second to import, in the process that is the last to be ready at a start.
"""

from typing import Literal, TypeAlias

BLOCK_TOKENS = 32

KVCacheDtype: TypeAlias = Literal["f16", "int8"]  # what the CPU runtime's cache can hold; the reference has float32
