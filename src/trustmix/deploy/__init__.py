"""Clients on other machines, over Flower: a SuperLink beside the server keeps messages, SuperNodes fetch them.

The algorithm does not live here: `flower_engine` is an engine for `Federation`, `message_handler` calls the same
`Client.step` as on one machine, and both exchange the bytes of `wire`. `server` and `supernode` are the two sides of a
run, `flower_app` is the same for Flower's own commands. Only this package and `transport` import flwr: its public API,
flwr.app, flwr.serverapp and flwr.clientapp, and through `transport.flower_internals` what `superlink` needs beyond it.
"""
