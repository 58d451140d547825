"""Campaigns that run for minutes or hours: ``python -m tests.torture``, or ``make torture``.

Each module in ``campaigns/`` registers its campaigns; to add one, put a file there.
"""
