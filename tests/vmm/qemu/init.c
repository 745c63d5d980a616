/* The first process of the emulated machine: loads KVM for the emulated SVM, runs the tests, switches the machine off. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void load(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
        perror(path);
    if (fd >= 0)
        close(fd);
}

int main(void)
{
    const char *places[] = {"/proc", "/sys", "/dev", "/tmp"};
    for (int i = 0; i < 4; i++)
        mkdir(places[i], 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL); /* with all controllers: nobody else has them */
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    mkdir("/dev/shm", 0777);
    mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
    int console = open("/dev/console", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(console, fd);
    load("/modules/irqbypass.ko");
    load("/modules/kvm.ko");
    load("/modules/kvm-amd.ko");
    setenv("HOME", "/tmp", 1);
    setenv("PATH", "/bin", 1);
    setenv("LANG", "C.UTF-8", 1);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh-less", "run", NULL); /* replaced at build time by the interpreter's path, see run.py */
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("\nSEAMGATE-QEMU-STATUS %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    fflush(stdout);
    sync();
    reboot(RB_POWER_OFF);
    return 0;
}
