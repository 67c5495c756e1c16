"""Messages between machines, over Flower: keys, the proxy before the SuperLink, quotas, records, Flower's processes.

Nothing here knows of recipes, clients or rounds: `deploy` does. `flower_internals` has every name of Flower that is not
of its public API.
"""
