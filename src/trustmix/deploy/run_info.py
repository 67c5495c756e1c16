"""The description of a run that the server sends to every node that joins."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trustmix.data.inference import InputSpec
from trustmix.errors import TrustmixError
from trustmix.federation import Public
from trustmix.settings.validation import format_validation_error

MAX_NAME = 200
"""Characters of the longest name in a description."""
MAX_NAMES = 100_000
"""More classes and columns than any run has."""
MAX_RECIPE = 10**7
"""Characters of the longest recipe."""


class RunInfo(BaseModel):
    """The first message of a handshake: how to train, what the classes are, how inputs are scaled.

    Parameters
    ----------
    run : str
        The run's id. A node keeps the states of its client under this id.
    fingerprint : str
        The fingerprint of the public set.
    recipe : str
        The server's recipe as TOML, without the rule, which is the server's alone.
    client : str
        What kind of client to be: a name in `trustmix.federation.CLIENTS`.
    classes : list of str
        The names of all classes of all nodes, in the order of the labels.
    mean, std : list of float
        The scaling of image channels.
    columns : list of str, optional
        The features of a table, in the order of the public table.
    tokenizer : str, optional
        The fingerprint of the tokenizer that made the public set of texts.

    Examples
    --------
    >>> info = RunInfo(run="0123456789abcdef", fingerprint="", recipe="", classes=["a", "b"], mean=[0.0], std=[1.0])
    >>> RunInfo.from_json(info.model_dump()) == info
    True
    """

    model_config = ConfigDict(frozen=True)

    run: str = Field(max_length=MAX_NAME)
    fingerprint: str = Field(max_length=MAX_NAME)
    recipe: str = Field(max_length=MAX_RECIPE)
    client: str = Field("distillation", max_length=MAX_NAME)
    classes: list[str] = Field(max_length=MAX_NAMES)
    mean: list[float] = Field(max_length=MAX_NAMES)
    std: list[float] = Field(max_length=MAX_NAMES)
    columns: list[str] | None = Field(None, max_length=MAX_NAMES)
    tokenizer: str | None = Field(None, max_length=MAX_NAME)

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> "RunInfo":
        """Validate the fields of a message or a file; unknown fields are ignored.

        Parameters
        ----------
        fields : mapping of str to JSON values
            The fields by name.

        Returns
        -------
        RunInfo

        Raises
        ------
        TrustmixError
            If a field is missing or of another type.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            reason = format_validation_error(error, list(cls.model_fields))
            raise TrustmixError(f"the server's description of the run is not valid: {reason}") from error

    def input_spec(self, public: Public) -> InputSpec:
        """What the models of the run take, and the classes that they distinguish.

        Parameters
        ----------
        public : Public
            The public set, whose inputs are those of the nodes.

        Returns
        -------
        InputSpec
        """
        dtype = str(public.inputs.dtype).removeprefix("torch.")
        scale = (tuple(self.mean), tuple(self.std)) if dtype == "uint8" else None
        return InputSpec(tuple(public.inputs.shape[1:]), dtype, tuple(self.classes), scale)
