"""Lightwell: an LLM inference server that you can see into."""

__version__ = "0.1.0"
