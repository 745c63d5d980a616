/* Lines: audit records, which are msgspec structures, as lines of the journal. Their hashes, and the chain of them, are
 * chain.c's business.
 *
 * What is here knows no schema: Python tells for each structure its fields, their places and their defaults
 * (audit/line.py). Numbers with a fraction are written with three decimals: microseconds where the unit is
 * milliseconds. What it does not know (another type, a lone surrogate) it gives back, and msgspec writes the line.
 */
#include "native.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

enum {
    DEEPEST = 8,
    /* Free whenever a value is about to be written. Between two values there are at most a number (20 digits are copied,
     * then four of decimals), the brackets of all depths, and a comma with a key. */
    SLACK = 256,
    LONGEST_KEY = 128,
};
static const char SHORT[] = "\b\f\n\r\t"; /* escaped by a letter of their own */

typedef struct {
    char *key;         /* `,"name":` */
    size_t key_size;
    PyObject *missing; /* the default with which the field is left out; NULL: it is always there */
    Py_ssize_t offset; /* of the PyObject * within the structure */
} Field;

typedef struct {
    PyTypeObject *type;
    bool as_array;
    Py_ssize_t count;
    Field *fields;
} Layout;

typedef struct {
    PyObject_HEAD
    Layout *layouts; /* the first is the record's */
    Py_ssize_t count;
} Lines;

typedef struct {
    char *bytes;
    size_t size, room;
    bool failed; /* there is no memory */
    char first[4096];
} Out;

/* Make room for so many bytes and SLACK more. Where there is no memory, what is written goes over what was there. */
static __attribute__((noinline, cold)) void grow(Out *out, size_t more)
{
    size_t room = (out->size + more + SLACK) * 2;
    char *bytes = out->failed ? NULL : out->bytes == out->first ? PyMem_Malloc(room) : PyMem_Realloc(out->bytes, room);
    if (!bytes) {
        out->failed = true;
        out->size = 0;
        return;
    }
    if (out->bytes == out->first)
        memcpy(bytes, out->first, out->size);
    out->bytes = bytes;
    out->room = room;
}

static inline void reserve(Out *out, size_t more)
{
    if (out->room - out->size < more + SLACK)
        grow(out, more);
}

/* Copy few bytes without a call: two halves that may overlap. */
static inline void copy(char *to, const char *from, size_t size)
{
    if (size > 32) {
        memcpy(to, from, size);
    } else if (size >= 16) {
        memcpy(to, from, 16);
        memcpy(to + size - 16, from + size - 16, 16);
    } else if (size >= 8) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else if (size >= 4) {
        memcpy(to, from, 4);
        memcpy(to + size - 4, from + size - 4, 4);
    } else {
        for (size_t at = 0; at < size; at++)
            to[at] = from[at];
    }
}

/* Write what fits into the slack: a key, a number, a bracket. */
static inline void put(Out *out, const char *bytes, size_t size)
{
    copy(out->bytes + out->size, bytes, size);
    out->size += size;
}

/* Write bytes of any size. */
static void put_long(Out *out, PyObject *bytes)
{
    reserve(out, PyBytes_GET_SIZE(bytes));
    if (!out->failed)
        put(out, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
}

static void put_number(Out *out, uint64_t number)
{
    static const char pairs[] = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546"
                                "4748495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293"
                                "949596979899";
    enum { MOST = 20 }; /* digits; so many are copied, whatever the last of them are */
    char digits[2 * MOST];
    int at = MOST;
    memset(digits + MOST, 0, MOST);
    while (number >= 100) {
        memcpy(&digits[at -= 2], &pairs[number % 100 * 2], 2);
        number /= 100;
    }
    if (number >= 10)
        memcpy(&digits[at -= 2], &pairs[number * 2], 2);
    else
        digits[--at] = '0' + number;
    memcpy(out->bytes + out->size, digits + at, MOST);
    out->size += MOST - at;
}

static const bool escaped[256] = {[0 ... 31] = true, ['"'] = true, ['\\'] = true};

/* Whether one of eight bytes may be escaped. Of each byte only the top bit is set or not: for one below 0x20, and for
 * one that equals a quote or a backslash, which is 0 after the exclusive or. */
static inline bool any_escaped(uint64_t eight)
{
    const uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080;
    uint64_t quote = eight ^ ones * '"', backslash = eight ^ ones * '\\';
    return (((eight - ones * 0x20) & ~eight) | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash)) & tops;
}

