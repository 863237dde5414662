"""OpenAI's Responses API: items in, items out, and a conversation that may be kept here."""
