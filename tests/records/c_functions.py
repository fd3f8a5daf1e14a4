"""The functions that extensions export to other extensions, called as from Cython."""

import ctypes
from types import ModuleType
from typing import Any


def c_function(module: ModuleType, name: str, result: Any, *arguments: Any) -> Any:
    """A function of the .pxd. ``result``, ``arguments``: its types."""
    capsule = module.__pyx_capi__[name]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(result, *arguments)(pointer_of(capsule, name_of(capsule)))
