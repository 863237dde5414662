"""Tables: what they have in common. Times are seconds since 1970, money is in picodollars (units.py)."""

from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """Each table stands in the file of what it keeps; migrations/ says how it came to be."""
