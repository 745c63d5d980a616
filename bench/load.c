/*
 * load: a closed-loop HTTP/1.1 load generator that costs less than any proxy that it measures.
 *
 * One thread, one epoll, N connections. Each connection sends a request, checks the whole answer
 * (status 200, exact body length, nothing surplus), and sends the next. bench/run.py is its caller
 * and talks to it over standard input and output, so that the proxy's CPU clock is read at the right
 * moments:
 *
 *     load                                    caller
 *     opens N connections, a few at a time, one request each
 *     --rehearse: all at once, so that pools grow to their size
 *     {"event": "ready", ...}   ------------>  reads the proxy's CPU time (and memory, when idle)
 *                               <------------  a line
 *     runs for --seconds, or until --requests
 *     {"event": "done", ...}    ------------>  reads the proxy's CPU time again
 *     holds the connections     <------------  end of file
 *     closes them and ends
 *
 * How a connection is opened depends on --mode, from the point of view of the proxy:
 *
 *     mitm   CONNECT to the proxy, then TLS inside, trusting the proxy's CA (--ca)
 *     tun    the same bytes, trusting the upstream's own CA
 *     t2t    TLS straight to --address, as to a reverse proxy (or to the upstream: "direct")
 *     p2t    plaintext to --address
 *
 * It only ever talks to 127.0.0.0/8, and gives up by itself (--timeout).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 8192,        /* a response head; every peer's is under 1 KB */
    REQUEST_MAX = 4096,     /* request head, and CONNECT head */
    READ_MAX = 256 * 1024,  /* shared by all connections: one read drains a 22 KB answer */
    EVENTS_MAX = 512,
    ERRORS_MAX = 20,        /* a run with this many is worth nothing: stop it */
};

enum mode { MITM, TUN, T2T, P2T };

enum state {
    CLOSED,      /* not opened yet, or to be opened again */
    CONNECTING,  /* TCP handshake under way */
    TUNNELLING,  /* CONNECT sent, its answer not complete */
    HANDSHAKE,   /* TLS under way */
    WAITING,     /* a request is out */
    IDLE,        /* nothing is out; the connection is held */
};

/* How the rest of a body is delimited. */
enum framing { LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_CRLF, TRAILERS };

struct connection {
    int fd;
    SSL *ssl;            /* NULL in p2t, and before HANDSHAKE */
    enum state state;
    uint32_t armed;      /* epoll events asked for now */
    bool in_head;        /* the answer's head is not complete */
    bool close_after;    /* the answer said Connection: close */
    enum framing framing;
    uint64_t remaining;  /* of the body (LENGTH), or of this chunk */
    uint64_t body;       /* body bytes of this answer so far */
    uint64_t started_ns; /* of this request; with --new-connection of its TCP connect */
    uint32_t done;       /* answers so far */
    size_t line;         /* CHUNK_SIZE and TRAILERS: bytes of the current line in `head` */
    size_t head_len;
    char head[HEAD_MAX];
};

/* The command line. */
static struct {
    enum mode mode;
    struct sockaddr_in address;
    const char *authority;  /* NAME:PORT, for CONNECT and Host */
    char name[256];         /* NAME alone, for SNI and verification */
    const char *ca;
    const char *proxy_authorization;
    const char *target;
    const char *headers[8];
    int header_count;
    int connections;
    double seconds;
    uint64_t requests;
    uint32_t rehearse;      /* unmeasured requests a connection, all connections at once */
    int setup;              /* connections being opened at the same time */
    double timeout;
    uint64_t body_bytes;
    bool new_connection;
} want = {
    .mode = MITM, .target = "/", .connections = 1, .seconds = 1.0, .setup = 16, .timeout = 60.0,
};

static SSL_CTX *tls;
static int poller;
static char request[REQUEST_MAX];
static size_t request_len;
static char connect_head[REQUEST_MAX];
static size_t connect_len;
static char scratch[READ_MAX];

