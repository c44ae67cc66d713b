/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PTRACE_INTERRUPT ends a sleep in a system call as a signal does. The kernel repeats most calls
 * afterwards by itself: their result is then one of the codes that it keeps to itself
 * (ERESTARTSYS and its like), and a sleep for a relative time goes on through restart_syscall for
 * the rest of it. Two kinds of calls remain, and the tracer, which sees the registers of each
 * stopped thread, makes the kernel repeat those too.
 *
 * Calls that return EINTR (signal(7)). A call with this result has consumed nothing, for the kernel
 * returns what was consumed instead, if anything was; the table below has the cases. The tracer
 * replaces EINTR by ERESTARTNOHAND. With that code the kernel decides as for every other call: if no
 * handler runs, it repeats the call; if one does, the call returns EINTR after it, as always. So a
 * signal that arrives at the same time, even between our look and DETACH, has its usual effect.
 *
 * Calls that return less than asked for (a blocking write to a pipe or stream socket, a receive with
 * MSG_WAITALL). The thread is sent to repeat_call, which makes the call again for the rest and adds
 * the two counts. If that call fails, or if a handler runs first, the result is the first count, as
 * without a halt.
 *
 * A repeated call would begin its relative timeout anew, and frequent halts would make it
 * endless. repeat_call solves this, too: it makes the call with another timeout and then restores
 * the argument, for a compiler may expect it in its register. The first halt cannot know when
 * the call began. It sets the deadline to one timeout from now; later halts keep the deadline. So a call
 * ends never early, and after twice its timeout at the latest. For a socket's SO_RCVTIMEO or
 * SO_SNDTIMEO the kernel begins anew at each halt, and the first halt after the deadline ends the
 * call: the bound is the same.
 *
 * repeat_call finds what to restore through rbx. It does not use the stack, and tells unwinders
 * where rbx and the return address are, so handlers, backtraces and cancellation work inside.
 * A handler that leaves with longjmp leaks a struct repeat, which is reused when its thread has ended.
 * Where all are taken, calls are repeated with their own timeout.
 *
 * What remains: short counts of sendmmsg, recvmmsg, sendfile, splice, of terminals and of vectors of
 * more than PARTS parts; EINTR of drivers; io_uring_enter that submits and waits, which returns after the
 * submission (a second wait might be for a completion that another thread has consumed). A write or
 * writev to a broken stream socket of which a part had gone may raise SIGPIPE one call early.
 *
 * On aarch64 the kernel overwrites the first argument with the result and does not show it to a
 * tracer, so these calls return EINTR or a short count there.
 */
#include "repeat.h"

#include <sys/ptrace.h>

#include "sys.h"

bool repeat_shares(int tid, const uint64_t *nonce)
{
	uint64_t seen = ~*nonce;
	return sys(SYS_ptrace, PTRACE_PEEKDATA, tid, nonce, &seen) == 0 && seen == *nonce;
}

#if defined(__x86_64__)

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>

#include "clock.h"

#define REPEATS 1024
#define PARTS 16            /* of a vector */
#define RESTART_NOHAND 514l /* ERESTARTNOHAND, which user space never sees */
#define USER_CODE 0x33      /* cs of 64-bit code */
#define FOREVER (~0ull)
#define KVM_CREATE_VM 0xae01
#define KVM_RUN 0xae80
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#ifndef SYS_io_uring_enter
#define SYS_io_uring_enter 426
#endif

/* ---- repeat_call ---- */

/* What the assembler uses comes first, in this order. */
struct repeat {
	_Atomic int tid; /* 0: free */
	uint32_t nparts; /* of parts; 0: the rest is one buffer */
	uint64_t base;   /* bytes that are done */
	uint64_t ip, rbx, rdi, rsi, rdx, r10, r8, r9;
	uint64_t pid;
	uint64_t total;    /* bytes to do; 0: the result is no count of bytes, or not of ours */
	uint64_t deadline; /* or FOREVER */
	struct timespec left;
	struct msghdr message;
	struct iovec parts[PARTS];
};
_Static_assert(offsetof(struct repeat, base) == 8 && offsetof(struct repeat, ip) == 16 &&
		       offsetof(struct repeat, rbx) == 24 && offsetof(struct repeat, r9) == 72,
	       "as the assembler has it");

