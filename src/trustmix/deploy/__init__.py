"""Clients on other machines, over Flower: its SuperLink keeps messages for nodes, its SuperNodes fetch them.

Nothing of the algorithm lives here: `flower_engine` is the engine that `Federation` asks, `message_handler` answers
with the same `step` as on one machine, and both exchange the bytes of `wire`. Only this room imports flwr.
"""
