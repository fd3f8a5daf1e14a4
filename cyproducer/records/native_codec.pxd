from libc.stdint cimport int64_t, uint8_t

from cyproducer.base.sync cimport pthread_mutex_t

# A library's state, which serves one thread at a time.
cdef struct Context:
    void* state
    Context* next         # in `idle`


cdef class NativeCodec:
    cdef int codec_id
    cdef int level
    cdef pthread_mutex_t lock  # guards `idle`
    cdef Context* idle    # at most as many as were ever in use at once
    # The library's functions and version.
    cdef void* make
    cdef void* reset
    cdef void* configure
    cdef void* run
    cdef void* bound
    cdef void* is_error
    cdef void* free
    cdef const char* version
    cdef int64_t most(self, int64_t size) noexcept nogil
    cdef int64_t compress(self, const uint8_t* data, int64_t size, uint8_t* to, int64_t room) noexcept nogil
    cdef Context* take(self) noexcept nogil
    cdef void give_back(self, Context* context) noexcept nogil
    cdef void* make_state(self) noexcept nogil
    cdef void free_state(self, void* state) noexcept nogil
    cdef int64_t gzip(
        self, void* state, const uint8_t* data, int64_t size, uint8_t* to, int64_t room
    ) noexcept nogil
    cdef int64_t snappy(self, const uint8_t* data, int64_t size, uint8_t* to, int64_t room) noexcept nogil
    cdef int64_t lz4(
        self, void* state, const uint8_t* data, int64_t size, uint8_t* to, int64_t room
    ) noexcept nogil
    cdef int64_t zstd(
        self, void* state, const uint8_t* data, int64_t size, uint8_t* to, int64_t room
    ) noexcept nogil
