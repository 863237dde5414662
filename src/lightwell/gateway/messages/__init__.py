"""Anthropic's Messages API: its bodies read into ours, and our answers written in its blocks and events."""
