/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deny WHAT[,WHAT...] PROGRAM...: runs a program that may not make some system calls.
 *
 *   userfaultfd   EPERM, as in the seccomp profiles of Docker and podman
 *   ptrace        EPERM
 *   uring         EPERM
 *   ptrace-kills  a caller of ptrace ends
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int filter(unsigned nr, unsigned answer)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(*code), code};

	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

int main(int argc, char **argv)
{
	int failed = argc < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);

	for (char *what = argc < 3 ? NULL : strtok(argv[1], ","); what && !failed; what = strtok(NULL, ",")) {
		if (!strcmp(what, "userfaultfd"))
			failed = filter(SYS_userfaultfd, SECCOMP_RET_ERRNO | EPERM);
		else if (!strcmp(what, "ptrace"))
			failed = filter(SYS_ptrace, SECCOMP_RET_ERRNO | EPERM);
		else if (!strcmp(what, "uring"))
			failed = filter(SYS_io_uring_setup, SECCOMP_RET_ERRNO | EPERM);
		else if (!strcmp(what, "ptrace-kills"))
			failed = filter(SYS_ptrace, SECCOMP_RET_KILL_PROCESS);
		else
			failed = 1;
	}
	if (!failed)
		execvp(argv[2], argv + 2);
	perror("deny");
	return 127;
}
