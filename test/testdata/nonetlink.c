/* Preloaded before libvrdma.so: no socket of NETLINK_RDMA, as if nobody answered it. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK && protocol == 20) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}
