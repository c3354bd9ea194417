"""How the compiled step takes its arrays: by the address of their numbers, looked up in the object.

numba makes a record of its own of every array that it is given: it asks for the type of each to
find the function, allocates, counts references, and does the reverse afterwards. For a dozen arrays
that is four microseconds with warm caches and many more lines of code to fetch with cold ones. Here
an argument costs a few loads from numpy's array object. Its layout is part of numpy's binary
interface; it is looked at once more when this is imported.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending as _extending
from numba import types
from numba.core.datamodel.models import PointerModel

extending: Any = _extending

_DATA, _DESCRIPTOR, _FLAGS, _NUMBER = 16, 56, 64, 28
"""Bytes before an array's data, descriptor and flags, and before the number of its type there."""

_USABLE = 0x0001 | 0x0100
"""Flags of an array that is contiguous, the last index fastest, and aligned."""

_BYTE, _INT, _INDEX = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Data(types.CPointer):
    """Type of an argument: the numbers of a contiguous array of one kind.

    Of shapes nothing is known: who calls makes sure of them.
    """

    def __init__(self, kind: type[np.generic]) -> None:
        self.number = np.dtype(kind).num
        element: Any = types.boolean if kind is np.bool_ else getattr(types, kind.__name__)
        super().__init__(element)  # type: ignore[no-untyped-call]
        self.name = f"Data({kind.__name__})"

    @property
    def key(self) -> str:
        """What makes two of these equal; not equal to numba's pointer of the same kind."""
        return self.name


extending.register_model(Data)(PointerModel)


@extending.unbox(Data)  # type: ignore[untyped-decorator]
def _data(kind: Data, array: Any, context: Any) -> Any:
    """Read the address of an array's numbers; a TypeError where they are not as declared."""
    builder = context.builder

    def read(base: Any, offset: int, what: Any) -> Any:
        start = builder.bitcast(base, _BYTE.as_pointer())
        place = builder.gep(start, [ir.Constant(_INDEX, offset)])
        return builder.load(builder.bitcast(place, what.as_pointer()))

    descriptor = read(array, _DESCRIPTOR, _BYTE.as_pointer())
    usable = ir.Constant(_INT, _USABLE)
    scattered = builder.icmp_unsigned("!=", builder.and_(read(array, _FLAGS, _INT), usable), usable)
    number = ir.Constant(_INT, kind.number)
    wrong = builder.or_(
        scattered, builder.icmp_unsigned("!=", read(descriptor, _NUMBER, _INT), number)
    )
    with builder.if_then(wrong, likely=False):
        message = f"expected a contiguous array, {kind.name}"
        context.pyapi.err_set_string("PyExc_TypeError", message)
    pointer = context.context.get_value_type(kind)
    return extending.NativeValue(read(array, _DATA, pointer), is_error=wrong)


def direct(function: Any) -> Callable[..., Any]:
    """Return what a function that is compiled for one signature is called by.

    The function itself would look at the types of its arguments first, to choose a signature.
    """
    (only,) = function.overloads.values()
    called: Callable[..., Any] = only.entry_point
    return called


def _check_layout() -> None:
    """Raise an ImportError where array objects are laid out otherwise than stated above."""
    for array in (np.empty((2, 3), np.float32), np.empty((4, 6), np.bool_)[::2, ::3]):
        base = id(array)
        data, descriptor = (
            ctypes.c_void_p.from_address(base + offset).value for offset in (_DATA, _DESCRIPTOR)
        )
        flags = ctypes.c_int.from_address(base + _FLAGS).value
        if (
            data != array.ctypes.data
            or descriptor != id(array.dtype)
            or flags != array.flags.num
            or ctypes.c_int.from_address(id(array.dtype) + _NUMBER).value != array.dtype.num
        ):
            raise ImportError("numpy's array objects are laid out in another way than is known")


_check_layout()
