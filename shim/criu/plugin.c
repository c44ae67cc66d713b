/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vrdma_criu_plugin.so, a plugin of CRIU 4: it moves the vrdma NICs of a container with the container. All meaning is in
 * the commands that it runs: vrdma criu leave, settle and arrive. Their messages are in vrdma.log, beside the images.
 *
 *   dump     init: the list of NICs goes, which an earlier dump may have left in this image directory
 *            PAUSE_DEVICES, before the processes are frozen: leave. The state goes to the image directory
 *            exit: settle, which lets the programs continue here if they live when CRIU has ended
 *   restore  init: arrive, which waits for the programs
 *
 * CRIU calls the hooks by the table CR_PLUGIN_DESC, whose layout is that of criu-plugin.h, version 0.2.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STAGE_DUMP = 0, STAGE_RESTORE = 2 };
enum { PAUSE_DEVICES = 10, HOOKS };

extern int criu_get_image_dir(void);

/* cr_plugin_desc_t */
struct description {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int ret);
	unsigned version, max_hooks;
	void *hooks[HOOKS];
};

/* Descriptors of the commands: the image directory, and the list of NICs as it was when the command began. */
enum { IMAGES = 3, LIST = 4 };
static const char list[] = "vrdma.moves";

/* Has a NIC left for these images? */
static bool any(void)
{
	return faccessat(criu_get_image_dir(), list, F_OK, 0) == 0;
}

/* Runs vrdma criu COMMAND NUMBER, in the child. */
static void run(const char *command, long number)
{
	char text[24];
	int images = criu_get_image_dir(), null = open("/dev/null", O_RDWR), log, moves;
	moves = openat(images, list, O_RDONLY); /* the next dump may remove it */
	log = openat(images, "vrdma.log", O_WRONLY | O_CREAT | O_APPEND, 0600);
	snprintf(text, sizeof text, "%ld", number);
	images = fcntl(images, F_DUPFD, 20); /* away from the numbers below */
	log = log < 0 ? null : fcntl(log, F_DUPFD, 20);
	moves = moves < 0 ? null : fcntl(moves, F_DUPFD, 20);
	dup2(null, 0);
	dup2(log, 1);
	dup2(log, 2);
	dup2(images, IMAGES);
	dup2(moves, LIST);
	for (int fd = LIST + 1; fd < 1024; fd++)
		close(fd);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execlp("vrdma", "vrdma", "criu", command, text, (char *)NULL);
	fprintf(stderr, "vrdma cannot be run: %s\n", strerror(errno));
	_exit(127);
}

/* The exit status of the command; -1: it could not be run. */
static int wait_for(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/*
 * The same, and the command goes on after CRIU. CRIU must not meet a child that it does not know. The pipe shows that the command
 * has its files.
 */
static void start(const char *command, long number)
{
	int ready[2];
	char byte;
	if (pipe2(ready, O_CLOEXEC) < 0)
		return;
	pid_t pid = fork();
	if (pid == 0) {
		setsid();
		if (fork() == 0)
			run(command, number);
		_exit(0);
	}
	close(ready[1]);
	(void)!read(ready[0], &byte, 1); /* its other end is closed by exec, or by the loop before */
	close(ready[0]);
	if (pid > 0)
		wait_for(pid);
}

static int pause_devices(int pid)
{
	pid_t child = fork();
	if (child == 0)
		run("leave", pid);
	return child > 0 && wait_for(child) == 0 ? 0 : -1;
}

static int init(int stage)
{
	if (stage == STAGE_DUMP)
		unlinkat(criu_get_image_dir(), list, 0);
	if (stage == STAGE_RESTORE && any())
		start("arrive", 0);
	return 0;
}

static void finish(int stage, int ret)
{
	(void)ret;
	if (stage == STAGE_DUMP && any())
		start("settle", getpid());
}

extern const struct description CR_PLUGIN_DESC;
__attribute__((visibility("default"))) const struct description CR_PLUGIN_DESC = {
	.name = "vrdma",
	.init = init,
	.exit = finish,
	.version = 0 << 16 | 2 << 8 | 0,
	.max_hooks = HOOKS,
	.hooks = {[PAUSE_DEVICES] = (void *)pause_devices},
};
