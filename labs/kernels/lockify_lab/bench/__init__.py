"""Benchmarks on labs: `lab/lab bench paper` reproduces the Lockify paper's evaluation."""
