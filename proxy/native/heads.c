/* Fields: reads the heads of HTTP/1.1 messages, splits them into fields, and writes fields as bytes.
 *
 * `request`, `response` and `split` take only what is plainly right (RFC 9112, as strict as protocol/http1.py says; the
 * first two also only what is usual) and return None for all else: the Python twin then reads it, or says what is wrong.
 * So a mistake here could refuse too much, but not word an error twice.
 */
#include "native.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MOST_FIELDS = 1024, LONGEST_NAME = 256, TABLE = 1024 };
enum { SPECIAL = 1, WRITTEN = 2 };

/* What a special field means to `request` and `response`; UNUSUAL ones are left to Python. */
enum role { UNUSUAL, DROPPED, HOST, LENGTH, TRANSFER, CONNECTION, PROXY_AUTHORIZATION, ROLES };

typedef struct {
    PyObject *name; /* bytes, lower case */
    int kind;       /* SPECIAL: read here, never passed on. WRITTEN: special, but written by the gateway itself */
    enum role role;
} Known;

typedef struct {
    PyObject_HEAD
    Known table[TABLE];
    int known;
    Py_ssize_t most;
    PyObject *request_head, *response_head; /* classes of protocol/heads.py */
} Fields;

/* The values of a head's special fields, borrowed from its bytes: what, and how long. NULL where there is none. */
typedef struct {
    const uint8_t *value[ROLES];
    Py_ssize_t size[ROLES];
} Plain;

/* Which bytes may stand in a name (as its lower case), in a value. */
static const uint8_t in_name[256] = {
    ['!'] = '!', ['#'] = '#', ['$'] = '$', ['%'] = '%', ['&'] = '&', ['\''] = '\'', ['*'] = '*', ['+'] = '+',
    ['-'] = '-', ['.'] = '.', ['^'] = '^', ['_'] = '_', ['`'] = '`', ['|'] = '|', ['~'] = '~',
    ['0'] = '0', ['1'] = '1', ['2'] = '2', ['3'] = '3', ['4'] = '4', ['5'] = '5', ['6'] = '6', ['7'] = '7',
    ['8'] = '8', ['9'] = '9',
    ['a'] = 'a', ['b'] = 'b', ['c'] = 'c', ['d'] = 'd', ['e'] = 'e', ['f'] = 'f', ['g'] = 'g', ['h'] = 'h',
    ['i'] = 'i', ['j'] = 'j', ['k'] = 'k', ['l'] = 'l', ['m'] = 'm', ['n'] = 'n', ['o'] = 'o', ['p'] = 'p',
    ['q'] = 'q', ['r'] = 'r', ['s'] = 's', ['t'] = 't', ['u'] = 'u', ['v'] = 'v', ['w'] = 'w', ['x'] = 'x',
    ['y'] = 'y', ['z'] = 'z',
    ['A'] = 'a', ['B'] = 'b', ['C'] = 'c', ['D'] = 'd', ['E'] = 'e', ['F'] = 'f', ['G'] = 'g', ['H'] = 'h',
    ['I'] = 'i', ['J'] = 'j', ['K'] = 'k', ['L'] = 'l', ['M'] = 'm', ['N'] = 'n', ['O'] = 'o', ['P'] = 'p',
    ['Q'] = 'q', ['R'] = 'r', ['S'] = 's', ['T'] = 't', ['U'] = 'u', ['V'] = 'v', ['W'] = 'w', ['X'] = 'x',
    ['Y'] = 'y', ['Z'] = 'z',
};

static bool in_value(uint8_t byte)
{
    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
}

