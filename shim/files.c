/* Descriptors and open files. Files of the image and of the scratch folder are handles of the host; offsets, flags and
 * duplicates are kept here, so that lseek, dup and fcntl never leave the guest.
 */
#include "shim.h"

static struct file files[FILES];
static struct { struct file *file; u32 close_on_exec; } fds[FDS];
static int standard_open;

enum { S_IFCHR_ = 0020000, S_IFIFO_ = 0010000, S_IFSOCK_ = 0140000, AT_EMPTY_PATH_ = 0x1000 };

struct stat_buffer { /* as the kernel's struct stat */
    u64 device, inode, links;
    u32 mode, uid, gid, pad;
    u64 special_device;
    i64 size, block_bytes, blocks;
    u64 times[6], unused[3];
};
_Static_assert(sizeof(struct stat_buffer) == 144, "struct stat");

static void open_standard(void)
{
    standard_open = 1;
    for (u32 i = 0; i < 3; i++) {
        files[i].type = i ? FILE_CONSOLE : FILE_INPUT;
        files[i].references = 1;
        files[i].flags = i ? 1 : 0;
        files[i].console = i;
        fds[i].file = &files[i];
    }
}

/* Returns the open file, or null. */
struct file *file_of(u64 fd)
{
    if (!standard_open)
        open_standard();
    return fd < FDS ? fds[fd].file : 0;
}

/* Returns 0 and a file with one reference, or -EMFILE. */
i64 file_new(u32 type, u32 flags, struct file **out)
{
    file_of(0);
    for (u32 i = 0; i < FILES; i++)
        if (!files[i].references) {
            clear(&files[i], sizeof files[i]);
            files[i].type = type;
            files[i].flags = flags;
            files[i].references = 1;
            *out = &files[i];
            return 0;
        }
    return -EMFILE_;
}

void file_release(struct file *f)
{
    if (--f->references)
        return;
    epoll_forget(f);
    switch (f->type) {
    case FILE_HOST:
        host(HOST_CLOSE, f->host.handle, 0, 0, 0, 0, 0);
        break;
    case FILE_PIPE_READ: case FILE_PIPE_WRITE: case FILE_PAIR:
        pipe_close(f);
        break;
    case FILE_EPOLL:
        epoll_close(f);
        break;
    case FILE_STREAM: case FILE_DATAGRAM:
        socket_close(f);
        break;
    }
    f->type = FILE_NONE;
}

/* Standard input may have something: whoever waits for it looks again. */
void input_changed(void)
{
    for (u32 i = 0; i < FILES; i++)
        if (files[i].references && files[i].type == FILE_INPUT)
            file_changed(&files[i]);
}

/* Returns the lowest free descriptor from `lowest` on, which now holds the caller's reference; on failure -EMFILE,
 * and the reference is dropped. */
i64 fd_install(struct file *f, int close_on_exec, u32 lowest)
{
    for (u32 i = lowest; i < FDS; i++)
        if (!fds[i].file) {
            fds[i].file = f;
            fds[i].close_on_exec = close_on_exec != 0;
            return i;
        }
    file_release(f);
    return -EMFILE_;
}

/* Returns the length of a path, or more than 4095 if it is too long or not in memory. */
u64 length_of(u64 path)
{
    u64 n = 0;
    while (n < 4096 && user_range(path + n, 1) && ((const char *)path)[n])
        n++;
    return n < 4096 && user_range(path + n, 1) ? n : 4096;
}

static int is_path(u64 path, const char *expected)
{
    const char *p = (const char *)path;
    while (*expected && *p == *expected)
        p++, expected++;
    return *p == *expected;
}

/* Returns what the host knows a directory descriptor by. */
u64 directory_handle(u64 fd)
{
    if ((int)fd == HOST_AT_CWD)
        return (u64)HOST_AT_CWD;
    struct file *f = file_of((u32)fd);
    return f && f->type == FILE_HOST ? f->host.handle : ~0UL;
}

/* Returns the host's answer to a call with a path, after the checks that all of them share. */
i64 path_call(u64 op, u64 directory, u64 path, u64 a, u64 b)
{
    u64 length = length_of(path);
    if (length > 4095)
        return user_range(path, 1) ? -36 : -EFAULT_; /* ENAMETOOLONG */
    if (!length)
        return -ENOENT_;
    return host(op, directory_handle(directory), path, length, a, b, 0);
}

