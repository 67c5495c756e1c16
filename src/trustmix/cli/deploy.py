"""Commands for federations across machines: keys, serve, join, check, export, status."""

import ipaddress
import logging
import re
import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from trustmix.cli.app import (
    AllowCode,
    Out,
    Overrides,
    RecipeName,
    app,
    confirm_code,
    handle_errors,
    log_to_console,
    make_console,
    printable,
)
from trustmix.errors import TrustmixError
from trustmix.paths import expand_user

Keys = Annotated[Path | None, typer.Option("--keys", help="The folder that `trustmix keys` made.", show_default=False)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], typer.Option("--log-level", help="The least important lines to log.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and keys; on loopback only.")]


@app.command("keys")
@handle_errors
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the keys go: one folder for the server, one for each node.")],
    nodes: Annotated[str, typer.Option("--nodes", help="The ids of the nodes, separated by commas.")] = "",
    host: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address by which nodes reach the server.")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Make new certificates for the same keys and hosts.")] = False,
) -> None:
    """Make the server's certificate and a key for each node.

    An authority signs them. The same command again adds nodes.

    Example: trustmix keys keys --host trustmix.example.org --nodes north,south
    """
    _require_flower()
    from trustmix.deploy.membership import validate_client_id
    from trustmix.transport.keys import make_keys, renew_certificates

    if renew == bool(nodes):
        raise TrustmixError("Give either --nodes, the ids of new nodes, or --renew.")
    if renew:
        renew_certificates(folder)
        typer.echo(f"New certificates: {folder / 'server'} (start `trustmix serve` again; the run goes on)")
        typer.echo(f"Give {folder / 'ca.crt'} to every node as ca.crt before the old one expires.")
        return
    names = [validate_client_id(name.strip()) for name in nodes.split(",")]
    make_keys(folder, host or [], names)
    typer.echo(f"Server: {folder / 'server'}")
    for name in names:
        typer.echo(f"Node {name}: {folder / name} (give it to that node alone, then delete it here)")
    typer.echo(f"Keep {folder / 'ca.key'} offline: anyone with this file can pretend to be the server.")


@app.command("serve")
@handle_errors
def serve_command(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Out = None,
    address: Annotated[
        str, typer.Option("--address", help="Where nodes reach this server: HOST:PORT.")
    ] = "127.0.0.1:9092",
    keys: Keys = None,
    insecure: Insecure = False,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Clients to wait for before round 1; the recipe's if not set.")
    ] = None,
    monitor: Annotated[
        str | None,
        typer.Option("--monitor", help="PORT of this machine, or HOST:PORT, for /health, /status and /metrics."),
    ] = None,
    log_level: LogLevel = "info",
    allow_code: AllowCode = False,
) -> None:
    """Run a recipe with clients on other machines.

    The same command again goes on where it stopped.

    Example: trustmix serve fashion --keys keys/server --address 0.0.0.0:9092 --nodes 3 --out runs/hospitals
    """
    _require_flower()
    from trustmix.deploy.server import serve, server_folder
    from trustmix.settings.recipe import Recipe
    from trustmix.transport.keys import ServerKeys

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service that is stopped ends like Ctrl-C
    host, port = _parse_address(address)
    folder = out or Path("runs") / f"{Path(recipe).stem}-served"
    _validate_security(host, keys, insecure)
    loaded = Recipe.load(recipe, overrides or [])
    confirm_code([expand_user(recipe)], allow_code=allow_code, recipe=loaded)
    console = make_console()
    watched = None if monitor is None else _parse_address(monitor if ":" in monitor else f"127.0.0.1:{monitor}")
    with log_to_console(console, log_level, server_folder(folder) / "serve.log"):
        history = serve(
            loaded,
            folder,
            host,
            port,
            keys=None if keys is None else ServerKeys(keys),
            nodes=nodes,
            monitor=watched,
        )
    best = "-" if history.best_accuracy is None else f"{100 * history.best_accuracy:.1f} %"
    text = f"{len(history.rounds)} rounds, best mean accuracy of the clients: {best}\nRun: {folder}"
    console.print(text, soft_wrap=True, highlight=False)


@app.command("join")
@handle_errors
def join_command(
    server: Annotated[str, typer.Argument(help="The server's address: HOST:PORT.")],
    node: Annotated[Path, typer.Option("--node", help="This node's file, see the documentation of deployments.")],
    keys: Keys = None,
    insecure: Insecure = False,
    log_level: LogLevel = "info",
) -> None:
    """Take part in a federation with this machine's data and model.

    It ends with Ctrl-C; a lost connection is restored.

    Example: trustmix join trustmix.example.org:9092 --node node.toml --keys keys/north
    """
    _require_flower()
    from trustmix.deploy.node import NodeConfig
    from trustmix.deploy.supernode import join
    from trustmix.transport.keys import NodeKeys

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the SuperNode deactivates itself at the server
    host, port = _parse_address(server)
    _validate_security(host, keys, insecure)
    console = make_console()
    config = NodeConfig.load(node)
    with log_to_console(console, log_level, config.state_folder / "join.log"):
        join(config, f"{host}:{port}", None if keys is None else NodeKeys(keys))


