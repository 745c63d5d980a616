/* `_kvm.Ring`: the host's side of a guest's ring (native/ring.c) as a Python object. */
#include "_kvm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../native/ring.h"

PyObject *ring_violation_type;

typedef struct {
    PyObject_HEAD
    struct ring ring;
    u8 *payload; /* RING_MAX_PAYLOAD */
} RingObject;

static int Ring_init(RingObject *self, PyObject *args, PyObject *kwargs)
{
    int fd;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "i", &fd))
        return -1;
    if (self->ring.base) {
        PyErr_SetString(PyExc_ValueError, "a ring is opened once");
        return -1;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) { /* a file that can shrink under us is a SIGBUS to come */
        PyErr_SetString(PyExc_ValueError, "a ring's memory must be sealed against shrinking");
        return -1;
    }
    if (lseek(fd, 0, SEEK_END) < (off_t)RING_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a ring's memory is too small");
        return -1;
    }
    void *at = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        os_error("mmap of a ring");
        return -1;
    }
    self->payload = PyMem_Malloc(RING_MAX_PAYLOAD);
    if (!self->payload) {
        munmap(at, RING_BYTES);
        PyErr_NoMemory();
        return -1;
    }
    ring_init(&self->ring, at);
    return 0;
}

static PyObject *Ring_close(RingObject *self, PyObject *unused)
{
    (void)unused;
    if (self->ring.base)
        munmap(self->ring.base, RING_BYTES);
    self->ring.base = NULL;
    Py_RETURN_NONE;
}

static void Ring_dealloc(RingObject *self)
{
    if (self->ring.base)
        munmap(self->ring.base, RING_BYTES);
    PyMem_Free(self->payload);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static bool ring_open(RingObject *self)
{
    if (!self->ring.base)
        PyErr_SetString(PyExc_ValueError, "the ring is closed");
    return self->ring.base != NULL;
}

static PyObject *ring_violation(enum ring_result what)
{
    const char *broken = what == RING_BAD_INDEX ? "index" : what == RING_BAD_TYPE ? "type" : "length";
    PyErr_SetString(ring_violation_type, broken);
    return NULL;
}

/* take(most) -> list of (type, stream, aux, payload); fewer than `most` means that the ring is empty. */
static PyObject *Ring_take(RingObject *self, PyObject *args)
{
    int most;
    if (!PyArg_ParseTuple(args, "i", &most) || !ring_open(self))
        return NULL;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < most; i++) {
        struct wire_frame f;
        enum ring_result what = ring_take(&self->ring, &f, self->payload);
        if (what == RING_NOTHING)
            break;
        PyObject *item = what == RING_FRAME ? Py_BuildValue("HIIy#", f.type, f.stream, f.aux, self->payload,
                                                            (Py_ssize_t)f.length)
                                            : ring_violation(what);
        if (!item || PyList_Append(list, item))
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* put(type, stream, aux, payload) -> False without room */
static PyObject *Ring_put(RingObject *self, PyObject *args)
{
    unsigned short type;
    unsigned int stream, aux;
    Py_buffer payload;
    if (!PyArg_ParseTuple(args, "HIIy*", &type, &stream, &aux, &payload))
        return NULL;
    enum ring_result what = RING_BAD_LENGTH;
    if (!ring_open(self)) {
        PyBuffer_Release(&payload);
        return NULL;
    }
    if (payload.len <= (Py_ssize_t)RING_MAX_PAYLOAD)
        what = ring_put(&self->ring, type, stream, aux, payload.buf, (u32)payload.len);
    PyBuffer_Release(&payload);
    return what < 0 ? ring_violation(what) : PyBool_FromLong(what == RING_FRAME);
}

static PyObject *Ring_room(RingObject *self, PyObject *unused)
{
    (void)unused;
    return ring_open(self) ? PyLong_FromUnsignedLong(ring_room(&self->ring)) : NULL;
}

static PyObject *Ring_wants_wake(RingObject *self, PyObject *unused)
{
    (void)unused;
    return ring_open(self) ? PyBool_FromLong(ring_guest_wants_wake(&self->ring)) : NULL;
}

static PyObject *Ring_may_sleep(RingObject *self, PyObject *unused)
{
    (void)unused;
    return ring_open(self) ? PyBool_FromLong(ring_may_sleep(&self->ring)) : NULL;
}

static PyObject *Ring_blocked(RingObject *self, PyObject *unused)
{
    (void)unused;
    if (!ring_open(self))
        return NULL;
    ring_blocked(&self->ring);
    Py_RETURN_NONE;
}

static PyMethodDef ring_methods[] = {
    {"blocked", (PyCFunction)Ring_blocked, METH_NOARGS, "Ask the guest to ring once it has read something."},
    {"close", (PyCFunction)Ring_close, METH_NOARGS, "Unmap; may be called twice."},
    {"take", (PyCFunction)Ring_take, METH_VARARGS, "take(most) -> [(type, stream, aux, payload)]"},
    {"put", (PyCFunction)Ring_put, METH_VARARGS, "put(type, stream, aux, payload) -> bool"},
    {"room", (PyCFunction)Ring_room, METH_NOARGS, "Payload that fits into one frame now."},
    {"guest_wants_wake", (PyCFunction)Ring_wants_wake, METH_NOARGS, "True once after the guest went to sleep."},
    {"may_sleep", (PyCFunction)Ring_may_sleep, METH_NOARGS, "True if the doorbell will ring for the next frame."},
    {NULL, NULL, 0, NULL}};

PyTypeObject ring_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "seamgate_vmm._kvm.Ring",
    .tp_doc = "Ring(memfd): the host's side of a guest's ring",
    .tp_basicsize = sizeof(RingObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Ring_init,
    .tp_dealloc = (destructor)Ring_dealloc,
    .tp_methods = ring_methods,
};
