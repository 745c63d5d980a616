/* The type Machine, as its files share it: `_kvm_machine.c` has its life and runs it, `_kvm_memory.c` reaches memory. */
#ifndef SEAMGATE_KVM_MACHINE_H
#define SEAMGATE_KVM_MACHINE_H
#include "_kvm.h"

typedef struct {
    PyObject_HEAD
    struct machine m;
    bool open;
    u64 tsc0, mult, mono_ns;
} MachineObject;

extern PyTypeObject machine_type;

bool machine_usable(MachineObject *self);
bool machine_running(MachineObject *self);
PyObject *Machine_read(MachineObject *self, PyObject *args);
PyObject *Machine_write(MachineObject *self, PyObject *args);
PyObject *Machine_read_file(MachineObject *self, PyObject *args);
PyObject *Machine_write_file(MachineObject *self, PyObject *args);
PyObject *Machine_write_fixed(MachineObject *self, PyObject *unused);
PyObject *Machine_reset(MachineObject *self, PyObject *unused);
PyObject *Machine_grow(MachineObject *self, PyObject *args);
PyObject *Machine_release(MachineObject *self, PyObject *args);
PyObject *Machine_set_hot(MachineObject *self, PyObject *args);
PyObject *Machine_own_pages(MachineObject *self, PyObject *unused);
PyObject *Machine_private_pages(MachineObject *self, PyObject *unused);
PyObject *Machine_trim(MachineObject *self, PyObject *unused);
#endif
