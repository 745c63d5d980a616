/* The type Machine of the extension `_kvm`: its life, its clock, its registers, and what it asks.
 *
 * The interpreter's lock is released while a guest runs. No function here ends the process.
 */
#include "_kvm_machine.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <x86intrin.h>

bool machine_usable(MachineObject *self)
{
    if (!self->open)
        PyErr_SetString(PyExc_ValueError, "the machine is closed");
    return self->open;
}

/* The same, and KVM has it: it is not parked. */
bool machine_running(MachineObject *self)
{
    if (machine_usable(self) && !self->m.run)
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

/* set_params(tsc_khz, mono_ns, generation, pid, brk_start, brk_limit, mmap_low, start_rip, start_rsp, flags=0): what the guest
 * reads about itself; the clocks start now. */
static PyObject *Machine_set_params(MachineObject *self, PyObject *args)
{
    unsigned long long khz, mono, generation, pid, brk_start, brk_limit, mmap_low, rip, rsp;
    unsigned int flags = 0;
    if (!PyArg_ParseTuple(args, "KKKKKKKKK|I", &khz, &mono, &generation, &pid, &brk_start, &brk_limit, &mmap_low, &rip,
                          &rsp, &flags) || !machine_usable(self))
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
    if (!machine_running(self))
        return NULL;
    if (machine_start(&self->m))
        return os_error("KVM_SET_REGS");
    Py_RETURN_NONE;
}

static PyObject *Machine_run(MachineObject *self, PyObject *args)
{
    unsigned long long slice_us, tick_us = 5000;
    enum run_exit why;
    if (!PyArg_ParseTuple(args, "K|K", &slice_us, &tick_us) || !machine_running(self))
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
    if (!machine_usable(self))
        return NULL;
    machine_request(&self->m, &r);
    return Py_BuildValue("KKKKKKK", r.op, r.arg[0], r.arg[1], r.arg[2], r.arg[3], r.arg[4], r.arg[5]);
}

static PyObject *Machine_reply(MachineObject *self, PyObject *args)
{
    long long result;
    unsigned long long extra = 0;
    if (!PyArg_ParseTuple(args, "L|K", &result, &extra) || !machine_usable(self))
        return NULL;
    machine_reply(&self->m, result, extra);
    Py_RETURN_NONE;
}

static PyObject *Machine_signal(MachineObject *self, PyObject *args)
{
    int number;
    if (!PyArg_ParseTuple(args, "i", &number) || !machine_usable(self))
        return NULL;
    if (number != SIGINT && number != SIGTERM && number != SIGHUP)
        return PyErr_Format(PyExc_ValueError, "signal %d is not for guests", number);
    machine_signal(&self->m, number == SIGINT ? SIGNAL_INT : number == SIGTERM ? SIGNAL_TERM : SIGNAL_HUP);
    Py_RETURN_NONE;
}

static PyObject *Machine_announce_input(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_usable(self))
        return NULL;
    machine_announce_input(&self->m);
    Py_RETURN_NONE;
}

static PyObject *Machine_ask_rest(MachineObject *self, PyObject *args)
{
    int kind;
    if (!PyArg_ParseTuple(args, "i", &kind) || !machine_usable(self))
        return NULL;
    if (kind < REST_NONE || kind > REST_HIBERNATE)
        return PyErr_Format(PyExc_ValueError, "%d is no kind of rest", kind);
    machine_ask_rest(&self->m, (enum rest_kind)kind);
    Py_RETURN_NONE;
}

static PyObject *Machine_park(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_running(self))
        return NULL;
    if (machine_park(&self->m))
        return os_error("parking a machine");
    Py_RETURN_NONE;
}

static PyObject *Machine_unpark(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_usable(self))
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
    if (!machine_running(self))
        return NULL;
    machine_trap(&self->m, &t);
    return Py_BuildValue("KKKKKKK", t.vector, t.error, t.rip, t.cs, t.rflags, t.rsp, t.address);
}

static PyObject *Machine_save(MachineObject *self, PyObject *unused)
{
    struct machine_state s;
    (void)unused;
    if (!machine_running(self))
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
    if (!machine_running(self))
        return NULL;
    if (machine_load(&self->m, &s))
        return os_error("setting the registers");
    Py_RETURN_NONE;
}

static PyObject *Machine_reserve_ring(MachineObject *self, PyObject *unused)
{
    (void)unused;
    if (!machine_running(self))
        return NULL;
    if (machine_reserve_ring(&self->m))
        return os_error("reserving a ring's place");
    Py_RETURN_NONE;
}

static PyObject *Machine_attach_ring(MachineObject *self, PyObject *args)
{
    int fd, doorbell;
    if (!PyArg_ParseTuple(args, "ii", &fd, &doorbell) || !machine_running(self))
        return NULL;
    if (machine_attach_ring(&self->m, fd, doorbell))
        return os_error("attaching the ring");
    Py_RETURN_NONE;
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
    if (!machine_usable(self))
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

PyTypeObject machine_type = {
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