static struct repeat repeats[REPEATS];

/*
 * The kernel, when it repeats a call, goes to the instruction before repeat_called. There ends
 * the call also if it is not repeated. DW_CFA_expression (0x10): register 16, the return address,
 * and 3, rbx, lie at rbx + 16 and rbx + 24.
 */
__asm__(".pushsection .text\n"
	".p2align 4\n"
	".type repeat_call, @function\n"
	"repeat_call:\n"
	".cfi_startproc\n"
	".cfi_signal_frame\n"
	".cfi_def_cfa rsp, 0\n"
	".cfi_escape 0x10, 16, 2, 0x73, 16\n"
	".cfi_escape 0x10, 3, 2, 0x73, 24\n"
	"nop\n" /* unwinders look at the instruction before a return address */
	"syscall\n"
	"repeat_called:\n"
	"test %rax, %rax\n"
	"js 1f\n"
	"add 8(%rbx), %rax\n"
	"jmp 2f\n"
	"1: cmpq $0, 8(%rbx)\n"
	"je 2f\n"
	"mov 8(%rbx), %rax\n"
	"2: mov 32(%rbx), %rdi\n"
	"mov 40(%rbx), %rsi\n"
	"mov 48(%rbx), %rdx\n"
	"mov 56(%rbx), %r10\n"
	"mov 64(%rbx), %r8\n"
	"mov 72(%rbx), %r9\n"
	"mov 16(%rbx), %rcx\n" /* every system call overwrites rcx and r11 */
	"mov %rbx, %r11\n"
	".cfi_register rip, rcx\n"
	"mov 24(%rbx), %rbx\n"
	".cfi_same_value rbx\n"
	"movl $0, (%r11)\n"
	"jmp *%rcx\n"
	".cfi_endproc\n"
	".size repeat_call, . - repeat_call\n"
	".popsection\n");
extern const char repeat_called[] __attribute__((visibility("hidden")));

static struct repeat *repeat_of(int tid, const struct user_regs_struct *r)
{
	uint64_t at = r->rbx - (uint64_t)(uintptr_t)repeats;
	if (r->rip != (uint64_t)(uintptr_t)repeat_called || at >= sizeof repeats || at % sizeof *repeats)
		return NULL;
	struct repeat *p = &repeats[at / sizeof *repeats];
	return atomic_load(&p->tid) == tid ? p : NULL;
}

/* Sends a thread to repeat_call; NULL: all are taken. */
static struct repeat *take(int tid, long pid, struct user_regs_struct *r)
{
	static unsigned next;
	for (unsigned i = 0; i < 2 * REPEATS; i++) {
		struct repeat *p = &repeats[next++ % REPEATS];
		int old = atomic_load(&p->tid);
		/* The second time round also those of threads that have ended. */
		if (old && (i < REPEATS || (long)p->pid != pid || sys(SYS_tgkill, pid, old, 0) != -ESRCH))
			continue;
		p->ip = r->rip;
		p->rbx = r->rbx;
		p->rdi = r->rdi;
		p->rsi = r->rsi;
		p->rdx = r->rdx;
		p->r10 = r->r10;
		p->r8 = r->r8;
		p->r9 = r->r9;
		p->pid = (uint64_t)pid;
		p->base = p->total = p->nparts = 0;
		p->deadline = FOREVER;
		atomic_store(&p->tid, tid);
		r->rip = (uint64_t)(uintptr_t)repeat_called;
		r->rbx = (uint64_t)(uintptr_t)p;
		return p;
	}
	return NULL;
}

/* ---- which calls ---- */

enum timeout { NONE, MILLISECONDS, TIMESPEC, TIMEVAL, RECEIVING, SENDING };

