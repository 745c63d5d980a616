/* plain_view: a text without its escapes, and where each byte of it stood. The twin of `credentials/escapes.py`, which
 * says what is taken off and why. Mostly there is nothing: then the text is looked through for five bytes, and no more.
 */
#include "native.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LITERAL, ESCAPE, JOIN, OPEN, OPEN_JOIN };
enum { MOST_BACKSLASHES = 8, MOST_DIGITS = 7, LINE_BYTES = 16 };

typedef struct {
    int kind;
    uint8_t character;
    Py_ssize_t length;
} Step;

typedef struct {
    const uint8_t *data, *letters;
    Py_ssize_t size;
    bool within;
    Py_ssize_t seen, line; /* up to where line breaks were looked for, and where the last line before it begins */
} Text;

static const bool marks[256] = {['\\'] = true, ['%'] = true, ['&'] = true, ['\n'] = true, ['\r'] = true};

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

static bool in_base64(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') || byte == '+' || byte == '/' ||
           byte == '=';
}

static Step literal(Py_ssize_t length)
{
    return (Step){LITERAL, 0, length};
}

static Step hex(const Text *text, Py_ssize_t place, Py_ssize_t at, int digits, Py_ssize_t otherwise)
{
    int value = 0;
    for (int number = 0; number < digits; number++) {
        if (at + number == text->size)
            return (Step){OPEN, 0, 0};
        int digit = hex_digit(text->data[at + number]);
        if (digit < 0 || (digits == 4 && number < 2 && digit))
            return literal(otherwise);
        value = value * 16 + digit;
    }
    return text->letters[value] ? (Step){ESCAPE, value, at + digits - place} : literal(otherwise);
}

static bool line_of_base64(const Text *text, Py_ssize_t place)
{
    const uint8_t *data = text->data;
    if (place > 1 && data[place - 1] == 'r' && data[place - 2] == '\\')
        for (place -= 2; place > 0 && data[place - 1] == '\\'; place--)
            ;
    if (!place)
        return false;
    for (Py_ssize_t at = place > LINE_BYTES ? place - LINE_BYTES : 0; at < place; at++)
        if (!in_base64(data[at]))
            return false;
    return true;
}

static Step backslash(const Text *text, Py_ssize_t place)
{
    Py_ssize_t at = place;
    while (at < text->size && text->data[at] == '\\')
        at++;
    Py_ssize_t run = at - place;
    if (run > MOST_BACKSLASHES)
        return literal(run);
    if (at == text->size)
        return (Step){OPEN, 0, 0};
    uint8_t letter = text->data[at];
    switch (letter) {
    case 'u':
        return hex(text, place, at + 1, 4, run);
    case 'x':
        return hex(text, place, at + 1, 2, run);
    case '/':
    case '"':
        return text->letters[letter] ? (Step){ESCAPE, letter, run + 1} : literal(run);
    case 'n':
    case 'r':
        if (text->letters['\n'] && line_of_base64(text, place))
            return (Step){ESCAPE, letter == 'n' ? '\n' : '\r', run + 1};
    }
    return literal(run);
}

static Step reference(const Text *text, Py_ssize_t place)
{
    const uint8_t *data = text->data;
    Py_ssize_t at = place + 1, size = text->size;
    if (at == size)
        return (Step){OPEN, 0, 0};
    if (data[at++] != '#')
        return literal(1);
    int base = 10, digits = 0;
    uint32_t value = 0;
    if (at < size && (data[at] | 0x20) == 'x')
        base = 16, at++;
    for (; at < size && digits <= MOST_DIGITS; at++, digits++) {
        int digit = hex_digit(data[at]);
        if (digit < 0 || digit >= base)
            break;
        value = value * base + digit;
    }
    if (digits > MOST_DIGITS)
        return literal(1);
    if (at == size)
        return (Step){OPEN, 0, 0};
    if (!digits || data[at] != ';' || value > 127 || !text->letters[value])
        return literal(1);
    return (Step){ESCAPE, value, at + 1 - place};
}