static struct connection *all;
static int opened;        /* index of the next connection to open, in the set-up */
static int opening;       /* set-up and rehearsal: connections that are not through with it */
static uint32_t due = 1;  /* set-up and rehearsal: answers that each connection has to get */
static int busy;          /* measuring: connections with a request out */
static bool measuring;
static uint64_t deadline_ns;
static uint64_t issued;   /* requests started while measuring */

static struct {
    uint64_t requests, bytes, reconnects, errors, connects;
    char first_error[256];
    uint64_t last_ns;
    uint32_t *latency_us10;  /* tenths of a microsecond */
    size_t latency_cap;
} got;

/* ---- small things ---------------------------------------------------------------------------- */

/* Ends the program with exit code 2 and a message. Never returns. */
__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

/* Returns the monotonic clock in nanoseconds. */
static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Returns the CPU time of this process so far, in microseconds. */
static double own_cpu_us(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

/* Remembers one finished answer's latency. */
static void record_latency(uint64_t ns)
{
    if (got.requests == got.latency_cap) {
        got.latency_cap = got.latency_cap ? got.latency_cap * 2 : 65536;
        got.latency_us10 = realloc(got.latency_us10, got.latency_cap * sizeof *got.latency_us10);
        if (!got.latency_us10)
            die("out of memory for latencies");
    }
    uint64_t us10 = ns / 100;
    got.latency_us10[got.requests] = us10 > UINT32_MAX ? UINT32_MAX : (uint32_t)us10;
}

/* Orders two latencies for qsort. */
static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Returns the q-quantile (0..1) of the sorted latencies in microseconds, 0 if there are none. */
static double quantile_us(double q)
{
    if (!got.requests)
        return 0;
    size_t i = (size_t)(q * (double)(got.requests - 1) + 0.5);
    return got.latency_us10[i] / 10.0;
}

/* Prints `s` as a JSON string: what it holds comes from peers. */
static void print_json_string(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

/* ---- connections ----------------------------------------------------------------------------- */

static void start_request(struct connection *c);
static void open_connection(struct connection *c);

/* Asks epoll for `events` on c, if it does not watch for them already. */
static void arm(struct connection *c, uint32_t events)
{
    if (c->armed == events)
        return;
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(poller, c->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e))
        die("epoll_ctl: %s", strerror(errno));
    c->armed = events;
}

/* Closes c, with a close_notify where TLS is up: an honest client, so that no peer logs an error. */
static void close_connection(struct connection *c)
{
    if (c->ssl) {
        if (SSL_is_init_finished(c->ssl))
            SSL_shutdown(c->ssl);
        SSL_free(c->ssl);
        c->ssl = NULL;
        ERR_clear_error();
    }
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->armed = 0;
    c->state = CLOSED;
}

/* Counts an error, keeps the first one's text, and puts c out of service until it is opened again. */
__attribute__((format(printf, 2, 3))) static void fail(struct connection *c, const char *format, ...)
{
    if (!got.errors++) {
        va_list args;
        va_start(args, format);
        vsnprintf(got.first_error, sizeof got.first_error, format, args);
        va_end(args);
    }
    close_connection(c);
    if (got.errors >= ERRORS_MAX)
        die("%lu errors, the first: %s", (unsigned long)got.errors, got.first_error);
    if (!measuring)
        open_connection(c);
    else if (now_ns() < deadline_ns)
        start_request(c);
    else
        busy--;
}

/* Returns the text of OpenSSL's last error for c, the certificate's fault where that is the cause. */
static const char *tls_error(struct connection *c)
{
    long verdict = SSL_get_verify_result(c->ssl);
    if (verdict != X509_V_OK)
        return X509_verify_cert_error_string(verdict);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason ? reason : "connection closed";
}

/* Sends `len` bytes on c. Returns false after having failed c. A head that does not fit into an empty
 * socket buffer does not occur (both are under 4 KB), so a short write is a fault, not a state. */
static bool send_all(struct connection *c, const char *data, size_t len)
{
    if (c->ssl) {
        if (SSL_write(c->ssl, data, (int)len) == (int)len)
            return true;
        fail(c, "TLS write: %s", tls_error(c));
        return false;
    }
    if (send(c->fd, data, len, MSG_NOSIGNAL) == (ssize_t)len)
        return true;
    fail(c, "write: %s", strerror(errno));
    return false;
}

/* Reads into scratch. Returns the number of bytes, 0 when there is nothing to read now, -1 after having failed c. */
static int receive(struct connection *c)
{
    if (c->ssl) {
        int n = SSL_read(c->ssl, scratch, sizeof scratch);
        if (n > 0)
            return n;
        switch (SSL_get_error(c->ssl, n)) {
        case SSL_ERROR_WANT_READ:
            return 0;
        case SSL_ERROR_WANT_WRITE:
            arm(c, EPOLLIN | EPOLLOUT);
            return 0;
        default:
            fail(c, "TLS read in %s after %lu body bytes: %s", c->in_head ? "head" : "body", (unsigned long)c->body,
                 tls_error(c));
            return -1;
        }
    }
    ssize_t n = read(c->fd, scratch, sizeof scratch);
    if (n > 0)
        return (int)n;
    if (n < 0 && errno == EAGAIN)
        return 0;
    fail(c, "read: %s", n ? strerror(errno) : "closed by peer");
    return -1;
}

/* Makes c a fresh TCP connection under way. */
static void open_connection(struct connection *c)
{
    c->state = CONNECTING;
    c->head_len = 0;
    c->started_ns = now_ns();
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die("socket: %s (raise the open-file limit)", strerror(errno));
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    got.connects++;
    if (connect(c->fd, (struct sockaddr *)&want.address, sizeof want.address) && errno != EINPROGRESS)
        die("connect to port %d: %s", ntohs(want.address.sin_port), strerror(errno));
    arm(c, EPOLLOUT);
}

/* Starts TLS on c, for the upstream's name, verifying. */
static void start_tls(struct connection *c)
{
    c->ssl = SSL_new(tls);
    if (!c->ssl || !SSL_set_fd(c->ssl, c->fd) || !SSL_set_tlsext_host_name(c->ssl, want.name) ||
        !SSL_set1_host(c->ssl, want.name))
        die("TLS set-up: %s", ERR_reason_error_string(ERR_peek_last_error()));
    SSL_set_connect_state(c->ssl);
    c->state = HANDSHAKE;
}

/* Puts a request out on an open, idle connection. */
static void send_request(struct connection *c)
{
    c->state = WAITING;
    c->in_head = true;
    c->head_len = 0;
    c->body = 0;
    c->close_after = false;
    if (send_all(c, request, request_len))
        arm(c, EPOLLIN);
}

/* Measuring: starts the next request, on the open connection or on a new one. */
static void start_request(struct connection *c)
{
    issued++;
    if (c->state == CLOSED) {
        open_connection(c);
        return;
    }
    c->started_ns = now_ns();
    send_request(c);
}

/* Returns whether one more request may start at time `now`. */
static bool may_start(uint64_t now)
{
    return want.requests ? issued < want.requests : now < deadline_ns;
}

/* An answer is complete and right: counts it and goes on. */
static void answered(struct connection *c)
{
    uint64_t now = now_ns();
    c->done++;
    if (measuring) {
        record_latency(now - c->started_ns);
        got.requests++;
        got.bytes += c->body;
        got.last_ns = now;
    }
    c->state = IDLE;
    if (c->close_after || (want.new_connection && (measuring || c->done < due))) {
        if (!want.new_connection)
            got.reconnects++;
        close_connection(c);
    }
    if (measuring) {
        if (may_start(now))
            start_request(c);
        else
            busy--;
        return;
    }
    if (c->done < due) {
        if (c->state == CLOSED)
            open_connection(c);
        else
            send_request(c);
        return;
    }
    opening--;
}

/* ---- reading an answer ----------------------------------------------------------------------- */

/* Returns the value of header `name` (with its colon) in c's head, or NULL. */
static const char *header(struct connection *c, const char *name)
{
    for (char *line = strstr(c->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, name, strlen(name))) {
            line += strlen(name);
            return line + strspn(line, " \t");
        }
    }
    return NULL;
}

