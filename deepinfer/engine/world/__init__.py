"""Ranks of one plan as processes: the driver that holds the requests, the ranks that run them, and what they say."""