static bool in_data_line(Text *text, Py_ssize_t place)
{
    /* As libc searches, and each byte once: a text may be one large line, or breaks of lines that are asked about. */
    const uint8_t *from = text->data + text->seen;
    Py_ssize_t size = place - text->seen;
    const uint8_t *end = memrchr(from, '\n', size);
    const uint8_t *other = memrchr(end ? end : from, '\r', end ? size - (end - from) : size);
    if (other)
        end = other;
    if (end)
        text->line = end + 1 - text->data;
    text->seen = place;
    Py_ssize_t start = text->line;
    return (!start && text->within) || (text->size - start >= 5 && !memcmp(text->data + start, "data:", 5));
}

static Step line_break(Text *text, Py_ssize_t place)
{
    const uint8_t *data = text->data;
    if (!place || data[place - 1] == '\n' || data[place - 1] == '\r')
        return literal(1);
    Py_ssize_t length = data[place] == '\r' && place + 1 < text->size && data[place + 1] == '\n' ? 2 : 1;
    Py_ssize_t rest = text->size - place - length;
    if (rest > 5)
        rest = 5;
    if (memcmp(data + place + length, "data:", rest) || !in_data_line(text, place))
        return literal(length);
    length += rest;
    if (place + length == text->size)
        return (Step){OPEN_JOIN, 0, 0};
    return (Step){JOIN, 0, length + (data[place + length] == ' ')};
}

static Step step(Text *text, Py_ssize_t place)
{
    switch (text->data[place]) {
    case '\\':
        return backslash(text, place);
    case '%':
        return hex(text, place, place + 1, 2, 1);
    case '&':
        return reference(text, place);
    case '\n':
    case '\r':
        return line_break(text, place);
    }
    return literal(1);
}

/* Whether `step` may say more of a mark than that it is literal: what can be told at a glance, since marks are many. */
static inline bool matters(const Text *text, Py_ssize_t place)
{
    const uint8_t *at = text->data + place;
    Py_ssize_t left = text->size - place - 1;
    if (!left)
        return true;
    switch (*at) {
    case '\\':
        if (at[1] == 'u')
            return left < 3 || (at[2] == '0' && at[3] == '0');
        if (at[1] == 'n')
            return text->letters['\n'] && place && in_base64(at[-1]);
        return at[1] == '\\' || at[1] == 'x' || at[1] == 'r' || ((at[1] == '/' || at[1] == '"') && text->letters[at[1]]);
    case '%':
        return hex_digit(at[1]) >= 0;
    case '&':
        return at[1] == '#';
    case '\n':
        return at[1] == 'd';
    case '\r':
        return at[1] == 'd' || at[1] == '\n';
    }
    return false;
}

/* Where the next mark that matters stands from `place` on. */
static Py_ssize_t next_mark(const Text *text, Py_ssize_t place)
{
    const uint8_t *data = text->data;
#ifdef __SSE2__
    const __m128i backslash = _mm_set1_epi8('\\'), percent = _mm_set1_epi8('%'), ampersand = _mm_set1_epi8('&'),
                  lf = _mm_set1_epi8('\n'), cr = _mm_set1_epi8('\r');
    for (; place + 16 <= text->size; place += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(data + place));
        __m128i lines = _mm_or_si128(_mm_cmpeq_epi8(block, lf), _mm_cmpeq_epi8(block, cr));
        __m128i others = _mm_or_si128(_mm_cmpeq_epi8(block, percent), _mm_cmpeq_epi8(block, ampersand));
        __m128i any = _mm_or_si128(_mm_or_si128(lines, others), _mm_cmpeq_epi8(block, backslash));
        for (unsigned found = _mm_movemask_epi8(any); found; found &= found - 1) {
            Py_ssize_t at = place + __builtin_ctz(found);
            if (matters(text, at))
                return at;
        }
    }
#endif
    for (; place < text->size; place++)
        if (marks[data[place]] && matters(text, place))
            return place;
    return text->size;
}

static PyObject *as_numbers(PyObject *bytes)
{
    PyObject *view = PyMemoryView_FromObject(bytes);
    PyObject *numbers = view ? PyObject_CallMethod(view, "cast", "s", "I") : NULL;
    Py_XDECREF(view);
    return numbers;
}

