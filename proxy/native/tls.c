/* Records: the data of one TLS connection, sealed and opened without a memory BIO between.
 *
 * Python's `ssl` makes the connection: its contexts say who is trusted, which certificate is shown and what is agreed to,
 * and its handshake verifies the peer. Only when that is done, `take` puts a BIO of ours in the place of Python's two.
 * It reads ciphertext where the caller has it and writes ciphertext where the caller wants it: one copy less each way,
 * no clearing of buffers, one call for all records that came, and no exception to say that no more came.
 *
 * Python shows no SSL*. OpenSSL tells of each that it makes: whoever has an index for data of their own in them
 * (CRYPTO_get_ex_new_index(3)) is called with it. So `adopt` has `ssl` make a connection, and takes the one that was made
 * meanwhile on this thread, if it is one, and if it carries that very Python object as its application's data. Else there
 * are no Records, and `seamgate.records` does without, as it does without OpenSSL 3 as a loaded library.
 *
 * OpenSSL's headers are not needed: what is called here is of its stable interface, and found in what Python has loaded.
 * A connection is used by one thread at a time, as in `ssl`. The BIO's functions touch nothing of Python, since `ssl`'s own
 * methods call them without its lock.
 */
#include "native.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LARGEST_PLAINTEXT 16384 /* of a record. Source: RFC 8446 5.1 */
#define HEADER 5                /* bytes of a record's header: kind, version, and 2 of length. Source: RFC 8446 5.1 */
#define LARGEST_OVERHEAD 64     /* of a usual record; where one takes more, the rest goes into `spill` */

typedef struct ssl_st SSL;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;
typedef void ExData(void *, void *, void *, int, long, void *);

/* Source: openssl/ssl.h, openssl/bio.h, openssl/crypto.h, openssl/err.h of OpenSSL 3. */
enum {
    CRYPTO_EX_INDEX_SSL = 0,
    BIO_TYPE_SOURCE_SINK = 0x0400,
    BIO_CTRL_PENDING = 10, BIO_CTRL_FLUSH = 11, BIO_CTRL_WPENDING = 13,
    BIO_FLAGS_READ = 0x01, BIO_FLAGS_RWS = 0x07, BIO_FLAGS_SHOULD_RETRY = 0x08,
    SSL_ERROR_WANT_READ = 2, SSL_ERROR_ZERO_RETURN = 6,
    ERR_LIB_SSL = 20,
};

static struct {
    unsigned (*version)(void);
    int (*new_index)(int, long, void *, ExData *, void *, ExData *);
    void *(*get_data)(const SSL *, int);
    int (*up_ref)(SSL *);
    void (*free)(SSL *);
    void (*set_bio)(SSL *, BIO *, BIO *);
    int (*read)(SSL *, void *, size_t, size_t *);
    int (*write)(SSL *, const void *, size_t, size_t *);
    int (*pending)(const SSL *);
    int (*shutdown)(SSL *);
    int (*get_error)(const SSL *, int);
    BIO *(*bio_new)(const BIO_METHOD *);
    int (*bio_up_ref)(BIO *);
    int (*bio_free)(BIO *);
    void (*bio_set_data)(BIO *, void *);
    void *(*bio_get_data)(BIO *);
    void (*bio_set_init)(BIO *, int);
    void (*bio_set_flags)(BIO *, int);
    void (*bio_clear_flags)(BIO *, int);
    int (*bio_new_index)(void);
    BIO_METHOD *(*meth_new)(int, const char *);
    int (*meth_set_read)(BIO_METHOD *, int (*)(BIO *, char *, int));
    int (*meth_set_write)(BIO_METHOD *, int (*)(BIO *, const char *, int));
    int (*meth_set_ctrl)(BIO_METHOD *, long (*)(BIO *, int, long, void *));
    int (*meth_set_destroy)(BIO_METHOD *, int (*)(BIO *));
    unsigned long (*peek_error)(void), (*last_error)(void);
    void (*clear_error)(void);
    const char *(*reason)(unsigned long);
} tls;

