"""Tables: what they have in common. Times are seconds since 1970, money is in picodollars (units.py)."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase

Transaction: TypeAlias = Callable[[], AbstractAsyncContextManager[AsyncSession]]  # committed at the end of the block


class Base(DeclarativeBase):
    """Each table stands in the file of what it keeps; migrations/ says how it came to be."""
