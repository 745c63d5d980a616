/* The module `seamgate._native`: its types come from heads.c, search.c, lines.c and tls.c, its functions from the others. */
#include "native.h"

static int add_types(PyObject *module)
{
    PyType_Spec *specs[] = {&seamgate_fields_spec, &seamgate_needles_spec, &seamgate_lines_spec, NULL};
    if (seamgate_find_tls())
        specs[3] = &seamgate_records_spec;
    for (size_t i = 0; i < sizeof specs / sizeof *specs && specs[i]; i++) {
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

static PyMethodDef hashing[] = {
    {"sha256_hex", seamgate_sha256_hex, METH_O,
     "sha256_hex(data: bytes) -> str\n\nSHA-256 in 64 lower-case hex digits."},
    {"chain", (PyCFunction)(void (*)(void))seamgate_chain, METH_FASTCALL,
     "chain(seq, prev, tails, room)\n\nThe lines of these tails, where each ends, and the last one's hash."},
    {0},
};

/* Only where hashlib has OpenSSL as a library that is loaded; a Python that has it built in goes without. */
static int add_hashing(PyObject *module)
{
    PyObject *hashlib = PyImport_ImportModule("_hashlib");
    if (!hashlib)
        PyErr_Clear();
    Py_XDECREF(hashlib);
    return seamgate_find_sha256() ? PyModule_AddFunctions(module, hashing) : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {Py_mod_exec, add_hashing}, {0, NULL}};

static PyMethodDef functions[] = {
    {"amend", (PyCFunction)(void (*)(void))seamgate_amend, METH_FASTCALL,
     "amend(headers, set_headers, removed)\n\nThe fields without those removed or set, then those set."},
    {"any_named", (PyCFunction)(void (*)(void))seamgate_any_named, METH_FASTCALL,
     "any_named(headers, names) -> bool\n\nWhether the name of any field is one of these."},
    {"plain_text", (PyCFunction)(void (*)(void))seamgate_plain_text, METH_FASTCALL,
     "plain_text(data: bytes, letters: bytes, within: bool) -> bytes | None\n\nThe text of `plain_view` alone."},
    {"plain_view", (PyCFunction)(void (*)(void))seamgate_plain_view, METH_FASTCALL,
     "plain_view(data: bytes, letters: bytes, within: bool)\n\nThe data without its escapes; None if there are none."},
    {"unquote", seamgate_unquote, METH_O, "unquote(data: bytes) -> bytes\n\nWithout its percent-escapes."},
    {"unquote_json", seamgate_unquote_json, METH_O,
     "unquote_json(data: bytes) -> bytes\n\nWithout JSON's escapes of ASCII."},
    {"plain_path", seamgate_plain_path, METH_O,
     "plain_path(text: str) -> bool\n\nWhether a path is canonical and holds no escape."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_methods = functions,
    .m_name = "seamgate._native",
    .m_doc = "The hot path's parts in C; see proxy/native.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