static const struct {
    const char *name;
    void *place;
} names[] = {
    {"OPENSSL_version_major", &tls.version},
    {"CRYPTO_get_ex_new_index", &tls.new_index},
    {"SSL_get_ex_data", &tls.get_data},
    {"SSL_up_ref", &tls.up_ref},
    {"SSL_free", &tls.free},
    {"SSL_set_bio", &tls.set_bio},
    {"SSL_read_ex", &tls.read},
    {"SSL_write_ex", &tls.write},
    {"SSL_pending", &tls.pending},
    {"SSL_shutdown", &tls.shutdown},
    {"SSL_get_error", &tls.get_error},
    {"BIO_new", &tls.bio_new},
    {"BIO_up_ref", &tls.bio_up_ref},
    {"BIO_free", &tls.bio_free},
    {"BIO_set_data", &tls.bio_set_data},
    {"BIO_get_data", &tls.bio_get_data},
    {"BIO_set_init", &tls.bio_set_init},
    {"BIO_set_flags", &tls.bio_set_flags},
    {"BIO_clear_flags", &tls.bio_clear_flags},
    {"BIO_get_new_index", &tls.bio_new_index},
    {"BIO_meth_new", &tls.meth_new},
    {"BIO_meth_set_read", &tls.meth_set_read},
    {"BIO_meth_set_write", &tls.meth_set_write},
    {"BIO_meth_set_ctrl", &tls.meth_set_ctrl},
    {"BIO_meth_set_destroy", &tls.meth_set_destroy},
    {"ERR_peek_error", &tls.peek_error},
    {"ERR_peek_last_error", &tls.last_error},
    {"ERR_clear_error", &tls.clear_error},
    {"ERR_reason_error_string", &tls.reason},
};

static BIO_METHOD *method;
static _Thread_local SSL *made; /* the last that OpenSSL made on this thread while `adopt` looked on */
static _Thread_local int made_count;

/* Where a connection's BIO reads and writes. Its pointers into others' memory are set within a call only. */
typedef struct {
    const char *in;
    size_t in_left;
    char *out;
    size_t out_size, out_used;
    char *spill; /* ciphertext that had no place in `out`: answers of OpenSSL's own to what it read, say */
    size_t spill_size, spill_used;
} Wire;

/* -- the BIO ------------------------------------------------------------------------------------------------------- */

static int wire_read(BIO *bio, char *to, int size)
{
    Wire *wire = tls.bio_get_data(bio);
    tls.bio_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (size <= 0)
        return 0;
    if (!wire->in_left) {
        tls.bio_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
        return -1;
    }
    size_t take = wire->in_left < (size_t)size ? wire->in_left : (size_t)size;
    memcpy(to, wire->in, take);
    wire->in += take;
    wire->in_left -= take;
    return (int)take;
}

static int wire_write(BIO *bio, const char *from, int size)
{
    Wire *wire = tls.bio_get_data(bio);
    tls.bio_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (size <= 0)
        return 0;
    if (!wire->spill_used && wire->out_size - wire->out_used >= (size_t)size) {
        memcpy(wire->out + wire->out_used, from, size);
        wire->out_used += size;
        return size;
    }
    if (wire->spill_size - wire->spill_used < (size_t)size) {
        size_t wanted = wire->spill_used * 2 + size;
        char *spill = PyMem_RawRealloc(wire->spill, wanted);
        if (!spill)
            return -1;
        wire->spill = spill;
        wire->spill_size = wanted;
    }
    memcpy(wire->spill + wire->spill_used, from, size);
    wire->spill_used += size;
    return size;
}

static long wire_ctrl(BIO *bio, int what, long number, void *pointer)
{
    (void)number, (void)pointer;
    Wire *wire = tls.bio_get_data(bio);
    switch (what) {
    case BIO_CTRL_FLUSH:
        return 1;
    case BIO_CTRL_PENDING:
        return (long)wire->in_left;
    case BIO_CTRL_WPENDING:
        return (long)wire->spill_used;
    default:
        return 0;
    }
}

