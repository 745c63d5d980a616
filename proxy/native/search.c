/* Needles: whether any of many byte strings stands in a text, in one pass that skips most of it.
 *
 * Of each needle the first `shortest` bytes are cut into grams of `gram` bytes, which are kept in a hash table. Any
 * needle in the text covers one of the places that are `shortest - gram + 1` apart, with one of its grams: so only
 * these are looked up, and what is found there is compared in full. With needles of 16 bytes and more that is one
 * look-up in 13 bytes, however many there are (the idea of Wu and Manber, 1994).
 */
#include "native.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t gram;
    uint32_t needle;
    uint32_t offset; /* of the gram within the needle */
    uint32_t next;   /* entry with the same hash, 0 for none; entry 0 is not used */
} Entry;

typedef struct {
    uint8_t *bytes; /* folded ones in lower case */
    Py_ssize_t size;
    bool folded;
} Needle;

typedef struct {
    PyObject_HEAD
    Needle *needles;
    Entry *entries;
    uint32_t *heads;
    uint32_t count, mask;
    Py_ssize_t shortest, longest, gram;
    bool folds;          /* whether any needle is compared without case: then all grams are of lower-case bytes */
    bool starts[256];    /* first bytes of exact needles */
    uint8_t single[8];   /* bytes that are needles by themselves: short ones would make the steps short */
    Py_ssize_t singles;
} Needles;

static uint8_t fold(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte;
}

static uint32_t gram_at(const Needles *self, const uint8_t *at)
{
    uint32_t gram = 0;
    if (self->folds)
        for (Py_ssize_t i = 0; i < self->gram; i++)
            gram = gram << 8 | fold(at[i]);
    else if (self->gram == 4)
        memcpy(&gram, at, 4);
    else
        for (Py_ssize_t i = 0; i < self->gram; i++)
            gram = gram << 8 | at[i];
    return gram;
}

static uint32_t hash_gram(const Needles *self, uint32_t gram)
{
    return gram * 2654435761u >> 7 & self->mask;
}

/* Whether a needle stands in full at this place of the text. */
static bool stands(const Needle *needle, const uint8_t *at)
{
    if (!needle->folded)
        return !memcmp(needle->bytes, at, needle->size);
    for (Py_ssize_t i = 0; i < needle->size; i++)
        if (needle->bytes[i] != fold(at[i]))
            return false;
    return true;
}

static bool anywhere(const Needles *self, const uint8_t *text, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < self->singles; i++)
        if (memchr(text, self->single[i], size))
            return true;
    if (!self->count || size < self->shortest)
        return false;
    Py_ssize_t step = self->shortest - self->gram + 1;
    /* The first place is the last gram of a needle that begins with the text. */
    for (Py_ssize_t place = self->shortest - self->gram; place + self->gram <= size; place += step) {
        uint32_t gram = gram_at(self, text + place);
        for (uint32_t at = self->heads[hash_gram(self, gram)]; at; at = self->entries[at].next) {
            const Entry *entry = &self->entries[at];
            const Needle *needle = &self->needles[entry->needle];
            if (entry->gram == gram && place >= entry->offset && place - entry->offset + needle->size <= size &&
                stands(needle, text + place - entry->offset))
                return true;
        }
    }
    return false;
}

/* Take over the byte strings of an iterable. */
static int take(Needles *self, PyObject *given, bool folded)
{
    PyObject *list = PySequence_List(given);
    if (!list)
        return -1;
    Py_ssize_t more = PyList_GET_SIZE(list);
    Needle *needles = more ? PyMem_Realloc(self->needles, (self->count + more) * sizeof *needles) : self->needles;
    if (more && !needles) {
        Py_DECREF(list);
        PyErr_NoMemory();
        return -1;
    }
    self->needles = needles;
    for (Py_ssize_t i = 0; i < more; i++) {
        PyObject *each = PyList_GET_ITEM(list, i);
        if (!PyBytes_Check(each) || !PyBytes_GET_SIZE(each)) {
            PyErr_SetString(PyExc_ValueError, "a needle is bytes, and not empty");
            break;
        }
        Py_ssize_t size = PyBytes_GET_SIZE(each);
        uint8_t *bytes = PyMem_Malloc(size);
        if (!bytes) {
            PyErr_NoMemory();
            break;
        }
        for (Py_ssize_t at = 0; at < size; at++) {
            uint8_t byte = PyBytes_AS_STRING(each)[at];
            bytes[at] = folded ? fold(byte) : byte;
        }
        self->needles[self->count++] = (Needle){bytes, size, folded};
        self->shortest = self->count == 1 || size < self->shortest ? size : self->shortest;
        if (!folded) {
            self->longest = size > self->longest ? size : self->longest;
            self->starts[bytes[0]] = true;
        }
        self->folds |= folded;
    }
    Py_DECREF(list);
    return PyErr_Occurred() ? -1 : 0;
}

static int index_grams(Needles *self)
{
    if (!self->count)
        return 0;
    self->gram = self->shortest >= 16 ? 4 : self->shortest >= 8 ? 3 : self->shortest >= 4 ? 2 : 1;
    size_t places = self->shortest - self->gram + 1, total = places * self->count, slots = 4096;
    while (slots < 8 * total && slots < 1u << 22)
        slots *= 2;
    self->mask = slots - 1;
    if (total >= UINT32_MAX - 1) {
        PyErr_SetString(PyExc_ValueError, "too many needles");
        return -1;
    }
    self->heads = PyMem_Calloc(slots, sizeof *self->heads);
    self->entries = PyMem_Calloc(total + 1, sizeof *self->entries);
    if (!self->heads || !self->entries) {
        PyErr_NoMemory();
        return -1;
    }
    uint32_t used = 1;
    for (uint32_t needle = 0; needle < self->count; needle++)
        for (size_t offset = 0; offset < places; offset++) {
            uint32_t gram = gram_at(self, self->needles[needle].bytes + offset), *head = &self->heads[hash_gram(self, gram)];
            self->entries[used] = (Entry){gram, needle, offset, *head};
            *head = used++;
        }
    return 0;
}

