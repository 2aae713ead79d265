"""The model built from the fused operations of an accelerator: see `model.py`."""