static int wire_destroy(BIO *bio)
{
    Wire *wire = tls.bio_get_data(bio);
    if (wire)
        PyMem_RawFree(wire->spill);
    PyMem_RawFree(wire);
    tls.bio_set_data(bio, NULL);
    return 1;
}

static void note_made(void *parent, void *data, void *all, int index, long number, void *pointer)
{
    (void)data, (void)all, (void)index, (void)number, (void)pointer;
    made = parent;
    made_count++;
}

static void note_freed(void *parent, void *data, void *all, int index, long number, void *pointer)
{
    (void)data, (void)all, (void)index, (void)number, (void)pointer;
    if (made == parent)
        made = NULL;
}

int seamgate_find_tls(void)
{
    PyObject *module = PyImport_ImportModule("_ssl");
    PyObject *file = module ? PyObject_GetAttrString(module, "__file__") : NULL;
    const char *path = file ? PyUnicode_AsUTF8(file) : NULL;
    if (!path)
        PyErr_Clear();
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    Py_XDECREF(file);
    Py_XDECREF(module);
    if (!library)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*(void **)names[i].place = dlsym(library, names[i].name)))
            return 0;
    if (tls.version() != 3)
        return 0;
    method = tls.meth_new(tls.bio_new_index() | BIO_TYPE_SOURCE_SINK, "seamgate");
    return method && tls.meth_set_read(method, wire_read) && tls.meth_set_write(method, wire_write) &&
           tls.meth_set_ctrl(method, wire_ctrl) && tls.meth_set_destroy(method, wire_destroy) &&
           tls.new_index(CRYPTO_EX_INDEX_SSL, 0, NULL, note_made, NULL, note_freed) >= 0;
}

/* -- Records ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    SSL *ssl;
    BIO *bio; /* NULL before `take` */
    Wire *wire;
    PyObject *behind; /* bytes of ciphertext that wait for a later turn, or NULL */
    size_t behind_at;
    unsigned header_bytes; /* how many of the present record's header were seen */
    size_t body_left;      /* how many bytes of its body were not */
} Records;

