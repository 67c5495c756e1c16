"""`trustmix serve` and `trustmix join`: Flower's programs started, watched and started again around a run."""

import logging
from pathlib import Path

from trustmix.engines.flower.gate import open_gate
from trustmix.engines.flower.keys import NodeKeys, ServerKeys
from trustmix.engines.flower.processes import SuperLink, SuperNode
from trustmix.engines.flower.run import LinkLost, open_run
from trustmix.engines.flower.tasks import attend
from trustmix.federation import History, Watcher
from trustmix.study.deployment import conduct, desk_of, prepare_server
from trustmix.study.node import Node
from trustmix.study.recipe import Recipe

log = logging.getLogger(__name__)


def serve(
    recipe: Recipe,
    out: Path,
    host: str,
    port: int,
    *,
    keys: ServerKeys | None,
    nodes: int | None = None,
    watch: Watcher | None = None,
) -> History:
    """Run a recipe with the nodes that come to the address; a SuperLink that dies is started again."""
    stage = prepare_server(recipe, out)
    if stage.record.finished:
        return History(stage.record.rounds())
    link = SuperLink(out.with_name(out.name + ".flower"), keys)
    with open_gate(host, port, link.address, keys) as ready:
        log.info("nodes may join at %s:%d", host, port)
        while True:
            try:
                with open_run(link) as grid:
                    ready.set()
                    return conduct(stage, grid, nodes=nodes, watch=watch)
            except LinkLost as error:
                ready.clear()
                log.info("%s; starting it again", error)


def join(node: Node, server: str, keys: NodeKeys | None) -> None:
    """Answer the server's messages until interrupted."""
    supernode = SuperNode(node.state / "flower", server, keys)
    desk = desk_of(node)
    log.info("client %s joins %s", desk.id, server)
    try:
        attend(supernode, desk)
    finally:
        supernode.stop()
