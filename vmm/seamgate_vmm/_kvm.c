/* The extension module `_kvm`: machine.c as the type Machine, and every number of wire.h. The type Ring is in
 * _kvm_ring.c, the functions of the module in _kvm_host.c.
 *
 * Guest memory is reached only through machine_at() and machine_user_at(). The interpreter's lock is released while a
 * guest runs. No function here ends the process.
 */
#include "_kvm.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include "../native/ring.h"

/* ---- Machine */

typedef struct {
    PyObject_HEAD
    struct machine m;
    bool open;
    u64 tsc0, mult, mono_ns;
} MachineObject;

/* Raises OSError that says what was being done; returns null. */
PyObject *os_error(const char *what)
{
    PyObject *args = Py_BuildValue("(iN)", errno, PyUnicode_FromFormat("%s: %s", what, strerror(errno)));
    if (args) {
        PyErr_SetObject(PyExc_OSError, args);
        Py_DECREF(args);
    }
    return NULL;
}

static bool usable(MachineObject *self)
{
    if (!self->open)
        PyErr_SetString(PyExc_ValueError, "the machine is closed");
    return self->open;
}

/* The same, and KVM has it: it is not parked. */
static bool running(MachineObject *self)
{
    if (usable(self) && !self->m.run)
        PyErr_SetString(PyExc_ValueError, "the machine is parked");
    return self->open && self->m.run;
}

/* Reads what the linker wrote at the head of the shim's file; false with an exception if it is not ours. */
bool shim_of(const Py_buffer *file, struct wire_shim *out)
{
    if (file->len < (Py_ssize_t)sizeof *out || file->len > (Py_ssize_t)(GA_SHIM_DATA_END - GA_SHIM)) {
        PyErr_SetString(PyExc_ValueError, "the shim's file has an impossible size");
        return false;
    }
    memcpy(out, file->buf, sizeof *out);
    if (out->magic != SHIM_MAGIC || out->abi != WIRE_ABI) {
        PyErr_SetString(PyExc_ValueError, "the shim's file was built for another version; run make");
        return false;
    }
    return true;
}

static int Machine_init(MachineObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kvm", "shim", "landing", "first_bytes", "limit_bytes", "image", "image_bytes", "building",
                            NULL};
    struct machine_config c = {.image = -1};
    Py_buffer shim;
    int landing, building = 0;
    unsigned long long first, limit, image_bytes = 0;
    if (self->open) {
        PyErr_SetString(PyExc_ValueError, "a machine is opened once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iy*iKK|iKp", names, &c.kvm, &shim, &landing, &first, &limit,
                                     &c.image, &image_bytes, &building))
        return -1;
    bool ok = shim_of(&shim, &c.shim);
    PyBuffer_Release(&shim);
    if (!ok)
        return -1;
    c.landing = landing == LANDING_KERNEL ? LANDING_KERNEL : LANDING_USER;
    c.first_bytes = first;
    c.limit_bytes = limit;
    c.image_bytes = image_bytes;
    c.building = building;
    const char *step = machine_open(&self->m, &c);
    if (step) {
        os_error(step);
        return -1;
    }
    self->open = true;
    return 0;
}

