"""Accounting of cache memory: which blocks and slots are whose. No torch; the bytes live in `model/cache_storage.py`."""