/* Write the text out alone, which takes a ninth of the memory; everything before `place` stands as it is. */
static PyObject *written_alone(Text *text, Py_ssize_t place)
{
    PyObject *plain = PyBytes_FromStringAndSize(NULL, text->size);
    if (!plain)
        return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(plain);
    Py_ssize_t count = 0, copied = 0;
    while (copied < text->size) {
        memcpy(out + count, text->data + copied, place - copied);
        count += place - copied;
        copied = place;
        if (place == text->size)
            break;
        Step taken = step(text, place);
        if (taken.kind == OPEN || taken.kind == OPEN_JOIN)
            break;
        if (taken.kind == ESCAPE)
            out[count++] = taken.character;
        if (taken.kind != LITERAL)
            copied = place + taken.length;
        place = next_mark(text, place + taken.length);
    }
    _PyBytes_Resize(&plain, count);
    return plain;
}

/* Write the text out; everything before `place` stands as it is. */
static PyObject *written(Text *text, Py_ssize_t place)
{
    PyObject *plain = PyBytes_FromStringAndSize(NULL, text->size), *from = NULL, *to = NULL, *result = NULL;
    PyObject *starts = PyBytes_FromStringAndSize(NULL, text->size * 4), *ends = PyBytes_FromStringAndSize(NULL, text->size * 4);
    if (!plain || !starts || !ends)
        goto done;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(plain);
    uint32_t *start = (uint32_t *)PyBytes_AS_STRING(starts), *end = (uint32_t *)PyBytes_AS_STRING(ends);
    Py_ssize_t count = 0, open_at = text->size, copied = 0;
    while (copied < text->size) {
        for (; copied < place; copied++, count++)
            out[count] = text->data[copied], start[count] = copied, end[count] = copied + 1;
        if (place == text->size)
            break;
        Step taken = step(text, place);
        if (taken.kind == OPEN || taken.kind == OPEN_JOIN) {
            open_at = taken.kind == OPEN ? place : text->size;
            break;
        }
        if (taken.kind == ESCAPE)
            out[count] = taken.character, start[count] = place, end[count] = place + taken.length, count++;
        if (taken.kind != LITERAL)
            copied = place + taken.length;
        place = next_mark(text, place + taken.length);
    }
    if (_PyBytes_Resize(&plain, count) || _PyBytes_Resize(&starts, count * 4) || _PyBytes_Resize(&ends, count * 4))
        goto done;
    from = as_numbers(starts);
    to = from ? as_numbers(ends) : NULL;
    if (to)
        result = Py_BuildValue("OOOn", plain, from, to, open_at);
done:
    Py_XDECREF(plain);
    Py_XDECREF(starts);
    Py_XDECREF(ends);
    Py_XDECREF(from);
    Py_XDECREF(to);
    return result;
}

static PyObject *view_of(PyObject *const *args, Py_ssize_t given, PyObject *(*write)(Text *, Py_ssize_t))
{
    if (given != 3 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || PyBytes_GET_SIZE(args[1]) != 256)
        return PyErr_Format(PyExc_TypeError, "a view is one of bytes, 256 bytes, and whether they begin in a line");
    int within = PyObject_IsTrue(args[2]);
    if (within < 0)
        return NULL;
    Text text = {(uint8_t *)PyBytes_AS_STRING(args[0]), (uint8_t *)PyBytes_AS_STRING(args[1]), PyBytes_GET_SIZE(args[0]), within, 0, 0};
    if (text.size > UINT32_MAX)
        return PyErr_Format(PyExc_ValueError, "a piece of a body is shorter");
    for (Py_ssize_t place = next_mark(&text, 0); place < text.size;) {
        Step taken = step(&text, place);
        if (taken.kind != LITERAL)
            return write(&text, place);
        place = next_mark(&text, place + taken.length);
    }
    Py_RETURN_NONE;
}

PyObject *seamgate_plain_view(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    return view_of(args, given, written);
}

PyObject *seamgate_plain_text(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    return view_of(args, given, written_alone);
}
