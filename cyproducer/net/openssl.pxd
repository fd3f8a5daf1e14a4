# OpenSSL's functions, from the libraries that the interpreter's ssl module uses. The names are OpenSSL's.
cdef struct OpenSsl:
    int (*SSL_read_ex)(void* ssl, void* into, size_t room, size_t* read) noexcept nogil
    int (*SSL_write_ex)(void* ssl, const void* data, size_t size, size_t* written) noexcept nogil
    int (*SSL_get_error)(const void* ssl, int result) noexcept nogil
    void* (*SSL_get_SSL_CTX)(const void* ssl) noexcept nogil
    void* (*SSL_get_rbio)(const void* ssl) noexcept nogil
    void* (*SSL_get_wbio)(const void* ssl) noexcept nogil
    void* (*SSL_get_ex_data)(const void* ssl, int index) noexcept nogil
    int (*SSL_CTX_get_verify_mode)(const void* context) noexcept nogil
    const void* (*TLS_method)() noexcept nogil
    const void* (*TLS_client_method)() noexcept nogil
    const void* (*BIO_s_mem)() noexcept nogil
    long (*BIO_ctrl)(void* bio, int command, long number, void* pointer) noexcept nogil
    int (*BIO_write)(void* bio, const void* data, int size) noexcept nogil
    void (*ERR_clear_error)() noexcept nogil
    unsigned long (*ERR_peek_last_error)() noexcept nogil
    const char* (*ERR_reason_error_string)(unsigned long code) noexcept nogil

# The pointers of one connection, after they have been verified.
cdef struct TlsPointers:
    void* ssl
    void* read_bio            # received bytes, not decrypted yet
    void* write_bio           # encrypted bytes, not sent yet

cdef const OpenSsl* openssl() except? NULL
cdef str find_pointers(object tls, object incoming, object outgoing, TlsPointers* found)
