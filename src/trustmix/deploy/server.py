"""The server of a run across machines: `serve` with a SuperLink of its own, `run_server` with any Flower grid."""

import logging
import secrets
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.serverapp import Grid

from trustmix import storage
from trustmix.data import Dataset, Labelled
from trustmix.data.inference import InputSpec
from trustmix.data.tabular import feature_names
from trustmix.data.text import default_tokenizer, tokenizer_fingerprint
from trustmix.deploy.flower_engine import FlowerEngine
from trustmix.deploy.membership import MAX_ID, Membership
from trustmix.deploy.monitor import run_monitor
from trustmix.deploy.run_info import RunInfo
from trustmix.deploy.status import StatusWriter
from trustmix.deploy.superlink import open_run
from trustmix.engines.fault_injection import FaultInjectionEngine
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_client, build_server, build_student, client_model_factory
from trustmix.experiment.data import load_data, load_public, select_test_set, validate_augmentation
from trustmix.experiment.run_directory import RunDirectory
from trustmix.experiment.saved_models import save_models
from trustmix.federation import Client, Engine, History, Public, Round
from trustmix.settings.config import EngineConfig
from trustmix.settings.recipe import Recipe
from trustmix.transport.flower_processes import SuperLink
from trustmix.transport.keys import ServerKeys, certificate_expiry, warn_of_expiry
from trustmix.transport.proxy import run_proxy
from trustmix.transport.quota import UploadQuota
from trustmix.transport.run_grid import SuperLinkUnavailable
from trustmix.wire import encode_public_set

log = logging.getLogger(__name__)

RECONNECT_GRACE = 30.0
"""Seconds that a resumed run without a deadline waits for clients beyond its quorum."""
FIGURES_BYTES = 2**20
"""More bytes than a reply has beside its upload."""
MAX_WEIGHT_SETS = 3
"""More than the sets of weights in one upload; SCAFFOLD has two."""


@dataclass(frozen=True)
class ServerSetup:
    """What a server has before the first client joins.

    Parameters
    ----------
    recipe : Recipe
        The recipe as a deployment runs it.
    run_directory : RunDirectory
        The record of the run.
    data : Dataset
        The data set of the recipe.
    public_samples : Labelled
        The public samples with their labels, -1 where unknown.
    public : Public
        The public set as clients get it.
    """

    recipe: Recipe
    run_directory: RunDirectory
    data: Dataset
    public_samples: Labelled
    public: Public


def serve(
    recipe: Recipe,
    out: Path,
    host: str,
    port: int,
    *,
    keys: ServerKeys | None,
    nodes: int | None = None,
    monitor: tuple[str, int] | None = None,
) -> History:
    """Run a recipe with the nodes that join at an address; a SuperLink that ends is started again.

    Parameters
    ----------
    recipe : Recipe
        The server's recipe.
    out : Path
        The run directory. A run that is there already is resumed.
    host, port : str, int
        The address.
    keys : ServerKeys, optional
        The server's keys; without them there is no TLS.
    nodes : int, optional
        Clients to wait for before the first round; by default the recipe's number of clients.
    monitor : pair of str and int, optional
        Where the operator can ask how the run is doing: host and port.

    Returns
    -------
    History

    Raises
    ------
    TrustmixError
        If the recipe cannot be deployed, the address is in use, or too few clients reply.
    """
    setup = prepare_server(recipe, out)
    if setup.run_directory.finished:
        return History(setup.run_directory.rounds(), setup.recipe.metric)
    if keys is not None:
        warn_of_expiry(keys.certificate, keys.ca_certificate)
    link, quota = SuperLink(server_folder(out), keys), UploadQuota()
    observed = run_monitor(*monitor, out) if monitor else nullcontext()
    with observed, run_proxy(host, port, link.address, keys, quota) as ready:
        log.info("nodes may join at %s:%d", host, port)
        while True:
            try:
                with open_run(link, max_reply_bytes(setup)) as grid:
                    ready.set()
                    return run_server(setup, grid, nodes=nodes, keys=keys, quota=quota)
            except SuperLinkUnavailable as error:
                ready.clear()
                log.info("%s; starting it again", error)


