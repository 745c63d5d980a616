/* What a worker gives up before it runs a guest: new privileges, paths and system calls. */
#ifndef SEAMGATE_JAIL_H
#define SEAMGATE_JAIL_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

int jail_die_with_parent(void);
int jail_no_new_privileges(void);
int jail_become(uid_t uid);
int jail_landlock(const char *const *readable, size_t n_readable, const char *const *writable, size_t n_writable);
int jail_seccomp(bool kill);
#endif
