"""Finds the OpenSSL of the interpreter's ``ssl`` module, and the C objects behind an ``ssl.SSLObject``.

Owns the search for OpenSSL's functions, and the verification that the pointers in Python's objects belong to
the same copy of OpenSSL. Does not use them (``tls_transport``).

Nothing is linked and no header is needed: the functions are those of the library that ``_ssl`` itself was
linked with, found by the dynamic linker. Python's objects have no public C interface, so the pointers are
read from where CPython 3.11 to 3.15 stores them, directly after the object header. Each pointer is verified
before it is passed to OpenSSL:

1. The Python objects have the expected types, and are large enough to contain the pointers.
2. The memory behind a pointer is read by a system call, which reports an invalid address.
3. The first 64 bytes of the context contain the address of its method table, which ``TLS_client_method()``
   or ``TLS_method()`` returns; the first 64 bytes of a memory BIO contain the address that ``BIO_s_mem()``
   returns. So the object was created by the same library in which the functions were found. A second copy of
   OpenSSL in the process fails this check.
4. The connection's memory contains the addresses of its context and of both BIOs.
5. Only then are functions called on it. Their results must agree with Python's attributes.

If any check fails, the connection is served through ``SSLObject.read()`` and ``write()`` instead.
"""

import sys

from cpython.object cimport PyTypeObject
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uintptr_t
from libc.string cimport memcmp, memset

cdef extern from "<dlfcn.h>" nogil:
    ctypedef struct Dl_info:
        const char* dli_fname
        void* dli_fbase
    int RTLD_LAZY
    int RTLD_NOLOAD
    void* dlopen(const char* path, int flags)
    void* dlsym(void* handle, const char* name)
    int dladdr(const void* address, Dl_info* info)

cdef extern from "Python.h":
    int Py_tp_dealloc
    void* PyType_GetSlot(PyTypeObject* type, int slot)

cdef extern from "read_memory.h" nogil:
    size_t cyp_read_memory(const void* source, void* into, size_t size)

cdef enum:
    LOWEST_ADDRESS = 65536    # nothing is mapped below it
    SSL_BYTES = 4096          # the part of an SSL that contains the pointers to its context and BIOs

# Python's verify_mode (CERT_NONE, CERT_OPTIONAL, CERT_REQUIRED) -> OpenSSL's SSL_VERIFY_PEER (1) and
# SSL_VERIFY_FAIL_IF_NO_PEER_CERT (2).
cdef dict VERIFY_MODES = {0: 0, 1: 1, 2: 3}

cdef OpenSsl functions
# None: not searched yet; "": found; else the reason why the functions can't be used.
cdef str unusable = None
cdef object base_context = None
cdef object base_socket = None
cdef object base_bio = None
cdef Py_ssize_t head = 0


cdef class _Symbols:
    """Looks up functions in the object file that contains ``_ssl``, and in the libraries that it needs."""

    cdef void* handle
    # The object files that contain the functions of libssl and of libcrypto; NULL: not known yet.
    cdef void* ssl_base
    cdef void* crypto_base

    cdef void* find(self, str name) except NULL:
        cdef Dl_info info
        cdef bytes symbol = name.encode()
        cdef void* found = dlsym(self.handle, symbol)
        cdef void** base = &self.ssl_base if name.startswith(("SSL_", "TLS_")) else &self.crypto_base
        if found == NULL:
            raise LookupError(f"its OpenSSL does not export {name}")
        if dladdr(found, &info) == 0:
            raise LookupError(f"the library of {name} is unknown")
        if base[0] == NULL:
            base[0] = info.dli_fbase
        if base[0] != info.dli_fbase:
            raise LookupError(f"{name} is in another library than the other functions: {info.dli_fname}")
        return found


cdef object look_up():
    """Fills ``functions``. Raises LookupError."""
    global base_context, base_socket, base_bio, head
    cdef Dl_info info
    cdef _Symbols symbols = _Symbols()
    if sys.implementation.name != "cpython":
        raise LookupError(f"{sys.implementation.name} has other objects than CPython")
    import _ssl

    base_context, base_socket, base_bio = _ssl._SSLContext, _ssl._SSLSocket, _ssl.MemoryBIO
    head = object.__basicsize__
    # For each class: how many pointers are read after the object header.
    for kind, pointers in ((base_context, 1), (base_bio, 1), (base_socket, 2)):
        if kind.__basicsize__ < head + pointers * <Py_ssize_t>sizeof(void*):
            raise LookupError(f"its {kind.__name__} is smaller than expected")
    if dladdr(PyType_GetSlot(<PyTypeObject*>base_context, Py_tp_dealloc), &info) == 0:
        raise LookupError("the library of the _ssl module is unknown")
    # RTLD_NOLOAD: only a handle to a loaded library. dlopen() can't find the executable itself by name.
    symbols.handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
    if symbols.handle == NULL:
        symbols.handle = dlopen(NULL, RTLD_LAZY)
    if symbols.handle == NULL:
        raise LookupError("the library of the _ssl module cannot be opened")
    functions.SSL_read_ex = <int (*)(void*, void*, size_t, size_t*) noexcept nogil>symbols.find("SSL_read_ex")
    functions.SSL_write_ex = <int (*)(void*, const void*, size_t, size_t*) noexcept nogil>(
        symbols.find("SSL_write_ex")
    )
    functions.SSL_get_error = <int (*)(const void*, int) noexcept nogil>symbols.find("SSL_get_error")
    functions.SSL_get_SSL_CTX = <void* (*)(const void*) noexcept nogil>symbols.find("SSL_get_SSL_CTX")
    functions.SSL_get_rbio = <void* (*)(const void*) noexcept nogil>symbols.find("SSL_get_rbio")
    functions.SSL_get_wbio = <void* (*)(const void*) noexcept nogil>symbols.find("SSL_get_wbio")
    functions.SSL_get_ex_data = <void* (*)(const void*, int) noexcept nogil>symbols.find("SSL_get_ex_data")
    functions.SSL_CTX_get_verify_mode = <int (*)(const void*) noexcept nogil>(
        symbols.find("SSL_CTX_get_verify_mode")
    )
    functions.TLS_method = <const void* (*)() noexcept nogil>symbols.find("TLS_method")
    functions.TLS_client_method = <const void* (*)() noexcept nogil>symbols.find("TLS_client_method")
    functions.BIO_s_mem = <const void* (*)() noexcept nogil>symbols.find("BIO_s_mem")
    functions.BIO_ctrl = <long (*)(void*, int, long, void*) noexcept nogil>symbols.find("BIO_ctrl")
    functions.BIO_write = <int (*)(void*, const void*, int) noexcept nogil>symbols.find("BIO_write")
    functions.ERR_clear_error = <void (*)() noexcept nogil>symbols.find("ERR_clear_error")
    functions.ERR_peek_last_error = <unsigned long (*)() noexcept nogil>symbols.find("ERR_peek_last_error")
    functions.ERR_reason_error_string = <const char* (*)(unsigned long) noexcept nogil>(
        symbols.find("ERR_reason_error_string")
    )
    return None


