/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between libvrdma.so and the vrdma daemon. Its Go twin is
 * internal/client/protocol; a test compares every constant and every size. Change both
 * together and raise VRDMA_PROTOCOL.
 *
 * Transport: a unix SOCK_SEQPACKET socket, one message a datagram, host byte
 * order. One connection carries one conversation:
 *
 *   PROCESS  opened once a process, kept until it ends. The daemon answers with
 *            a token and the process's memfd for registered memory.
 *   UVERBS   one for every open() of /dev/infiniband/uverbs0. The daemon
 *            answers with the arena memfd (which becomes the application's
 *            command fd) and the doorbell eventfd.
 *   RDMACM   one for every open() of /dev/infiniband/rdma_cm. The daemon answers
 *            with a socket that becomes the application's descriptor: it can be
 *            read, and must not be, while events are pending.
 *
 *   NETLINK  one for every socket of NETLINK_RDMA. After the welcome the connection
 *            itself becomes the application's descriptor: each message is a netlink
 *            datagram, as it is. It needs no PROCESS connection.
 *
 * (Kinds for tools, CONTROL and its requests, are known to the Go side only.)
 */
#ifndef VRDMA_PROTOCOL_H
#define VRDMA_PROTOCOL_H

#include <stdint.h>

#define VRDMA_MAGIC 0x4d445256u /* "VRDM" */
#define VRDMA_PROTOCOL 3u
#define VRDMA_MAX_MESSAGE 65536u
#define VRDMA_MAX_FDS 4u

/* A file in the root of a device tree that has no port yet: the tree gets one when a program connects. */
#define VRDMA_UNFINISHED "unfinished"

enum vrdma_kind {
	VRDMA_KIND_PROCESS = 1,
	VRDMA_KIND_UVERBS = 2,
	VRDMA_KIND_RDMACM = 3,
	VRDMA_KIND_CONTROL = 4,
	VRDMA_KIND_NETLINK = 5,
};

/* In flags of a hello: the client can use a mailbox; and, of an RDMACM one, answers ahead. */
#define VRDMA_HELLO_MAIL 1u
#define VRDMA_HELLO_AHEAD 2u
/* Of a PROCESS one: the faults of VRDMA_FAULT follow, VRDMA_MAX_FAULTS bytes at most, NUL included. */
#define VRDMA_HELLO_FAULTS 4u
#define VRDMA_MAX_FAULTS 512u
/* Of a PROCESS one: the client can let go of the daemon and come back, see "Moving" at the end. */
#define VRDMA_HELLO_MOVES 8u
/* The client comes back; its name, an uint32_t, follows. */
#define VRDMA_HELLO_RETURN 16u

/* First message of every connection, client to daemon. */
struct vrdma_hello {
	uint32_t magic;
	uint32_t protocol;
	uint32_t kind;
	uint32_t flags;    /* VRDMA_HELLO_* */
	uint8_t token[16]; /* of the process; zero with KIND_PROCESS */
	char vnic[32];     /* NUL padded; empty: the default vNIC */
	char label[32];    /* what `vrdma trace` asked for, else empty */
	char program[64];  /* argv[0] without directories, for `vrdma status` */
};

/*
 * The daemon's answer. error is 0 or a positive errno, and then text says why
 * in words for the user. Descriptors follow by SCM_RIGHTS, in this order:
 *   PROCESS: memory memfd        UVERBS: arena memfd, doorbell eventfd
 *   RDMACM: event socket
 */
struct vrdma_welcome {
	uint32_t magic;
	uint32_t protocol;
	int32_t error;
	uint32_t nfds;
	uint8_t token[16];
	uint64_t arena_size;
	uint32_t rdev_major; /* what fstat of the device must show */
	uint32_t rdev_minor;
	int32_t daemon_pid;
	uint32_t id; /* RDMACM: what stands for the descriptor in MIGRATE_ID; PROCESS: VRDMA_MAPS_*;
		      * UVERBS: the device's name, see "Moving" */
	char text[192];
};

