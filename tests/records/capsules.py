"""What is in capsules: pointers to structures, and the C functions of extensions."""

import ctypes
from types import ModuleType
from typing import Any

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def pointer_in(capsule: object) -> int:
    return int(_pointer(capsule, _name(capsule)))


def c_function(module: ModuleType, name: str, result: Any, *arguments: Any) -> Any:
    """A function of a .pxd, called as from Cython."""
    return ctypes.CFUNCTYPE(result, *arguments)(pointer_in(vars(module)["__pyx_capi__"][name]))