static i64 open_device(u64 path, u64 flags)
{
    u32 type = is_path(path, "/dev/null")             ? FILE_NULL
               : is_path(path, "/dev/stdin")          ? FILE_INPUT
               : is_path(path, "/dev/urandom") ||
                         is_path(path, "/dev/random") ? FILE_RANDOM
               : is_path(path, "/run/seamgate/host") ? FILE_CONTROL
                                                      : FILE_NONE;
    struct file *f;
    if (type == FILE_NONE)
        return 0;
    i64 error = file_new(type, (u32)flags & ~O_CLOEXEC_, &f);
    return error ? error : fd_install(f, (flags & O_CLOEXEC_) != 0, 0) + 1;
}

i64 sys_openat(u64 directory, u64 path, u64 flags, u64 mode)
{
    if (length_of(path) < 4096) {
        i64 fd = open_device(path, flags);
        if (fd)
            return fd < 0 ? fd : fd - 1;
    }
    struct file *f;
    i64 error = file_new(FILE_HOST, (u32)flags & ~O_CLOEXEC_, &f);
    if (error)
        return error;
    i64 handle = path_call(HOST_OPEN, directory, path, flags, mode);
    if (handle < 0) {
        f->type = FILE_NONE;
        f->references = 0;
        return handle;
    }
    f->host.handle = (u64)handle;
    return fd_install(f, (flags & O_CLOEXEC_) != 0, 0);
}

i64 sys_close(u64 fd)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    fds[fd].file = 0;
    file_release(f);
    return 0;
}

static i64 read_random(u64 address, u64 length)
{
    return host(HOST_RANDOM, address, least(length, 1 << 20), 0, 0, 0, 0);
}

/* Returns the bytes read; the caller checked the range. */
i64 file_read(struct thread *t, struct file *f, u64 address, u64 length)
{
    i64 n;
    switch (f->type) {
    case FILE_HOST:
        n = host(HOST_PREAD, f->host.handle, address, length, f->host.offset, 0, 0);
        if (n > 0)
            f->host.offset += (u64)n;
        return n;
    case FILE_NULL:
        return 0;
    case FILE_INPUT:
        n = input_read(address, length);
        break;
    case FILE_RANDOM:
        return read_random(address, length);
    case FILE_CONTROL:
        return rendezvous(address, length);
    case FILE_PIPE_READ: case FILE_PAIR:
        n = buffer_read(f->pipe.in, address, length, 0);
        break;
    case FILE_EVENT:
        return event_read(t, f, address, length);
    case FILE_STREAM:
        return stream_read(t, f, address, length, 0);
    case FILE_DATAGRAM:
        return datagram_read(t, f, address, length, 0);
    default:
        return -EBADF_;
    }
    if (n != -EAGAIN_ || f->flags & O_NONBLOCK_)
        return n;
    return park(t, NEVER) ? BLOCKED : -EAGAIN_;
}

/* Returns the bytes written; the caller checked the range. */
i64 file_write(struct thread *t, struct file *f, u64 address, u64 length)
{
    i64 n;
    switch (f->type) {
    case FILE_HOST:
        if (!(f->flags & 3))
            return -EBADF_;
        n = host(HOST_PWRITE, f->host.handle, address, length,
                 f->flags & O_APPEND_ ? ~0UL : f->host.offset, 0, 0);
        if (n > 0 && !(f->flags & O_APPEND_))
            f->host.offset += (u64)n;
        return n;
    case FILE_CONSOLE:
        return length ? host(HOST_WRITE, f->console, address, length, 0, 0, 0) : 0;
    case FILE_NULL: case FILE_RANDOM:
        return (i64)length;
    case FILE_CONTROL:
        return host(HOST_CONTROL_WRITE, address, length, 0, 0, 0, 0);
    case FILE_PIPE_WRITE: case FILE_PAIR:
        n = buffer_write(f->pipe.out, address, length);
        break;
    case FILE_EVENT:
        return event_write(t, f, address, length);
    case FILE_STREAM:
        return stream_write(t, f, address, length, 0);
    case FILE_DATAGRAM:
        return datagram_write(f, address, length);
    default:
        return -EBADF_;
    }
    if (n != -EAGAIN_ || f->flags & O_NONBLOCK_)
        return n;
    return park(t, NEVER) ? BLOCKED : -EAGAIN_;
}

