"""Makers of kernels."""
