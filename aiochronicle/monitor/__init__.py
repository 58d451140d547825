"""Looking at all queues of a directory from outside: what ``aioc monitor`` and ``aioc top`` show.

``collector.py`` looks, ``events.py`` says what changed from one look to the next, ``alarms.py`` what is
wrong, ``history.py`` keeps the last minutes. None of these needs more than the core. The web page is in
``web.py`` and its neighbours, with the packages of the extra ``monitor``.

Nothing here writes to a queue, takes a lock, or makes a writer do something.
"""