/* Appends to c's head until its empty line. Returns how many of the `len` bytes were taken, or -1 after having
 * failed c; the head is complete when c->in_head is false. */
static int take_head(struct connection *c, const char *data, int len)
{
    size_t room = HEAD_MAX - 1 - c->head_len;
    size_t before = c->head_len;
    size_t n = (size_t)len < room ? (size_t)len : room;
    memcpy(c->head + before, data, n);
    c->head_len += n;
    c->head[c->head_len] = 0;
    char *end = memmem(c->head, c->head_len, "\r\n\r\n", 4);
    if (!end) {
        if (n < (size_t)len) {
            fail(c, "a response head over %d bytes", HEAD_MAX);
            return -1;
        }
        return len;
    }
    size_t head_len = (size_t)(end - c->head) + 4;
    c->head[head_len] = 0;
    c->head_len = head_len;
    c->in_head = false;
    return (int)(head_len - before);
}

/* Checks the status, and finds out how the body ends. Returns false after having failed c. */
static bool read_head(struct connection *c)
{
    if (strncmp(c->head, "HTTP/1.1 200", 12)) {
        fail(c, "answer: %.*s", (int)strcspn(c->head, "\r"), c->head);
        return false;
    }
    const char *value = header(c, "connection:");
    c->close_after = value && !strncasecmp(value, "close", 5);
    value = header(c, "transfer-encoding:");
    if (value && !strncasecmp(value, "chunked", 7)) {
        c->framing = CHUNK_SIZE;
        c->line = 0;
        return true;
    }
    value = header(c, "content-length:");
    if (!value) {
        fail(c, "an answer with neither a length nor chunks");
        return false;
    }
    c->framing = LENGTH;
    c->remaining = strtoull(value, NULL, 10);
    return true;
}

