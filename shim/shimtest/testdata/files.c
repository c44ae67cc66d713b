/* Round trips, errors, descriptors, dup, close, doorbell, stat. */
#include "../../protocol.h"
#include "t.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

static void looks_like_a_device(int fd)
{
	struct stat st;
	struct statx sx;
	CHECK(fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(231, 192));
	CHECK(fstatat(fd, "", &st, AT_EMPTY_PATH) == 0 && S_ISCHR(st.st_mode));
	CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &sx) == 0 && S_ISCHR(sx.stx_mode) &&
	      sx.stx_rdev_major == 231 && sx.stx_rdev_minor == 192);
	CHECK(stat(DEVICE, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(231, 192));
	CHECK(ioctl(fd, 0xc0181b01u, NULL) == -1 && errno == ENOTTY);
	int other = socket(AF_NETLINK, SOCK_RAW, 0);
	CHECK(other >= 0);
	close(other);
}

static void commands(int fd)
{
	char byte = 0;
	struct command c = {{CMD_ECHO, sizeof c / 4, 0}, 0, 7, 0};
	struct iovec iov[2] = {{&c, 8}, {(char *)&c + 8, sizeof c - 8}};
	uint64_t v = 0;
	for (uint64_t i = 0; i < 100; i++)
		CHECK(ask(fd, CMD_ECHO, i) == i + 1);
	CHECK(call(fd, CMD_FAIL, EDQUOT, 0, NULL) == EDQUOT);
	c.response = (uintptr_t)&v;
	CHECK(writev(fd, iov, 2) == (ssize_t)sizeof c && v == 8);
	CHECK(write(fd, &byte, 1) == -1 && errno == EINVAL);
	CHECK(read(fd, &byte, 1) == -1 && errno == EINVAL);
}

#define NOT_READY 5 /* fake_test.go clears its bit */

static void ring(int fd, uint32_t qp)
{
	struct {
		struct header h;
		uint64_t response;
		uint32_t qp_handle, wr_count, sge_count, wqe_size;
	} c = {{CMD_POST_SEND, 8, 1}, 0, qp, 0, 0, 0};
	CHECK(write(fd, &c, sizeof c) == (ssize_t)sizeof c);
}

