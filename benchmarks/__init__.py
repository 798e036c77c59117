"""Measurements of fusec: decode steps beside probes and peers on a GPU, and the time that compiling takes."""