/*
 * The daemon maps memory that the process shares with others (extents of kind SHARED); for that
 * it needs a descriptor where the process has one.
 */
#define VRDMA_MAPS_SHARED 1u
#define VRDMA_MAPS_DESCRIPTORS 2u

/*
 * Doorbell page, at offset 0 of the arena. Ringing for queue pair handle h:
 *   bit = h % VRDMA_DB_BITS
 *   fetch_or(bitmap[bit / 64], 1 << (bit % 64), release)
 *   fetch_or(summary[bit / 4096], 1 << (bit / 64 % 64), release)
 *   store(any, 1, seq_cst)
 *   if (load(armed, seq_cst) && exchange(armed, 0)) write(eventfd, 1)
 * The daemon sets armed before it sleeps and looks at any once more after that.
 *
 * cpu is the processor that the daemon runs on, plus one; 0: the daemon wakes no thread. If it
 * is not 0, a thread that polls in vain may sleep on waiting, which is round << 2 | state:
 *   w = fetch_or(waiting, VRDMA_DB_ANNOUNCED, seq_cst) | VRDMA_DB_ANNOUNCED
 *   poll once more every completion queue that it waits for
 *   compare_exchange(waiting, w, w | VRDMA_DB_ASLEEP)
 *   if waiting was neither of the two: do not sleep
 *   futex_wait(waiting, w | VRDMA_DB_ASLEEP) for a bounded moment
 *   if it was woken: futex_wake the other threads
 * After the daemon has written a completion it looks for ANNOUNCED. If that is set it soon
 * stores the next round, with no state, and if ASLEEP was set it wakes one thread.
 * internal/device/nic/waiting.go says why no wake-up is lost.
 *
 * Where a queue pair's bit in ready is clear, ringing is not enough: the command
 * goes to the daemon, which answers as the kernel would (a queue pair that cannot
 * send yet refuses).
 */
#define VRDMA_DB_BITS 65536u
#define VRDMA_DB_ARMED 0u      /* uint32_t */
#define VRDMA_DB_ANY 64u       /* uint32_t */
#define VRDMA_DB_SUMMARY 128u  /* uint64_t[16] */
#define VRDMA_DB_WAITING 256u  /* uint32_t */
#define VRDMA_DB_CPU 320u      /* uint32_t, the daemon's */
#define VRDMA_DB_BITMAP 4096u  /* uint64_t[1024] */
#define VRDMA_DB_READY 12288u  /* uint64_t[1024], the daemon's */
#define VRDMA_DB_ANNOUNCED 1u  /* in waiting */
#define VRDMA_DB_ASLEEP 2u     /* likewise */
#define VRDMA_DB_SIZE 20480u

/*
 * Arm lines, behind the doorbell page: one for each completion queue handle below VRDMA_ARM_CQS. A
 * line begins with the arm word; the other words are the daemon's:
 *   ring    page of the arena where the queue's ring begins (struct rxe_queue_buf); 0: the queue has
 *           no channel
 *   woken   consumer index at the queue's latest event, or VRDMA_ARM_NONE
 *   urgent  producer index behind the latest completion that is solicited or an error, or
 *           VRDMA_ARM_NONE
 * REQ_NOTIFY_CQ for handle h:
 *   if (load(told) || !(load(word[h]) & VRDMA_ARM_READY)) the command goes to the daemon
 *   fetch_or(word[h], solicited only ? VRDMA_ARM_SOLICITED : VRDMA_ARM_ALL, seq_cst); fence(seq_cst)
 *   load the ring's producer and consumer, woken and urgent
 *   if (producer == consumer, or consumer == woken) done
 *   if (solicited only, ARM_ALL was not set before, and urgent is NONE or not behind consumer) done
 *   REQ_NOTIFY_CQ with VRDMA_NOTIFY_LOOK as solicited_only goes to the daemon: if the queue is still
 *   armed, and there are such completions, it clears the bits and writes an event to the channel
 * READY and told are the daemon's. READY is set while there is a queue of that handle. told is
 * not 0 while a trace of the session is running, which shows every arm. After the daemon has
 * written a completion:
 *   w = load(word[h], seq_cst)
 *   if (w & ARM_ALL, or w & ARM_SOLICITED and the completion is solicited or an error)
 *     fetch_and(word[h], ~(ARM_SOLICITED | ARM_ALL)); write an event to the channel
 * internal/device/nic/arm.go says why no wake-up is lost. The command does the same: the daemon sets the
 * bits and looks. A client of protocol 2 knows no other way.
 */
