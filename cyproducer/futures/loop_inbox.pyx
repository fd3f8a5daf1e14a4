"""Announces completed deliveries to event loops, without the GIL and without another thread.

Owns ``Inbox``, the queue between the sender thread and a loop's thread, and waking that loop through a
descriptor. Does not own the loop's futures (``futures/asyncio_bridge``) or when a delivery completes
(``delivery``).

    loop's thread                        sender thread
    announce_to: the delivery gets       the delivery completes
    an Announcement                      announce: moves its Announcements to their inboxes
                                         an inbox was empty -> writes to its descriptor
    reads the descriptor
    inbox_pop until it is empty

The descriptor is read before the inbox is emptied. So a delivery that arrives meanwhile is popped at once, or
finds the inbox empty and causes another wake-up. ``Inbox.lock`` is held for a few instructions, never while
acquiring the GIL.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from cyproducer.base.sync cimport (
    cyp_add32,
    cyp_change64,
    cyp_load32,
    cyp_mutex_init,
    pthread_mutex_destroy,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.futures.delivery cimport PENDING, delivery_ref, delivery_unref
from cyproducer.futures.waiting cimport lock_of

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)


cdef Inbox* inbox_new(int32_t wake_fd) noexcept nogil:
    """An empty inbox with one reference, which wakes its loop through a non-blocking eventfd or pipe; NULL if
    there is no memory."""
    cdef Inbox* inbox = <Inbox*>calloc(1, sizeof(Inbox))
    if inbox != NULL:
        cyp_mutex_init(&inbox.lock)
        inbox.refs = 1
        inbox.wake_fd = wake_fd
    return inbox


cdef void inbox_close(Inbox* inbox) noexcept nogil:
    """Drops deliveries that arrive from now on. The caller can close the descriptor when this returns."""
    pthread_mutex_lock(&inbox.lock)
    inbox.wake_fd = -1
    pthread_mutex_unlock(&inbox.lock)


cdef void inbox_disown(Inbox* inbox) noexcept nogil:
    """Closes an inbox in a forked child. A thread that exists only in the parent may hold the lock."""
    cyp_mutex_init(&inbox.lock)
    inbox.wake_fd = -1


cdef void inbox_unref(Inbox* inbox) noexcept nogil:
    """Drops a reference; the last one frees the inbox and its contents."""
    cdef Announcement* each
    if cyp_add32(&inbox.refs, -1) != 0:
        return
    while inbox.first != NULL:
        each = inbox.first
        inbox.first = each.next
        delivery_unref(each.delivery)
        free(each)
    pthread_mutex_destroy(&inbox.lock)
    free(inbox)


cdef Delivery* inbox_pop(Inbox* inbox) noexcept nogil:
    """Removes the oldest completed delivery from the inbox, with a reference; NULL if the inbox is empty."""
    cdef Announcement* each
    cdef Delivery* d
    pthread_mutex_lock(&inbox.lock)
    each = inbox.first
    if each != NULL:
        inbox.first = each.next
        cyp_change64(&inbox.length, -1)
        if each.next == NULL:
            inbox.last = NULL
    pthread_mutex_unlock(&inbox.lock)
    if each == NULL:
        return NULL
    d = each.delivery
    free(each)
    return d


cdef int announce_to(Delivery* d, Inbox* inbox) noexcept nogil:
    """Registers ``inbox`` to receive the delivery, once, when it completes or is forwarded.

    Returns 1; 0 if it has already completed or been forwarded; -1 if there is no memory.
    """
    cdef Announcement* each = <Announcement*>calloc(1, sizeof(Announcement))
    cdef pthread_mutex_t* lock = lock_of(d)
    cdef bint pending
    if each == NULL:
        return -1
    cyp_add32(&d.interested, 1)
    pthread_mutex_lock(lock)
    pending = cyp_load32(&d.state) == PENDING
    if pending:
        cyp_add32(&inbox.refs, 1)
        each.inbox = inbox
        each.delivery = d
        each.other = d.announcements
        d.announcements = each
    pthread_mutex_unlock(lock)
    if not pending:
        free(each)
    return pending


cdef void announce(Announcement* each) noexcept nogil:
    """Puts a completed or forwarded delivery into the inboxes of ``each`` and the announcements after it.

    The caller has removed the announcements from the delivery, and holds a reference to the delivery.
    """
    cdef uint64_t one = 1
    cdef Announcement* other
    cdef Inbox* inbox
    cdef bint is_open
    while each != NULL:
        other = each.other
        inbox = each.inbox
        pthread_mutex_lock(&inbox.lock)
        is_open = inbox.wake_fd >= 0
        if is_open:
            delivery_ref(each.delivery)
            if inbox.last == NULL:
                inbox.first = each
                # If the descriptor is full, its reader is already being woken.
                c_write(inbox.wake_fd, &one, sizeof(one))
            else:
                inbox.last.next = each
            inbox.last = each
            cyp_change64(&inbox.length, 1)
        pthread_mutex_unlock(&inbox.lock)
        if not is_open:
            free(each)
        inbox_unref(inbox)
        each = other


cdef void announcements_free(Announcement* each) noexcept nogil:
    """Frees the announcements of a delivery that can no longer complete."""
    cdef Announcement* other
    while each != NULL:
        other = each.other
        inbox_unref(each.inbox)
        free(each)
        each = other
