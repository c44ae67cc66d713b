/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers ahead: the daemon sends the answers to librdmacm's next commands with an event. They are
 * kept here until librdmacm makes these commands. protocol.h lists the commands, and says why an
 * answer that is used equals the daemon's. A command without a valid answer here goes to the daemon.
 *
 * Answers about one identifier are in one place, and there are as many places as revisions. There
 * are no locks, so signals need not be blocked: seq is odd while a thread writes to a place. A second
 * writer then drops its answers. A reader copies the answer and compares seq before and after. If
 * they differ, it asks the daemon.
 *
 * Events on the shelf are taken without a command, too.
 */
#include <string.h>
#include <sys/mman.h>

#include "vrdma.h"

#define MOST 4u    /* answers about one identifier */
#define BYTES 288u /* of one answer */

/* Byte offsets in a command. */
enum { HEADER_IN = 4, HEADER_OUT = 6, RESPONSE = 8, ID = 16, KEY = 20 };

struct foreseen {
	_Atomic uint32_t seq;
	uint32_t id, count;
	uint64_t revision;
	struct {
		uint32_t command, key, length;
		unsigned char bytes[BYTES];
	} answer[MOST];
};
#define PLACES (sizeof(struct foreseen) * VRDMA_AHEAD_IDS)

static struct foreseen *place(struct foreseen *all, uint32_t id)
{
	return &all[id % VRDMA_AHEAD_IDS];
}

static uint64_t revision(struct file *f, uint32_t id)
{
	_Atomic uint64_t *r = (_Atomic uint64_t *)(void *)(f->mail + VRDMA_AHEAD_REVISIONS);
	return atomic_load_explicit(&r[id % VRDMA_AHEAD_IDS], memory_order_acquire);
}

