/* Inline caches: what an attribute or a method of an object is, remembered where it is asked for.
 *
 * Included before the C that mypyc makes of the compiled modules (hatch_build.py), never compiled by itself. There every
 * attribute of an object that mypyc does not know inside out, such as a msgspec structure, is a look-up by name: through
 * the type's bases, then through a descriptor. The interpreter remembers for each of its instructions what came of it
 * (PEP 659); this does the same for compiled code. An attribute costs 10 instructions where it cost 114.
 *
 * What is remembered holds as long as the type's version does: the interpreter gives each state of a type a number that
 * no other state gets, and takes it away with any change of the type or its bases (`PyType_Modified`). Remembered are
 * members of slots and other descriptors that come before whatever an instance has, and methods of types whose instances
 * can have nothing of their own. All else takes the ordinary way, as does an empty slot, which raises.
 */
#ifndef SEAMGATE_INLINE_CACHE_H
#define SEAMGATE_INLINE_CACHE_H

#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000

enum { SEAMGATE_CACHE_TRIES = 32 }; /* a place that meets more types than that stops remembering */

typedef struct {
    PyTypeObject *type; /* borrowed: compared, never followed */
    PyObject *name;     /* owned, so that no other text gets its address */
    unsigned int version;
    unsigned int tries;
    Py_ssize_t offset; /* of the member; 0: it is none */
    PyObject *found;   /* descriptor or method, borrowed from the type */
} SeamgateCache;

static inline int seamgate_cache_holds(const SeamgateCache *cache, const PyTypeObject *type, const PyObject *name) {
    return cache->type == type && cache->version == type->tp_version_tag && cache->name == name;
}

/* Return what the type has by this name (borrowed), if it looks attributes up in the ordinary way and has a version. */
static PyObject *__attribute__((unused)) seamgate_cache_look_up(
    SeamgateCache *cache, PyTypeObject *type, PyObject *name) {
    if (cache->tries >= SEAMGATE_CACHE_TRIES || type->tp_getattro != PyObject_GenericGetAttr)
        return NULL;
    cache->tries++;
    PyObject *found = _PyType_Lookup(type, name); /* gives the type a version where it has none */
    return type->tp_version_tag ? found : NULL;
}

static void __attribute__((unused)) seamgate_cache_remember(
    SeamgateCache *cache, PyTypeObject *type, PyObject *name, PyObject *found, Py_ssize_t offset) {
    cache->type = type;
    cache->version = type->tp_version_tag;
    cache->found = found;
    cache->offset = offset;
    Py_INCREF(name);
    Py_XSETREF(cache->name, name);
}

static int __attribute__((unused)) seamgate_has_no_dict(const PyTypeObject *type) {
#ifdef Py_TPFLAGS_MANAGED_DICT
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT)
        return 0;
#endif
    return type->tp_dictoffset == 0;
}

/* Return where the object of a slot's member stands in this type, 0 if this is no such member: a class may have been
 * given the descriptor of another, whose objects look different; that one raises. */
static Py_ssize_t __attribute__((unused)) seamgate_slot_of(PyTypeObject *type, PyObject *descriptor) {
    if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type) || !PyType_IsSubtype(type, PyDescr_TYPE(descriptor)))
        return 0;
    const PyMemberDef *member = ((const PyMemberDescrObject *)descriptor)->d_member;
    return member->type == T_OBJECT_EX && !(member->flags & ~READONLY) ? member->offset : 0;
}

static PyObject *__attribute__((noinline, unused)) seamgate_get_attr_slowly(
    PyObject *object, PyObject *name, SeamgateCache *cache) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *found = seamgate_cache_look_up(cache, type, name);
    /* Only immutable types of descriptors: how one binds may not change while the version of what it is in stays. */
    if (found != NULL && Py_TYPE(found)->tp_descr_get != NULL && !(Py_TYPE(found)->tp_flags & Py_TPFLAGS_HEAPTYPE) &&
        (Py_TYPE(found)->tp_descr_set != NULL || seamgate_has_no_dict(type)))
        seamgate_cache_remember(cache, type, name, found, seamgate_slot_of(type, found));
    return (PyObject_GetAttr)(object, name);
}

static inline PyObject *seamgate_get_attr(PyObject *object, PyObject *name, SeamgateCache *cache) {
    PyTypeObject *type = Py_TYPE(object);
    if (__builtin_expect(!seamgate_cache_holds(cache, type, name), 0))
        return seamgate_get_attr_slowly(object, name, cache);
    PyObject *value;
    if (__builtin_expect(cache->offset != 0, 1)) {
        value = *(PyObject **)((char *)object + cache->offset);
        if (__builtin_expect(value == NULL, 0))
            return (PyObject_GetAttr)(object, name); /* raises */
        Py_INCREF(value);
        return value;
    }
    PyObject *found = cache->found;
    Py_INCREF(found); /* the type may lose it meanwhile */
    value = Py_TYPE(found)->tp_descr_get(found, object, (PyObject *)type);
    Py_DECREF(found);
    return value;
}

static PyObject *__attribute__((noinline, unused)) seamgate_call_method_slowly(
    PyObject *name, PyObject *const *arguments, size_t count, PyObject *keywords, SeamgateCache *cache) {
    PyTypeObject *type = Py_TYPE(arguments[0]);
    PyObject *found = seamgate_cache_look_up(cache, type, name);
    if (found != NULL && PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR) && seamgate_has_no_dict(type))
        seamgate_cache_remember(cache, type, name, found, 0);
    return (PyObject_VectorcallMethod)(name, arguments, count, keywords);
}

static inline PyObject *seamgate_call_method(
    PyObject *name, PyObject *const *arguments, size_t count, PyObject *keywords, SeamgateCache *cache) {
    if (__builtin_expect(!seamgate_cache_holds(cache, Py_TYPE(arguments[0]), name), 0))
        return seamgate_call_method_slowly(name, arguments, count, keywords, cache);
    PyObject *method = cache->found;
    Py_INCREF(method); /* the type may lose it meanwhile */
    PyObject *result = PyObject_Vectorcall(method, arguments, count & ~PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
    Py_DECREF(method);
    return result;
}

/* clang-format off: each use has a cache of its own */
#define PyObject_GetAttr(object, name) \
    (__extension__({ static SeamgateCache seamgate_cache_; seamgate_get_attr((object), (name), &seamgate_cache_); }))
#define PyObject_VectorcallMethod(name, arguments, count, keywords) \
    (__extension__({ static SeamgateCache seamgate_cache_; \
        seamgate_call_method((name), (arguments), (count), (keywords), &seamgate_cache_); }))

#endif
#endif
