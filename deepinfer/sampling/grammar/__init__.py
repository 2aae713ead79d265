"""Structured output: grammars of requests become masks over the vocabulary."""
