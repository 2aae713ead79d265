"""Drafting, verifying and deciding how many drafts are worth checking."""
