"""Campaigns that run for minutes or hours: ``python -m tests.torture``, or ``make torture``.

Each module in ``campaigns/`` registers its own; putting a file there is all it takes to add one.
"""