static PyObject *needles_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"exact", "folded", "single", NULL};
    PyObject *exact, *folded = NULL;
    const char *single = "";
    Py_ssize_t singles = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Oy#", keywords, &exact, &folded, &single, &singles))
        return NULL;
    Needles *self = (Needles *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    if (singles > (Py_ssize_t)sizeof self->single) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_ValueError, "at most %zu single bytes", sizeof self->single);
    }
    memcpy(self->single, single, singles);
    self->singles = singles;
    if (take(self, exact, false) || (folded && take(self, folded, true)) || index_grams(self)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void needles_dealloc(Needles *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (uint32_t i = 0; i < self->count; i++)
        PyMem_Free(self->needles[i].bytes);
    PyMem_Free(self->needles);
    PyMem_Free(self->entries);
    PyMem_Free(self->heads);
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(found_doc, "found(data: bytes) -> bool\n\nWhether any needle stands in the data.");

static PyObject *needles_found(Needles *self, PyObject *data)
{
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "needles are looked for in bytes");
    return PyBool_FromLong(anywhere(self, (uint8_t *)PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)));
}

PyDoc_STRVAR(found_in_doc,
             "found_in(headers: tuple[tuple[bytes, bytes], ...], names: bool, texts: tuple[str | None, ...] = ()) -> bool"
             "\n\nWhether any needle stands in a field's value, in its name if `names`, or in one of the texts.");

static bool in_bytes(const Needles *self, PyObject *data)
{
    return anywhere(self, (uint8_t *)PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
}

/* Whether a needle stands in a text; of characters that are not ASCII each is a question mark, as bytes. */
static int in_text(const Needles *self, PyObject *text)
{
    if (text == Py_None)
        return 0;
    if (!PyUnicode_Check(text)) {
        PyErr_SetString(PyExc_TypeError, "a text is str or None");
        return -1;
    }
    if (PyUnicode_IS_COMPACT_ASCII(text))
        return anywhere(self, PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text));
    PyObject *bytes = PyUnicode_AsEncodedString(text, "ascii", "replace");
    if (!bytes)
        return -1;
    int found = in_bytes(self, bytes);
    Py_DECREF(bytes);
    return found;
}

static PyObject *needles_found_in(Needles *self, PyObject *const *args, Py_ssize_t given)
{
    if (given < 2 || given > 3 || !PyTuple_Check(args[0]) || (given == 3 && !PyTuple_Check(args[2])))
        return PyErr_Format(PyExc_TypeError, "found_in takes a tuple of pairs, whether to look at names, and texts");
    int names = PyObject_IsTrue(args[1]);
    if (names < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
        PyObject *pair = PyTuple_GET_ITEM(args[0], i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyBytes_Check(PyTuple_GET_ITEM(pair, 0)) ||
            !PyBytes_Check(PyTuple_GET_ITEM(pair, 1)))
            return PyErr_Format(PyExc_TypeError, "a field is a pair of bytes");
        if (in_bytes(self, PyTuple_GET_ITEM(pair, 1)) || (names && in_bytes(self, PyTuple_GET_ITEM(pair, 0))))
            Py_RETURN_TRUE;
    }
    for (Py_ssize_t i = 0; given == 3 && i < PyTuple_GET_SIZE(args[2]); i++) {
        int found = in_text(self, PyTuple_GET_ITEM(args[2], i));
        if (found)
            return found < 0 ? NULL : Py_NewRef(Py_True);
    }
    Py_RETURN_FALSE;
}

PyDoc_STRVAR(open_end_doc,
             "open_end(data: bytes, start: int) -> int\n\n"
             "Where the earliest true beginning of an exact needle starts, from start on, that lasts to the end of the"
             " data; len(data) if there is none.");

static PyObject *needles_open_end(Needles *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyBytes_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "open_end takes bytes and a place");
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (start == -1 && PyErr_Occurred())
        return NULL;
    const uint8_t *text = (uint8_t *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), place = size - self->longest + 1;
    if (place < start)
        place = start;
    for (place = place < 0 ? 0 : place; place < size; place++) {
        if (!self->starts[text[place]])
            continue;
        for (uint32_t i = 0; i < self->count; i++)
            if (!self->needles[i].folded && self->needles[i].size > size - place &&
                !memcmp(self->needles[i].bytes, text + place, size - place))
                return PyLong_FromSsize_t(place);
    }
    return PyLong_FromSsize_t(size);
}

static PyMethodDef needles_methods[] = {
    {"found", (PyCFunction)needles_found, METH_O, found_doc},
    {"found_in", (PyCFunction)(void (*)(void))needles_found_in, METH_FASTCALL, found_in_doc},
    {"open_end", (PyCFunction)(void (*)(void))needles_open_end, METH_FASTCALL, open_end_doc},
    {0},
};

static PyType_Slot needles_slots[] = {
    {Py_tp_new, needles_new},
    {Py_tp_dealloc, needles_dealloc},
    {Py_tp_methods, needles_methods},
    {Py_tp_doc, (void *)"Needles(exact, folded=(), single=b''): finds any of many byte strings; folded ones without case."},
    {0},
};

PyType_Spec seamgate_needles_spec = {
    .name = "seamgate._native.Needles",
    .basicsize = sizeof(Needles),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = needles_slots,
};