i64 sys_lseek(u64 fd, i64 offset, u64 whence)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (f->type == FILE_NULL || f->type == FILE_RANDOM)
        return 0;
    if (f->type != FILE_HOST)
        return -ESPIPE_;
    i64 base = 0;
    if (whence == 1)
        base = (i64)f->host.offset;
    else if (whence == 2) {
        static struct stat_buffer s; /* not on the stack: the host writes only to memory that it was given */
        i64 error = host(HOST_FSTAT, f->host.handle, (u64)&s, 0, 0, 0, 0);
        if (error)
            return error;
        base = s.size;
    } else if (whence)
        return -EINVAL_;
    if (base + offset < 0)
        return -EINVAL_;
    f->host.offset = (u64)(base + offset);
    return base + offset;
}

i64 sys_pread(u64 fd, u64 address, u64 length, u64 offset, int write)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (f->type != FILE_HOST)
        return -ESPIPE_;
    if (!user_range(address, length))
        return -EFAULT_;
    return host(write ? HOST_PWRITE : HOST_PREAD, f->host.handle, address, length, offset, 0, 0);
}

i64 sys_vector(struct thread *t, u64 fd, u64 vector, u64 count, int write, i64 offset)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (count > 1024 || !user_range(vector, count * 16))
        return count > 1024 ? -EINVAL_ : -EFAULT_;
    const u64 *v = (const u64 *)vector;
    i64 total = 0;
    for (u64 i = 0; i < count; i++) {
        if (!v[2 * i + 1])
            continue;
        if (!user_range(v[2 * i], v[2 * i + 1]))
            return total ? total : -EFAULT_;
        i64 n = offset >= 0 ? sys_pread(fd, v[2 * i], v[2 * i + 1], (u64)(offset + total), write)
                : write     ? file_write(t, f, v[2 * i], v[2 * i + 1])
                            : file_read(t, f, v[2 * i], v[2 * i + 1]);
        if (n == BLOCKED && total) { /* what moved is moved: report it, do not wait */
            t->waiting = 0;
            t->state = THREAD_READY;
            return total;
        }
        if (n < 0)
            return total ? total : n;
        total += n;
        if ((u64)n < v[2 * i + 1])
            break;
    }
    return total;
}

/* Returns 1 if the descriptor of the caller that this file stands for is a terminal. */
static int is_terminal(const struct file *f)
{
    u32 which = f->type == FILE_CONSOLE ? f->console : 0;
    return (f->type == FILE_CONSOLE || f->type == FILE_INPUT) && PARAMS->flags & PARAMS_TERMINAL << which;
}

static i64 stat_special(const struct file *f, u64 out)
{
    struct stat_buffer *s = (struct stat_buffer *)out;
    clear(s, sizeof *s);
    s->inode = (u64)(f - files) + 1;
    s->links = 1;
    s->uid = s->gid = 1000;
    s->block_bytes = 4096;
    s->mode = is_terminal(f)           ? S_IFCHR_ | 0620
              : f->type == FILE_STREAM || f->type == FILE_PAIR || f->type == FILE_DATAGRAM ? S_IFSOCK_ | 0777
              : f->type == FILE_NULL || f->type == FILE_RANDOM                          ? S_IFCHR_ | 0666
                                                                                          : S_IFIFO_ | 0600;
    return 0;
}

i64 sys_fstatat(u64 directory, u64 path, u64 out, u64 flags)
{
    if (!user_range(out, sizeof(struct stat_buffer)))
        return -EFAULT_;
    if (!path || (flags & AT_EMPTY_PATH_ && length_of(path) == 0)) {
        struct file *f = file_of((u32)directory);
        if (!f)
            return (int)directory == HOST_AT_CWD ? host(HOST_STAT, (u64)HOST_AT_CWD, 0, 0, out, 0, 0) : -EBADF_;
        return f->type == FILE_HOST ? host(HOST_FSTAT, f->host.handle, out, 0, 0, 0, 0) : stat_special(f, out);
    }
    if (length_of(path) < 4096 && (is_path(path, "/dev/null") || is_path(path, "/dev/urandom"))) {
        static struct file device = {.type = FILE_NULL};
        stat_special(&device, out);
        return 0;
    }
    return path_call(HOST_STAT, directory, path, out, flags & 0x100);
}

i64 sys_getdents(u64 fd, u64 address, u64 length)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (f->type != FILE_HOST)
        return -ENOTDIR_;
    if (!user_range(address, length))
        return -EFAULT_;
    i64 n = host(HOST_GETDENTS, f->host.handle, address, length, f->host.offset, 0, 0);
    if (n >= 0)
        f->host.offset = CONTROL->request.arg[5];
    return n;
}