static void records_dealloc(Records *self)
{
    PyTypeObject *type = Py_TYPE(self);
    tls.free(self->ssl);
    if (self->bio)
        tls.bio_free(self->bio);
    Py_XDECREF(self->behind);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool is_taken(const Records *self)
{
    if (!self->bio)
        PyErr_SetString(PyExc_ValueError, "the connection is not taken over yet");
    return self->bio;
}

static const char take_doc[] =
    "take()\n\nPut a BIO of ours in the place of Python's two: after the handshake, when nothing waits in them.";

static PyObject *records_take(Records *self, PyObject *nothing)
{
    (void)nothing;
    if (self->bio)
        return PyErr_Format(PyExc_ValueError, "the connection is taken over already");
    Wire *wire = PyMem_RawCalloc(1, sizeof *wire);
    BIO *bio = wire ? tls.bio_new(method) : NULL;
    if (!bio) {
        PyMem_RawFree(wire);
        return PyErr_NoMemory();
    }
    tls.bio_set_data(bio, wire);
    tls.bio_set_init(bio, 1);
    tls.bio_up_ref(bio);
    tls.set_bio(self->ssl, bio, bio); /* takes one reference where both are the same */
    self->bio = bio;
    self->wire = wire;
    Py_RETURN_NONE;
}

/* `ssl.SSLError` with the last error that OpenSSL noted, with the attributes that `ssl` itself gives it. */
static PyObject *make_error(const char *otherwise)
{
    unsigned long code = tls.last_error();
    const char *text = code ? tls.reason(code) : NULL;
    bool of_ssl = text && (code >> 23 & 0xff) == ERR_LIB_SSL;
    tls.clear_error();
    char name[128] = "";
    for (size_t i = 0; text && text[i] && i < sizeof name - 1; i++)
        name[i] = text[i] == ' ' ? '_' : Py_TOUPPER(text[i]);
    PyObject *ssl = PyImport_ImportModule("ssl");
    PyObject *error = NULL, *reason = NULL;
    if (ssl && text)
        error = PyObject_CallMethod(ssl, "SSLError", "iN", 1, PyUnicode_FromFormat("[%s] %s", name, text));
    else if (ssl)
        error = PyObject_CallMethod(ssl, "SSLError", "is", 1, otherwise);
    if (error)
        reason = text ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
    PyObject *library = of_ssl ? PyUnicode_FromString("SSL") : Py_NewRef(Py_None);
    if (!error || !reason || !library || PyObject_SetAttrString(error, "reason", reason) ||
        PyObject_SetAttrString(error, "library", library))
        Py_CLEAR(error);
    Py_XDECREF(library);
    Py_XDECREF(reason);
    Py_XDECREF(ssl);
    return error;
}

static PyObject *raise_error(const char *otherwise)
{
    PyObject *error = make_error(otherwise);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

/* Errors that others left in OpenSSL's queue would be taken for ours. */
static void forget_errors(void)
{
    if (tls.peek_error())
        tls.clear_error();
}

static PyObject *take_spill(Wire *wire)
{
    PyObject *taken = PyBytes_FromStringAndSize(wire->spill, (Py_ssize_t)wire->spill_used);
    if (taken) {
        PyMem_RawFree(wire->spill);
        wire->spill = NULL;
        wire->spill_size = wire->spill_used = 0;
    }
    return taken;
}

/* How many of these bytes are at most so many records. All records count, since OpenSSL goes on by itself after those
 * without data: a read of nothing but changes of keys would take a fifth of a second. */
static size_t measure(Records *self, const uint8_t *data, size_t size, long most)
{
    size_t at = 0;
    while (at < size && (most > 0 || self->header_bytes)) {
        if (self->header_bytes < HEADER) {
            self->header_bytes++;
            self->body_left = (self->body_left << 8 | data[at++]) & 0xffff;
        } else {
            size_t take = self->body_left < size - at ? self->body_left : size - at;
            self->body_left -= take;
            at += take;
        }
        if (self->header_bytes == HEADER && !self->body_left) {
            self->header_bytes = 0;
            most--;
        }
    }
    return at;
}

enum outcome { CAUGHT_UP, ENDED, BROKEN, NO_MEMORY };

/* Open what is on the wire into `*plain`, of which `*used` bytes hold something afterwards. */
static enum outcome open_records(Records *self, PyObject **plain, size_t *used, bool partial)
{
    Wire *wire = self->wire;
    /* No more plaintext than ciphertext, but for a record that came in parts. */
    size_t room = wire->in_left + (partial ? LARGEST_PLAINTEXT : 0);
    *used = 0;
    if (!wire->in_left)
        return (*plain = PyBytes_FromStringAndSize(NULL, 0)) ? CAUGHT_UP : NO_MEMORY;
    if (!(*plain = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room)))
        return NO_MEMORY;
    for (;;) {
        size_t got = 0;
        int done = tls.read(self->ssl, PyBytes_AS_STRING(*plain) + *used, room - *used, &got);
        if (done <= 0) {
            int why = tls.get_error(self->ssl, done);
            return why == SSL_ERROR_WANT_READ ? CAUGHT_UP : why == SSL_ERROR_ZERO_RETURN ? ENDED : BROKEN;
        }
        *used += got;
        size_t pending = tls.pending(self->ssl);
        if (!pending && !wire->in_left)
            return CAUGHT_UP;
        size_t wanted = *used + (pending ? pending : wire->in_left);
        if (wanted > room) {
            if (_PyBytes_Resize(plain, (Py_ssize_t)wanted))
                return NO_MEMORY;
            room = wanted;
        }
    }
}

static const char read_doc[] =
    "read(data: bytes, most: int) -> bytes | tuple[bytes, bool, bool, bytes, SSLError | None]\n\n"
    "All plaintext that is here, of at most so many records (1 or more). Where there is more to say: the plaintext, whether the peer\n"
    "said close_notify, whether records wait (the next call goes on with them), what is to be sent, and why there will\n"
    "be no more.";

/* The bytes to read now: those that waited, then those that came; `*at`: where they begin. */
static PyObject *next_source(Records *self, PyObject *data, size_t *at)
{
    *at = 0;
    PyObject *fresh = PyBytes_CheckExact(data) ? Py_NewRef(data) : PyBytes_FromObject(data);
    PyObject *behind = self->behind;
    if (!behind || !fresh)
        return fresh;
    self->behind = NULL;
    *at = self->behind_at;
    if (PyBytes_GET_SIZE(fresh)) {
        PyObject *all = PyBytes_FromStringAndSize(PyBytes_AS_STRING(behind) + *at, PyBytes_GET_SIZE(behind) - (Py_ssize_t)*at);
        Py_DECREF(behind);
        behind = all;
        *at = 0;
        if (behind)
            PyBytes_Concat(&behind, fresh);
    }
    Py_DECREF(fresh);
    return behind;
}

static PyObject *records_read(Records *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "read takes data and the most records");
    long most = PyLong_AsLong(args[1]);
    if (most < 1)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "at least one record has to be read");
    if (!is_taken(self))
        return NULL;
    size_t at, used;
    PyObject *source = next_source(self, args[0], &at);
    if (!source)
        return NULL;
    Wire *wire = self->wire;
    PyObject *plain = NULL, *result = NULL;
    size_t size = (size_t)PyBytes_GET_SIZE(source) - at;
    bool partial = self->header_bytes;
    wire->in = PyBytes_AS_STRING(source) + at;
    wire->in_left = measure(self, (const uint8_t *)wire->in, size, most);
    bool behind = wire->in_left < size;
    if (behind) {
        self->behind = Py_NewRef(source);
        self->behind_at = at + wire->in_left;
    }
    forget_errors();
    enum outcome outcome = open_records(self, &plain, &used, partial);
    if (outcome != CAUGHT_UP) {
        Py_CLEAR(self->behind);
        behind = false;
    }
    wire->in = NULL;
    wire->in_left = 0;
    Py_DECREF(source);
    if (outcome != NO_MEMORY && _PyBytes_Resize(&plain, (Py_ssize_t)used))
        outcome = NO_MEMORY;
    if (outcome == CAUGHT_UP && !behind && !wire->spill_used)
        return plain;
    PyObject *error = outcome == BROKEN ? make_error("TLS failed") : outcome == NO_MEMORY ? NULL : Py_NewRef(Py_None);
    PyObject *output = error ? take_spill(wire) : NULL;
    if (output)
        result = PyTuple_Pack(5, plain, outcome == ENDED ? Py_True : Py_False, behind ? Py_True : Py_False, output, error);
    Py_XDECREF(plain);
    Py_XDECREF(output);
    Py_XDECREF(error);
    return result;
}

