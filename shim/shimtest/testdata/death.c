/* The daemon ends: EIO on commands, one DEVICE_FATAL, nothing hangs, no SIGPIPE. */
#include "t.h"

#include <poll.h>

int main(void)
{
	struct {
		uint64_t element;
		uint32_t type, reserved;
	} ev = {1, 2, 3};
	int32_t async = -1, comp = -1;
	int fd = open_device();
	struct extents x;

	CHECK(call(fd, CMD_GET_CONTEXT, 0, 0, &async) == 0);
	CHECK(call(fd, CMD_CREATE_COMP_CHANNEL, 0, 0, &comp) == 0);
	CHECK(call(fd, CMD_DIE, 0, 0, NULL) == EIO);
	struct pollfd p = {.fd = async, .events = POLLIN};
	CHECK(poll(&p, 1, 60000) == 1);
	CHECK(read(async, &ev, sizeof ev) == sizeof ev && ev.element == 0 && ev.type == 8);
	CHECK(read(async, &ev, sizeof ev) == -1 && errno == EIO);
	CHECK(read(comp, &ev, sizeof ev) == -1 && errno == EIO);
	for (int i = 0; i < 3; i++)
		CHECK(call(fd, CMD_ECHO, 0, 0, &ev) == EIO);
	CHECK(reg_mr(fd, &x, sizeof x, &x) == EIO);
	struct command ring = {{CMD_POST_SEND, 8, 1}, 0, 0, 0};
	CHECK(write(fd, &ring, sizeof ring) == -1 && errno == EIO);
	struct {
		struct header h;
		uint32_t cq_handle, solicited_only;
	} arm = {{CMD_REQ_NOTIFY_CQ, 4, 0}, 0, 0};
	CHECK(write(fd, &arm, sizeof arm) == -1 && errno == EIO);
	int again = 0; /* its socket may outlive our connection by a moment */
	for (int i = 0; i < 60000 && again >= 0; i++) {
		again = open(DEVICE, O_RDWR);
		if (again >= 0) {
			close(again);
			usleep(1000);
		}
	}
	CHECK(again == -1 && (errno == ENODEV || errno == ECONNREFUSED));
	close(fd);
	close(async);
	close(comp);
	return 0;
}
