"""``make demo``: market-data feeds and their readers, as real processes over real queues.

Each feed is a process that appends quotes and trades to a queue of its own; each reader is a
process that follows one queue. Half-way one feed is killed and started again. At the end every
queue is verified, and every reader's count is compared with what was written. Then Spark makes bars
of the trades that were recorded, if it is there.
"""
