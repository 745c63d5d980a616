/* Memory of the type Machine: what the host reads and writes, which pages are a guest's own, and how they are given back.
 *
 * Guest memory is reached only through machine_at() and machine_user_at().
 */
#include "_kvm_machine.h"

#include <errno.h>
#include <unistd.h>

static PyObject *out_of_bounds(u64 address, u64 length)
{
    PyErr_Format(PyExc_IndexError, "guest memory %llu+%llu is out of bounds", address, length);
    return NULL;
}

PyObject *Machine_read(MachineObject *self, PyObject *args)
{
    unsigned long long address, length;
    int any = 0;
    if (!PyArg_ParseTuple(args, "KK|p", &address, &length, &any) || !machine_running(self))
        return NULL;
    const u8 *at = any ? machine_at(&self->m, address, length) : machine_user_at(&self->m, address, length);
    if (!at)
        return out_of_bounds(address, length);
    /* SAFE: checked against the machine's memory one line above. */
    return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)length);
}

PyObject *Machine_write(MachineObject *self, PyObject *args)
{
    unsigned long long address;
    Py_buffer data;
    int any = 0;
    if (!PyArg_ParseTuple(args, "Ky*|p", &address, &data, &any))
        return NULL;
    u8 *at = NULL;
    if (machine_running(self)) {
        at = any ? machine_at(&self->m, address, (u64)data.len) : machine_user_at(&self->m, address, (u64)data.len);
        self->m.clean = false;
        if (at) /* SAFE: checked against the machine's memory above. */
            memcpy(at, data.buf, (size_t)data.len);
        else
            out_of_bounds(address, (u64)data.len);
    }
    PyBuffer_Release(&data);
    if (!at)
        return NULL;
    Py_RETURN_NONE;
}

/* Reads or writes a file straight from or to guest memory. Returns the bytes, or raises OSError. */
static PyObject *file_io(MachineObject *self, PyObject *args, bool write)
{
    int fd;
    unsigned long long address, length;
    long long offset;
    if (!PyArg_ParseTuple(args, "iKKL", &fd, &address, &length, &offset) || !machine_running(self))
        return NULL;
    u8 *at = machine_user_at(&self->m, address, length);
    if (!at)
        return out_of_bounds(address, length);
    ssize_t n;
    /* SAFE: [at, at + length) lies in the machine's memory, checked above. */
    Py_BEGIN_ALLOW_THREADS
    n = write ? offset < 0 ? -2 : pwrite(fd, at, length, offset) : pread(fd, at, length, offset);
    if (n == -2) {
        off_t end = lseek(fd, 0, SEEK_END);
        n = end < 0 ? -1 : pwrite(fd, at, length, end);
    }
    Py_END_ALLOW_THREADS
    return n < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromSsize_t(n);
}

PyObject *Machine_read_file(MachineObject *self, PyObject *args) { return file_io(self, args, false); }
PyObject *Machine_write_file(MachineObject *self, PyObject *args) { return file_io(self, args, true); }

PyObject *Machine_write_fixed(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_usable(self))
        return NULL;
    /* SAFE: a machine has at least 4 MiB. */
    machine_write_fixed(self->m.memory, self->m.landing, &self->m.shim);
    Py_RETURN_NONE;
}

PyObject *Machine_reset(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_running(self))
        return NULL;
    if (machine_reset(&self->m))
        return os_error("bringing a machine back to its template");
    Py_RETURN_NONE;
}

PyObject *Machine_grow(MachineObject *self, PyObject *args)
{
    unsigned long long bytes;
    if (!PyArg_ParseTuple(args, "K", &bytes) || !machine_running(self))
        return NULL;
    return PyLong_FromLongLong(machine_grow(&self->m, bytes));
}

PyObject *Machine_release(MachineObject *self, PyObject *args)
{
    unsigned long long address, length;
    if (!PyArg_ParseTuple(args, "KK", &address, &length) || !machine_usable(self))
        return NULL;
    return PyLong_FromLong(machine_release(&self->m, address, length));
}

/* set_hot(list of (address, length)): unshares the pages that every guest writes, and keeps them over resets. */
PyObject *Machine_set_hot(MachineObject *self, PyObject *args)
{
    PyObject *ranges;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &ranges) || !machine_running(self))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ranges); i++) {
        unsigned long long address, length;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(ranges, i), "KK", &address, &length))
            return NULL;
        if (machine_set_hot(&self->m, address, length))
            return os_error("keeping hot pages");
    }
    Py_RETURN_NONE;
}

static int append_run(void *context, u64 address, u64 length)
{
    PyObject *item = Py_BuildValue("KK", address, length);
    int result = item ? PyList_Append(context, item) : -1;
    Py_XDECREF(item);
    return result;
}

/* own_pages(): (address, length) of all memory that is this guest's alone: unshared from its template, or beyond it. */
PyObject *Machine_own_pages(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_running(self))
        return NULL;
    PyObject *list = PyList_New(0);
    if (list && machine_own_pages(&self->m, append_run, list)) {
        Py_CLEAR(list);
        if (!PyErr_Occurred())
            os_error("/proc/self/pagemap");
    }
    return list;
}

/* private_pages(): (address, length) of what this guest has unshared of its template. */
PyObject *Machine_private_pages(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_running(self))
        return NULL;
    PyObject *list = PyList_New(0);
    if (list && machine_private_pages(&self->m, append_run, list)) {
        Py_CLEAR(list);
        if (!PyErr_Occurred())
            os_error("/proc/self/pagemap");
    }
    return list;
}

/* trim() -> bytes that were given back */
PyObject *Machine_trim(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_running(self))
        return NULL;
    i64 dropped = machine_trim(&self->m);
    return dropped < 0 ? os_error("trimming a machine") : PyLong_FromLongLong(dropped);
}