static inline uint64_t eight_at(const char *bytes)
{
    uint64_t eight;
    memcpy(&eight, bytes, sizeof eight);
    return eight;
}

typedef uint8_t Sixteen __attribute__((vector_size(16)));

static inline bool any_escaped_of_16(const char *bytes)
{
    Sixteen all;
    memcpy(&all, bytes, sizeof all);
    Sixteen found = (Sixteen)(all < 0x20) | (Sixteen)(all == '"') | (Sixteen)(all == '\\');
    uint64_t halves[2];
    memcpy(halves, &found, sizeof halves);
    return halves[0] | halves[1];
}

/* Whether nothing in a text is escaped, 16 bytes at once; the last ones, or both halves of fewer, may overlap. */
static inline bool is_plain(const char *bytes, Py_ssize_t size)
{
    if (size >= 16) {
        for (Py_ssize_t at = 0; at + 16 < size; at += 16)
            if (any_escaped_of_16(bytes + at))
                return false;
        return !any_escaped_of_16(bytes + size - 16);
    }
    if (size >= 8)
        return !any_escaped(eight_at(bytes)) && !any_escaped(eight_at(bytes + size - 8));
    if (size >= 4) {
        uint32_t first, last;
        memcpy(&first, bytes, sizeof first);
        memcpy(&last, bytes + size - 4, sizeof last);
        return !any_escaped((uint64_t)first << 32 | last);
    }
    for (Py_ssize_t at = 0; at < size; at++)
        if (escaped[(uint8_t)bytes[at]])
            return false;
    return true;
}

/* A character that may not stand as it is: by a backslash, by a letter of its own, or by its number. */
static char *put_escape(char *to, uint8_t byte)
{
    *to++ = '\\';
    const char *known = byte && byte < 0x20 ? strchr(SHORT, byte) : NULL;
    if (byte >= 0x20) {
        *to++ = byte;
    } else if (known) {
        *to++ = "bfnrt"[known - SHORT];
    } else {
        memcpy(to, "u00", 3);
        to[3] = "0123456789abcdef"[byte >> 4];
        to[4] = "0123456789abcdef"[byte & 15];
        to += 5;
    }
    return to;
}

/* RFC 8259 7: quotes, backslashes and control characters are escaped, all else stands as it is. */
static bool put_text(Out *out, PyObject *text)
{
    Py_ssize_t size;
    const char *bytes;
    if (PyUnicode_IS_COMPACT_ASCII(text)) {
        bytes = PyUnicode_DATA(text);
        size = PyUnicode_GET_LENGTH(text);
    } else if (!(bytes = PyUnicode_AsUTF8AndSize(text, &size))) {
        PyErr_Clear(); /* a lone surrogate */
        return false;
    }
    reserve(out, 6 * size + 2);
    if (out->failed)
        return true;
    char *to = out->bytes + out->size;
    *to++ = '"';
    if (is_plain(bytes, size)) {
        copy(to, bytes, size);
        to += size;
    } else {
        for (Py_ssize_t at = 0; at < size; at++)
            if (escaped[(uint8_t)bytes[at]])
                to = put_escape(to, bytes[at]);
            else
                *to++ = bytes[at];
    }
    *to++ = '"';
    out->size = to - out->bytes;
    return true;
}

static bool put_float(Out *out, double number)
{
    if (!isfinite(number) || fabs(number) > 1e15)
        return false;
    if (signbit(number) && llround(number * 1000))
        put(out, "-", 1);
    uint64_t thousandths = llround(fabs(number) * 1000);
    put_number(out, thousandths / 1000);
    unsigned rest = thousandths % 1000;
    if (rest) {
        char decimals[4] = {'.', '0' + rest / 100, '0' + rest / 10 % 10, '0' + rest % 10};
        int size = 4;
        while (decimals[size - 1] == '0')
            size--;
        put(out, decimals, size);
    }
    return true;
}

static bool put_value(Lines *self, Out *out, PyObject *value, int depth);