def why_not():
    """Returns why OpenSSL can't be used from C in this process; an empty string if it can."""
    global unusable
    if unusable is None:
        try:
            look_up()
            unusable = ""
        except (LookupError, ImportError, AttributeError) as error:
            unusable = f"{sys.executable}: {error}"
    return unusable


cdef const OpenSsl* openssl() except? NULL:
    """Returns the functions; NULL if they can't be used."""
    if why_not():
        return NULL
    return &functions


cdef void* pointer_in(object owner, int index) noexcept:
    """Returns a pointer stored after an object's header; ``index`` 0: the first."""
    return (<void**>(<char*><PyObject*>owner + head))[index]


cdef bint is_plausible(const void* pointer) noexcept:
    return <uintptr_t>pointer >= LOWEST_ADDRESS and <uintptr_t>pointer % sizeof(void*) == 0


cdef bint contains(const uint8_t* memory, size_t size, const void* address) noexcept:
    """Whether one of the words in memory equals this address."""
    cdef size_t at = 0
    while at + sizeof(void*) <= size:
        if memcmp(memory + at, &address, sizeof(void*)) == 0:
            return True
        at += sizeof(void*)
    return False


cdef bint starts_with(const void* structure, const void* address) noexcept:
    """Whether the first 64 bytes behind a pointer, which may be invalid, contain the address."""
    cdef uint8_t memory[64]
    return contains(memory, cyp_read_memory(structure, memory, sizeof(memory)), address)


cdef str find_pointers(object tls, object incoming, object outgoing, TlsPointers* found):
    """Finds the C objects of an ``ssl.SSLObject`` and of its two ``ssl.MemoryBIO``.

    Returns an empty string, or the reason why they can't be used from C.
    """
    cdef uint8_t memory[SSL_BYTES]
    cdef size_t size
    cdef void* c_context
    if reason := why_not():
        return reason
    connection = getattr(tls, "_sslobj", None)
    if type(connection) is not base_socket:
        return f"{type(tls).__name__} has no connection of Python's own"
    if type(incoming) is not base_bio or type(outgoing) is not base_bio:
        return "its buffers are not Python's own"
    context = connection.context
    if not isinstance(context, base_context):
        return f"its context is a {type(context).__name__}"
    if getattr(context, "_msg_callback", None) is not None:
        # OpenSSL would call it for each TLS record, and it needs the GIL.
        return "its context has a message callback"
    c_context = pointer_in(context, 0)
    found.read_bio = pointer_in(incoming, 0)
    found.write_bio = pointer_in(outgoing, 0)
    found.ssl = pointer_in(connection, 1)
    for plausible in (
        is_plausible(c_context), is_plausible(found.ssl), is_plausible(found.read_bio),
        is_plausible(found.write_bio),
    ):
        if not plausible:
            return "Python's objects do not have the expected pointers"
    if not (
        starts_with(c_context, functions.TLS_client_method())
        or starts_with(c_context, functions.TLS_method())
    ):
        return "its context belongs to another copy of OpenSSL, or to a protocol of one version"
    if not (
        starts_with(found.read_bio, functions.BIO_s_mem())
        and starts_with(found.write_bio, functions.BIO_s_mem())
    ):
        return "its buffers belong to another copy of OpenSSL"
    memset(memory, 0, sizeof(memory))
    size = cyp_read_memory(found.ssl, memory, sizeof(memory))
    for contained in (
        contains(memory, size, c_context), contains(memory, size, found.read_bio),
        contains(memory, size, found.write_bio),
    ):
        if not contained:
            return "the connection does not refer to its context and buffers"
    if (
        functions.SSL_get_SSL_CTX(found.ssl) != c_context
        or functions.SSL_get_rbio(found.ssl) != found.read_bio
        or functions.SSL_get_wbio(found.ssl) != found.write_bio
        or functions.SSL_get_ex_data(found.ssl, 0) != <void*><PyObject*>connection
        or functions.SSL_CTX_get_verify_mode(c_context) & 3 != VERIFY_MODES.get(context.verify_mode)
    ):
        return "the connection's attributes differ from Python's"
    return ""
