"""``aioc top``: all queues of a directory in a terminal, live.

``rows.py`` makes the lines of the table, ``screens.py`` shows one queue, ``application.py`` the whole. The
collector of ``aiochronicle.monitor`` looks: nothing here writes to a queue.
"""