static uint32_t hash_name(const uint8_t *name, Py_ssize_t size)
{
    uint32_t hash = 2166136261u;
    for (Py_ssize_t i = 0; i < size; i++)
        hash = (hash ^ name[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* The place of a name in the table: where it is, or where it would be. */
static Known *look_up(Fields *self, const uint8_t *name, Py_ssize_t size)
{
    for (uint32_t at = hash_name(name, size);; at++) {
        Known *known = &self->table[at % TABLE];
        if (!known->name)
            return known;
        if (PyBytes_GET_SIZE(known->name) == size && !memcmp(PyBytes_AS_STRING(known->name), name, size))
            return known;
    }
}

static int remember(Fields *self, PyObject *names, int kind)
{
    PyObject *iterator = PyObject_GetIter(names), *name;
    if (!iterator)
        return -1;
    while ((name = PyIter_Next(iterator))) {
        if (!PyBytes_Check(name) || self->known >= TABLE / 2) {
            PyErr_SetString(PyExc_ValueError, "names are bytes, at most 512 of them");
            Py_DECREF(name);
            break;
        }
        Known *known = look_up(self, (uint8_t *)PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name));
        self->known += !known->name;
        known->kind |= kind;
        if (known->name)
            Py_DECREF(name);
        else
            known->name = name;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? -1 : 0;
}

static void give_roles(Fields *self)
{
    static const struct {
        const char *name;
        enum role role;
    } roles[] = {
        {"host", HOST}, {"content-length", LENGTH}, {"transfer-encoding", TRANSFER}, {"connection", CONNECTION},
        {"proxy-authorization", PROXY_AUTHORIZATION}, {"keep-alive", DROPPED}, {"te", DROPPED}, {"trailer", DROPPED},
    };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        Known *known = look_up(self, (const uint8_t *)roles[i].name, (Py_ssize_t)strlen(roles[i].name));
        if (known->name)
            known->role = roles[i].role;
    }
}

static PyObject *fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"special", "written", "common", "most", "request", "response", NULL};
    PyObject *special, *written, *common, *request, *response;
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOnOO", keywords, &special, &written, &common, &most, &request,
                                     &response))
        return NULL;
    if (most < 0 || most > MOST_FIELDS)
        return PyErr_Format(PyExc_ValueError, "most is 0 to %d", MOST_FIELDS);
    Fields *self = (Fields *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->most = most;
    if (remember(self, special, SPECIAL) || remember(self, written, WRITTEN) || remember(self, common, 0)) {
        Py_DECREF(self);
        return NULL;
    }
    give_roles(self);
    self->request_head = Py_NewRef(request);
    self->response_head = Py_NewRef(response);
    return (PyObject *)self;
}

static void fields_dealloc(Fields *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->request_head);
    Py_XDECREF(self->response_head);
    for (int i = 0; i < TABLE; i++)
        Py_XDECREF(self->table[i].name);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Append a value to the list that the dictionary has for a name. */
static int add_special(PyObject *special, PyObject *name, PyObject *value)
{
    PyObject *values = PyDict_GetItemWithError(special, name);
    if (values)
        return PyList_Append(values, value);
    if (PyErr_Occurred() || !(values = PyList_New(1)))
        return -1;
    PyList_SET_ITEM(values, 0, Py_NewRef(value));
    int failed = PyDict_SetItem(special, name, values);
    Py_DECREF(values);
    return failed;
}

/* Keep a special field's value: 1, or 0 where it came before or Python has to read it. */
static int keep_plain(const Known *known, const uint8_t *value, Py_ssize_t size, Plain *plain)
{
    if (known->role == DROPPED)
        return 1;
    if (known->role == UNUSUAL || plain->value[known->role])
        return 0;
    plain->value[known->role] = value;
    plain->size[known->role] = size;
    return 1;
}

/* One line, without its end: 1 if it is plainly a field, 0 if not, -1 with an exception. A new pair goes to `pair`,
 * unless the field is special: that goes to `plain`, or where there is none to `special`. */
