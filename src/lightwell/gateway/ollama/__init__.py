"""Ollama's API, as far as desktop programs need it: chat, generate, and the list of models."""
