"""Messages between machines, over Flower: keys, the proxy before the SuperLink, quotas, records, Flower's processes.

Nothing here knows of recipes, clients or rounds: `deploy` does. `run_grid` and `node_auth` touch flwr's internals; all
others use flwr.app.
"""