static int split_line(Fields *self, const uint8_t *line, Py_ssize_t size, PyObject *special, Plain *plain,
                      PyObject **pair)
{
    uint8_t lower[LONGEST_NAME];
    Py_ssize_t length = 0, end = size;
    while (length < size && length < LONGEST_NAME && in_name[line[length]]) {
        lower[length] = in_name[line[length]];
        length++;
    }
    if (!length || length == size || line[length] != ':')
        return 0;
    Py_ssize_t start = length + 1;
    while (start < end && (line[start] == ' ' || line[start] == '\t'))
        start++;
    while (end > start && (line[end - 1] == ' ' || line[end - 1] == '\t'))
        end--;
    for (Py_ssize_t i = start; i < end; i++)
        if (!in_value(line[i]))
            return 0;
    Known *known = look_up(self, lower, length);
    *pair = NULL;
    if (plain && known->name && known->kind & SPECIAL)
        return keep_plain(known, line + start, end - start, plain);
    PyObject *name = known->name ? Py_NewRef(known->name) : PyBytes_FromStringAndSize((char *)lower, length);
    PyObject *value = PyBytes_FromStringAndSize((const char *)line + start, end - start);
    int done = -1;
    if (name && value) {
        if (known->name && known->kind & SPECIAL)
            done = add_special(special, name, value) ? -1 : 1;
        else if ((*pair = PyTuple_Pack(2, name, value)))
            done = 1;
    }
    Py_XDECREF(name);
    Py_XDECREF(value);
    return done;
}

/* Split a head, its empty line included. 1 if it is plainly right: then `first_size` bytes are its first line, and
 * `headers` is a new tuple of the fields that go on. 0 if not, -1 with an exception. */
static int split_head(Fields *self, PyObject *head, PyObject *special, Plain *plain, Py_ssize_t *first_size,
                      PyObject **headers)
{
    if (!PyBytes_Check(head)) {
        PyErr_SetString(PyExc_TypeError, "a head is bytes");
        return -1;
    }
    const uint8_t *at = (uint8_t *)PyBytes_AS_STRING(head), *end = at + PyBytes_GET_SIZE(head);
    if (end - at < 4 || memcmp(end - 4, "\r\n\r\n", 4))
        return 0;
    end -= 2; /* the empty line; what is left ends with CRLF */
    const uint8_t *stop = memchr(at, '\r', end - at);
    for (const uint8_t *byte = at; byte < stop; byte++)
        if (!in_value(*byte))
            return 0;
    if (stop[1] != '\n')
        return 0;
    *first_size = stop - at;
    PyObject *pairs[MOST_FIELDS];
    Py_ssize_t count = 0, lines = 0;
    int state = 1;
    at = stop + 2;
    while (state == 1 && at < end) {
        stop = memchr(at, '\r', end - at);
        if (!stop || stop[1] != '\n' || ++lines > self->most) {
            state = 0;
            break;
        }
        PyObject *pair = NULL;
        state = split_line(self, at, stop - at, special, plain, &pair);
        if (pair)
            pairs[count++] = pair;
        at = stop + 2;
    }
    if (state == 1) {
        *headers = PyTuple_New(count);
        if (*headers) {
            for (Py_ssize_t i = 0; i < count; i++)
                PyTuple_SET_ITEM(*headers, i, pairs[i]);
            return 1;
        }
        state = -1;
    }
    while (count)
        Py_DECREF(pairs[--count]);
    return state;
}

