/* The extension module `_kvm`: its types and functions by name, and every number of wire.h. Machine is in _kvm_machine.c
 * and _kvm_memory.c, Ring in _kvm_ring.c, the functions of the module in _kvm_host.c.
 */
#include "_kvm_machine.h"

#include <errno.h>

#include "../native/ring.h"

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
    if (PyType_Ready(&machine_type) || PyType_Ready(&ring_type))
        return NULL;
    m = PyModule_Create(&module);
    if (!m)
        return NULL;
    ring_violation_type = PyErr_NewExceptionWithDoc("seamgate_vmm._kvm.RingViolation",
                                          "A guest broke the rules of its ring: index, length or type.", NULL, NULL);
    if (!ring_violation_type || PyModule_AddObjectRef(m, "RingViolation", ring_violation_type) ||
        PyModule_AddObjectRef(m, "Machine", (PyObject *)&machine_type) ||
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