/* Calls that return EINTR for an interruption alone, and why their repetition loses nothing. */
static const struct rule {
	uint16_t call;
	uint8_t timeout; /* enum timeout */
	uint8_t argument; /* that has it */
} rules[] = {
	/* EINTR only if no event was found; events stay in the ready list until they are copied. */
	{SYS_epoll_wait, MILLISECONDS, 3},
	{SYS_epoll_pwait, MILLISECONDS, 3},
	{SYS_epoll_pwait2, TIMESPEC, 3},
	/* An operation is either performed, or taken from the queue unperformed with EINTR. */
	{SYS_semop, NONE, 0},
	{SYS_semtimedop, TIMESPEC, 3},
	/* EINTR only if no signal of the set could be dequeued. */
	{SYS_rt_sigtimedwait, TIMESPEC, 2},
	/* EINTR only if no completion was copied, or nothing submitted. (A timeout in an extended argument begins anew.) */
	{SYS_io_getevents, TIMESPEC, 4},
	{SYS_io_uring_enter, NONE, 0},
	/* EINTR instead of ERESTARTNOHAND where the rest of the time cannot be written back. */
	{SYS_select, TIMEVAL, 4},
	{SYS_pselect6, TIMESPEC, 4},
	{SYS_ppoll, TIMESPEC, 2},
	/* Sockets with a timeout: EINTR only if no byte, message or connection was taken. */
	{SYS_read, RECEIVING, 0},
	{SYS_readv, RECEIVING, 0},
	{SYS_recvfrom, RECEIVING, 0},
	{SYS_recvmsg, RECEIVING, 0},
	{SYS_recvmmsg, RECEIVING, 0},
	{SYS_accept, RECEIVING, 0},
	{SYS_accept4, RECEIVING, 0},
	{SYS_write, SENDING, 0},
	{SYS_writev, SENDING, 0},
	{SYS_sendto, SENDING, 0},
	{SYS_sendmsg, SENDING, 0},
	{SYS_sendmmsg, SENDING, 0},
	/* A connect that goes on in the background: a second one waits for it. */
	{SYS_connect, SENDING, 0},
	/*
	 * The guest left the processor; KVM_RUN lets it go on where it was. KVM_CREATE_VM was interrupted while it locked
	 * all mappings (mm_take_all_locks), and made nothing. No other ioctl.
	 */
	{SYS_ioctl, NONE, 0},
	/* tmpfs and hugetlbfs. To allocate what is allocated, or punch a hole in one, changes nothing. */
	{SYS_fallocate, NONE, 0},
};

static const struct rule *rule_of(const struct user_regs_struct *r)
{
	if (r->orig_rax == SYS_ioctl && (uint32_t)r->rsi != KVM_RUN && (uint32_t)r->rsi != KVM_CREATE_VM)
		return NULL;
	if (r->orig_rax == SYS_fallocate && r->rsi & ~3ull) /* FALLOC_FL_KEEP_SIZE, _PUNCH_HOLE */
		return NULL;
	for (unsigned i = 0; i < sizeof rules / sizeof *rules; i++)
		if (rules[i].call == r->orig_rax)
			return &rules[i];
	return NULL;
}

static unsigned long long *argument(struct user_regs_struct *r, unsigned i)
{
	unsigned long long *a[] = {&r->rdi, &r->rsi, &r->rdx, &r->r10, &r->r8, &r->r9};
	return a[i];
}

/* Copies memory of the thread, which may have unmapped it. */
static bool peek(int tid, uint64_t from, void *to, size_t n)
{
	for (size_t i = 0; i < n; i += 8)
		if (sys(SYS_ptrace, PTRACE_PEEKDATA, tid, from + i, (char *)to + i) < 0)
			return false;
	return true;
}

/* ---- timeouts ---- */

