/* unquote, unquote_json: a text without one kind of escapes. The twins of `seamgate/unquoting.py`: one pass, no object for
 * an escape, so that a text of nothing else takes as long as any other.
 */
#include "native.h"

#include <stdint.h>
#include <string.h>

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* What two hex digits say; -1 where they are none. */
static int pair(const uint8_t *at)
{
    int high = hex_digit(at[0]), low = hex_digit(at[1]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* An escape is `mark`, `middle` and two hex digits that say no more than `most`. */
static PyObject *without(PyObject *data, uint8_t mark, const char *middle, int most)
{
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "escapes are taken off bytes");
    const uint8_t *text = (uint8_t *)PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data), between = strlen(middle), length = between + 3, count = 0, copied = 0;
    PyObject *plain = NULL;
    uint8_t *out = NULL;
    for (Py_ssize_t place = 0; place + length <= size;) {
        if (text[place] != mark) {
            const uint8_t *next = memchr(text + place, mark, size - place);
            if (!next)
                break;
            place = next - text;
            continue;
        }
        const uint8_t *digits = text + place + 1 + between;
        int value = between && memcmp(text + place + 1, middle, between) ? -1 : pair(digits);
        if (value < 0 || value > most) {
            place++;
            continue;
        }
        if (!plain) {
            if (!(plain = PyBytes_FromStringAndSize(NULL, size)))
                return NULL;
            out = (uint8_t *)PyBytes_AS_STRING(plain);
        }
        memcpy(out + count, text + copied, place - copied);
        count += place - copied;
        out[count++] = value;
        copied = place += length;
    }
    if (!plain)
        return Py_NewRef(data);
    memcpy(out + count, text + copied, size - copied);
    _PyBytes_Resize(&plain, count + size - copied);
    return plain;
}

PyObject *seamgate_unquote(PyObject *Py_UNUSED(module), PyObject *data)
{
    return without(data, '%', "", 0xFF);
}

PyObject *seamgate_unquote_json(PyObject *Py_UNUSED(module), PyObject *data)
{
    return without(data, '\\', "u00", 0x7F);
}
