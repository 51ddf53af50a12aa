"""Kernels, verdicts, descriptors: what is common to all targets."""
