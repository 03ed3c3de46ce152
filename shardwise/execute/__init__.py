"""Run programs on concrete arrays: requests, the executor and its caches, transfers, compile and launch hooks."""
