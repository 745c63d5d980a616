/* What `_kvm` does beside machines and rings: what this host can do, and what a worker gives up. */
#include "_kvm.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../native/jail.h"

/* probe(kvm) -> (privilege at which syscall lands, xcr0 seen in ring 3, flags after syscall) */
static PyObject *py_probe(PyObject *module, PyObject *args)
{
    int kvm, landing;
    u64 xcr0 = 0, flags = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "i", &kvm))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    landing = machine_probe(kvm, &xcr0, &flags);
    Py_END_ALLOW_THREADS
    return landing < 0 ? os_error("running the probe guest") : Py_BuildValue("iKK", landing, xcr0, flags);
}

/* fixed_pages(shim, landing) -> bytes: everything below GA_SHIM */
static PyObject *py_fixed_pages(PyObject *module, PyObject *args)
{
    Py_buffer file;
    int landing;
    struct wire_shim shim;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*i", &file, &landing))
        return NULL;
    bool ok = shim_of(&file, &shim);
    PyBuffer_Release(&file);
    PyObject *out = ok ? PyBytes_FromStringAndSize(NULL, GA_SHIM) : NULL;
    if (out)
        machine_write_fixed((u8 *)PyBytes_AS_STRING(out), landing == 0 ? LANDING_KERNEL : LANDING_USER, &shim);
    return out;
}

static PyObject *py_kvm_ioctl(PyObject *module, PyObject *args)
{
    int fd, extension;
    const char *what;
    (void)module;
    if (!PyArg_ParseTuple(args, "is|i", &fd, &what, &extension))
        return NULL;
    int result;
    if (!strcmp(what, "api"))
        result = ioctl(fd, KVM_GET_API_VERSION, 0UL);
    else
        result = ioctl(fd, KVM_CHECK_EXTENSION, (unsigned long)extension);
    return result < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(result);
}

/* tsc_khz(kvm) -> frequency of the time stamp counter, by KVM */
static PyObject *py_tsc_khz(PyObject *module, PyObject *args)
{
    int kvm, khz = -1, vm, vcpu = -1;
    (void)module;
    if (!PyArg_ParseTuple(args, "i", &kvm))
        return NULL;
    vm = ioctl(kvm, KVM_CREATE_VM, 0UL);
    if (vm >= 0)
        vcpu = ioctl(vm, KVM_CREATE_VCPU, 0UL);
    if (vcpu >= 0)
        khz = ioctl(vcpu, KVM_GET_TSC_KHZ, 0UL);
    PyObject *out = khz > 0 ? PyLong_FromLong(khz) : os_error("KVM_GET_TSC_KHZ");
    if (vcpu >= 0)
        close(vcpu);
    if (vm >= 0)
        close(vm);
    return out;
}

static PyObject *py_no_new_privileges(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    if (jail_no_new_privileges())
        return os_error("PR_SET_NO_NEW_PRIVS");
    Py_RETURN_NONE;
}

/* open_pagemap(): before a jail closes /proc; in the process that will use it */
static PyObject *py_open_pagemap(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    machine_close_pagemap();
    return PyBool_FromLong(machine_open_pagemap() == 0);
}

static PyObject *py_die_with_parent(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    if (jail_die_with_parent())
        return os_error("PR_SET_PDEATHSIG");
    Py_RETURN_NONE;
}

static PyObject *py_become(PyObject *module, PyObject *args)
{
    unsigned int uid;
    (void)module;
    if (!PyArg_ParseTuple(args, "I", &uid))
        return NULL;
    if (jail_become(uid))
        return os_error("becoming another user");
    Py_RETURN_NONE;
}

static PyObject *py_seccomp(PyObject *module, PyObject *args)
{
    int kill;
    (void)module;
    if (!PyArg_ParseTuple(args, "p", &kill))
        return NULL;
    if (jail_seccomp(kill))
        return os_error("seccomp");
    Py_RETURN_NONE;
}

static const char **paths_of(PyObject *list, Py_ssize_t *n)
{
    *n = PyList_GET_SIZE(list);
    const char **out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
    for (Py_ssize_t i = 0; out && i < *n; i++) {
        out[i] = PyUnicode_AsUTF8(PyList_GET_ITEM(list, i));
        if (!out[i]) {
            PyMem_Free(out);
            return NULL;
        }
    }
    return out;
}

/* landlock(readable, writable) -> False if this kernel has none */
static PyObject *py_landlock(PyObject *module, PyObject *args)
{
    PyObject *readable, *writable, *result = NULL;
    Py_ssize_t n_readable = 0, n_writable = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &readable, &PyList_Type, &writable))
        return NULL;
    const char **r = paths_of(readable, &n_readable), **w = r ? paths_of(writable, &n_writable) : NULL;
    if (r && w) {
        int done = jail_landlock(r, (size_t)n_readable, w, (size_t)n_writable);
        result = done < 0 ? os_error("landlock") : PyBool_FromLong(done);
    }
    PyMem_Free(r);
    PyMem_Free(w);
    return result;
}

PyMethodDef host_functions[] = {
    {"probe", py_probe, METH_VARARGS, "probe(kvm) -> (privilege, xcr0, flags)"},
    {"fixed_pages", py_fixed_pages, METH_VARARGS, "fixed_pages(shim, landing) -> bytes"},
    {"kvm_check", py_kvm_ioctl, METH_VARARGS, "kvm_check(kvm, 'api' | 'extension', number=0) -> int"},
    {"tsc_khz", py_tsc_khz, METH_VARARGS, "tsc_khz(kvm) -> int"},
    {"no_new_privileges", py_no_new_privileges, METH_NOARGS, "Never gain privileges again."},
    {"open_pagemap", py_open_pagemap, METH_NOARGS, "Open /proc/self/pagemap for this process; False if there is none."},
    {"die_with_parent", py_die_with_parent, METH_NOARGS, "SIGKILL when the parent ends."},
    {"become", py_become, METH_VARARGS, "become(uid): give up root, but for reading files"},
    {"seccomp", py_seccomp, METH_VARARGS, "seccomp(kill)"},
    {"landlock", py_landlock, METH_VARARGS, "landlock(readable, writable) -> bool"},
    {NULL, NULL, 0, NULL}};