static const Layout *layout_of(const Lines *self, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->layouts[i].type == type)
            return &self->layouts[i];
    return NULL;
}

static bool is_empty(PyObject *value)
{
    return (PyDict_CheckExact(value) && !PyDict_GET_SIZE(value)) || (PyTuple_CheckExact(value) && !PyTuple_GET_SIZE(value));
}

/* The fields of a structure from the given one on, without brackets. */
static bool put_fields(Lines *self, Out *out, const Layout *layout, PyObject *record, Py_ssize_t from, int depth)
{
    bool first = true;
    for (Py_ssize_t i = from; i < layout->count; i++) {
        const Field *field = &layout->fields[i];
        PyObject *value = *(PyObject **)((char *)record + field->offset);
        if (!value)
            return false;
        if (field->missing && (value == field->missing || (is_empty(value) && is_empty(field->missing))))
            continue;
        if (layout->as_array) {
            if (!first)
                put(out, ",", 1);
        } else { /* a comma is before each key */
            put(out, field->key + first, field->key_size - first);
        }
        first = false;
        if (!put_value(self, out, value, depth))
            return false;
    }
    return true;
}

static bool put_tuple(Lines *self, Out *out, PyObject *values, int depth)
{
    put(out, "[", 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++) {
        if (i)
            put(out, ",", 1);
        if (!put_value(self, out, PyTuple_GET_ITEM(values, i), depth))
            return false;
    }
    put(out, "]", 1);
    return true;
}

static bool put_dict(Lines *self, Out *out, PyObject *values, int depth)
{
    PyObject *key, *value;
    Py_ssize_t place = 0;
    bool first = true;
    put(out, "{", 1);
    while (PyDict_Next(values, &place, &key, &value)) {
        if (!first)
            put(out, ",", 1);
        first = false;
        if (!PyUnicode_Check(key) || !put_text(out, key))
            return false;
        put(out, ":", 1);
        if (!put_value(self, out, value, depth))
            return false;
    }
    put(out, "}", 1);
    return true;
}

/* One value; false: this is nothing that is known here. */
static bool put_value(Lines *self, Out *out, PyObject *value, int depth)
{
    if (depth > DEEPEST)
        return false;
    reserve(out, 0);
    if (PyUnicode_Check(value)) /* also a member of an enumeration of texts */
        return put_text(out, value);
    if (value == Py_None)
        return put(out, "null", 4), true;
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow || number < 0)
            return false;
        return put_number(out, number), true;
    }
    if (PyFloat_CheckExact(value))
        return put_float(out, PyFloat_AS_DOUBLE(value));
    if (PyTuple_CheckExact(value))
        return put_tuple(self, out, value, depth + 1);
    if (PyBool_Check(value))
        return value == Py_True ? put(out, "true", 4) : put(out, "false", 5), true;
    if (PyDict_CheckExact(value))
        return put_dict(self, out, value, depth + 1);
    const Layout *layout = layout_of(self, Py_TYPE(value));
    if (!layout)
        return false;
    put(out, layout->as_array ? "[" : "{", 1);
    if (!put_fields(self, out, layout, value, 0, depth + 1))
        return false;
    put(out, layout->as_array ? "]" : "}", 1);
    return true;
}

PyDoc_STRVAR(encode_doc,
             "encode(second: bytes, millisecond: int, schema: bytes, record: object) -> bytes | None\n\n"
             "Write the record's line from its time on, line feed included: its time as text, and all its fields but"
             " the first, which is its time as a number. None: something in it is not known here.");

static PyObject *lines_encode(Lines *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 4 || !PyBytes_Check(args[0]) || !PyLong_Check(args[1]) || !PyBytes_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "encode takes bytes, a number, bytes and a record");
    if (Py_TYPE(args[3]) != self->layouts[0].type)
        Py_RETURN_NONE;
    long long millisecond = PyLong_AsLongLong(args[1]);
    if (millisecond < 0 && PyErr_Occurred())
        return NULL;
    if (millisecond < 0 || millisecond > 999)
        return PyErr_Format(PyExc_ValueError, "a number is out of range");
    char fraction[] = {'.', '0' + millisecond / 100, '0' + millisecond / 10 % 10, '0' + millisecond % 10, 'Z'};
    Out out = {.bytes = out.first, .room = sizeof out.first};
    put(&out, "\"time\":\"", 8);
    put_long(&out, args[0]);
    put(&out, fraction, sizeof fraction);
    put(&out, "\",\"schema\":\"", 12);
    put_long(&out, args[2]);
    put(&out, "\",", 2);
    bool known = put_fields(self, &out, &self->layouts[0], args[3], 1, 0);
    put(&out, "}\n", 2);
    PyObject *line = out.failed ? PyErr_NoMemory() : known ? PyBytes_FromStringAndSize(out.bytes, out.size) : Py_NewRef(Py_None);
    if (out.bytes != out.first)
        PyMem_Free(out.bytes);
    return line;
}

