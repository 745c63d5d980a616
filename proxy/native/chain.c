/* Chain: lines of the journal, linked by their hashes. The twin of `chain_in_python` in audit/line.py, which says how. */
#include "native.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

/* OpenSSL's SHA-256 as Python's `ssl` has it loaded. hashlib looks the algorithm up for each line, at thrice the
 * price of hashing one. */
static int (*sha256_init)(void *);
static int (*sha256_update)(void *, const void *, size_t);
static int (*sha256_final)(unsigned char *, void *);

int seamgate_find_sha256(void)
{
    void *library = dlopen("libcrypto.so.3", RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return 0;
    *(void **)&sha256_init = dlsym(library, "SHA256_Init");
    *(void **)&sha256_update = dlsym(library, "SHA256_Update");
    *(void **)&sha256_final = dlsym(library, "SHA256_Final");
    return sha256_init && sha256_update && sha256_final;
}

static bool hash_hex(const char *bytes, Py_ssize_t size, char hex[64])
{
    _Alignas(16) unsigned char state[256], digest[32]; /* SHA256_CTX has 112 bytes */
    if (!sha256_init(state) || !sha256_update(state, bytes, size) || !sha256_final(digest, state)) {
        PyErr_SetString(PyExc_RuntimeError, "OpenSSL did not hash");
        return false;
    }
    for (int i = 0; i < 32; i++) {
        *hex++ = "0123456789abcdef"[digest[i] >> 4];
        *hex++ = "0123456789abcdef"[digest[i] & 15];
    }
    return true;
}

PyObject *seamgate_sha256_hex(PyObject *module, PyObject *data)
{
    (void)module;
    char hex[64];
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "what is hashed is bytes");
    if (!hash_hex(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), hex))
        return NULL;
    return PyUnicode_FromStringAndSize(hex, sizeof hex);
}

/* How long all lines can be: 20 digits have room for any number. 0: a tail is not bytes, or they are too many. */
enum { HASH = 64, LINK = sizeof "{\"seq\":,\"prev\":\"\"," - 1 + 20 + HASH };

static Py_ssize_t most_bytes(PyObject *tails)
{
    Py_ssize_t most = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tails); i++) {
        PyObject *tail = PyList_GET_ITEM(tails, i);
        if (!PyBytes_Check(tail) || PyBytes_GET_SIZE(tail) > PY_SSIZE_T_MAX / 2 - most - LINK)
            return 0;
        most += LINK + PyBytes_GET_SIZE(tail);
    }
    return most;
}

/* One line to `to`; return its end. */
static char *put_line(char *to, long long seq, const char hash[HASH], PyObject *tail)
{
    to += sprintf(to, "{\"seq\":%lld,\"prev\":\"", seq);
    memcpy(to, hash, HASH);
    to += HASH;
    memcpy(to, "\",", 2);
    to += 2;
    memcpy(to, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail));
    return to + PyBytes_GET_SIZE(tail);
}

/* Lines from `bytes` on; their ends go to the list `ends`, the last one's hash to `hash`. Return the end, NULL: error. */
static char *put_lines(char *bytes, long long seq, char hash[HASH], PyObject *tails, long long room, PyObject *ends)
{
    char *end = bytes;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tails); i++) {
        char *next = put_line(end, seq + i, hash, PyList_GET_ITEM(tails, i));
        if (i && next - bytes > room)
            break;
        if (!hash_hex(end, next - end, hash))
            return NULL;
        end = next;
        PyObject *place = PyLong_FromSsize_t(end - bytes);
        int failed = place ? PyList_Append(ends, place) : -1;
        Py_XDECREF(place);
        if (failed)
            return NULL;
    }
    return end;
}

PyObject *seamgate_chain(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 4 || !PyLong_Check(args[0]) || !PyUnicode_Check(args[1]) || !PyList_Check(args[2]) || !PyLong_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "chain takes a number, a text, a list and a number");
    long long seq = PyLong_AsLongLong(args[0]), room = PyLong_AsLongLong(args[3]);
    Py_ssize_t digits, most = most_bytes(args[2]);
    const char *prev = PyUnicode_AsUTF8AndSize(args[1], &digits);
    if (PyErr_Occurred())
        return NULL;
    if (seq < 0 || seq > LLONG_MAX - PyList_GET_SIZE(args[2]) || digits != HASH || !most)
        return PyErr_Format(PyExc_ValueError, "chain takes a number from 0 on, 64 digits and bytes, at least one");
    char hash[HASH];
    memcpy(hash, prev, HASH);
    PyObject *ends = PyList_New(0), *lines = ends ? PyBytes_FromStringAndSize(NULL, most) : NULL, *result = NULL;
    if (lines) {
        char *bytes = PyBytes_AS_STRING(lines), *end = put_lines(bytes, seq, hash, args[2], room, ends);
        if (end && !_PyBytes_Resize(&lines, end - bytes))
            result = Py_BuildValue("(OOs#)", lines, ends, hash, (Py_ssize_t)HASH);
    }
    Py_XDECREF(lines);
    Py_XDECREF(ends);
    return result;
}
