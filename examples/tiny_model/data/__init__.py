"""Synthetic training text: every answer is computed, every value is drawn, every draw is seeded."""