/* What was written: what is in `*out`, or before it the spill. Steals `*out`. */
static PyObject *written(Wire *wire, PyObject *out)
{
    size_t used = wire->out_used;
    wire->out = NULL;
    wire->out_size = wire->out_used = 0;
    if (_PyBytes_Resize(&out, (Py_ssize_t)used) || !wire->spill_used)
        return out;
    PyBytes_ConcatAndDel(&out, take_spill(wire));
    return out;
}

static const char write_doc[] = "write(data: bytes) -> bytes\n\nSeal into records: what is to be sent.\n\n"
                                "Raises:\n    ssl.SSLError: OpenSSL can't, since the connection broke.";

static PyObject *records_write(Records *self, PyObject *argument)
{
    Py_buffer data;
    if (!is_taken(self) || PyObject_GetBuffer(argument, &data, PyBUF_SIMPLE))
        return NULL;
    Wire *wire = self->wire;
    size_t size = (size_t)data.len, at = 0;
    size_t room = size + (size / LARGEST_PLAINTEXT + 1) * LARGEST_OVERHEAD;
    PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    if (!out) {
        PyBuffer_Release(&data);
        return NULL;
    }
    /* What OpenSSL wanted to say before goes first: then all goes into the spill. */
    wire->out = PyBytes_AS_STRING(out);
    wire->out_size = room;
    wire->out_used = 0;
    forget_errors();
    bool sealed = true;
    while (sealed && at < size) {
        size_t took = 0;
        sealed = tls.write(self->ssl, (const char *)data.buf + at, size - at, &took) > 0;
        at += took;
    }
    PyBuffer_Release(&data);
    out = written(wire, out);
    if (sealed || !out)
        return out;
    Py_DECREF(out);
    return raise_error("TLS can't be written");
}