#define VRDMA_ARM_CQS 16384u
#define VRDMA_ARM_STRIDE 64u
#define VRDMA_ARM_READY 1u
#define VRDMA_ARM_SOLICITED 2u
#define VRDMA_ARM_ALL 4u
#define VRDMA_ARM_RING 4u              /* uint32_t, in the line */
#define VRDMA_ARM_WOKEN 8u             /* likewise */
#define VRDMA_ARM_URGENT 12u           /* likewise */
#define VRDMA_ARM_NONE 0xffffffffu     /* in woken and urgent: there was none */
#define VRDMA_NOTIFY_LOOK 0x80000000u  /* in REQ_NOTIFY_CQ.solicited_only: the bits are set */
#define VRDMA_ARM_BY_COMMAND 384u /* uint32_t, in the doorbell page, the daemon's */
#define VRDMA_ARM_WORDS 20480u    /* uint32_t at each stride */
#define VRDMA_SHARED_SIZE 1069056u /* doorbell page and arm words; rings start after this */

/*
 * Sure commands: those that the daemon is certain to accept, and has no answer to. The doorbell page
 * describes one kind of them: a command of length bytes (0: there are none), each of which is equal to
 * its byte in value where mask has ones, and whose handle (at byte handle_at, uint32_t) is below
 * VRDMA_SURE_HANDLES and has its bit set in bits. It is a change of a queue pair's state that only the
 * client can see. The client need not wait for such a command, unless told (VRDMA_ARM_BY_COMMAND) is set:
 * it leaves the command in the mailbox (see there), and the command has succeeded.
 */
#define VRDMA_SURE_LENGTH 448u    /* uint32_t, the daemon's, like all of this */
#define VRDMA_SURE_HANDLE_AT 452u /* uint32_t */
#define VRDMA_SURE_VALUE 512u
#define VRDMA_SURE_MASK 640u
#define VRDMA_SURE_MAX 128u       /* of value and mask */
#define VRDMA_SURE_BITS 1024u     /* uint64_t[384] */
#define VRDMA_SURE_HANDLES 24576u

/*
 * A request carries one write() of the application, verbatim:
 *   struct vrdma_request, struct vrdma_extent[nextents], command bytes.
 * On a PROCESS connection op SYNC asks the daemon to bring the counter files
 * of the device tree up to date; it has no body.
 * On a UVERBS connection op ROOM asks, before the memory is made shared, whether the process may
 * register one extent more, of any kind: 0 or the errno that REG_MR would have. A daemon that
 * does not know the question answers EINVAL, which means no more than that.
 * On an RDMACM connection the bytes that SET_OPTION points to follow the command.
 */
enum vrdma_op {
	VRDMA_OP_COMMAND = 1,
	VRDMA_OP_SYNC = 2,
	VRDMA_OP_ROOM = 3,
	VRDMA_OP_LEAVE = 4,  /* see "Moving" at the end */
	VRDMA_OP_STAY = 5,
	VRDMA_OP_RETURN = 6,
};

struct vrdma_request {
	uint32_t op;
	uint32_t command_len;
	uint32_t nextents;
	uint32_t reserved;
};