/* Takes one byte of a line into c->head. Returns 1 when the line is complete (without CRLF), else 0. */
static int take_line_byte(struct connection *c, char byte)
{
    if (byte == '\n') {
        c->head[c->line] = 0;
        return 1;
    }
    if (byte != '\r' && c->line < HEAD_MAX - 1)
        c->head[c->line++] = byte;
    return 0;
}

/* Takes body bytes. Returns how many of `len` were taken, setting *complete at the end of the body; -1 after having
 * failed c. */
static int take_body(struct connection *c, const char *data, int len, bool *complete)
{
    int at = 0;
    *complete = c->framing == LENGTH && !c->remaining;
    while (at < len && !*complete) {
        switch (c->framing) {
        case LENGTH:
        case CHUNK_DATA: {
            uint64_t left = (uint64_t)(len - at);
            uint64_t n = left < c->remaining ? left : c->remaining;
            at += (int)n;
            c->remaining -= n;
            c->body += n;
            if (!c->remaining) {
                if (c->framing == LENGTH)
                    *complete = true;
                else
                    c->framing = CHUNK_CRLF;
                c->line = 0;
            }
            break;
        }
        case CHUNK_CRLF:
            if (take_line_byte(c, data[at++])) {
                c->framing = CHUNK_SIZE;
                c->line = 0;
            }
            break;
        case CHUNK_SIZE:
            if (take_line_byte(c, data[at++])) {
                c->remaining = strtoull(c->head, NULL, 16);
                c->framing = c->remaining ? CHUNK_DATA : TRAILERS;
                c->line = 0;
            }
            break;
        case TRAILERS:
            if (take_line_byte(c, data[at++])) {
                *complete = !c->line;
                c->line = 0;
            }
            break;
        }
    }
    if (*complete && c->body != want.body_bytes) {
        fail(c, "a body of %lu bytes, not %lu", (unsigned long)c->body, (unsigned long)want.body_bytes);
        return -1;
    }
    return at;
}

