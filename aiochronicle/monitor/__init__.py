"""Observing all queues of a directory from outside, for ``aioc monitor`` and ``aioc top``.

Data flows in one direction::

    scout.py      reads the state of one queue
    collector.py  runs the scouts of all queues, once a second, within a budget of processor time
    events.py     compares two states of a queue: opened, killed, rolled, slow append …
    alarms.py     compares a state with limits: lag, dead writer, full disk …
    history.py    keeps rates and lags of the last minutes in memory
    view.py, metrics.py  turn the result into JSON for the page, and into text for Prometheus
    watching.py, web.py, serving.py  run the collector and serve the page

Collector, events, alarms and history need only the core packages; the web page needs the extra ``monitor``.

Nothing here writes to a queue, takes a lock or wakes a writer. The one exception is ``probe.py``: a reader
that sleeps until the writer wakes it, to measure how long that takes.
"""
