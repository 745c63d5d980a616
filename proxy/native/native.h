/* What the hot path has in C: `seamgate._native`. Functions over bytes: no I/O, no clock, no policy. Only TLS has a state.
 *
 * Each has its twin in Python (`protocol/http1.py`, `credentials/needles.py`, `credentials/escapes.py`, `audit/line.py`,
 * `headers.py`, `paths.py`, `records.py`), which is the specification and runs where nobody built this; property tests hold
 * both to the same answers.
 */
#ifndef SEAMGATE_NATIVE_H
#define SEAMGATE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec seamgate_fields_spec;  /* heads.c */
extern PyType_Spec seamgate_needles_spec; /* search.c */
extern PyType_Spec seamgate_lines_spec;   /* lines.c */
extern PyType_Spec seamgate_records_spec; /* tls.c; only where `seamgate_find_tls` says so */

/* `amend(headers, set_headers, removed) -> headers`, `any_named(headers, names) -> bool`,
 * `plain_path(text: str) -> bool`, `plain_view(data, letters, within)`,
 * `plain_text(data, letters, within)`. */
PyObject *seamgate_amend(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *seamgate_any_named(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *seamgate_plain_text(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *seamgate_plain_view(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *seamgate_plain_path(PyObject *module, PyObject *text);

/* `unquote(data: bytes) -> bytes`, `unquote_json(data: bytes) -> bytes`; see unquote.c. */
PyObject *seamgate_unquote(PyObject *module, PyObject *data);
PyObject *seamgate_unquote_json(PyObject *module, PyObject *data);

/* Whether OpenSSL is loaded; then `sha256_hex(data: bytes) -> str` and `chain(seq, prev, tails, room) -> (lines, ends,
 * hash)` can be had. */
int seamgate_find_sha256(void);
PyObject *seamgate_sha256_hex(PyObject *module, PyObject *data);
PyObject *seamgate_chain(PyObject *module, PyObject *const *args, Py_ssize_t given);

/* Whether OpenSSL 3 is loaded by `ssl` as a library; then there are `Records`. */
int seamgate_find_tls(void);

#endif
