"""Clusters of real daemons that are broken at random, and a judge of what their clients saw (../nemesis)."""