/*
 * The memory of a buffer that REG_MR names. The extents of one request cover
 * [start, start+length) in order, without gaps.
 *   HOLE     nothing mapped (the daemon answers EFAULT)
 *   OWN      pages of the process's memfd, file offset = virtual address
 *   FOREIGN  anything else; the daemon reaches it through /proc/PID/mem. Bits 8 to 15 of prot
 *            say why (enum vrdma_why), for `vrdma status` and `vrdma trace`
 *   SHARED   mappings that the program shares with others; the daemon finds out which file it
 *            is, and maps it too, if it lies in memory. The bits of prot from 8 on are the number
 *            of a descriptor of the file, plus one; 0: there is none. A client sends this
 *            kind only to a daemon that said VRDMA_MAPS_SHARED
 */
enum vrdma_extent_kind {
	VRDMA_EXTENT_HOLE = 0,
	VRDMA_EXTENT_OWN = 1,
	VRDMA_EXTENT_FOREIGN = 2,
	VRDMA_EXTENT_SHARED = 3,
};
#define VRDMA_PROT_READ 1u
#define VRDMA_PROT_WRITE 2u
#define VRDMA_WHY_SHIFT 8u
#define VRDMA_DESCRIPTOR_SHIFT 8u

/* Why an extent is FOREIGN. */
enum vrdma_why {
	VRDMA_WHY_UNKNOWN = 0,
	VRDMA_WHY_PINNED = 1,   /* a device or the kernel holds the page */
	VRDMA_WHY_FILE = 2,     /* a file that the daemon does not map: on a disk, on FUSE */
	VRDMA_WHY_THREAD = 3,   /* a thread's stack, TLS or rseq area */
	VRDMA_WHY_RUNNING = 4,  /* the other threads could not be stopped */
	VRDMA_WHY_ASYNC = 5,    /* the process has an io_uring or an AIO context */
	VRDMA_WHY_MAPPINGS = 6, /* the process has too many mappings */
	VRDMA_WHY_KERNEL = 7,   /* this kernel offers no way to replace the page safely */
	VRDMA_WHY_SPECIAL = 8,  /* the mapping is of a kind that is never replaced */
	VRDMA_WHY_MEMORY = 9,   /* no memory or no descriptor was free */
	VRDMA_WHY_STALLED = 10, /* touching memory of the same user stopped the daemon; a client never sends it */
	VRDMA_WHY_COPIED = 11,  /* another region has the page as foreign memory: the daemon may be copying it */
};

struct vrdma_extent {
	uint64_t start;
	uint64_t length;
	uint32_t kind;
	uint32_t prot;
};

/*
 * The reply: struct vrdma_reply, then nstores of
 *   struct vrdma_store followed by length bytes, padded to 8,
 * then nfds of struct vrdma_fd; the descriptors come by SCM_RIGHTS in the same
 * order. error is 0 or a positive errno. The shim copies the stores to the
 * addresses they name and writes each descriptor's number (int32_t) to its
 * address; stores are made also when error is not 0. Last come nahead answers ahead,
 * see below.
 */
struct vrdma_reply {
	int32_t error;
	uint32_t nstores;
	uint32_t nfds;
	uint32_t nahead;
};

struct vrdma_store {
	uint64_t address;
	uint32_t length;
	uint32_t reserved;
};

enum vrdma_fd_kind {
	VRDMA_FD_ASYNC = 1, /* read: one struct ib_uverbs_async_event_desc a message */
	VRDMA_FD_COMP = 2,  /* read: one struct ib_uverbs_comp_event_desc a message */
	VRDMA_FD_MAIL = 3,  /* a mailbox, for the client itself: address means nothing, id is 0 or
			     * VRDMA_MAIL_AHEAD: revisions follow the page */
};

struct vrdma_fd {
	uint64_t address;
	uint32_t kind;
	uint32_t id; /* the daemon's name for it: replaces the fd number in later commands */
};

