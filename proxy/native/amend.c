/* What is asked of header lists: `amend` sets and removes fields, `any_named` looks for names. The twins of
 * `headers.apply_amendment` and `headers.any_named`. */
#include "native.h"

#include <stdbool.h>
#include <string.h>

enum { MOST_FIELDS = 1024 };

static bool same(PyObject *one, PyObject *other)
{
    Py_ssize_t size = PyBytes_GET_SIZE(one);
    return one == other || (size == PyBytes_GET_SIZE(other) &&
                            !memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), size));
}

static bool are_fields(PyObject *headers)
{
    if (!PyTuple_Check(headers))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(headers); i++) {
        PyObject *pair = PyTuple_GET_ITEM(headers, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyBytes_Check(PyTuple_GET_ITEM(pair, 0)))
            return false;
    }
    return true;
}

static bool are_names(PyObject *names)
{
    if (!PyTuple_Check(names))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(names, i)))
            return false;
    return true;
}

/* Whether a field of this name does not stay: it is set anew, or removed. */
static bool goes(PyObject *name, PyObject *set, PyObject *removed)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(set); i++)
        if (same(name, PyTuple_GET_ITEM(PyTuple_GET_ITEM(set, i), 0)))
            return true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(removed); i++)
        if (same(name, PyTuple_GET_ITEM(removed, i)))
            return true;
    return false;
}

PyObject *seamgate_amend(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !are_fields(args[0]) || !are_fields(args[1]) || !are_names(args[2]))
        return PyErr_Format(PyExc_TypeError, "amend takes two tuples of pairs of bytes, and a tuple of names");
    Py_ssize_t size = PyTuple_GET_SIZE(args[0]), more = PyTuple_GET_SIZE(args[1]), count = 0;
    PyObject *stays[MOST_FIELDS];
    if (size > MOST_FIELDS)
        return PyErr_Format(PyExc_ValueError, "more than %d fields", MOST_FIELDS);
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *pair = PyTuple_GET_ITEM(args[0], i);
        if (!goes(PyTuple_GET_ITEM(pair, 0), args[1], args[2]))
            stays[count++] = pair;
    }
    PyObject *result = PyTuple_New(count + more);
    if (!result)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(result, i, Py_NewRef(stays[i]));
    for (Py_ssize_t i = 0; i < more; i++)
        PyTuple_SET_ITEM(result, count + i, Py_NewRef(PyTuple_GET_ITEM(args[1], i)));
    return result;
}

PyObject *seamgate_any_named(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    static const char wrong[] = "any_named takes a tuple of pairs of bytes, and a frozenset of names";
    if (given != 2 || !PyTuple_Check(args[0]) || !PyFrozenSet_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, wrong);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
        PyObject *pair = PyTuple_GET_ITEM(args[0], i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2)
            return PyErr_Format(PyExc_TypeError, wrong);
        int found = PySet_Contains(args[1], PyTuple_GET_ITEM(pair, 0));
        if (found)
            return found < 0 ? NULL : Py_NewRef(Py_True);
    }
    Py_RETURN_FALSE;
}
