/* What the C files of the extension `_kvm` share. */
#ifndef SEAMGATE_KVM_H
#define SEAMGATE_KVM_H
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include "../native/machine.h"

extern PyObject *ring_violation_type; /* RingViolation; made with the module */
extern PyTypeObject ring_type;
extern PyMethodDef host_functions[];

PyObject *os_error(const char *what);
bool shim_of(const Py_buffer *file, struct wire_shim *out);
#endif
