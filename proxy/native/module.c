/* The module `seamgate._native`: its types come from heads.c and search.c. */
#include "native.h"

static int add_types(PyObject *module)
{
    PyType_Spec *specs[] = {&seamgate_fields_spec, &seamgate_needles_spec};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, specs[i], NULL);
        if (!type)
            return -1;
        int failed = PyModule_AddType(module, (PyTypeObject *)type);
        Py_DECREF(type);
        if (failed)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "seamgate._native",
    .m_doc = "The hot path's parts in C; see proxy/native.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
