"""Decode steps of real models as plain PyTorch functions, through the public API only."""