i64 sys_dup(u64 fd, u64 lowest, int close_on_exec)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (lowest >= FDS)
        return -EINVAL_;
    f->references++;
    return fd_install(f, close_on_exec, (u32)lowest);
}

i64 sys_dup3(u64 fd, u64 target, u64 flags)
{
    struct file *f = file_of(fd);
    if (!f || target >= FDS)
        return -EBADF_;
    if (fd == target)
        return flags == ~0UL ? (i64)fd : -EINVAL_; /* dup2 allows it */
    if (fds[target].file)
        sys_close(target);
    f->references++;
    fds[target].file = f;
    fds[target].close_on_exec = flags != ~0UL && (flags & O_CLOEXEC_);
    return (i64)target;
}

i64 sys_fcntl(u64 fd, u64 command, u64 argument)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    switch (command) {
    case 0: case 1030: /* DUPFD, DUPFD_CLOEXEC */
        return sys_dup(fd, argument, command == 1030);
    case 1:
        return fds[fd].close_on_exec;
    case 2:
        fds[fd].close_on_exec = argument & 1;
        return 0;
    case 3:
        return f->flags;
    case 4:
        f->flags = (f->flags & ~(u32)(O_NONBLOCK_ | O_APPEND_)) | ((u32)argument & (O_NONBLOCK_ | O_APPEND_));
        return 0;
    case 5: /* F_GETLK: no other process, so no lock stands in the way */
        if (!user_range(argument, 32))
            return -EFAULT_;
        *(u16 *)argument = 2; /* F_UNLCK */
        return 0;
    case 6: case 7: case 36: case 37: case 38: /* F_SETLK(W), F_OFD_*: likewise */
        return 0;
    case 1032: /* F_GETPIPE_SZ */
        return BUFFER_BYTES;
    }
    return -EINVAL_;
}

i64 sys_ioctl(u64 fd, u64 request, u64 argument)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    switch ((u32)request) {
    case 0x5421: /* FIONBIO */
        if (!user_range(argument, 4))
            return -EFAULT_;
        f->flags = *(u32 *)argument ? f->flags | O_NONBLOCK_ : f->flags & ~(u32)O_NONBLOCK_;
        return 0;
    case 0x5401: { /* TCGETS: only whether it is one; its settings can't be changed from here */
        static const struct { u32 flags[4]; u8 rest[20]; } terminal = {{0x500, 5, 0xbf, 0x8a3b}, {0}};
        if (!is_terminal(f))
            break;
        if (!user_range(argument, sizeof terminal))
            return -EFAULT_;
        copy((void *)argument, &terminal, sizeof terminal);
        return 0;
    }
    case 0x5450: case 0x5451: /* FIONCLEX, FIOCLEX */
        fds[fd].close_on_exec = (u32)request == 0x5451;
        return 0;
    case 0x541b: { /* FIONREAD */
        if (!user_range(argument, 4))
            return -EFAULT_;
        u64 n = f->type == FILE_STREAM || f->type == FILE_DATAGRAM ? socket_pending(f)
                : (f->type == FILE_PIPE_READ || f->type == FILE_PAIR) && f->pipe.in ? buffer_used(f->pipe.in)
                                                                                    : 0;
        *(u32 *)argument = (u32)n;
        return 0;
    }
    }
    return -ENOTTY_;
}

i64 sys_ftruncate(u64 fd, u64 length)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    return f->type == FILE_HOST ? host(HOST_TRUNCATE, f->host.handle, length, 0, 0, 0, 0) : -EINVAL_;
}

static i64 time_of(const i64 *ts)
{
    if (ts[1] == 0x3fffffff) /* UTIME_NOW */
        return -1;
    return ts[1] == 0x3ffffffe ? -2 : ts[0] * (i64)NS_PER_S + ts[1]; /* UTIME_OMIT */
}

i64 sys_utimensat(u64 directory, u64 path, u64 times)
{
    if (times && !user_range(times, 32))
        return -EFAULT_;
    const i64 *ts = (const i64 *)times;
    i64 access = times ? time_of(ts) : -1, modified = times ? time_of(ts + 2) : -1;
    if (path)
        return path_call(HOST_UTIMES, directory, path, (u64)access, (u64)modified);
    return host(HOST_UTIMES, directory_handle(directory), 0, 0, (u64)access, (u64)modified, 0);
}

i64 sys_fchdir(u64 fd)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    return f->type == FILE_HOST ? host(HOST_CHDIR, f->host.handle, 0, 0, 0, 0, 0) : -ENOTDIR_;
}
