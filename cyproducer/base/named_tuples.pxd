# Makes named tuples field by field, without their constructors, which are Python functions. ``kind`` is a
# subclass of tuple with that number of fields and without other attributes.
cdef extern from *:
    """
    static CYTHON_INLINE PyObject *cyp_new_named(PyObject *kind, Py_ssize_t fields) {
        PyObject *made = ((PyTypeObject *)kind)->tp_alloc((PyTypeObject *)kind, fields);
    #if PY_VERSION_HEX >= 0x030E0000
        /* 0 would be a hash that is known. */
        if (made != NULL)
            ((PyTupleObject *)made)->ob_hash = -1;
    #endif
        return made;
    }

    static CYTHON_INLINE void cyp_set_field(PyObject *made, Py_ssize_t at, PyObject *field) {
        Py_INCREF(field);
        PyTuple_SET_ITEM(made, at, field);
    }
    """
    # Fields that are not set yet are NULL: only set_field() may touch the tuple before all are set.
    tuple new_named "cyp_new_named"(object kind, Py_ssize_t fields)
    # Call it once for each field.
    void set_field "cyp_set_field"(tuple made, Py_ssize_t at, object field)
