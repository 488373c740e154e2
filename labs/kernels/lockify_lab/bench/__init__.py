"""Benchmarks on labs: `lab bench paper` reproduces the Lockify paper's evaluation."""
