"""Is the engine as fast as promised? One module per question; each comparison is within one run.

``make bench`` or ``python -m benchmarks`` runs them all; ``--help`` lists the options.
"""
