"""A crowd of streams against the gateway alone; a steady pace takes the place of its engine (docs/benchmarks.md)."""
