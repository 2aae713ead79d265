"""Ends of ranges that no machine reaches: a number beyond them is a slip, and no description of a key speaks of them."""

MOST_COUNT = 10**12  # tokens, rows, sequences
MOST_BYTES = 10**18
SLIPS = (MOST_COUNT, MOST_BYTES)
