"""A tree of servers: each edge server folds its own clients and sends one state upwards, however many clients it has.

Run it: python examples/tree_of_servers.py
"""

from multiprocessing import get_context
from typing import Any

import torch

import trustmix as tm
from trustmix import storage

SAMPLES, CLASSES, EDGES, CLIENTS = 500, 10, 4, 25


def upload(client: int) -> tm.Upload:
    """What a client would send: predictions on the public samples, and how familiar each is to it."""
    luck = torch.Generator().manual_seed(client)
    own = torch.randperm(CLASSES, generator=luck)[:3]
    truth = torch.arange(SAMPLES) % CLASSES
    known = torch.isin(truth, own)
    label = torch.where(known, truth, own[torch.randint(3, (SAMPLES,), generator=luck)])
    logits = 3 * torch.nn.functional.one_hot(label, CLASSES) + torch.randn(SAMPLES, CLASSES, generator=luck)
    scores = torch.where(known, 2.0, -4.0) + torch.randn(SAMPLES, generator=luck)
    return tm.Upload.from_arrays(str(client), torch.softmax(logits, 1), scores)


def edge_server(number: int, clients: int) -> bytes:
    """Fold the clients of one edge into a state; this runs in a process of its own, or on another machine."""
    rule = tm.Trust()
    for client in range(number * clients, (number + 1) * clients):
        rule.update(upload(client))
    # the sums alone: what the rule remembers of single clients stays at the edge
    sums = {name: value for name, value in rule.state_dict().items() if not name.startswith("shares/")}
    return storage.pack(sums)


def main() -> dict[str, Any]:
    """Compare the tree with one server that gets every upload, and the bytes that arrive at the top."""
    with get_context("spawn").Pool(2) as pool:
        few = pool.starmap(edge_server, [(edge, 1) for edge in range(EDGES)])
        states = pool.starmap(edge_server, [(edge, CLIENTS) for edge in range(EDGES)])
    top = tm.Trust()
    for state in states:
        edge = tm.Trust()
        edge.load_state_dict(storage.unpack(state)[0])
        top.merge(edge)
    flat = tm.Trust()
    for client in range(EDGES * CLIENTS):
        flat.update(upload(client))
    difference = (top.compute().probabilities - flat.compute().probabilities).abs().max()
    print(f"{top.n_clients} clients below {EDGES} edges; largest difference to one server: {float(difference):.1e}")
    print(f"bytes to the top: {sum(map(len, states))}; with one client at each edge: {sum(map(len, few))}")
    return {"difference": float(difference), "bytes": sum(map(len, states)), "bytes_of_few": sum(map(len, few))}


if __name__ == "__main__":
    main()