static const char close_doc[] = "close() -> bytes\n\nWhat is to be sent last: close_notify, unless the connection broke.";

static PyObject *records_close(Records *self, PyObject *nothing)
{
    (void)nothing;
    if (!is_taken(self))
        return NULL;
    forget_errors();
    tls.shutdown(self->ssl); /* 0: said, and the peer has not; it is not waited for */
    forget_errors();
    return take_spill(self->wire);
}

static const char adopt_doc[] =
    "adopt(context, incoming, outgoing, server_side, server_hostname) -> tuple[SSLObject, Records | None]\n\n"
    "What `context.wrap_bio` makes, and the records of that connection, for after its handshake.";

static PyObject *records_adopt(PyTypeObject *type, PyObject *const *args, Py_ssize_t given)
{
    if (given != 5)
        return PyErr_Format(PyExc_TypeError, "adopt takes five values");
    made = NULL;
    made_count = 0;
    PyObject *name = PyUnicode_InternFromString("wrap_bio");
    PyObject *object = name ? PyObject_VectorcallMethod(name, args, given, NULL) : NULL;
    SSL *ssl = made_count == 1 ? made : NULL;
    made = NULL;
    Py_XDECREF(name);
    if (!object)
        return NULL;
    PyObject *inner = PyObject_GetAttrString(object, "_sslobj");
    if (!inner)
        PyErr_Clear();
    PyObject *result = NULL, *records = Py_NewRef(Py_None);
    if (ssl && inner && tls.get_data(ssl, 0) == inner) {
        Py_DECREF(records);
        records = type->tp_alloc(type, 0);
        if (records) {
            tls.up_ref(ssl);
            ((Records *)records)->ssl = ssl;
        }
    }
    if (records)
        result = PyTuple_Pack(2, object, records);
    Py_XDECREF(records);
    Py_XDECREF(inner);
    Py_DECREF(object);
    return result;
}

static PyMethodDef records_methods[] = {
    {"adopt", (PyCFunction)(void (*)(void))records_adopt, METH_FASTCALL | METH_CLASS, adopt_doc},
    {"take", (PyCFunction)records_take, METH_NOARGS, take_doc},
    {"read", (PyCFunction)(void (*)(void))records_read, METH_FASTCALL, read_doc},
    {"write", (PyCFunction)records_write, METH_O, write_doc},
    {"close", (PyCFunction)records_close, METH_NOARGS, close_doc},
    {0},
};

static PyType_Slot records_slots[] = {
    {Py_tp_dealloc, records_dealloc},
    {Py_tp_methods, records_methods},
    {Py_tp_doc, (void *)"The data of one TLS connection; see `seamgate.records`."},
    {0},
};

PyType_Spec seamgate_records_spec = {
    .name = "seamgate._native.Records",
    .basicsize = sizeof(Records),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = records_slots,
};