/*
 * A mailbox: a page with a session's requests and replies, which need no system call while client
 * and daemon are both awake. The daemon passes it with a reply to a client that supports it and has
 * made some commands. The socket is still used for replies with descriptors, for messages that are
 * long or take long, and to sleep. Bits of state:
 *   OPEN      the daemon looks here; only it sets and clears this
 *   ASKED     there is a request
 *   ASLEEP    the client waits at the socket
 *   ANSWERED  there is a reply
 *   SENT      the reply comes through the socket
 * The client, which has one request at a time:
 *   write request and asked_len
 *   if !compare_exchange(state, OPEN, OPEN | ASKED): use the socket, as without a mailbox
 *   look for ANSWERED or SENT for a while; then, if neither came,
 *     w = fetch_or(state, ASLEEP), and it is as if SENT was seen unless w has ANSWERED
 *   ANSWERED: the reply is in reply.   SENT: receive it from the socket
 *   in the end fetch_and(state, OPEN)
 * The daemon:
 *   if ASKED and neither ANSWERED nor SENT: copy the request, run it, write reply and reply_len
 *   w = fetch_or(state, ANSWERED); if w has ASLEEP: send the reply through the socket
 *   before it looks elsewhere or sleeps: w = fetch_and(state, ~OPEN); if w has ASKED and
 *   neither of the two: serve that first
 * Both change one word atomically, so the second one sees the change of the first: a reply is
 * either taken from here or sent, and the daemon sees every request in an open mailbox.
 *
 * Sure commands (above) of a UVERBS session are left here, one behind the other. The client, between two
 * requests:
 *   if load(state) != OPEN, or there is no room: make a request of it
 *   n = load(left_len); write the command behind n bytes of left; compare_exchange(left_len, n, n + its length)
 *   if !(load(state) & OPEN) and compare_exchange(left_len, n + its length, n): make a request of it
 * The daemon runs what lies there before it serves the client's next request of this device (not of an rdma_cm channel), and
 * after it has cleared OPEN:
 *   n = load(left_len); copy n bytes; compare_exchange(left_len, n, 0), else again
 * The daemon clears OPEN and then reads left_len; the client sets left_len and then reads OPEN. So no
 * command stays in a closed mailbox.
 */
#define VRDMA_MAIL_STATE 0u
#define VRDMA_MAIL_ASKED_LEN 4u
#define VRDMA_MAIL_REPLY_LEN 8u
#define VRDMA_MAIL_LEFT_LEN 12u
#define VRDMA_MAIL_REQUEST 64u
#define VRDMA_MAIL_LEFT 1024u /* to VRDMA_MAIL_REPLY; requests of a client that leaves commands end before */
#define VRDMA_MAIL_REPLY 2048u
#define VRDMA_MAIL_SIZE 4096u
#define VRDMA_MAIL_OPEN 1u
#define VRDMA_MAIL_ASKED 2u
#define VRDMA_MAIL_ASLEEP 4u
#define VRDMA_MAIL_ANSWERED 8u
#define VRDMA_MAIL_SENT 16u
#define VRDMA_MAIL_AHEAD 1u

/*
 * Answers ahead. After an event librdmacm queries the route of an identifier, or the attributes of
 * its queue pair. The daemon sends these answers with the event, in the reply to GET_EVENT: nahead of
 *   struct vrdma_ahead followed by length bytes, padded to 8,
 * all about one identifier. Such an answer is for a command of VRDMA_AHEAD_COMMAND bytes:
 *   header (command; in 16, out length or more), u64 response, u32 id, u32 key
 * and is stored at response, as long as the identifier's revision in shared memory is the one
 * that came with it. The daemon increments the revision before any change to the answer becomes
 * visible. So using the answer is the same as having asked before the change. Revisions follow the
 * mailbox. Identifiers that share a revision (id % VRDMA_AHEAD_IDS) only lose answers.
 * A session that is traced gets no answers ahead, and those that it has are revoked.
 *
 * events is the number of waiting events. It is a hint: if it is not 0, a client sends GET_EVENT at
 * once, without polling its descriptor first.
 */
