"""Kernels on GPUs: what they are, how they are compiled, launched, tuned, and replayed as CUDA graphs."""
