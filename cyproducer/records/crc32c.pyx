# cython: embedsignature=False
# Off because the signature line would name the private function behind each public one.
"""Computes CRC-32C (Castagnoli), the checksum of a record batch.

Owns the kernels (SSE4.2, ARMv8, tables) and the choice between them, made once at import from the processor's
features. Does not know what a record batch is. Any thread may call it, with or without the GIL: nothing
changes after import.

This package has its own implementation because the ``crc32c`` package can be called only from Python, with
the GIL, but the sender thread checksums every batch without the GIL. The tests compare the results with those
of the ``crc32c`` package.

Sources: RFC 3720 appendix B.4 (the polynomial and vectors), Kounavis and Berry 2005 (slicing by 8),
Gopal et al. 2011 (interleaving lanes and joining them).
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc32c_impl.h" nogil:
    ctypedef uint32_t (*crc32c_kernel_t)(uint32_t crc, const uint8_t* data, size_t n) noexcept nogil
    void crc32c_setup() noexcept
    uint32_t crc32c_table(uint32_t crc, const uint8_t* data, size_t n) noexcept
    crc32c_kernel_t crc32c_kernel        # the fastest kernel this processor has
    const char* crc32c_kernel_name       # static: "sse4.2", "armv8-crc" or "table"

cdef enum:
    # Below this size the checksum takes less time than releasing and reacquiring the GIL.
    RELEASE_GIL_BYTES = 65536

crc32c_setup()

IMPLEMENTATION = crc32c_kernel_name.decode("ascii")


cdef uint32_t crc32c(uint32_t crc, const uint8_t* data, Py_ssize_t n) noexcept nogil:
    return crc32c_kernel(crc, data, <size_t>n)


cdef uint32_t _checksum(crc32c_kernel_t kernel, object data, uint32_t crc) except? 0:
    cdef Py_buffer view
    cdef uint32_t result
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < RELEASE_GIL_BYTES:
            result = kernel(crc, <const uint8_t*>view.buf, <size_t>view.len)
        else:
            with nogil:
                result = kernel(crc, <const uint8_t*>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return result


def _crc32c_python(data, uint32_t crc=0):
    """The CRC-32C of ``data``, any C-contiguous buffer, continuing from ``crc`` (0 to start).

    Uses the kernel named by ``IMPLEMENTATION``, and releases the GIL for 64 KiB and more. Raises TypeError if
    ``data`` is not a buffer, BufferError if it is not contiguous, OverflowError if ``crc`` is not in
    0..2**32-1.
    """
    return _checksum(crc32c_kernel, data, crc)


def _crc32c_table(data, uint32_t crc=0):
    """The same as ``crc32c``, but always with the portable tables. For tests."""
    return _checksum(crc32c_table, data, crc)


# A module cannot define a `def` and a `cdef` function with the same name, but both kinds of caller use this
# name.
globals()["crc32c"] = globals().pop("_crc32c_python")
globals()["crc32c"].__name__ = globals()["crc32c"].__qualname__ = "crc32c"