/* Reads what is there of an answer, and goes on with the next request when it is complete. */
static void read_answer(struct connection *c)
{
    for (;;) {
        int len = receive(c);
        if (len <= 0)
            return;
        int at = 0;
        bool complete = false;
        if (c->in_head) {
            at = take_head(c, scratch, len);
            if (at < 0 || (!c->in_head && !read_head(c)))
                return;
        }
        if (!c->in_head) {
            int n = take_body(c, scratch + at, len - at, &complete);
            if (n < 0)
                return;
            at += n;
        }
        if (complete) {
            /* No further read just to learn that there is nothing: that would cost a system call a request. */
            if (at < len || (c->ssl && SSL_pending(c->ssl)))
                fail(c, "%d bytes after the answer", len - at);
            else
                answered(c);
            return;
        }
        if (!c->ssl && len < READ_MAX)
            return;
    }
}

/* Reads the proxy's answer to CONNECT, and starts TLS. */
static void read_tunnel(struct connection *c)
{
    int len = receive(c);
    if (len <= 0)
        return;
    c->in_head = true;
    int at = take_head(c, scratch, len);
    if (at < 0 || c->in_head)
        return;
    if (strncmp(c->head, "HTTP/1.", 7) || strncmp(c->head + 8, " 200", 4)) {
        fail(c, "CONNECT: %.*s", (int)strcspn(c->head, "\r"), c->head);
        return;
    }
    if (at < len) {
        fail(c, "%d bytes after the answer to CONNECT", len - at);
        return;
    }
    start_tls(c);
}

/* Takes the TLS handshake as far as it goes now. */
static void shake_hands(struct connection *c)
{
    int done = SSL_do_handshake(c->ssl);
    if (done == 1) {
        send_request(c);
        return;
    }
    switch (SSL_get_error(c->ssl, done)) {
    case SSL_ERROR_WANT_READ:
        arm(c, EPOLLIN);
        return;
    case SSL_ERROR_WANT_WRITE:
        arm(c, EPOLLIN | EPOLLOUT);
        return;
    default:
        fail(c, "TLS handshake: %s", tls_error(c));
    }
}

/* The TCP connection is up (or not): takes the next step of the mode. */
static void connected(struct connection *c)
{
    int error = 0;
    socklen_t len = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) {
        fail(c, "connect: %s", strerror(error));
        return;
    }
    switch (want.mode) {
    case MITM:
    case TUN:
        c->state = TUNNELLING;
        if (send_all(c, connect_head, connect_len))
            arm(c, EPOLLIN);
        return;
    case T2T:
        start_tls(c);
        shake_hands(c);
        return;
    case P2T:
        send_request(c);
        return;
    }
}

/* Takes the next step on c, which epoll says is ready. */
static void step(struct connection *c)
{
    switch (c->state) {
    case CONNECTING:
        connected(c);
        break;
    case TUNNELLING:
        read_tunnel(c);
        if (c->state == HANDSHAKE)
            shake_hands(c);
        break;
    case HANDSHAKE:
        shake_hands(c);
        break;
    case WAITING:
        read_answer(c);
        break;
    case IDLE:
        /* Session tickets, or the peer's close: the next request will see it. Stop watching till then. */
        arm(c, EPOLLONESHOT);
        break;
    case CLOSED:
        break;
    }
}

/* ---- the two phases -------------------------------------------------------------------------- */

