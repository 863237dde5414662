"""Tool calling: what a request offers, how a model's template writes calls, and reading them back from its answer."""
