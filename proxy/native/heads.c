/* Fields: splits the heads of HTTP/1.1 messages into fields, and writes fields as bytes.
 *
 * `split` takes only what is plainly right (RFC 9112 5, as strict as protocol/http1.py says) and returns None for all
 * else: the Python twin then says what is wrong. So a mistake here could refuse too much, but not word an error twice.
 */
#include "native.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MOST_FIELDS = 1024, LONGEST_NAME = 256, TABLE = 1024 };
enum { SPECIAL = 1, WRITTEN = 2 };

typedef struct {
    PyObject *name; /* bytes, lower case */
    int kind;       /* SPECIAL: read here, never passed on. WRITTEN: special, but written by the gateway itself */
} Known;

typedef struct {
    PyObject_HEAD
    Known table[TABLE];
    int known;
    Py_ssize_t most;
} Fields;

/* Which bytes may stand in a name (as its lower case), in a value. */
static const uint8_t in_name[256] = {
    ['!'] = '!', ['#'] = '#', ['$'] = '$', ['%'] = '%', ['&'] = '&', ['\''] = '\'', ['*'] = '*', ['+'] = '+',
    ['-'] = '-', ['.'] = '.', ['^'] = '^', ['_'] = '_', ['`'] = '`', ['|'] = '|', ['~'] = '~',
    ['0'] = '0', ['1'] = '1', ['2'] = '2', ['3'] = '3', ['4'] = '4', ['5'] = '5', ['6'] = '6', ['7'] = '7',
    ['8'] = '8', ['9'] = '9',
    ['a'] = 'a', ['b'] = 'b', ['c'] = 'c', ['d'] = 'd', ['e'] = 'e', ['f'] = 'f', ['g'] = 'g', ['h'] = 'h',
    ['i'] = 'i', ['j'] = 'j', ['k'] = 'k', ['l'] = 'l', ['m'] = 'm', ['n'] = 'n', ['o'] = 'o', ['p'] = 'p',
    ['q'] = 'q', ['r'] = 'r', ['s'] = 's', ['t'] = 't', ['u'] = 'u', ['v'] = 'v', ['w'] = 'w', ['x'] = 'x',
    ['y'] = 'y', ['z'] = 'z',
    ['A'] = 'a', ['B'] = 'b', ['C'] = 'c', ['D'] = 'd', ['E'] = 'e', ['F'] = 'f', ['G'] = 'g', ['H'] = 'h',
    ['I'] = 'i', ['J'] = 'j', ['K'] = 'k', ['L'] = 'l', ['M'] = 'm', ['N'] = 'n', ['O'] = 'o', ['P'] = 'p',
    ['Q'] = 'q', ['R'] = 'r', ['S'] = 's', ['T'] = 't', ['U'] = 'u', ['V'] = 'v', ['W'] = 'w', ['X'] = 'x',
    ['Y'] = 'y', ['Z'] = 'z',
};

static bool in_value(uint8_t byte)
{
    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
}

