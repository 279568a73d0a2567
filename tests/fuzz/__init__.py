"""Hostile input for every door of the package, in this process: python -m tests.fuzz --cases 100000 --seed 1"""