/* How long the call may last in nanoseconds, or FOREVER. False: it must not be repeated. */
static bool duration(int tid, const struct rule *rule, struct user_regs_struct *r, uint64_t *out)
{
	uint64_t a = *argument(r, rule->argument), unit = rule->timeout == TIMESPEC ? 1 : US;
	int option = rule->timeout == RECEIVING ? SO_RCVTIMEO : SO_SNDTIMEO;
	struct timespec t = {0}; /* or timeval */
	int size = sizeof t;

	*out = FOREVER;
	switch ((enum timeout)rule->timeout) {
	case NONE:
		return true;
	case MILLISECONDS:
		if ((int)a >= 0)
			*out = (uint64_t)(int)a * MS;
		return true;
	case TIMESPEC:
	case TIMEVAL:
		if (!a)
			return true;
		if (!peek(tid, a, &t, sizeof t))
			return false;
		break;
	default:
		if (sys(SYS_getsockopt, (int)a, SOL_SOCKET, option, &t, &size) < 0)
			return false; /* not a socket: a driver, which may have done something */
		if (!t.tv_sec && !t.tv_nsec)
			return true;
	}
	if (t.tv_sec >= 0 && t.tv_sec < 1l << 32)
		*out = (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec * unit;
	return true;
}

/* Shortens the timeout of a call in repeat_call. */
static void shorten(struct repeat *p, const struct rule *rule, struct user_regs_struct *r, uint64_t now)
{
	uint64_t left = p->deadline > now ? p->deadline - now : 0;
	if (p->deadline == FOREVER)
		return;
	switch ((enum timeout)rule->timeout) {
	case NONE:
		return;
	case MILLISECONDS:
		*argument(r, rule->argument) = (left + MS - 1) / MS;
		return;
	case TIMESPEC:
	case TIMEVAL:
		p->left.tv_sec = (time_t)(left / (1000 * MS));
		p->left.tv_nsec = (long)(left % (1000 * MS));
		if (rule->timeout == TIMEVAL)
			p->left.tv_nsec = (p->left.tv_nsec + 999) / 1000;
		*argument(r, rule->argument) = (uint64_t)(uintptr_t)&p->left;
		return;
	default:
		if (!left)
			r->rax = (unsigned long long)(r->orig_rax == SYS_connect ? -EINPROGRESS : -EAGAIN);
	}
}

/* ---- counts ---- */

#define PLAIN (MSG_WAITALL | MSG_NOSIGNAL | MSG_MORE | MSG_CMSG_CLOEXEC)

static bool is_stream(int fd)
{
	int type = 0, size = sizeof type;
	return sys(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

static bool is_pipe(int fd)
{
	struct stat st;
	return sys(SYS_fstat, fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

/* Reads the vector of a call; false: it is too long. */
static bool read_parts(int tid, struct repeat *p, uint64_t from, uint64_t n)
{
	if (n > PARTS || !peek(tid, from, p->parts, n * sizeof *p->parts))
		return false;
	p->nparts = (uint32_t)n;
	for (uint64_t i = 0; i < n; i++)
		p->total += p->parts[i].iov_len;
	return true;
}

/*
 * If the call transfers a stream and sleeps until all of it is done: notes how much that is, and
 * prepares the call for the rest. Else leaves total 0. The number of the call stays: a seccomp filter
 * may not know another one.
 */
static void count(int tid, struct repeat *p, struct user_regs_struct *r)
{
	struct msghdr m = {0};
	int fd = (int)r->rdi;
	bool receives = r->orig_rax == SYS_recvfrom || r->orig_rax == SYS_recvmsg;
	bool vector = r->orig_rax != SYS_write && r->orig_rax != SYS_sendto && r->orig_rax != SYS_recvfrom;
	bool writes = r->orig_rax == SYS_write || r->orig_rax == SYS_writev;
	unsigned long long none = 0, *flags = writes ? &none : vector ? &r->rdx : &r->r10;
	if (*flags & ~(unsigned long long)PLAIN || (receives && !(*flags & MSG_WAITALL)) ||
	    (!is_stream(fd) && !(writes && is_pipe(fd))))
		return;
	if (!vector) {
		p->total = r->rdx;
	} else if (writes) {
		if (!read_parts(tid, p, r->rsi, r->rdx))
			return;
		r->rsi = (uint64_t)(uintptr_t)p->parts;
	} else {
		if (!peek(tid, r->rsi, &m, sizeof m) || (receives && m.msg_control) ||
		    !read_parts(tid, p, (uint64_t)(uintptr_t)m.msg_iov, m.msg_iovlen))
			return;
		p->message = (struct msghdr){.msg_iov = p->parts, .msg_iovlen = p->nparts};
		r->rsi = (uint64_t)(uintptr_t)&p->message;
	}
	if (!receives) /* a call that has sent something does not raise SIGPIPE */
		*flags |= MSG_NOSIGNAL;
}

/* Done bytes are done: the call is for the rest. */
static void advance(struct repeat *p, struct user_regs_struct *r, uint64_t done)
{
	p->base += done;
	if (!p->nparts) {
		r->rsi += done;
		r->rdx -= done;
		return;
	}
	for (uint32_t i = 0; i < p->nparts && done; i++) {
		uint64_t n = done < p->parts[i].iov_len ? done : p->parts[i].iov_len;
		p->parts[i].iov_base = (char *)p->parts[i].iov_base + n;
		p->parts[i].iov_len -= n;
		done -= n;
	}
}

/* Whether a call of this number can return less than asked for, only because it was interrupted. */
static bool counts(uint64_t call)
{
	return call == SYS_write || call == SYS_writev || call == SYS_sendto || call == SYS_sendmsg ||
	       call == SYS_recvfrom || call == SYS_recvmsg;
}

/* ---- a stopped thread ---- */

static void set(int tid, struct user_regs_struct *r)
{
	sys(SYS_ptrace, PTRACE_SETREGS, tid, NULL, r);
}

/* The call has returned EINTR. */
static void again(int tid, long pid, struct user_regs_struct *r, struct repeat *p, uint64_t now)
{
	const struct rule *rule = rule_of(r);
	uint64_t t = FOREVER;
	if (!rule || (!p && !duration(tid, rule, r, &t)))
		return;
	r->rax = (unsigned long long)-RESTART_NOHAND;
	if (!p && t != FOREVER && (p = take(tid, pid, r))) {
		p->deadline = now + t;
		if (counts(r->orig_rax))
			count(tid, p, r);
	}
	if (p)
		shorten(p, rule, r, now);
	set(tid, r);
}

/* The call has returned a count. */
static void rest(int tid, long pid, struct user_regs_struct *r, struct repeat *p, uint64_t now)
{
	struct user_regs_struct old = *r;
	uint64_t done = r->rax, t;
	if (!p) {
		const struct rule *rule = rule_of(r);
		/* A call with one buffer tells at once whether all is done. */
		if (!rule ||
		    (r->orig_rax != SYS_writev && r->orig_rax != SYS_sendmsg && r->orig_rax != SYS_recvmsg && done >= r->rdx) ||
		    !(p = take(tid, pid, r)))
			return;
		if (duration(tid, rule, &old, &t) && t != FOREVER)
			p->deadline = now + t;
		count(tid, p, r);
		if (done >= p->total) {
			atomic_store(&p->tid, 0); /* it goes on as it was */
			return;
		}
	} else if (done >= p->total - p->base) {
		return;
	}
	advance(p, r, done);
	r->rax = (unsigned long long)-RESTART_NOHAND;
	set(tid, r);
}

/* Is the next instruction of a thread syscall? True also if that cannot be read. */
static bool at_syscall(int tid, unsigned long long rip)
{
	unsigned long text = 0;
	return sys(SYS_ptrace, PTRACE_PEEKTEXT, tid, rip, &text) < 0 || (text & 0xffff) == 0x050f;
}

void repeat_interrupted(int tid, uint64_t now, const uint64_t *nonce)
{
	struct user_regs_struct r;
	if (sys(SYS_ptrace, PTRACE_GETREGS, tid, NULL, &r) < 0 || r.cs != USER_CODE || (long)r.orig_rax < 0)
		return; /* it is not at the end of a system call */
	/*
	 * The instruction syscall copies the address behind it to rcx (not on processors with FRED). If rip
	 * differs, and is the address of that instruction, the kernel has prepared a call for its repetition
	 * since an earlier halt, and the thread has not run: rax is the number of the call, and no count.
	 */
	if (r.rip != r.rcx && at_syscall(tid, r.rip))
		return;
	struct repeat *p = repeat_of(tid, &r);
	bool some = (long)r.rax > 0 && (p ? p->total : counts(r.orig_rax));
	if (((long)r.rax != -EINTR && !some) || !repeat_shares(tid, nonce))
		return;
	if (some)
		rest(tid, sys(SYS_getppid), &r, p, now);
	else
		again(tid, sys(SYS_getppid), &r, p, now);
}

#else

void repeat_interrupted(int tid, uint64_t now, const uint64_t *nonce)
{
	(void)tid, (void)now, (void)nonce;
}

#endif