def server_folder(out: Path) -> Path:
    """Where a server keeps its logs and the files of its SuperLink.

    Parameters
    ----------
    out : Path
        The run directory.

    Returns
    -------
    Path
        A folder beside it.

    Examples
    --------
    >>> server_folder(Path("runs/hospitals")).name
    'hospitals.flower'
    """
    return out.with_name(out.name + ".flower")


def as_deployment(recipe: Recipe) -> Recipe:
    """The recipe as a deployment runs it: the same but for the engine.

    Parameters
    ----------
    recipe : Recipe
        The server's recipe.

    Returns
    -------
    Recipe

    Raises
    ------
    TrustmixError
        If the recipe exchanges nothing or simulates attacks.

    Examples
    --------
    >>> as_deployment(Recipe.load("demo")).engine.name
    'flower'
    """
    if recipe.method.exchanges == "nothing":
        raise TrustmixError(f"{recipe.rule} exchanges nothing; there is nothing to serve. Use `trustmix run`.")
    if recipe.attack.kind is not None:
        raise TrustmixError("[attack] is for simulated clients; a deployment has none. Use `trustmix run`.")
    return recipe.model_copy(update={"engine": EngineConfig(name="flower", store="disk")})


def prepare_server(recipe: Recipe, out: Path) -> ServerSetup:
    """Load and validate what the server needs, before any node is let in.

    Parameters
    ----------
    recipe : Recipe
        The server's recipe.
    out : Path
        The run directory. A run that is there already continues with its own recipe.

    Returns
    -------
    ServerSetup

    Raises
    ------
    TrustmixError
        If the recipe, the data or the run directory do not fit.
    """
    directory = RunDirectory(out)
    recipe = directory.check(as_deployment(recipe), resume=(out / "recipe.toml").exists(), overwrite=False)
    data = load_data(recipe)
    validate_augmentation(recipe, data)
    samples = load_public(recipe, data)
    return ServerSetup(recipe, directory, data, samples, Public(samples.inputs, data.classes))


def max_reply_bytes(setup: ServerSetup) -> int:
    """The size of the largest reply that a client of a run can have.

    Parameters
    ----------
    setup : ServerSetup
        The result of `prepare_server`.

    Returns
    -------
    int
        Of the largest upload, and of the figures beside it.
    """
    recipe = setup.recipe
    if recipe.method.exchanges == "predictions":
        return setup.public.header("x" * MAX_ID, 1).limit + FIGURES_BYTES
    model = client_model_factory(recipe, setup.data, recipe.models[0], "server")()
    weights: int = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    return MAX_WEIGHT_SETS * weights + FIGURES_BYTES