static uint32_t hash_name(const uint8_t *name, Py_ssize_t size)
{
    uint32_t hash = 2166136261u;
    for (Py_ssize_t i = 0; i < size; i++)
        hash = (hash ^ name[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* The place of a name in the table: where it is, or where it would be. */
static Known *look_up(Fields *self, const uint8_t *name, Py_ssize_t size)
{
    for (uint32_t at = hash_name(name, size);; at++) {
        Known *known = &self->table[at % TABLE];
        if (!known->name)
            return known;
        if (PyBytes_GET_SIZE(known->name) == size && !memcmp(PyBytes_AS_STRING(known->name), name, size))
            return known;
    }
}

static int remember(Fields *self, PyObject *names, int kind)
{
    PyObject *iterator = PyObject_GetIter(names), *name;
    if (!iterator)
        return -1;
    while ((name = PyIter_Next(iterator))) {
        if (!PyBytes_Check(name) || self->known >= TABLE / 2) {
            PyErr_SetString(PyExc_ValueError, "names are bytes, at most 512 of them");
            Py_DECREF(name);
            break;
        }
        Known *known = look_up(self, (uint8_t *)PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name));
        self->known += !known->name;
        known->kind |= kind;
        if (known->name)
            Py_DECREF(name);
        else
            known->name = name;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"special", "written", "common", "most", NULL};
    PyObject *special, *written, *common;
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOn", keywords, &special, &written, &common, &most))
        return NULL;
    if (most < 0 || most > MOST_FIELDS)
        return PyErr_Format(PyExc_ValueError, "most is 0 to %d", MOST_FIELDS);
    Fields *self = (Fields *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->most = most;
    if (remember(self, special, SPECIAL) || remember(self, written, WRITTEN) || remember(self, common, 0)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void fields_dealloc(Fields *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < TABLE; i++)
        Py_XDECREF(self->table[i].name);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Append a value to the list that the dictionary has for a name. */
static int add_special(PyObject *special, PyObject *name, PyObject *value)
{
    PyObject *values = PyDict_GetItemWithError(special, name);
    if (values)
        return PyList_Append(values, value);
    if (PyErr_Occurred() || !(values = PyList_New(1)))
        return -1;
    PyList_SET_ITEM(values, 0, Py_NewRef(value));
    int failed = PyDict_SetItem(special, name, values);
    Py_DECREF(values);
    return failed;
}

/* One line, without its end: 1 if it is plainly a field, 0 if not, -1 with an exception. A new pair goes to `pair`,
 * unless the field is special. */
static int split_line(Fields *self, const uint8_t *line, Py_ssize_t size, PyObject *special, PyObject **pair)
{
    uint8_t lower[LONGEST_NAME];
    Py_ssize_t length = 0, end = size;
    while (length < size && length < LONGEST_NAME && in_name[line[length]]) {
        lower[length] = in_name[line[length]];
        length++;
    }
    if (!length || length == size || line[length] != ':')
        return 0;
    Py_ssize_t start = length + 1;
    while (start < end && (line[start] == ' ' || line[start] == '\t'))
        start++;
    while (end > start && (line[end - 1] == ' ' || line[end - 1] == '\t'))
        end--;
    for (Py_ssize_t i = start; i < end; i++)
        if (!in_value(line[i]))
            return 0;
    Known *known = look_up(self, lower, length);
    PyObject *name = known->name ? Py_NewRef(known->name) : PyBytes_FromStringAndSize((char *)lower, length);
    PyObject *value = PyBytes_FromStringAndSize((const char *)line + start, end - start);
    int done = -1;
    *pair = NULL;
    if (name && value) {
        if (known->name && known->kind & SPECIAL)
            done = add_special(special, name, value) ? -1 : 1;
        else if ((*pair = PyTuple_Pack(2, name, value)))
            done = 1;
    }
    Py_XDECREF(name);
    Py_XDECREF(value);
    return done;
}

PyDoc_STRVAR(split_doc,
             "split(head: bytes) -> tuple[bytes, tuple[tuple[bytes, bytes], ...], dict[bytes, list[bytes]]] | None\n\n"
             "Split a whole head, with its empty line: first line, fields that go on, special ones. None: not plainly"
             " right.");

static PyObject *fields_split(Fields *self, PyObject *head)
{
    if (!PyBytes_Check(head))
        return PyErr_Format(PyExc_TypeError, "a head is bytes");
    const uint8_t *at = (uint8_t *)PyBytes_AS_STRING(head), *end = at + PyBytes_GET_SIZE(head);
    if (end - at < 4 || memcmp(end - 4, "\r\n\r\n", 4))
        Py_RETURN_NONE;
    end -= 2; /* the empty line; what is left ends with CRLF */
    const uint8_t *stop = memchr(at, '\r', end - at);
    for (const uint8_t *byte = at; byte < stop; byte++)
        if (!in_value(*byte))
            Py_RETURN_NONE;
    if (stop[1] != '\n')
        Py_RETURN_NONE;
    PyObject *first = PyBytes_FromStringAndSize((const char *)at, stop - at), *special = PyDict_New();
    PyObject *pairs[MOST_FIELDS], *result = NULL;
    Py_ssize_t count = 0, lines = 0;
    int state = first && special ? 1 : -1;
    at = stop + 2;
    while (state == 1 && at < end) {
        stop = memchr(at, '\r', end - at);
        if (!stop || stop[1] != '\n' || ++lines > self->most) {
            state = 0;
            break;
        }
        PyObject *pair = NULL;
        state = split_line(self, at, stop - at, special, &pair);
        if (pair)
            pairs[count++] = pair;
        at = stop + 2;
    }
    if (state == 1) {
        PyObject *headers = PyTuple_New(count);
        if (headers) {
            for (Py_ssize_t i = 0; i < count; i++)
                PyTuple_SET_ITEM(headers, i, pairs[i]);
            count = 0;
            result = PyTuple_Pack(3, first, headers, special);
            Py_DECREF(headers);
        }
    } else if (state == 0) {
        result = Py_NewRef(Py_None);
    }
    while (count)
        Py_DECREF(pairs[--count]);
    Py_XDECREF(first);
    Py_XDECREF(special);
    return result;
}

/* Whether a field may be written: 1 yes, 0 no. */
static int may_write(Fields *self, PyObject *name, PyObject *value)
{
    const uint8_t *bytes = (uint8_t *)PyBytes_AS_STRING(name);
    Py_ssize_t size = PyBytes_GET_SIZE(name);
    Known *known = look_up(self, bytes, size);
    if (known->name) {
        if (known->kind == SPECIAL)
            return 0;
    } else {
        if (!size || size > LONGEST_NAME)
            return 0;
        for (Py_ssize_t i = 0; i < size; i++)
            if (!in_name[bytes[i]] || in_name[bytes[i]] != bytes[i])
                return 0;
    }
    bytes = (uint8_t *)PyBytes_AS_STRING(value);
    size = PyBytes_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < size; i++)
        if (!in_value(bytes[i]))
            return 0;
    return 1;
}

PyDoc_STRVAR(write_doc,
             "write(first: bytes, headers: tuple[tuple[bytes, bytes], ...], last: bytes, check: bool) -> bytes | None\n\n"
             "Join first, `name: value` lines and last. With check: None where a field may not be written.");

static PyObject *fields_write(Fields *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 4 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[1]) || !PyBytes_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "write takes bytes, a tuple of pairs, bytes and whether to check");
    PyObject *headers = args[1];
    Py_ssize_t count = PyTuple_GET_SIZE(headers);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]) + PyBytes_GET_SIZE(args[2]);
    int check = PyObject_IsTrue(args[3]);
    if (check < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(headers, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyBytes_Check(PyTuple_GET_ITEM(pair, 0)) ||
            !PyBytes_Check(PyTuple_GET_ITEM(pair, 1)))
            return PyErr_Format(PyExc_TypeError, "a field is a pair of bytes");
        if (check && !may_write(self, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1)))
            Py_RETURN_NONE;
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 0)) + PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 1)) + 4;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, size);
    if (!result)
        return NULL;
    char *to = PyBytes_AS_STRING(result);
    to = (char *)memcpy(to, PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0])) + PyBytes_GET_SIZE(args[0]);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(PyTuple_GET_ITEM(headers, i), 0);
        PyObject *value = PyTuple_GET_ITEM(PyTuple_GET_ITEM(headers, i), 1);
        to = (char *)memcpy(to, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)) + PyBytes_GET_SIZE(name);
        *to++ = ':';
        *to++ = ' ';
        to = (char *)memcpy(to, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)) + PyBytes_GET_SIZE(value);
        *to++ = '\r';
        *to++ = '\n';
    }
    memcpy(to, PyBytes_AS_STRING(args[2]), PyBytes_GET_SIZE(args[2]));
    return result;
}

static PyMethodDef fields_methods[] = {
    {"split", (PyCFunction)fields_split, METH_O, split_doc},
    {"write", (PyCFunction)(void (*)(void))fields_write, METH_FASTCALL, write_doc},
    {0},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_new, fields_new},
    {Py_tp_dealloc, fields_dealloc},
    {Py_tp_methods, fields_methods},
    {Py_tp_doc, (void *)"Fields(special, written, common, most): splits heads into fields, and writes them."},
    {0},
};

PyType_Spec seamgate_fields_spec = {
    .name = "seamgate._native.Fields",
    .basicsize = sizeof(Fields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = fields_slots,
};
