/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of both ends. To the kernel an IPv4 peer of an IPv6 socket is ::ffff:a.b.c.d, to
 * rdma_cm it is a.b.c.d; programs cast what they get to what they asked for.
 */
#include <netinet/in.h>
#include <string.h>

#include "sockets.h"

/* Hand out a name as the kernel would: cut to the room there is, with its full length. */
void name_give(const struct entry *e, const union name *from, struct sockaddr *to, socklen_t *room)
{
	union name a = *from;
	if (e->domain == AF_INET6 && from->any.sa_family == AF_INET) {
		a = (union name){.v6 = {.sin6_family = AF_INET6, .sin6_port = from->v4.sin_port}};
		a.v6.sin6_addr.s6_addr[10] = a.v6.sin6_addr.s6_addr[11] = 0xff;
		memcpy(&a.v6.sin6_addr.s6_addr[12], &from->v4.sin_addr, 4);
	}
	socklen_t n = a.any.sa_family == AF_INET6 ? sizeof a.v6 : sizeof a.v4;
	memcpy(to, &a, *room < n ? *room : n);
	*room = n;
}

/* And the other way. */
bool name_take(const struct sockaddr *from, socklen_t n, union name *to)
{
	*to = (union name){0};
	memcpy(to, from, n < sizeof *to ? n : sizeof *to);
	if (to->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&to->v6.sin6_addr))
		return false;
	union name v4 = {.v4 = {.sin_family = AF_INET, .sin_port = to->v6.sin6_port}};
	memcpy(&v4.v4.sin_addr, &to->v6.sin6_addr.s6_addr[12], 4);
	*to = v4;
	return true;
}

EXPORT int getsockname(int fd, struct sockaddr *restrict to, socklen_t *restrict n)
{
	struct entry *e = entry_at(fd);
	if (!e)
		return REAL(getsockname)(fd, to, n);
	union name a = {0};
	socklen_t room = sizeof a;
	if (REAL(getsockname)(number_of(e), &a.any, &room))
		return -1;
	name_give(e, &a, to, n);
	return 0;
}

EXPORT int getpeername(int fd, struct sockaddr *restrict to, socklen_t *restrict n)
{
	struct entry *e = entry_at(fd);
	if (!e)
		return REAL(getpeername)(fd, to, n);
	if (kind_of(e) != CONNECTED && kind_of(e) != CONNECTING)
		return kind_of(e) == DEAD ? dead_use() : FAIL(ENOTCONN);
	union name a = {0};
	socklen_t room = sizeof a;
	if (REAL(getpeername)(fd_of(e), &a.any, &room))
		return -1;
	name_give(e, &a, to, n);
	return 0;
}
