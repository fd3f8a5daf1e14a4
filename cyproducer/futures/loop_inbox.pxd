from libc.stdint cimport int32_t, int64_t

from cyproducer.base.sync cimport pthread_mutex_t
from cyproducer.futures.delivery cimport Delivery

# Registers that one loop follows records of one delivery.
cdef struct Announcement:
    Inbox* inbox              # a reference is held until the announcement is in the inbox
    Delivery* delivery        # a reference is held from then on
    Announcement* other       # of the same delivery, for another loop
    Announcement* next        # in the inbox

# Completed deliveries that one loop has not processed yet.
cdef struct Inbox:
    pthread_mutex_t lock      # guards the fields below
    int32_t refs              # the loop's, each pending Announcement's; atomic
    int32_t wake_fd           # 8 bytes are written to it when the inbox is no longer empty; -1: it is closed
    Announcement* first
    Announcement* last
    int64_t length            # changed under the lock; the loop also reads it without


cdef Inbox* inbox_new(int32_t wake_fd) noexcept nogil
cdef void inbox_close(Inbox* inbox) noexcept nogil
cdef void inbox_unref(Inbox* inbox) noexcept nogil
cdef void inbox_disown(Inbox* inbox) noexcept nogil
cdef Delivery* inbox_pop(Inbox* inbox) noexcept nogil
cdef int announce_to(Delivery* d, Inbox* inbox) noexcept nogil
cdef void announce(Announcement* each) noexcept nogil
cdef void announcements_free(Announcement* each) noexcept nogil