@app.command("check")
@handle_errors
def check_command(
    file: Annotated[str, typer.Argument(help="A node's file, or the recipe of a server.")],
    overrides: Overrides = None,
    allow_code: AllowCode = False,
) -> None:
    """Check a node's file or a server's recipe.

    Data and model of a node are read, built and tried once, a server's public set is loaded; nothing is sent.

    Example: trustmix check node.toml
    """
    from trustmix.settings import toml_settings as toml

    path = expand_user(file)
    if path.is_file() and not {"id", "share"} & set(toml.read(path)):
        _check_server(file, overrides or [], allow_code=allow_code)
    elif not path.is_file() and path.suffix != ".toml":
        _check_server(file, overrides or [], allow_code=allow_code)  # a built-in recipe
    elif overrides:
        raise TrustmixError(f"--set changes the recipe of a server, and {file} is a node's file; change the file.")
    else:
        _check_node(path)


def _check_server(recipe: str, overrides: list[str], *, allow_code: bool) -> None:
    """Load the server's public set and check the recipe, as `serve` does, without a run directory."""
    _require_flower()
    from trustmix.cli.progress import format_bytes
    from trustmix.deploy.server import check_server
    from trustmix.settings.recipe import Recipe

    loaded = Recipe.load(recipe, overrides)
    confirm_code([expand_user(recipe)], allow_code=allow_code, recipe=loaded)
    found = check_server(loaded)
    typer.echo(f"Server: {found.samples} public samples of {found.shape}, {found.dtype}")
    typer.echo(printable(f"Classes: {', '.join(found.classes)}"))
    typer.echo(f"Public set: {format_bytes(found.public_bytes)} to each node, once")
    typer.echo(f"Uploads: up to {format_bytes(found.upload_bytes)} from each node in each of {loaded.rounds} rounds")
    for warning in found.warnings:
        typer.echo(f"Note: {warning}")


def _check_node(node: Path) -> None:
    from trustmix.deploy.node import NodeConfig, check_node

    config = NodeConfig.load(node)
    if config.share is not None:
        typer.echo(f"Node {config.id}: share {config.share} of the server's recipe, nothing of its own to check.")
        return
    data = check_node(config)
    tested = 0 if data.test is None else len(data.test)
    typer.echo(f"Node {config.id}: {len(data.train)} samples to train on, {tested} to test")
    typer.echo(f"Inputs: {tuple(data.train.inputs.shape[1:])}, {data.train.inputs.dtype}")
    for name, count in data.class_counts().items():
        typer.echo(f"  {name}: {count}")
    typer.echo("The model takes these inputs and gives one number a class.")


@app.command("export")
@handle_errors
def export_command(
    node: Annotated[Path, typer.Argument(help="A node's file, see the documentation of deployments.")],
    run: Annotated[
        str | None, typer.Option("--run", help="The id of a run in the node's state; the last one if not set.")
    ] = None,
) -> None:
    """Export the newest model of a node, at any round.

    `join` does so when a run ends.

    Example: trustmix export node.toml
    """
    _require_flower()
    from trustmix.deploy.export import describe_card, export_model, find_run
    from trustmix.deploy.node import NodeConfig

    config = NodeConfig.load(node)
    if run is not None and not re.fullmatch("[0-9a-f]{16}", run):
        raise TrustmixError(f'"{run}" (--run) is not the id of a run; {config.state_folder} has a folder for each.')
    text = describe_card(export_model(config, find_run(config, run)), config.model_folder)
    typer.echo(printable(f"{text[0].upper()}{text[1:]}"))


@app.command("status")
@handle_errors
def status_command(
    run: Annotated[str, typer.Argument(help="The directory of a served run, or the address of its --monitor.")],
) -> None:
    """Print how a served run is doing.

    The round, who is connected, who is awaited, who was refused, bytes and epsilon.

    Example: trustmix status runs/hospitals
    """
    import time

    from trustmix.deploy.status import describe_status, fetch_status, read_status

    is_folder = expand_user(run).is_dir()
    status = read_status(expand_user(run)) if is_folder or ":" not in run else fetch_status(run)
    typer.echo(printable("\n".join(describe_status(status, time.time()))))


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise TrustmixError(f'"{text}" is no address; it must look like trustmix.example.org:9092.')
    return host.strip("[]"), int(port)


def _validate_security(host: str, keys: Path | None, insecure: bool) -> None:
    """Raise unless there are keys or the host is this machine."""
    if (keys is None) != insecure:
        raise TrustmixError("Give either --keys (see `trustmix keys`) or, to try things out on loopback, --insecure.")
    if insecure and not _is_loopback(host):
        raise TrustmixError(f"--insecure is for loopback only, and {host} is not; make keys with `trustmix keys`.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _require_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise TrustmixError('This needs Flower: pip install "trustmix[flower]".') from error
    logging.getLogger("flwr").setLevel(logging.WARNING)
