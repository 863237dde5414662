"""Lightwell beside llama.cpp, vLLM and OpenVINO GenAI, and beside the machine's own limits (docs/benchmarks.md)."""
