"""Calls of tools in a model's text: one parser a markup, by name; one object a choice."""