/* Take one layout: (type, as_array, [(key, member descriptor, default or NotImplemented)]). */
static int take_layout(Layout *layout, PyObject *given)
{
    PyObject *type, *fields;
    int as_array;
    if (!PyArg_ParseTuple(given, "O!pO!", &PyType_Type, &type, &as_array, &PyList_Type, &fields))
        return -1;
    layout->fields = PyMem_Calloc(PyList_GET_SIZE(fields) + 1, sizeof *layout->fields);
    if (!layout->fields) {
        PyErr_NoMemory();
        return -1;
    }
    layout->type = (PyTypeObject *)Py_NewRef(type);
    layout->as_array = as_array;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(fields); i++) {
        PyObject *key, *descriptor, *missing;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(fields, i), "SO!O", &key, &PyMemberDescr_Type, &descriptor, &missing))
            return -1;
        const PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        if ((member->type != T_OBJECT_EX && member->type != T_OBJECT) ||
            !PyType_IsSubtype((PyTypeObject *)type, ((PyDescrObject *)descriptor)->d_type)) {
            PyErr_SetString(PyExc_TypeError, "a field is an object of its structure");
            return -1;
        }
        size_t size = PyBytes_GET_SIZE(key) + 1;
        if (size > LONGEST_KEY) {
            PyErr_SetString(PyExc_ValueError, "the name of a field is too long");
            return -1;
        }
        char *with_comma = PyMem_Malloc(size);
        if (!with_comma) {
            PyErr_NoMemory();
            return -1;
        }
        with_comma[0] = ',';
        memcpy(with_comma + 1, PyBytes_AS_STRING(key), size - 1);
        layout->fields[layout->count++] = (Field){
            .key = with_comma,
            .key_size = size,
            .missing = missing == Py_NotImplemented ? NULL : Py_NewRef(missing),
            .offset = member->offset,
        };
    }
    return 0;
}

static PyObject *lines_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"layouts", NULL};
    PyObject *layouts;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", keywords, &PyList_Type, &layouts))
        return NULL;
    if (!PyList_GET_SIZE(layouts))
        return PyErr_Format(PyExc_ValueError, "the first layout is the record's");
    Lines *self = (Lines *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->layouts = PyMem_Calloc(PyList_GET_SIZE(layouts), sizeof *self->layouts);
    if (!self->layouts) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(layouts); i++) {
        self->count++; /* also one that is half taken is let go of */
        if (take_layout(&self->layouts[i], PyList_GET_ITEM(layouts, i))) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void lines_dealloc(Lines *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Layout *layout = &self->layouts[i];
        for (Py_ssize_t at = 0; at < layout->count; at++) {
            PyMem_Free(layout->fields[at].key);
            Py_XDECREF(layout->fields[at].missing);
        }
        PyMem_Free(layout->fields);
        Py_XDECREF(layout->type);
    }
    PyMem_Free(self->layouts);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef lines_methods[] = {
    {"encode", (PyCFunction)(void (*)(void))lines_encode, METH_FASTCALL, encode_doc},
    {0},
};

static PyType_Slot lines_slots[] = {
    {Py_tp_new, lines_new},
    {Py_tp_dealloc, lines_dealloc},
    {Py_tp_methods, lines_methods},
    {Py_tp_doc, (void *)"Lines(layouts): writes records as lines of the journal."},
    {0},
};

PyType_Spec seamgate_lines_spec = {
    .name = "seamgate._native.Lines",
    .basicsize = sizeof(Lines),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lines_slots,
};