static PyObject *Machine_close(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (self->open) {
        self->open = false;
        Py_BEGIN_ALLOW_THREADS
        machine_close(&self->m);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static void Machine_dealloc(MachineObject *self)
{
    if (self->open)
        machine_close(&self->m);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *out_of_bounds(u64 address, u64 length)
{
    PyErr_Format(PyExc_IndexError, "guest memory %llu+%llu is out of bounds", address, length);
    return NULL;
}

static PyObject *Machine_read(MachineObject *self, PyObject *args)
{
    unsigned long long address, length;
    int any = 0;
    if (!PyArg_ParseTuple(args, "KK|p", &address, &length, &any) || !running(self))
        return NULL;
    const u8 *at = any ? machine_at(&self->m, address, length) : machine_user_at(&self->m, address, length);
    if (!at)
        return out_of_bounds(address, length);
    /* SAFE: checked against the machine's memory one line above. */
    return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)length);
}

static PyObject *Machine_write(MachineObject *self, PyObject *args)
{
    unsigned long long address;
    Py_buffer data;
    int any = 0;
    if (!PyArg_ParseTuple(args, "Ky*|p", &address, &data, &any))
        return NULL;
    u8 *at = NULL;
    if (running(self)) {
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
    if (!PyArg_ParseTuple(args, "iKKL", &fd, &address, &length, &offset) || !running(self))
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

static PyObject *Machine_read_file(MachineObject *self, PyObject *args) { return file_io(self, args, false); }
static PyObject *Machine_write_file(MachineObject *self, PyObject *args) { return file_io(self, args, true); }

static PyObject *Machine_write_fixed(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!usable(self))
        return NULL;
    /* SAFE: a machine has at least 4 MiB. */
    machine_write_fixed(self->m.memory, self->m.landing, &self->m.shim);
    Py_RETURN_NONE;
}

/* set_params(tsc_khz, mono_ns, generation, pid, brk_start, brk_limit, mmap_low, start_rip, start_rsp, flags=0): what the guest
 * reads about itself; the clocks start now. */
static PyObject *Machine_set_params(MachineObject *self, PyObject *args)
{
    unsigned long long khz, mono, generation, pid, brk_start, brk_limit, mmap_low, rip, rsp;
    unsigned int flags = 0;
    if (!PyArg_ParseTuple(args, "KKKKKKKKK|I", &khz, &mono, &generation, &pid, &brk_start, &brk_limit, &mmap_low, &rip,
                          &rsp, &flags) || !usable(self))
        return NULL;
    if (!khz)
        return PyErr_Format(PyExc_ValueError, "the frequency of the time stamp counter is not known");
    struct timespec wall;
    struct wire_params p = {.magic = PARAMS_MAGIC, .abi = WIRE_ABI, .generation = generation, .pid = pid,
                            .yield_seq = self->m.yield_seq, .input_seq = self->m.input_seq,
                            .memory_end = self->m.end, .brk_start = brk_start, .brk_limit = brk_limit,
                            .mmap_low = mmap_low, .start_rip = rip, .start_rsp = rsp,
                            .flags = flags | (self->m.has_ring ? PARAMS_RING : 0)};
    memcpy(p.signals, self->m.signals, sizeof p.signals);
    p.mult = (u64)(((unsigned __int128)1000000 << 32) / khz);
    p.mono_ns = mono;
    clock_gettime(CLOCK_REALTIME, &wall);
    p.tsc0 = __rdtsc();
    p.wall_offset_ns = (u64)wall.tv_sec * 1000000000 + (u64)wall.tv_nsec - mono;
    self->tsc0 = p.tsc0;
    self->mult = p.mult;
    self->mono_ns = mono;
    /* SAFE: GA_PARAMS lies below the 4 MiB that every machine has at least. */
    memcpy(self->m.memory + GA_PARAMS, &p, sizeof p);
    self->m.clean = false;
    Py_RETURN_NONE;
}

static PyObject *Machine_now_ns(MachineObject *self, PyObject *unused)
{
    (void)unused;
    u64 ticks = __rdtsc() - self->tsc0;
    return PyLong_FromUnsignedLongLong(self->mono_ns + (u64)((unsigned __int128)ticks * self->mult >> 32));
}

static PyObject *Machine_start(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!running(self))
        return NULL;
    if (machine_start(&self->m))
        return os_error("KVM_SET_REGS");
    Py_RETURN_NONE;
}

static PyObject *Machine_run(MachineObject *self, PyObject *args)
{
    unsigned long long slice_us, tick_us = 5000;
    enum run_exit why;
    if (!PyArg_ParseTuple(args, "K|K", &slice_us, &tick_us) || !running(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    why = machine_run(&self->m, slice_us * 1000, tick_us * 1000);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(why);
}

static PyObject *Machine_request(MachineObject *self, PyObject *unused)
{
    struct wire_request r;
    (void)unused;
    if (!usable(self))
        return NULL;
    machine_request(&self->m, &r);
    return Py_BuildValue("KKKKKKK", r.op, r.arg[0], r.arg[1], r.arg[2], r.arg[3], r.arg[4], r.arg[5]);
}

static PyObject *Machine_reply(MachineObject *self, PyObject *args)
{
    long long result;
    unsigned long long extra = 0;
    if (!PyArg_ParseTuple(args, "L|K", &result, &extra) || !usable(self))
        return NULL;
    machine_reply(&self->m, result, extra);
    Py_RETURN_NONE;
}

static PyObject *Machine_signal(MachineObject *self, PyObject *args)
{
    int number;
    if (!PyArg_ParseTuple(args, "i", &number) || !usable(self))
        return NULL;
    if (number != SIGINT && number != SIGTERM && number != SIGHUP)
        return PyErr_Format(PyExc_ValueError, "signal %d is not for guests", number);
    machine_signal(&self->m, number == SIGINT ? SIGNAL_INT : number == SIGTERM ? SIGNAL_TERM : SIGNAL_HUP);
    Py_RETURN_NONE;
}

static PyObject *Machine_announce_input(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!usable(self))
        return NULL;
    machine_announce_input(&self->m);
    Py_RETURN_NONE;
}

static PyObject *Machine_ask_rest(MachineObject *self, PyObject *args)
{
    int kind;
    if (!PyArg_ParseTuple(args, "i", &kind) || !usable(self))
        return NULL;
    if (kind < REST_NONE || kind > REST_HIBERNATE)
        return PyErr_Format(PyExc_ValueError, "%d is no kind of rest", kind);
    machine_ask_rest(&self->m, (enum rest_kind)kind);
    Py_RETURN_NONE;
}

static PyObject *Machine_park(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!running(self))
        return NULL;
    if (machine_park(&self->m))
        return os_error("parking a machine");
    Py_RETURN_NONE;
}

static PyObject *Machine_unpark(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!usable(self))
        return NULL;
    const char *step = machine_unpark(&self->m);
    if (step)
        return os_error(step);
    Py_RETURN_NONE;
}

