/*
 * Runs a program as on an older kernel, or in a container that forbids new system calls: no
 * userfaultfd, no PROCMAP_QUERY, no MADV_POPULATE_*, no close_range, no process_madvise.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NR offsetof(struct seccomp_data, nr)
#define ARG(n) offsetof(struct seccomp_data, args[n])
#define LOAD(what) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, what)
/* If the loaded word equals value, go on with the next statement, else skip some. */
#define IF(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define FAIL(errno) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (errno))

int main(int argc, char **argv)
{
	struct sock_filter code[] = {
		LOAD(NR),
		IF(SYS_userfaultfd, 1), FAIL(EPERM),
		IF(436 /* close_range */, 1), FAIL(ENOSYS),
		IF(SYS_ioctl, 5), LOAD(ARG(1)), IF(0xc0686611u /* PROCMAP_QUERY */, 1), FAIL(ENOTTY),
		IF(0xaa00 /* USERFAULTFD_IOC_NEW */, 1), FAIL(ENOTTY),
		LOAD(NR),
		IF(SYS_madvise, 5), LOAD(ARG(2)), IF(22, 1), FAIL(EINVAL), IF(23, 1), FAIL(EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) {
		perror("seccomp");
		return 77;
	}
	execv(argv[1], argv + 1);
	perror(argv[1]);
	return 1;
}