def run_server(
    setup: ServerSetup,
    grid: Grid,
    *,
    nodes: int | None = None,
    keys: ServerKeys | None = None,
    quota: UploadQuota | None = None,
) -> History:
    """Run all rounds with the clients behind a grid, into the run directory.

    Parameters
    ----------
    setup : ServerSetup
        The result of `prepare_server`.
    grid : Grid
        The connection to the nodes.
    nodes : int, optional
        Clients to wait for before the first round; by default the recipe's number of clients.
    keys : ServerKeys, optional
        The server's keys. A node without a registered key is then refused.
    quota : UploadQuota, optional
        Gets the bytes that each node needs for its answers, for a proxy that counts them.

    Returns
    -------
    History
    """
    recipe, directory = setup.recipe, setup.run_directory
    with directory.begin(recipe, overwrite=False, data={"public": setup.public.fingerprint}):
        folder = directory.path / "checkpoint"
        (folder / "clients").mkdir(parents=True, exist_ok=True)
        public_set, nodes_file = encode_public_set(setup.public.inputs), folder / "nodes.json"
        run_info = _run_info(setup, _run_id(folder / "run.json"))
        limit, quota = max_reply_bytes(setup), quota or UploadQuota()
        membership = Membership(grid, run_info, public_set, nodes_file, keys is not None, quota, limit)
        expected = [] if keys is None else list(keys.node_public_keys())
        expires = None if keys is None else certificate_expiry(keys.certificate).timestamp()
        status = StatusWriter(directory.path, recipe.rounds, membership, expected, expires)
        status.begin(directory.rounds())
        participation = recipe.participation
        flower = FlowerEngine(
            membership, nodes or recipe.clients, participation.quorum, participation.deadline, on_poll=status.update
        )
        engine: Engine = flower
        if any(recipe.faults.model_dump().values()):
            engine = FaultInjectionEngine(flower, **recipe.faults.model_dump(), seed=recipe.seed)
        student = _build_student(setup, folder / "clients")
        federation = build_server(recipe, engine, setup.public, setup.public_samples.labels, {}, student)
        grace = participation.deadline or RECONNECT_GRACE
        flower.wait_for_clients(grace, resumed=directory.checkpoint.load().exchange > 0)
        for played in federation.iter_rounds(recipe.rounds, checkpoint=directory.checkpoint):
            own_test = [client for client in played.accuracy if client in membership.own_test]
            line = replace(played, own_test=own_test, refused=membership.take_refusals())
            directory.append(line)
            status.add(line)
            log.info(_format_round(line))
        history = History(directory.rounds(), recipe.metric)
        _warn_of_worse_clients(history)
        if student is not None:
            save_models(directory.path, recipe, InputSpec.from_dataset(setup.data), len(history.rounds))
        directory.finish(history, recipe.method)
    return history


def _warn_of_worse_clients(history: History) -> None:
    """Name the clients that end with less accuracy on their own test data than they had alone in round 1."""
    first, last = history.rounds[0], history.rounds[-1]
    for client in last.own_test:
        alone, found = first.local_accuracy.get(client), last.accuracy[client]
        if first.round == 1 and alone is not None and found < alone:
            log.warning(
                "client %s ends at %.1f %% on its own test data, below the %.1f %% that it had alone in round 1",
                client,
                100 * found,
                100 * alone,
            )


def _run_info(setup: ServerSetup, run: str) -> RunInfo:
    """The description of the run for nodes."""
    recipe, data = setup.recipe, setup.data
    columns = None
    if recipe.data.name == "shared":
        columns = feature_names(Path(str(recipe.data.path)), (recipe.data.model_extra or {}).get("columns"))
    return RunInfo(
        run=run,
        fingerprint=setup.public.fingerprint,
        recipe=recipe.client_toml(),
        client=recipe.method.client,
        classes=list(data.class_names),
        mean=list(data.mean),
        std=list(data.std),
        columns=columns,
        tokenizer=_tokenizer_fingerprint(recipe),
    )


def _tokenizer_fingerprint(recipe: Recipe) -> str | None:
    """The fingerprint of the tokenizer of the public set, where it has texts."""
    source = recipe.data if recipe.public.data is None else recipe.public
    name = recipe.data.name if recipe.public.data is None else recipe.public.data
    tokenizer = (source.model_extra or {}).get("tokenizer", default_tokenizer(name))
    return None if tokenizer is None else tokenizer_fingerprint(str(tokenizer))


def _run_id(file: Path) -> str:
    """The run's id, drawn when the run begins."""
    if not file.exists():
        storage.write_json(file, secrets.token_hex(8))
    return str(storage.read_json(file))


def _build_student(setup: ServerSetup, folder: Path) -> Client | None:
    """The server's own model, if the recipe has one."""
    recipe, data, samples = setup.recipe, setup.data, setup.public_samples
    model = client_model_factory(recipe, data, recipe.models[0], "server")
    like = build_client(recipe, "server", model, (samples, samples), setup.public, select_test_set(recipe, data), None)
    return build_student(recipe, data, like, folder)


def _format_round(line: Round) -> str:
    """A round as one line of the log."""
    accuracy = "" if line.accuracy_mean is None else f", accuracy {100 * line.accuracy_mean:.1f} %"
    left_out = "".join(f"; left out {client}: {reason}" for client, reason in line.failed.items())
    return f"round {line.round}: {len(line.participants)} clients{accuracy}{left_out}"