static PyObject *Machine_trap(MachineObject *self, PyObject *unused)
{
    struct machine_trap t;
    (void)unused;
    if (!running(self))
        return NULL;
    machine_trap(&self->m, &t);
    return Py_BuildValue("KKKKKKK", t.vector, t.error, t.rip, t.cs, t.rflags, t.rsp, t.address);
}

static PyObject *Machine_save(MachineObject *self, PyObject *unused)
{
    struct machine_state s;
    (void)unused;
    if (!running(self))
        return NULL;
    if (machine_save(&self->m, &s))
        return os_error("reading the registers");
    return PyBytes_FromStringAndSize((const char *)&s, sizeof s);
}

static PyObject *Machine_load(MachineObject *self, PyObject *args)
{
    Py_buffer state;
    struct machine_state s;
    if (!PyArg_ParseTuple(args, "y*", &state))
        return NULL;
    bool fits = state.len == sizeof s;
    if (fits)
        memcpy(&s, state.buf, sizeof s);
    PyBuffer_Release(&state);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "a machine's state has %zu bytes", sizeof s);
    if (!running(self))
        return NULL;
    if (machine_load(&self->m, &s))
        return os_error("setting the registers");
    Py_RETURN_NONE;
}

static PyObject *Machine_reset(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!running(self))
        return NULL;
    if (machine_reset(&self->m))
        return os_error("bringing a machine back to its template");
    Py_RETURN_NONE;
}

static PyObject *Machine_grow(MachineObject *self, PyObject *args)
{
    unsigned long long bytes;
    if (!PyArg_ParseTuple(args, "K", &bytes) || !running(self))
        return NULL;
    return PyLong_FromLongLong(machine_grow(&self->m, bytes));
}

static PyObject *Machine_release(MachineObject *self, PyObject *args)
{
    unsigned long long address, length;
    if (!PyArg_ParseTuple(args, "KK", &address, &length) || !usable(self))
        return NULL;
    return PyLong_FromLong(machine_release(&self->m, address, length));
}

static PyObject *Machine_reserve_ring(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!running(self))
        return NULL;
    if (machine_reserve_ring(&self->m))
        return os_error("reserving a ring's place");
    Py_RETURN_NONE;
}

static PyObject *Machine_attach_ring(MachineObject *self, PyObject *args)
{
    int fd, doorbell;
    if (!PyArg_ParseTuple(args, "ii", &fd, &doorbell) || !running(self))
        return NULL;
    if (machine_attach_ring(&self->m, fd, doorbell))
        return os_error("attaching the ring");
    Py_RETURN_NONE;
}

/* set_hot(list of (address, length)): unshares the pages that every guest writes, and keeps them over resets. */
static PyObject *Machine_set_hot(MachineObject *self, PyObject *args)
{
    PyObject *ranges;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &ranges) || !running(self))
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
static PyObject *Machine_own_pages(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!running(self))
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
static PyObject *Machine_private_pages(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!running(self))
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
static PyObject *Machine_trim(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!running(self))
        return NULL;
    i64 dropped = machine_trim(&self->m);
    return dropped < 0 ? os_error("trimming a machine") : PyLong_FromLongLong(dropped);
}

static PyObject *get_end(MachineObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->m.end);
}

static PyObject *get_cpu_ns(MachineObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->m.cpu_ns);
}

static PyObject *get_exit(MachineObject *self, void *unused)
{
    (void)unused;
    return Py_BuildValue("IK", self->m.exit_reason, self->m.detail);
}

