"""The door: HTTP in, token ids to the engine, text back. ``create_app`` (app.py) puts it together."""