/* Waits for events and takes their steps; dies at `limit_ns`, so that a stuck proxy ends the run. */
static void turn(uint64_t limit_ns)
{
    struct epoll_event events[EVENTS_MAX];
    int n = epoll_wait(poller, events, EVENTS_MAX, 1000);
    if (n < 0 && errno != EINTR)
        die("epoll_wait: %s", strerror(errno));
    for (int i = 0; i < n; i++)
        step(events[i].data.ptr);
    if (now_ns() > limit_ns)
        die("timed out after %.0f s: %d of %d connections opened, %d being opened, %d requests out, %lu answered%s%s",
            want.timeout, opened, want.connections, opening, busy, (unsigned long)got.requests,
            got.errors ? "; first error: " : "", got.first_error);
}

/* Opens all connections, at most want.setup at a time, with one request on each. */
static void set_up(void)
{
    uint64_t limit = now_ns() + (uint64_t)(want.timeout * 1e9);
    while (opened < want.connections || opening) {
        while (opened < want.connections && opening < want.setup) {
            opening++;
            open_connection(&all[opened++]);
        }
        turn(limit);
    }
}

/* Sends want.rehearse requests on every connection, all connections at once: a proxy that shares its upstream
 * connections opens now those that it will need. */
static void rehearse(void)
{
    uint64_t limit = now_ns() + (uint64_t)(want.timeout * 1e9);
    due += want.rehearse;
    opening = want.connections;
    for (int i = 0; i < want.connections; i++) {
        if (all[i].state == CLOSED)
            open_connection(&all[i]);
        else
            send_request(&all[i]);
    }
    while (opening)
        turn(limit);
}

/* Runs the measured part. */
static void measure(void)
{
    uint64_t start = now_ns();
    deadline_ns = want.requests ? UINT64_MAX : start + (uint64_t)(want.seconds * 1e9);
    got.last_ns = start;
    got.connects = 0;
    got.reconnects = 0;
    measuring = true;
    for (int i = 0; i < want.connections && may_start(start); i++) {
        busy++;
        if (want.new_connection)
            close_connection(&all[i]);
        start_request(&all[i]);
    }
    uint64_t limit = start + (uint64_t)((want.seconds + want.timeout) * 1e9);
    while (busy)
        turn(limit);
}

/* Prints the line that ends the measured part. */
static void report(double seconds, double cpu_us)
{
    qsort(got.latency_us10, got.requests, sizeof *got.latency_us10, by_value);
    double sum = 0;
    for (size_t i = 0; i < got.requests; i++)
        sum += got.latency_us10[i] / 10.0;
    double requests = got.requests ? (double)got.requests : 1;
    printf("{\"event\": \"done\", \"requests\": %lu, \"seconds\": %.6f, \"body_bytes\": %lu, \"connects\": %lu, "
           "\"reconnects\": %lu, \"errors\": %lu, \"first_error\": ",
           (unsigned long)got.requests, seconds, (unsigned long)got.bytes, (unsigned long)got.connects,
           (unsigned long)got.reconnects, (unsigned long)got.errors);
    print_json_string(got.first_error);
    printf(", \"load_cpu_us_per_request\": %.2f, \"latency_us\": {\"mean\": %.1f, \"p50\": %.1f, \"p90\": %.1f, "
           "\"p99\": %.1f, \"max\": %.1f}}\n",
           cpu_us / requests, sum / requests, quantile_us(0.5), quantile_us(0.9), quantile_us(0.99), quantile_us(1));
    fflush(stdout);
}

/* Prints the line that says that all connections are up, with the answers so far and the TLS that was agreed on. */
static void report_ready(double setup_seconds)
{
    uint64_t answered = 0;
    for (int i = 0; i < want.connections; i++)
        answered += all[i].done;
    printf("{\"event\": \"ready\", \"connections\": %d, \"answered\": %lu, \"setup_seconds\": %.3f, \"tls\": ",
           want.connections, (unsigned long)answered, setup_seconds);
    SSL *ssl = all[0].ssl;
    char text[128] = "";
    if (ssl) {
        int bits = 0;
        EVP_PKEY *key = X509_get0_pubkey(SSL_get0_peer_certificate(ssl));
        if (key)
            bits = EVP_PKEY_get_bits(key);
        snprintf(text, sizeof text, "%s %s, %s leaf of %d bits", SSL_get_version(ssl), SSL_get_cipher_name(ssl),
                 key && EVP_PKEY_is_a(key, "EC") ? "EC" : "RSA", bits);
    }
    print_json_string(text);
    puts("}");
    fflush(stdout);
}

