"""NumPy arrays and torch tensors: results are arrays of the kind that was given. Arithmetic is in float64."""

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from trustmix.errors import TrustmixError

AnyArray: TypeAlias = np.ndarray[Any, Any] | torch.Tensor
"""An array of either library."""
ArrayLike: TypeAlias = npt.ArrayLike | torch.Tensor
"""What functions on arrays take: NumPy arrays, torch tensors, and lists of numbers."""
A = TypeVar("A", np.ndarray[Any, Any], torch.Tensor)
"""An array of one library; two uses of it in a signature are of the same."""


@dataclass(frozen=True)
class ArraySpec:
    """The kind of an array: its library, floating type and device.

    Examples
    --------
    >>> ArraySpec.of(np.zeros(2, np.float16)).restore(torch.ones(2)).dtype
    dtype('float16')
    """

    package: str
    """The library: numpy or torch."""
    dtype: torch.dtype
    device: str = "cpu"

    @classmethod
    def of(cls, array: Any) -> "ArraySpec":
        """The kind of an array; integers and lists count as NumPy's float64."""
        if isinstance(array, torch.Tensor):
            dtype = array.dtype if array.dtype.is_floating_point else torch.float64
            return cls("torch", dtype, str(array.device))
        name = str(np.asarray(array).dtype)
        return cls("numpy", getattr(torch, name) if name.startswith("float") else torch.float64)

    def at_least_float32(self) -> "ArraySpec":
        """The same kind, wide enough for log-densities, which overflow half precision."""
        narrow = self.dtype in (torch.float16, torch.bfloat16)
        return ArraySpec(self.package, torch.float32 if narrow else self.dtype, self.device)

    def restore(self, tensor: torch.Tensor) -> Any:
        """Convert the tensor to an array of this kind."""
        tensor = tensor.to(dtype=self.dtype, device=self.device)
        return tensor.numpy() if self.package == "numpy" else tensor

    def to_tensor(self) -> torch.Tensor:
        """The library and the floating type as a tensor of bytes, as a saved state holds them.

        >>> ArraySpec.from_tensor(ArraySpec("numpy", torch.float16).to_tensor())
        ArraySpec(package='numpy', dtype=torch.float16, device='cpu')
        """
        return text_to_tensor(str(self))

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> "ArraySpec":
        """The spec of `to_tensor`, on the CPU."""
        return cls.parse(tensor_to_text(tensor))

    def __str__(self) -> str:
        return f"{self.package} {str(self.dtype).removeprefix('torch.')}"

    @classmethod
    def parse(cls, text: str) -> "ArraySpec":
        """The spec of `str`, on the CPU.

        >>> ArraySpec.parse("numpy float16").dtype
        torch.float16
        """
        package, _, dtype = text.partition(" ")
        if package not in ("numpy", "torch") or dtype not in ("float16", "bfloat16", "float32", "float64"):
            raise TrustmixError(f'"{package} {dtype}" is no kind of array.')
        return cls(package, getattr(torch, dtype))


def to_finite_tensor(array: ArrayLike, name: str) -> torch.Tensor:
    """Convert an array to a tensor of finite floats.

    Parameters
    ----------
    array : array-like
        A NumPy array, a torch tensor, or nested lists of numbers.
    name : str
        The name of the argument, for the error message.

    Returns
    -------
    torch.Tensor
        Of its own floating type, or float64.

    Raises
    ------
    TrustmixError
        If it holds something else than numbers, or an entry is NaN or infinite.

    Examples
    --------
    >>> to_finite_tensor([[0.0, float("nan")]], "logits")
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: logits: the entry at (0, 1) is nan; every entry must be a finite number.
    """
    tensor = to_float_tensor(array, name)
    if not all_finite(tensor):
        finite = torch.isfinite(tensor)
        place = tuple(torch.nonzero(~finite)[0].tolist())
        value = tensor[place].item()
        raise TrustmixError(f"{name}: the entry at {place} is {value}; every entry must be a finite number.")
    return tensor


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether no entry is NaN or infinite; a finite sum proves it in one fast pass.

    Parameters
    ----------
    tensor : torch.Tensor
        Floats of any shape.

    Returns
    -------
    bool
        True if every entry is finite.

    Examples
    --------
    >>> all_finite(torch.tensor([1e308, 1e308], dtype=torch.float64)), all_finite(torch.tensor([1.0, torch.nan]))
    (True, False)
    """
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def to_float_tensor(array: ArrayLike, name: str) -> torch.Tensor:
    """Convert an array to a tensor of floats.

    Parameters
    ----------
    array : array-like
        A NumPy array, a torch tensor, or nested lists of numbers.
    name : str
        The name of the argument, for the error message.

    Returns
    -------
    torch.Tensor
        Of its own floating type, or float64; detached. Entries may be NaN or infinite.

    Raises
    ------
    TrustmixError
        If it holds something else than numbers.
    """
    try:
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(_numpy_floats(array))
        return (tensor if tensor.dtype.is_floating_point else tensor.to(torch.float64)).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrustmixError(f"{name}: expected an array of numbers, got {type(array).__name__} ({error}).") from error


def _numpy_floats(array: ArrayLike) -> np.ndarray[Any, Any]:
    found = np.require(array, requirements=("C", "W"))  # torch takes no reversed arrays, and warns of read-only ones
    return found if found.dtype in (np.float16, np.float32, np.float64) else found.astype(np.float64)


def format_shape(tensor: torch.Tensor) -> str:
    """The shape as text.

    Examples
    --------
    >>> format_shape(torch.zeros(4, 10))
    '(4, 10)'
    """
    return str(tuple(tensor.shape))


def text_to_tensor(text: str) -> torch.Tensor:
    """A text as a tensor of its UTF-8 bytes, for states that are tensors only.

    >>> tensor_to_text(text_to_tensor("north"))
    'north'
    """
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def tensor_to_text(tensor: torch.Tensor) -> str:
    """The text of `text_to_tensor`."""
    return bytes(tensor.tolist()).decode()
