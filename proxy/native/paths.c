/* plain_path: whether a path is canonical as it stands. The twin of a regular expression in `paths.py`. */
#include "native.h"

#include <stdint.h>
#include <string.h>

/* Unreserved and sub-delims without ";", with ":" and "@" (RFC 3986 3.3): what a segment may hold unescaped. */
static const uint8_t in_segment[256] = {
    ['A' ... 'Z'] = 1, ['a' ... 'z'] = 1, ['0' ... '9'] = 1, ['-'] = 1, ['.'] = 1, ['_'] = 1, ['~'] = 1,
    ['!'] = 1, ['$'] = 1, ['&'] = 1, ['\''] = 1, ['('] = 1, [')'] = 1, ['*'] = 1, ['+'] = 1, [','] = 1, ['='] = 1,
    [':'] = 1, ['@'] = 1,
};

PyObject *seamgate_plain_path(PyObject *Py_UNUSED(module), PyObject *text)
{
    if (!PyUnicode_Check(text))
        return PyErr_Format(PyExc_TypeError, "a path is str");
    if (!PyUnicode_IS_COMPACT_ASCII(text) || !PyUnicode_GET_LENGTH(text))
        Py_RETURN_FALSE;
    const uint8_t *at = PyUnicode_DATA(text), *end = at + PyUnicode_GET_LENGTH(text);
    if (*at != '/')
        Py_RETURN_FALSE;
    for (uint8_t before = 'x'; at < end; before = *at++)
        if (*at == '/' ? before == '/' : !in_segment[*at] || (*at == '.' && before == '/'))
            Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}
