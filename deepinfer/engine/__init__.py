"""Runs requests: the scheduler, the loop, and the executors that carry out its steps."""