/* What a reader returns that could not read a head: None, or NULL with the exception. */
static PyObject *unread(int state)
{
    return state < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(split_doc,
             "split(head: bytes) -> tuple[bytes, tuple[tuple[bytes, bytes], ...], dict[bytes, list[bytes]]] | None\n\n"
             "Split a whole head, with its empty line: first line, fields that go on, special ones. None: not plainly"
             " right.");

static PyObject *fields_split(Fields *self, PyObject *head)
{
    PyObject *special = PyDict_New(), *headers = NULL, *result = NULL;
    Py_ssize_t first_size = 0;
    int state = special ? split_head(self, head, special, NULL, &first_size, &headers) : -1;
    if (state == 1) {
        PyObject *first = PyBytes_FromStringAndSize(PyBytes_AS_STRING(head), first_size);
        if (first)
            result = PyTuple_Pack(3, first, headers, special);
        Py_XDECREF(first);
        Py_DECREF(headers);
    } else {
        result = unread(state);
    }
    Py_XDECREF(special);
    return result;
}

/* Framing as protocol/heads.py has it; NO_LENGTH: there is no Content-Length. */
enum { CHUNKED = -1, UNTIL_CLOSE = -2, NO_LENGTH = -3, LONGEST_NUMBER = 15 };

static bool is_text(const Plain *plain, enum role role, const char *text)
{
    return plain->size[role] == (Py_ssize_t)strlen(text) && !memcmp(plain->value[role], text, plain->size[role]);
}

/* The body's framing by its fields (RFC 9112 6.3): 1, or 0 where Python has to look. */
static int read_framing(const Plain *plain, int minor, long long *framing)
{
    *framing = NO_LENGTH;
    if (plain->value[TRANSFER]) {
        *framing = CHUNKED;
        return minor == 1 && !plain->value[LENGTH] && is_text(plain, TRANSFER, "chunked");
    }
    if (!plain->value[LENGTH])
        return 1;
    if (!plain->size[LENGTH] || plain->size[LENGTH] > LONGEST_NUMBER)
        return 0;
    *framing = 0;
    for (Py_ssize_t i = 0; i < plain->size[LENGTH]; i++) {
        uint8_t digit = plain->value[LENGTH][i] - '0';
        if (digit > 9)
            return 0;
        *framing = *framing * 10 + digit;
    }
    return 1;
}

/* Whether the connection goes on (RFC 9112 9.3): 1, or 0 where Connection says something unusual. */
static int read_connection(const Plain *plain, int minor, bool *keep_alive)
{
    *keep_alive = minor == 1;
    if (!plain->value[CONNECTION])
        return 1;
    *keep_alive = !is_text(plain, CONNECTION, "close");
    return !*keep_alive || is_text(plain, CONNECTION, "keep-alive") || is_text(plain, CONNECTION, "Keep-Alive");
}

/* The minor number of "HTTP/1.0" or "HTTP/1.1", else -1. */
static int read_version(const uint8_t *text, Py_ssize_t size)
{
    bool known = size == 8 && !memcmp(text, "HTTP/1.", 7) && (text[7] == '0' || text[7] == '1');
    return known ? text[7] - '0' : -1;
}

/* A request line (RFC 9112 3): the sizes of method and target, and the version. */
static int read_request_line(const uint8_t *line, Py_ssize_t size, Py_ssize_t *method, Py_ssize_t *target, int *minor)
{
    static const char *const usual[] = {"GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "CONNECT"};
    const uint8_t *space = memchr(line, ' ', size);
    if (!space)
        return 0;
    *method = space - line;
    bool known = false;
    for (size_t i = 0; i < sizeof usual / sizeof *usual && !known; i++)
        known = strlen(usual[i]) == (size_t)*method && !memcmp(usual[i], line, *method);
    const uint8_t *at = space + 1;
    while (at < line + size && *at > 0x20 && *at < 0x7f)
        at++;
    *target = at - space - 1;
    if (!known || !*target || at == line + size || *at != ' ')
        return 0;
    *minor = read_version(at + 1, line + size - at - 1);
    return *minor >= 0;
}

static PyObject *boolean(bool value)
{
    return value ? Py_True : Py_False;
}

/* Call a class with its arguments, which are given up; NULL among them is an exception. */
static PyObject *make(PyObject *class, PyObject **arguments, size_t count)
{
    bool whole = true;
    for (size_t i = 0; i < count; i++)
        whole &= arguments[i] != NULL;
    PyObject *made = whole ? PyObject_Vectorcall(class, arguments, count, NULL) : NULL;
    for (size_t i = 0; i < count; i++)
        Py_XDECREF(arguments[i]);
    return made;
}

PyDoc_STRVAR(request_doc, "request(head: bytes) -> RequestHead | None\n\n"
                          "Read a whole request head, with its empty line. None: not plainly right, or unusual.");

static PyObject *fields_request(Fields *self, PyObject *head)
{
    Plain plain = {0};
    PyObject *headers = NULL;
    Py_ssize_t size = 0, method = 0, target = 0;
    int minor = 0, state = split_head(self, head, NULL, &plain, &size, &headers);
    if (state != 1)
        return unread(state);
    const char *line = PyBytes_AS_STRING(head);
    long long framing;
    bool keep_alive;
    if (!read_request_line((const uint8_t *)line, size, &method, &target, &minor) ||
        !read_framing(&plain, minor, &framing) || !read_connection(&plain, minor, &keep_alive) ||
        (!plain.value[HOST] && minor == 1)) {
        Py_DECREF(headers);
        Py_RETURN_NONE;
    }
    const uint8_t *host = plain.value[HOST], *login = plain.value[PROXY_AUTHORIZATION];
    PyObject *arguments[] = {
        PyUnicode_DecodeASCII(line, method, NULL),
        PyUnicode_DecodeASCII(line + method + 1, target, NULL),
        host ? PyUnicode_DecodeLatin1((const char *)host, plain.size[HOST], NULL) : Py_NewRef(Py_None),
        headers,
        PyLong_FromLongLong(framing == NO_LENGTH ? 0 : framing),
        Py_NewRef(boolean(keep_alive)),
        Py_NewRef(Py_False), /* expects 100: unusual */
        Py_NewRef(Py_None),  /* upgrade: unusual */
        login ? PyBytes_FromStringAndSize((const char *)login, plain.size[PROXY_AUTHORIZATION]) : Py_NewRef(Py_None),
        PyLong_FromLong(minor),
    };
    return make(self->request_head, arguments, sizeof arguments / sizeof *arguments);
}

PyDoc_STRVAR(response_doc, "response(head: bytes, method: str) -> ResponseHead | None\n\n"
                           "Read a whole response head, with its empty line, to a request with this method. None: not"
                           " plainly right, or unusual.");

static PyObject *fields_response(Fields *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyUnicode_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "response takes bytes and a method");
    Plain plain = {0};
    PyObject *headers = NULL;
    Py_ssize_t size = 0;
    int state = split_head(self, args[0], NULL, &plain, &size, &headers);
    if (state != 1)
        return unread(state);
    const uint8_t *line = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    long long framing;
    bool keep_alive;
    int minor = size >= 12 ? read_version(line, 8) : -1, status = 0;
    if (minor >= 0 && line[8] == ' ' && (size == 12 || line[12] == ' '))
        for (int i = 9; i < 12; i++)
            status = line[i] >= '0' && line[i] <= '9' && status >= 0 ? status * 10 + line[i] - '0' : -1;
    /* 101 may be an upgrade, 401 may bind the connection: Python looks at these. */
    if (status < 100 || status > 599 || status == 101 || status == 401 || plain.value[HOST] ||
        plain.value[PROXY_AUTHORIZATION] || !read_framing(&plain, minor, &framing) ||
        !read_connection(&plain, minor, &keep_alive)) {
        Py_DECREF(headers);
        Py_RETURN_NONE;
    }
    bool bodiless = status < 200 || status == 204 || status == 304 || !PyUnicode_CompareWithASCIIString(args[1], "HEAD");
    long long body = bodiless ? 0 : framing == NO_LENGTH ? UNTIL_CLOSE : framing;
    PyObject *arguments[] = {
        PyLong_FromLong(status),
        headers,
        PyLong_FromLongLong(body),
        Py_NewRef(boolean(keep_alive && body != UNTIL_CLOSE)),
        Py_NewRef(Py_False), /* bound to the connection: unusual */
        PyLong_FromLong(minor),
        framing >= 0 ? PyLong_FromLongLong(framing) : Py_NewRef(Py_None),
    };
    return make(self->response_head, arguments, sizeof arguments / sizeof *arguments);
}

/* Whether a field may be written: 1 yes, 0 no. */
static int may_write(Fields *self, PyObject *name, PyObject *value)
{
    const uint8_t *bytes = (uint8_t *)PyBytes_AS_STRING(name);
    Py_ssize_t size = PyBytes_GET_SIZE(name);
    Known *known = look_up(self, bytes, size);
    if (known->name) {
        if (known->kind == SPECIAL)
            return 0;
    } else {
        if (!size || size > LONGEST_NAME)
            return 0;
        for (Py_ssize_t i = 0; i < size; i++)
            if (!in_name[bytes[i]] || in_name[bytes[i]] != bytes[i])
                return 0;
    }
    bytes = (uint8_t *)PyBytes_AS_STRING(value);
    size = PyBytes_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < size; i++)
        if (!in_value(bytes[i]))
            return 0;
    return 1;
}

