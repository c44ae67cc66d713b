/*
 * Tests when which process may trace us: the calls of prctl(PR_SET_PTRACER) and sendmsg are watched by
 * a thread of ours, which answers as a kernel with Yama would.
 *
 *   tracer            the daemon is in our pid namespace
 *   tracer elsewhere  it is not
 *   tracer kept       the program has named another one before
 */
#include "t.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SENT (-2l)
static long seen[16];
static _Atomic int count;
static int listener;

static void *watch(void *unused)
{
	for (;;) {
		struct seccomp_notif n = {0};
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &n))
			return unused;
		struct seccomp_notif_resp r = {.id = n.id};
		if (n.data.nr == SYS_sendmsg)
			r.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		if (count < 16)
			seen[count++] = n.data.nr == SYS_sendmsg ? SENT : (long)n.data.args[1];
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
	}
}

static void filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_PTRACER, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	pthread_t t;
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &prog);
	CHECK(listener >= 0);
	CHECK(pthread_create(&t, NULL, watch, NULL) == 0);
}

static int check(long allowed, long before)
{
	filter();
	if (before) {
		CHECK(prctl(PR_SET_PTRACER, before, 0, 0, 0) == 0);
		CHECK(count == 1 && seen[0] == before);
		count = 0;
	}
	int fd = open(DEVICE, O_RDWR);
	CHECK(fd >= 0);
	/* Allowed before the daemon learns of us, forbidden after its answer, and only once. */
	CHECK(count >= 3);
	CHECK(seen[0] == allowed);
	CHECK(seen[1] == SENT);
	CHECK(seen[2] == before);
	for (int i = 3; i < count; i++)
		CHECK(seen[i] == SENT);
	close(fd);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return check(getppid(), 0);
	if (!strcmp(argv[1], "kept"))
		return check(getppid(), 12345);
	int status = 1;
	CHECK(unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWPID : CLONE_NEWPID) == 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(check((long)PR_SET_PTRACER_ANY, 0));
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	return 0;
}
