"""`trustmix serve` and `trustmix join`: Flower's programs started, watched and started again around a run."""

import logging
from pathlib import Path

from trustmix.deploy.flower_processes import SuperLink, SuperNode
from trustmix.deploy.keys import NodeKeys, ServerKeys
from trustmix.deploy.node import NodeConfig
from trustmix.deploy.proxy import run_proxy
from trustmix.deploy.server import make_handler, prepare_server, run_server
from trustmix.deploy.superlink import SuperLinkUnavailable, open_run
from trustmix.deploy.supernode import serve_node
from trustmix.experiment.recipe import Recipe
from trustmix.federation import History

log = logging.getLogger(__name__)


def serve(
    recipe: Recipe,
    out: Path,
    host: str,
    port: int,
    *,
    keys: ServerKeys | None,
    nodes: int | None = None,
) -> History:
    """Run a recipe with the nodes that come to the address; a SuperLink that dies is started again."""
    stage = prepare_server(recipe, out)
    if stage.record.finished:
        return History(stage.record.rounds())
    link = SuperLink(out.with_name(out.name + ".flower"), keys)
    with run_proxy(host, port, link.address, keys) as ready:
        log.info("nodes may join at %s:%d", host, port)
        while True:
            try:
                with open_run(link) as grid:
                    ready.set()
                    return run_server(stage, grid, nodes=nodes)
            except SuperLinkUnavailable as error:
                ready.clear()
                log.info("%s; starting it again", error)


def join(node: NodeConfig, server: str, keys: NodeKeys | None) -> None:
    """Answer the server's messages until interrupted."""
    supernode = SuperNode(node.state / "flower", server, keys)
    desk = make_handler(node)
    log.info("client %s joins %s", desk.id, server)
    try:
        serve_node(supernode, desk)
    finally:
        supernode.stop()