static PyObject *get_control(MachineObject *self, void *unused)
{
    (void)unused;
    if (!usable(self))
        return NULL;
    /* SAFE: GA_CONTROL lies below the 4 MiB that every machine has at least. */
    return PyBytes_FromStringAndSize((const char *)self->m.memory + GA_CONTROL, sizeof(struct wire_control));
}

static PyMethodDef machine_methods[] = {
    {"close", (PyCFunction)Machine_close, METH_NOARGS, "Free the machine; may be called twice."},
    {"read", (PyCFunction)Machine_read, METH_VARARGS, "read(address, length, any=False) -> bytes"},
    {"write", (PyCFunction)Machine_write, METH_VARARGS, "write(address, data, any=False)"},
    {"read_file", (PyCFunction)Machine_read_file, METH_VARARGS, "read_file(fd, address, length, offset) -> int"},
    {"write_file", (PyCFunction)Machine_write_file, METH_VARARGS, "write_file(fd, address, length, offset) -> int"},
    {"write_fixed", (PyCFunction)Machine_write_fixed, METH_NOARGS, "Write tables, descriptors, traps and landing."},
    {"set_params", (PyCFunction)Machine_set_params, METH_VARARGS, "Write the parameter page; clocks start now."},
    {"now_ns", (PyCFunction)Machine_now_ns, METH_NOARGS, "The guest's monotonic time."},
    {"start", (PyCFunction)Machine_start, METH_NOARGS, "Set the first instruction."},
    {"run", (PyCFunction)Machine_run, METH_VARARGS, "run(slice_us, tick_us=5000) -> RUN_*"},
    {"request", (PyCFunction)Machine_request, METH_NOARGS, "(op, arg0..arg5)"},
    {"reply", (PyCFunction)Machine_reply, METH_VARARGS, "reply(result, extra=0)"},
    {"signal", (PyCFunction)Machine_signal, METH_VARARGS, "signal(number): SIGINT, SIGTERM or SIGHUP"},
    {"announce_input", (PyCFunction)Machine_announce_input, METH_NOARGS, "Standard input may have something now."},
    {"ask_rest", (PyCFunction)Machine_ask_rest, METH_VARARGS, "ask_rest(kind): the guest is to stand still"},
    {"park", (PyCFunction)Machine_park, METH_NOARGS, "Give back what KVM holds; the memory stays."},
    {"unpark", (PyCFunction)Machine_unpark, METH_NOARGS, "Make it as it was before park()."},
    {"trap", (PyCFunction)Machine_trap, METH_NOARGS, "(vector, error, rip, cs, rflags, rsp, address)"},
    {"save", (PyCFunction)Machine_save, METH_NOARGS, "The registers, as bytes."},
    {"load", (PyCFunction)Machine_load, METH_VARARGS, "load(state)"},
    {"reset", (PyCFunction)Machine_reset, METH_NOARGS, "Bring memory back to the template."},
    {"grow", (PyCFunction)Machine_grow, METH_VARARGS, "grow(bytes) -> new end or -ENOMEM"},
    {"release", (PyCFunction)Machine_release, METH_VARARGS, "release(address, length) -> 1 if it reads as zero"},
    {"reserve_ring", (PyCFunction)Machine_reserve_ring, METH_NOARGS, "Make the place of a ring, empty."},
    {"attach_ring", (PyCFunction)Machine_attach_ring, METH_VARARGS, "attach_ring(memfd, doorbell_eventfd)"},
    {"set_hot", (PyCFunction)Machine_set_hot, METH_VARARGS, "set_hot([(address, length), ...])"},
    {"own_pages", (PyCFunction)Machine_own_pages, METH_NOARGS, "[(address, length)] of this guest alone."},
    {"trim", (PyCFunction)Machine_trim, METH_NOARGS, "trim() -> int: give back pages that equal the template's."},
    {"private_pages", (PyCFunction)Machine_private_pages, METH_NOARGS, "[(address, length)] unshared from the template."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef machine_getset[] = {{"end", (getter)get_end, NULL, "End of memory.", NULL},
                                       {"cpu_ns", (getter)get_cpu_ns, NULL, "CPU time so far.", NULL},
                                       {"exit", (getter)get_exit, NULL, "(KVM exit reason, detail)", NULL},
                                       {"control", (getter)get_control, NULL, "struct wire_control as bytes.", NULL},
                                       {NULL, NULL, NULL, NULL, NULL}};

static PyTypeObject MachineType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "seamgate_vmm._kvm.Machine",
    .tp_doc = "Machine(kvm, shim, landing, first_bytes, limit_bytes, image=-1, image_bytes=0, building=False)",
    .tp_basicsize = sizeof(MachineObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Machine_init,
    .tp_dealloc = (destructor)Machine_dealloc,
    .tp_methods = machine_methods,
    .tp_getset = machine_getset,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kvm", "Machines, rings and jails.", -1, host_functions,
                                    NULL, NULL, NULL, NULL};

#define NUMBER(name) {#name, (long)(name)}
static const struct { const char *name; long value; } numbers[] = {
    NUMBER(WIRE_ABI), NUMBER(GA_LANDING), NUMBER(GA_SHIM), NUMBER(GA_SHIM_TEXT_END), NUMBER(GA_SHIM_DATA), NUMBER(GA_SHIM_DATA_END),
    NUMBER(GA_PARAMS), NUMBER(GA_CONTROL), NUMBER(GA_VDSO), NUMBER(GA_VDSO_END), NUMBER(GA_STACK), NUMBER(GA_STACK_END),
    NUMBER(GA_PROGRAM), NUMBER(GA_END), NUMBER(GA_RING), NUMBER(LANDING_USER), NUMBER(LANDING_KERNEL),
    NUMBER(RUN_REQUEST), NUMBER(RUN_SLICE), NUMBER(RUN_TRAP), NUMBER(RUN_MEMORY), NUMBER(RUN_BROKEN), NUMBER(RUN_ERROR),
    NUMBER(HOST_EXIT), NUMBER(HOST_ABORT), NUMBER(HOST_IDLE), NUMBER(HOST_WRITE), NUMBER(HOST_READ), NUMBER(HOST_RANDOM),
    NUMBER(HOST_GROW), NUMBER(HOST_RELEASE), NUMBER(HOST_UNSUPPORTED), NUMBER(HOST_CONTROL_READ),
    NUMBER(HOST_CONTROL_WRITE), NUMBER(HOST_OPEN), NUMBER(HOST_CLOSE), NUMBER(HOST_PREAD), NUMBER(HOST_PWRITE),
    NUMBER(HOST_STAT), NUMBER(HOST_FSTAT), NUMBER(HOST_ACCESS), NUMBER(HOST_READLINK), NUMBER(HOST_GETDENTS),
    NUMBER(HOST_GETCWD), NUMBER(HOST_CHDIR), NUMBER(HOST_MKDIR), NUMBER(HOST_UNLINK), NUMBER(HOST_RENAME),
    NUMBER(HOST_TRUNCATE), NUMBER(HOST_CHMOD), NUMBER(HOST_UTIMES), NUMBER(HOST_REST), NUMBER(HOST_OP_END), NUMBER(HOST_AT_CWD),
    NUMBER(PARAMS_TERMINAL), NUMBER(REST_NONE), NUMBER(REST_PARK), NUMBER(REST_HIBERNATE), NUMBER(SYSCALL_COUNTERS), NUMBER(RING_BYTES), NUMBER(RING_MAX_PAYLOAD), NUMBER(RING_RX_WINDOW),
    NUMBER(RING_TX_WINDOW), NUMBER(RING_STREAMS), NUMBER(RING_TX_SIZE), NUMBER(RING_RX_SIZE), NUMBER(RING_TX_OFFSET),
    NUMBER(RING_RX_OFFSET), NUMBER(FRAME_PAD), NUMBER(FRAME_OPEN), NUMBER(FRAME_DATA),
    NUMBER(FRAME_FIN), NUMBER(FRAME_RESET), NUMBER(FRAME_CREDIT), NUMBER(FRAME_NAME_QUERY), NUMBER(FRAME_NAME_ANSWER),
    {"CONTROL_CALLS_OFFSET", offsetof(struct wire_control, calls)},
    {"STATE_BYTES", sizeof(struct machine_state)},
};

PyMODINIT_FUNC PyInit__kvm(void)
{
    PyObject *m = NULL;
    if (PyType_Ready(&MachineType) || PyType_Ready(&ring_type))
        return NULL;
    m = PyModule_Create(&module);
    if (!m)
        return NULL;
    ring_violation_type = PyErr_NewExceptionWithDoc("seamgate_vmm._kvm.RingViolation",
                                          "A guest broke the rules of its ring: index, length or type.", NULL, NULL);
    if (!ring_violation_type || PyModule_AddObjectRef(m, "RingViolation", ring_violation_type) ||
        PyModule_AddObjectRef(m, "Machine", (PyObject *)&MachineType) ||
        PyModule_AddObjectRef(m, "Ring", (PyObject *)&ring_type))
        goto out;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (PyModule_AddIntConstant(m, numbers[i].name, numbers[i].value))
            goto out;
    return m;
out:
    Py_DECREF(m);
    return NULL;
}