static void doorbell(int fd)
{
	unsigned char *page = mmap(NULL, VRDMA_DB_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	uint64_t *bitmap = (uint64_t *)(page + 4096), *summary = (uint64_t *)(page + 128);
	uint32_t *armed = (uint32_t *)page, *any = (uint32_t *)(page + 64);
	memset(page + VRDMA_DB_READY, 0xff, VRDMA_DB_SIZE - VRDMA_DB_READY);
	ring(fd, 65536 + 4097);
	CHECK(bitmap[64] == 2 && summary[1] == 1 && *any == 1);
	CHECK(ask(fd, CMD_BELLS, 0) == 0); /* nobody sleeps */
	*armed = 1;
	ring(fd, 3);
	CHECK(bitmap[0] == 8 && summary[0] == 1 && *armed == 0);
	CHECK(ask(fd, CMD_BELLS, 0) == 1);
	munmap(page, VRDMA_DB_SIZE);
}

/* 0 or the errno of REQ_NOTIFY_CQ; the fake daemon always says EDOM. */
static int arm(int fd, uint32_t cq, uint32_t solicited)
{
	struct {
		struct header h;
		uint32_t cq_handle, solicited_only;
	} c = {{CMD_REQ_NOTIFY_CQ, 4, 0}, cq, solicited};
	ssize_t n = write(fd, &c, sizeof c);
	CHECK(n == (ssize_t)sizeof c || n == -1);
	return n == -1 ? errno : 0;
}

static void arming(int fd)
{
	unsigned char *page = mmap(NULL, VRDMA_SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	uint32_t *told = (uint32_t *)(page + VRDMA_ARM_BY_COMMAND);
	uint32_t *word = (uint32_t *)(page + VRDMA_ARM_WORDS + 7 * VRDMA_ARM_STRIDE);
	uint32_t *last = (uint32_t *)(page + VRDMA_SHARED_SIZE - VRDMA_ARM_STRIDE);
	CHECK(arm(fd, 7, 0) == EDOM && *word == 0); /* it is not there */
	*word = *last = VRDMA_ARM_READY;
	CHECK(arm(fd, 7, 1) == 0 && *word == (VRDMA_ARM_READY | VRDMA_ARM_SOLICITED));
	CHECK(arm(fd, 7, 0) == 0 && *word == (VRDMA_ARM_READY | VRDMA_ARM_SOLICITED | VRDMA_ARM_ALL));
	*word = VRDMA_ARM_READY;
	CHECK(arm(fd, 7, 0) == 0 && arm(fd, 7, 5) == 0 && *word & VRDMA_ARM_ALL);
	CHECK(arm(fd, VRDMA_ARM_CQS - 1, 0) == 0 && *last & VRDMA_ARM_ALL);
	CHECK(arm(fd, VRDMA_ARM_CQS, 0) == EDOM && arm(fd, ~0u, 0) == EDOM);
	*word = VRDMA_ARM_READY;
	*told = 1; /* somebody traces us */
	CHECK(arm(fd, 7, 0) == EDOM && *word == VRDMA_ARM_READY);
	*told = 0;
	struct {
		struct header h;
		uint32_t cq_handle, solicited_only, more;
	} odd = {{CMD_REQ_NOTIFY_CQ, 4, 0}, 7, 0, 0};
	CHECK(write(fd, &odd, sizeof odd) == -1 && errno == EDOM); /* the daemon judges */
	odd.h.in_words = 5;
	CHECK(write(fd, &odd, 16) == -1 && errno == EDOM);
	CHECK(*word == VRDMA_ARM_READY);
	munmap(page, VRDMA_SHARED_SIZE);
}

/*
 * Arming a queue that has completions. If one came after the last event, the library asks the
 * daemon to look, and the fake daemon answers EDOM. The ring has 16 slots in the first page behind
 * the arm words.
 */
static void arming_late(int fd)
{
	const uint32_t mask = 15, none = VRDMA_ARM_NONE;
	unsigned char *page = mmap(NULL, VRDMA_SHARED_SIZE + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	unsigned char *line = page + VRDMA_ARM_WORDS + 9 * VRDMA_ARM_STRIDE, *ring = page + VRDMA_SHARED_SIZE;
	uint32_t *word = (uint32_t *)line, *at = (uint32_t *)(line + VRDMA_ARM_RING);
	uint32_t *woken = (uint32_t *)(line + VRDMA_ARM_WOKEN), *urgent = (uint32_t *)(line + VRDMA_ARM_URGENT);
	uint32_t *producer = (uint32_t *)(ring + 128), *consumer = (uint32_t *)(ring + 256);

	*(uint32_t *)(ring + 4) = mask;
	for (uint32_t i = 0; i <= mask; i++) { /* everywhere in the ring */
		static const struct {
			uint32_t producer, woken, urgent; /* relative to the consumer; none: none */
			uint32_t solicited;
			uint32_t armed;
			int want;
		} cases[] = {
			{0, VRDMA_ARM_NONE, VRDMA_ARM_NONE, 0, 0, 0}, /* empty */
			{1, VRDMA_ARM_NONE, VRDMA_ARM_NONE, 0, 0, EDOM},
			{15, VRDMA_ARM_NONE, VRDMA_ARM_NONE, 0, 0, EDOM}, /* full */
			{3, 0, VRDMA_ARM_NONE, 0, 0, 0},  /* there was an event, and no poll since */
			{3, 15, VRDMA_ARM_NONE, 0, 0, EDOM}, /* there was one before the last poll */
			{3, VRDMA_ARM_NONE, VRDMA_ARM_NONE, 1, 0, 0}, /* nothing solicited */
			{3, VRDMA_ARM_NONE, 1, 1, 0, EDOM},
			{3, VRDMA_ARM_NONE, 3, 1, 0, EDOM},
			{3, VRDMA_ARM_NONE, 0, 1, 0, 0}, /* it was polled */
			{3, VRDMA_ARM_NONE, 12, 1, 0, 0},
			{3, 0, 3, 1, 0, 0},
			{3, VRDMA_ARM_NONE, VRDMA_ARM_NONE, 1, VRDMA_ARM_ALL, EDOM}, /* another thread wants all */
		};
		for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
			*word = VRDMA_ARM_READY | cases[k].armed;
			*at = VRDMA_SHARED_SIZE / 4096;
			*consumer = i;
			*producer = (i + cases[k].producer) & mask;
			*woken = cases[k].woken == none ? none : (i + cases[k].woken) & mask;
			*urgent = cases[k].urgent == none ? none : (i + cases[k].urgent) & mask;
			CHECK(arm(fd, 9, cases[k].solicited) == cases[k].want);
			CHECK(*word == (VRDMA_ARM_READY | cases[k].armed | (cases[k].solicited ? VRDMA_ARM_SOLICITED : VRDMA_ARM_ALL)));
		}
	}
	*at = 0; /* no channel: nothing to look at */
	*producer = (*consumer + 1) & mask;
	CHECK(arm(fd, 9, 0) == 0);
	*at = ~0u; /* outside every arena: the daemon is asked */
	CHECK(arm(fd, 9, 0) == EDOM);
	*at = 0;
	munmap(page, VRDMA_SHARED_SIZE + 4096);
}

static int event_file(int fd, uint32_t command)
{
	int32_t n = -1;
	CHECK(call(fd, command, 0, 0, &n) == 0 && n >= 0);
	CHECK(fcntl(n, F_GETFD) & FD_CLOEXEC);
	return n;
}

static int64_t channel_seen(int fd, int channel, int extended)
{
	int64_t v = -2;
	struct {
		struct header h;
		uint64_t response, user_handle;
		uint32_t cqe, vector;
		int32_t channel;
		uint32_t reserved;
	} c = {{CMD_CREATE_CQ, 10, 0}, (uintptr_t)&v, 0, 1, 0, channel, 0};
	struct {
		struct header h;
		uint64_t response, words, user_handle;
		uint32_t cqe, vector;
		int32_t channel;
		uint32_t mask;
	} x = {{CMD_CREATE_CQ | 0x80000000u, 6, 0}, (uintptr_t)&v, 0, 0, 1, 0, channel, 0};
	if (extended)
		CHECK(write(fd, &x, sizeof x) == (ssize_t)sizeof x);
	else
		CHECK(write(fd, &c, sizeof c) == (ssize_t)sizeof c);
	return v;
}

static void events(int fd)
{
	struct {
		uint64_t element;
		uint32_t type, reserved;
	} ev;
	int async = event_file(fd, CMD_GET_CONTEXT), comp = event_file(fd, CMD_CREATE_COMP_CHANNEL);
	for (int extended = 0; extended < 2; extended++) {
		CHECK(channel_seen(fd, -1, extended) == -1);
		CHECK(channel_seen(fd, comp, extended) == 77);
		CHECK(channel_seen(fd, async, extended) == 0x7fffffff);
		CHECK(channel_seen(fd, 0, extended) == 0x7fffffff);
	}
	int copy = dup(comp);
	CHECK(copy >= 0 && close(comp) == 0);
	CHECK(channel_seen(fd, comp, 0) == 0x7fffffff && channel_seen(fd, copy, 0) == 77);
	CHECK(call(fd, CMD_EVENT, 42, 0, NULL) == 0);
	CHECK(read(async, &ev, sizeof ev) == sizeof ev && ev.element == 42);
	CHECK(fcntl(async, F_SETFL, O_NONBLOCK) == 0);
	CHECK(read(async, &ev, sizeof ev) == -1 && errno == EAGAIN);
	close(copy);
	close(async);
}

/* The file lives until its last descriptor is closed. */
static void duplicates(int fd)
{
	int a = dup(fd), b = fcntl(fd, F_DUPFD_CLOEXEC, 50), c = dup2(fd, 60), d = dup3(fd, 61, O_CLOEXEC);
	CHECK(a >= 0 && b >= 50 && c == 60 && d == 61);
	close(fd);
	CHECK(ask(a, CMD_ECHO, 1) == 2 && ask(b, CMD_ECHO, 2) == 3 && ask(c, CMD_ECHO, 3) == 4);
	close(a);
	close(b);
	CHECK(dup2(2, c) == c); /* an ordinary file takes the number */
	CHECK(write(c, "", 0) == 0);
	CHECK(ask(d, CMD_ECHO, 4) == 5);
	CHECK(dup2(1000, d) == -1 && errno == EBADF && ask(d, CMD_ECHO, 5) == 6);
	close(d);
	CHECK(close(d) == -1 && errno == EBADF);
	CHECK(write(d, "12345678", 8) == -1 && errno == EBADF);
	close(c);
}

static int hidden_fds(void)
{
	int n = 0;
	for (int fd = 100; fd < 20000; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void close_everything(void)
{
	int keep = open_device();
	for (int fd = 3; fd < 20000; fd++)
		if (fd != keep)
			close(fd);
	CHECK(ask(keep, CMD_ECHO, 1) == 2);
	CHECK(hidden_fds() == 4); /* process, memory, control, bell */
	int numbers[4], n = 0;
	for (int fd = 100; fd < 20000; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			numbers[n++] = fd;
	for (int i = 0; i < n; i++)
		CHECK(dup2(2, numbers[i]) == numbers[i]); /* they step aside */
	CHECK(hidden_fds() == 8 && ask(keep, CMD_ECHO, 1) == 2);
	for (int fd = 100; fd < 20000; fd++)
		close(fd);
	CHECK(hidden_fds() == 4 && ask(keep, CMD_ECHO, 2) == 3);
	int new_kernel = close_range((unsigned)keep + 1, ~0u, 0) == 0;
	CHECK((new_kernel || errno == ENOSYS) && ask(keep, CMD_ECHO, 3) == 4);
	if (new_kernel)
		CHECK(close_range(3, ~0u, 0) == 0);
	else
		close(keep);
	CHECK(write(keep, "12345678", 8) == -1 && errno == EBADF && hidden_fds() == 2);
	keep = open_device();
	closefrom(keep + 1);
	CHECK(ask(keep, CMD_ECHO, 4) == 5);
	closefrom(3);
	CHECK(hidden_fds() == 2);
}

/* A descriptor that a vfork child closes stays open here. */
static void vfork_child(void)
{
	int fd = open_device();
	pid_t pid = vfork();
	if (pid == 0) {
		for (int i = 3; i < 20000; i++)
			close(i);
		dup2(2, fd);
		_exit(0);
	}
	wait_ok(pid);
	CHECK(ask(fd, CMD_ECHO, 1) == 2);
	CHECK(system("exit 3") == 3 << 8);
	CHECK(ask(fd, CMD_ECHO, 2) == 3);
	close(fd);
}

int main(void)
{
	int fd = open_device();
	CHECK(fd < 10);
	looks_like_a_device(fd);
	commands(fd);
	doorbell(fd);
	arming(fd);
	arming_late(fd);
	events(fd);
	duplicates(fd);
	close_everything();
	vfork_child();
	return 0;
}