/* ---- the command line ------------------------------------------------------------------------ */

/* Returns the mode called `name`, or dies. */
static enum mode parse_mode(const char *name)
{
    static const char *const names[] = {[MITM] = "mitm", [TUN] = "tun", [T2T] = "t2t", [P2T] = "p2t"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return (enum mode)i;
    die("no mode %s: one of mitm, tun, t2t, p2t", name);
}

/* Reads ADDRESS:PORT into want.address; dies unless it is loopback. */
static void parse_address(const char *text)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof host)
        die("--address wants 127.0.0.1:PORT, not %s", text);
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    want.address.sin_family = AF_INET;
    want.address.sin_port = htons((uint16_t)atoi(colon + 1));
    if (inet_pton(AF_INET, host, &want.address.sin_addr) != 1 || ntohl(want.address.sin_addr.s_addr) >> 24 != 127)
        die("--address %s is not in 127.0.0.0/8: this program only loads this machine", text);
}

/* Returns a number of at least `least`, or dies. */
static double parse_number(const char *option, const char *text, double least)
{
    char *end;
    double n = strtod(text, &end);
    if (*end || end == text || n < least)
        die("--%s wants a number of at least %g, not %s", option, least, text);
    return n;
}

/* Reads the command line into `want`. */
static void parse_arguments(int argc, char **argv)
{
    static const struct option options[] = {
        {"mode", required_argument, 0, 'm'},       {"address", required_argument, 0, 'a'},
        {"authority", required_argument, 0, 'u'},  {"ca", required_argument, 0, 'c'},
        {"target", required_argument, 0, 't'},     {"proxy-authorization", required_argument, 0, 'p'},
        {"header", required_argument, 0, 'H'},     {"connections", required_argument, 0, 'n'},
        {"seconds", required_argument, 0, 's'},    {"requests", required_argument, 0, 'r'},
        {"rehearse", required_argument, 0, 'w'},   {"setup", required_argument, 0, 'S'},
        {"timeout", required_argument, 0, 'T'},    {"body-bytes", required_argument, 0, 'b'},
        {"new-connection", no_argument, 0, 'N'},   {0, 0, 0, 0},
    };
    for (int option, index = 0; (option = getopt_long(argc, argv, "", options, &index)) != -1;) {
        const char *name = options[index].name;
        switch (option) {
        case 'm': want.mode = parse_mode(optarg); break;
        case 'a': parse_address(optarg); break;
        case 'u': want.authority = optarg; break;
        case 'c': want.ca = optarg; break;
        case 't': want.target = optarg; break;
        case 'p': want.proxy_authorization = optarg; break;
        case 'H':
            if (want.header_count == (int)(sizeof want.headers / sizeof *want.headers))
                die("too many --header");
            want.headers[want.header_count++] = optarg;
            break;
        case 'n': want.connections = (int)parse_number(name, optarg, 1); break;
        case 's': want.seconds = parse_number(name, optarg, 0); break;
        case 'r': want.requests = (uint64_t)parse_number(name, optarg, 1); break;
        case 'w': want.rehearse = (uint32_t)parse_number(name, optarg, 0); break;
        case 'S': want.setup = (int)parse_number(name, optarg, 1); break;
        case 'T': want.timeout = parse_number(name, optarg, 0.1); break;
        case 'b': want.body_bytes = (uint64_t)parse_number(name, optarg, 0); break;
        case 'N': want.new_connection = true; break;
        default: exit(2);
        }
    }
    if (!want.address.sin_port || !want.authority)
        die("--address 127.0.0.1:PORT and --authority NAME:PORT are needed");
    if (want.mode != P2T && !want.ca)
        die("--ca FILE is needed: certificates are always verified");
    snprintf(want.name, sizeof want.name, "%.*s", (int)strcspn(want.authority, ":"), want.authority);
}

