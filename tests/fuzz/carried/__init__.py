"""Carriers: see `tests/fuzz/carriers.py`."""
