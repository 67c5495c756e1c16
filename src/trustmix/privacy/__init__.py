"""Differential privacy: the budget a client promises, DP-SGD, mechanisms for uploads, and the accountant."""