/* Appends formatted text to a head of REQUEST_MAX bytes, or dies. */
__attribute__((format(printf, 3, 4))) static void append(char *head, size_t *len, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(head + *len, REQUEST_MAX - *len, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= REQUEST_MAX - *len)
        die("a request head over %d bytes", REQUEST_MAX);
    *len += (size_t)n;
}

/* Builds the two heads, once: every request is the same bytes. */
static void build_heads(void)
{
    append(request, &request_len, "GET %s HTTP/1.1\r\nhost: %s\r\nuser-agent: seamgate-bench\r\naccept: */*\r\n",
           want.target, want.authority);
    for (int i = 0; i < want.header_count; i++)
        append(request, &request_len, "%s\r\n", want.headers[i]);
    if (want.mode == P2T && want.proxy_authorization)
        append(request, &request_len, "proxy-authorization: %s\r\n", want.proxy_authorization);
    append(request, &request_len, "\r\n");
    append(connect_head, &connect_len, "CONNECT %s HTTP/1.1\r\nhost: %s\r\n", want.authority, want.authority);
    if (want.proxy_authorization)
        append(connect_head, &connect_len, "proxy-authorization: %s\r\n", want.proxy_authorization);
    append(connect_head, &connect_len, "\r\n");
}

/* Verifies the peer's certificate and name in full the first time, and compares with that leaf afterwards: otherwise a
 * new connection costs more here than in the cheaper proxies. Returns 1 if it is good, else 0. */
static int verify_once(X509_STORE_CTX *store, void *unused)
{
    static X509 *good;
    (void)unused;
    X509 *leaf = X509_STORE_CTX_get0_cert(store);
    if (good && !X509_cmp(good, leaf)) {
        X509_STORE_CTX_set_error(store, X509_V_OK);
        return 1;
    }
    if (X509_verify_cert(store) != 1)
        return 0;
    X509_up_ref(leaf);
    X509_free(good);
    good = leaf;
    return 1;
}

/* Makes the TLS context: verification on, HTTP/1.1, no session reuse (a new agent has no session to reuse). */
static void make_tls(void)
{
    static const unsigned char http1[] = "\x08http/1.1";
    tls = SSL_CTX_new(TLS_client_method());
    if (!tls || !SSL_CTX_load_verify_locations(tls, want.ca, NULL))
        die("CA file %s: %s", want.ca, ERR_reason_error_string(ERR_peek_last_error()));
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_cert_verify_callback(tls, verify_once, NULL);
    SSL_CTX_set_alpn_protos(tls, http1, sizeof http1 - 1);
    SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(tls, 1);
}

/* Waits for a line on standard input. Returns false at its end. */
static bool wait_for_line(void)
{
    char line[64];
    return fgets(line, sizeof line, stdin) != NULL;
}

int main(int argc, char **argv)
{
    parse_arguments(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    build_heads();
    if (want.mode != P2T)
        make_tls();
    poller = epoll_create1(EPOLL_CLOEXEC);
    all = calloc((size_t)want.connections, sizeof *all);
    if (poller < 0 || !all)
        die("out of resources");
    for (int i = 0; i < want.connections; i++)
        all[i].fd = -1;

    uint64_t start = now_ns();
    set_up();
    if (want.rehearse)
        rehearse();
    if (got.errors)
        die("before the measured part: %s", got.first_error);
    report_ready((double)(now_ns() - start) / 1e9);
    if (!wait_for_line())
        return 0;

    double cpu_us = own_cpu_us();
    start = now_ns();
    measure();
    report((double)(got.last_ns - start) / 1e9, own_cpu_us() - cpu_us);
    while (wait_for_line())
        ;
    for (int i = 0; i < want.connections; i++)
        close_connection(&all[i]);
    return 0;
}