PyDoc_STRVAR(write_doc,
             "write(first: bytes, headers: tuple[tuple[bytes, bytes], ...], last: bytes, check: bool) -> bytes | None\n\n"
             "Join first, `name: value` lines and last. With check: None where a field may not be written.");

static PyObject *fields_write(Fields *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 4 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[1]) || !PyBytes_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "write takes bytes, a tuple of pairs, bytes and whether to check");
    PyObject *headers = args[1];
    Py_ssize_t count = PyTuple_GET_SIZE(headers);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]) + PyBytes_GET_SIZE(args[2]);
    int check = PyObject_IsTrue(args[3]);
    if (check < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(headers, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyBytes_Check(PyTuple_GET_ITEM(pair, 0)) ||
            !PyBytes_Check(PyTuple_GET_ITEM(pair, 1)))
            return PyErr_Format(PyExc_TypeError, "a field is a pair of bytes");
        if (check && !may_write(self, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1)))
            Py_RETURN_NONE;
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 0)) + PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 1)) + 4;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, size);
    if (!result)
        return NULL;
    char *to = PyBytes_AS_STRING(result);
    to = (char *)memcpy(to, PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0])) + PyBytes_GET_SIZE(args[0]);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(PyTuple_GET_ITEM(headers, i), 0);
        PyObject *value = PyTuple_GET_ITEM(PyTuple_GET_ITEM(headers, i), 1);
        to = (char *)memcpy(to, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)) + PyBytes_GET_SIZE(name);
        *to++ = ':';
        *to++ = ' ';
        to = (char *)memcpy(to, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)) + PyBytes_GET_SIZE(value);
        *to++ = '\r';
        *to++ = '\n';
    }
    memcpy(to, PyBytes_AS_STRING(args[2]), PyBytes_GET_SIZE(args[2]));
    return result;
}

static PyMethodDef fields_methods[] = {
    {"request", (PyCFunction)fields_request, METH_O, request_doc},
    {"response", (PyCFunction)(void (*)(void))fields_response, METH_FASTCALL, response_doc},
    {"split", (PyCFunction)fields_split, METH_O, split_doc},
    {"write", (PyCFunction)(void (*)(void))fields_write, METH_FASTCALL, write_doc},
    {0},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_new, fields_new},
    {Py_tp_dealloc, fields_dealloc},
    {Py_tp_methods, fields_methods},
    {Py_tp_doc, (void *)"Fields(special, written, common, most, request, response): reads heads, splits and writes fields."},
    {0},
};

PyType_Spec seamgate_fields_spec = {
    .name = "seamgate._native.Fields",
    .basicsize = sizeof(Fields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = fields_slots,
};