static unsigned char *map(size_t size, int flags, int fd)
{
	long r = sys(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
	return r < 0 && r >= -4095 ? NULL : (unsigned char *)r;
}

bool ahead_install(struct file *f, int fd)
{
	unsigned char *mail = map(VRDMA_AHEAD_SIZE, MAP_SHARED, fd);
	if (!mail)
		return false;
	unsigned char *all = map(PLACES, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	if (!all) {
		sys(SYS_munmap, mail, VRDMA_AHEAD_SIZE);
		return false;
	}
	f->mail = mail;
	atomic_store_explicit(&f->ahead, (struct foreseen *)(void *)all, memory_order_release);
	return true;
}

void ahead_forget(struct file *f)
{
	struct foreseen *all = atomic_exchange(&f->ahead, NULL);
	if (all)
		sys(SYS_munmap, all, PLACES);
}

/*
 * Makes this thread the only writer of p; false: another thread writes to it. seq is a sequence lock: the fence keeps the bytes
 * behind the odd number, and the release at the end keeps them before the even one. A reader has an acquire load before its copy,
 * and an acquire fence between the copy and the second load. This is enough for weak ordering: TestAhead of package armcheck.
 */
static bool begin(struct foreseen *p, uint32_t *seq)
{
	*seq = atomic_load_explicit(&p->seq, memory_order_relaxed);
	if (*seq & 1 || !atomic_compare_exchange_strong(&p->seq, seq, *seq + 1))
		return false;
	atomic_thread_fence(memory_order_release);
	return true;
}

void ahead_keep(struct file *f, const unsigned char *at, const unsigned char *end, uint32_t count)
{
	struct foreseen *all = atomic_load(&f->ahead), *p = NULL;
	struct vrdma_ahead a;
	uint32_t seq = 0;

	for (uint32_t i = 0; all && i < count && i < MOST && (size_t)(end - at) >= sizeof a; i++) {
		memcpy(&a, at, sizeof a);
		at += sizeof a;
		if (a.length > BYTES || (size_t)(end - at) < a.length)
			break;
		if (!p) {
			if (!begin(place(all, a.id), &seq))
				return;
			p = place(all, a.id);
			p->id = a.id;
			p->revision = a.revision;
			p->count = 0;
		}
		if (a.id != p->id || a.revision != p->revision)
			break;
		p->answer[i].command = a.command;
		p->answer[i].key = a.key;
		p->answer[i].length = a.length;
		memcpy(p->answer[i].bytes, at, a.length);
		p->count = i + 1;
		size_t padded = ((size_t)a.length + 7) & ~7ul;
		at += padded < (size_t)(end - at) ? padded : (size_t)(end - at);
	}
	if (p)
		atomic_store_explicit(&p->seq, seq + 2, memory_order_release);
}

/* Copies the answer to a command out of p. Its length; 0: there is none, or not any more. */
static uint32_t copy(struct file *f, struct foreseen *p, const uint32_t want[3], uint16_t room,
		     unsigned char *out)
{
	uint32_t seq = atomic_load_explicit(&p->seq, memory_order_acquire), length = 0;
	uint64_t of = p->revision;

	if (seq & 1 || p->id != want[1])
		return 0;
	for (uint32_t i = 0; i < p->count && i < MOST; i++) {
		if (p->answer[i].command != want[0] || p->answer[i].key != want[2])
			continue;
		length = p->answer[i].length;
		if (length > BYTES || length > room)
			return 0;
		memcpy(out, p->answer[i].bytes, length);
		break;
	}
	atomic_thread_fence(memory_order_acquire);
	if (atomic_load_explicit(&p->seq, memory_order_relaxed) != seq)
		return 0;
	return revision(f, want[1]) == of ? length : 0;
}

bool ahead_answer(struct file *f, const unsigned char *command, size_t n)
{
	struct foreseen *all = atomic_load_explicit(&f->ahead, memory_order_acquire);
	unsigned char bytes[BYTES];
	uint32_t want[3], length;
	uint16_t in, room;
	uint64_t response;

	if (!all || n != VRDMA_AHEAD_COMMAND || atomic_load(&f->dead))
		return false;
	memcpy(&want[0], command, sizeof want[0]);
	memcpy(&want[1], command + ID, sizeof want[1]);
	memcpy(&want[2], command + KEY, sizeof want[2]);
	memcpy(&in, command + HEADER_IN, sizeof in);
	memcpy(&room, command + HEADER_OUT, sizeof room);
	if (in != VRDMA_AHEAD_COMMAND - RESPONSE)
		return false;
	length = copy(f, place(all, want[1]), want, room, bytes);
	if (!length)
		return false;
	memcpy(&response, command + RESPONSE, sizeof response);
	memcpy((void *)(uintptr_t)response, bytes, length);
	return true;
}

bool ahead_events(struct file *f)
{
	if (!atomic_load_explicit(&f->ahead, memory_order_acquire))
		return false;
	_Atomic uint32_t *events = (_Atomic uint32_t *)(void *)(f->mail + VRDMA_AHEAD_EVENTS);
	return atomic_load_explicit(events, memory_order_relaxed) != 0;
}

/*
 * Takes the next event off the shelf, into to. Its length; 0: there is none. The load of ready keeps the copy of the slot
 * behind it, and the compare-exchange, a release, before the new number. The daemon writes to the slot again only after it
 * has loaded that number.
 */
static size_t take(unsigned char *mail, unsigned char *to)
{
	_Atomic uint64_t *taken = (_Atomic uint64_t *)(void *)(mail + VRDMA_SHELF_TAKEN);
	_Atomic uint64_t *ready = (_Atomic uint64_t *)(void *)(mail + VRDMA_SHELF_READY);
	uint64_t t = atomic_load(taken);
	uint32_t length;

	do {
		if (t & VRDMA_SHELF_FROZEN || t >> 1 >= atomic_load(ready))
			return 0;
		const unsigned char *slot =
			mail + VRDMA_SHELF_SLOT + (t >> 1) % VRDMA_SHELF_SLOTS * VRDMA_SHELF_STRIDE;
		memcpy(&length, slot, sizeof length);
		if (length > VRDMA_SHELF_STRIDE - VRDMA_SHELF_REPLY)
			length = VRDMA_SHELF_STRIDE - VRDMA_SHELF_REPLY;
		memcpy(to, slot + VRDMA_SHELF_REPLY, length);
	} while (!atomic_compare_exchange_strong(taken, &t, t + 2));
	return length;
}

bool ahead_take(struct file *f, void *response, size_t room)
{
	unsigned char bytes[VRDMA_SHELF_STRIDE];
	struct vrdma_reply r;
	struct vrdma_store s;

	if (!atomic_load_explicit(&f->ahead, memory_order_acquire) || atomic_load(&f->dead))
		return false;
	size_t n = take(f->mail, bytes);
	if (n < sizeof r + sizeof s)
		return false;
	memcpy(&r, bytes, sizeof r);
	memcpy(&s, bytes + sizeof r, sizeof s);
	size_t at = sizeof r + sizeof s, padded = ((size_t)s.length + 7) & ~7ul;
	if (r.nstores != 1 || padded > n - at)
		return false;
	memcpy(response, bytes + at, s.length < room ? s.length : room);
	ahead_keep(f, bytes + at + padded, bytes + n, r.nahead);
	return true;
}