struct vrdma_ahead {
	uint32_t command;
	uint32_t id;
	uint32_t key;
	uint32_t length;
	uint64_t revision;
};
#define VRDMA_AHEAD_COMMAND 24u
#define VRDMA_AHEAD_EVENTS 4096u    /* uint32_t */
#define VRDMA_AHEAD_REVISIONS 4160u /* uint64_t each */
#define VRDMA_AHEAD_IDS 1016u
#define VRDMA_AHEAD_SIZE 28672u /* mailbox and what follows it */

/*
 * The shelf: events that a client takes without a command, for a client with many waiting events.
 * Events are numbered from 0. taken is the number of the next one, shifted left by one, and
 * VRDMA_SHELF_FROZEN; ready is the number of the first that is not on the shelf. For a
 * GET_EVENT that can only wait or succeed the client does
 *   t = load(taken); if it is frozen, or t >> 1 is not below load(ready): the command
 *   copy slot (t >> 1) % VRDMA_SHELF_SLOTS: u32 length, and from VRDMA_SHELF_REPLY on as many
 *   bytes: a reply with one store (its address means nothing) and answers ahead
 *   if !compare_exchange(taken, t, t + 2): again
 *   the event is taken: apply the reply
 * The daemon never puts the last waiting event on the shelf. A client gets it only by the command,
 * which makes the descriptor unreadable, so poll reports no event that does not exist. Before the
 * daemon changes the waiting events, it reads taken. To take events back the daemon freezes the
 * shelf. It thaws the shelf with a number that was never on it, so that a client cannot take a slot
 * that it copied before.
 */
#define VRDMA_SHELF_TAKEN 12288u /* uint64_t */
#define VRDMA_SHELF_READY 12352u /* uint64_t */
#define VRDMA_SHELF_FROZEN 1u
#define VRDMA_SHELF_SLOT 16384u  /* the first slot */
#define VRDMA_SHELF_SLOTS 8u
#define VRDMA_SHELF_STRIDE 1536u
#define VRDMA_SHELF_REPLY 8u

/*
 * Moving: while the NIC moves to another host, its programs have nothing of a daemon. The daemon asks a client
 * that said MOVES to let go, by the signal VRDMA_LEAVE_SIGNAL. The client then sends nothing but, on its PROCESS
 * connection,
 *   LEAVE    the daemon answers 0 when nothing of the NIC changes any more. Any other answer, also to a client
 *            that was not asked: it stays, and everything goes on
 *   STAY     instead of what follows, if that is not possible: everything goes on after the answer
 * It makes its memory private, puts sockets of its own in the place of the event files, and closes its
 * connections, the PROCESS connection last. Then it looks, again and again, for the file SOCKET VRDMA_ARRIVING. Where
 * that exists, it connects to the daemon at its socket. That may be another daemon by now, also on another host.
 * Each hello has RETURN and the process's token.
 *   PROCESS  the answer is EAGAIN or ESRCH as long as the daemon waits for something; another error is final. Else
 *            the token and the memfd come, and the client makes the memory of its regions own again
 *   UVERBS   one for each device, with its name, and with the arena memfd as a descriptor. The answer has the
 *            device's new name and a doorbell eventfd. RETURN requests follow, of struct vrdma_return, one for
 *            each event file of the device, which are answered with a struct vrdma_fd and the new file, and one of
 *            kind 0
 *   RDMACM   one for each channel, with its name. The answer is that to a new channel
 * The last message is a RETURN request on the PROCESS connection. After the answer 0 everything goes on. If
 * the answer is ECANCELED, the client lets go and comes back once more; after any other its devices are dead.
 */
#define VRDMA_LEAVE_SIGNAL 60
#define VRDMA_ARRIVING ".d/arriving" /* behind the path of the socket: programs are expected there */
struct vrdma_return {
	uint32_t kind; /* enum vrdma_fd_kind; 0: that was all */
	uint32_t id;
};

#endif
