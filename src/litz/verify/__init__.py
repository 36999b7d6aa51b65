"""Runs that check themselves: each kernel's results against the ATen meaning of its graph nodes.

``watch`` (``run.py``) wraps a compiled graph whose host program shows its memory around every call;
``targets.py`` says which graph values can be seen after which call and what they are computed from;
``reference.py`` computes them through ATen, in their own type, in float64 and with perturbations;
``compare.py`` judges; ``report.py`` tells the user and saves a repro, which ``replay.py`` runs.
"""
