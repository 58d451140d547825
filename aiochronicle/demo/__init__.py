"""``make demo``: a trading desk, as real processes over real queues.

Venues write market data. Strategies merge all venues in strict timestamp order and write orders. A router
finds the strategies' queues, including those that appear later, and passes the orders to a gateway, which
acknowledges each with a fill. The fills go back to the strategies, and to risk. Half-way the router is
killed and started again. At the end every queue is read once more, to prove that each order was executed
exactly once. Then Spark makes bars of the recorded trades, if it is installed.
"""
