"""``aioc top``: a live table of all queues of a directory, in a terminal.

``application.py`` is the textual application with the table and the keys. ``rows.py`` turns a snapshot into
the rows of the table. ``screens.py`` has the screens for one queue: details, messages, why it is kept, and
events.

The data comes from the collector of ``aiochronicle.monitor``. Nothing here writes to a queue.
"""
