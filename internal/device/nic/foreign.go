package nic

import (
	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// The loop never accesses foreign memory (see package memory), because its owner could block the
// loop. For a queue pair that needs foreign memory, the loop starts a job on another thread and
// returns Later. When the job has ended, the loop runs the queue pair again:
//
//	         no thread is free             done
//	idle ──▶ waiting ──▶ running ─────────────────▶ done ──▶ idle     asked again, it has
//	  └──────────────────────┘  └── takes too long ─▶ late ──▶ idle   the result, or fails
//
// A queue pair has one job for each task at a time, so its work stays in order. Sending has two
// (readahead.go). All of this state belongs to the loop; only the job runs on another thread.

// task is the purpose of a job.
type task uint8

const (
	taskSend   task = iota // Gather
	taskAhead              // Gather, of what is sent after that: see readahead.go
	taskAnswer             // ReadRemote
	taskTake               // what Receive does: WriteRemote, Atomic, the Scatters
	tasks
)

// errand is a queue pair's job for one task.
type errand struct {
	q      *QP
	state  errandState
	orphan bool // the burst that it was for is gone; the next has to wait all the same
	job    *memory.Job
	end    sendPos // taskSend and taskAhead: where the job ends

	// As long as it is not idle it is in foreign.timed.
	due        ib.Time
	next, last *errand
}

type errandState uint8

const (
	errandIdle errandState = iota
	errandWaiting
	errandRunning
	errandDone
	errandLate
)

// errands are those of one queue pair.
type errands struct {
	of     [tasks]errand
	queued bool // in the tenant's backlog
	ahead  readAhead
	copied copied
	review bool // asideIn is to change when no job writes: see aside.go
}

// copied is the Buffer that a job has copied a burst's data to.
type copied struct {
	data *memory.Span
	to   *memory.Buffer
}

// A tenant has the state of one user of the loop's NICs.
type tenant struct {
	uid     int
	members map[*Session]struct{}
	jobs    int             // running, or done and not asked for
	backlog fifo.Queue[*QP] // those that wait for a thread
	listed  bool            // in foreign.backlogged
	kept    uint64          // bytes of bursts that were not taken: see Keep
}

// foreign is the loop's state of all jobs.
type foreign struct {
	pool       *memory.Pool
	wake       func()
	tenants    map[int]*tenant
	timed      errand          // the ring of those that are not idle, by when they are due
	asks       fifo.Queue[*QP] // queue pairs to run again
	backlogged []*tenant       // tenants with a backlog
	done       []*memory.Job   // scratch
	spare      []*memory.Job
	buffers    memory.Buffers
	span       memory.Span       // scratch
	wqe        transport.SendWQE // scratch
	begun      ib.Time           // when the last job was
	spent      []*memory.Job     // staged data of these is being sent
	asides     asides
}

const (
	// patience is the time limit of a job. A page from a disk or a network takes milliseconds, and
	// rarely a second. Programs that wait for a peer give up after a few seconds.
	patience = ib.Time(5_000_000_000)
	// tenantJobs is the maximum number of a user's jobs that run or have results that were not
	// fetched.
	tenantJobs = 64
	// spareJobs is how many jobs, with their buffers, are kept for the next ones.
	spareJobs = 32
)

func (f *foreign) init(wake func()) {
	f.wake = wake
	f.pool = memory.NewPool(wake)
	f.timed.next, f.timed.last = &f.timed, &f.timed
	f.tenants = make(map[int]*tenant)
}

// tenant finds the tenant for a new session.
func (f *foreign) tenant(s *Session) *tenant {
	t := f.tenants[s.User]
	if t == nil {
		t = &tenant{uid: s.User, members: make(map[*Session]struct{})}
		f.tenants[s.User] = t
	}
	t.members[s] = struct{}{}
	return t
}

func (f *foreign) leave(s *Session) {
	t := s.tenant
	if delete(t.members, s); len(t.members) == 0 {
		delete(f.tenants, t.uid)
	}
}

// Aside are the threads for what may be held up by a client's memory. Any goroutine may use
// them.
func (l *Loop) Aside() *memory.Pool { return l.foreign.pool }

// Patience is how long a client's memory may take.
func (n *NIC) Patience() ib.Time {
	if n.Config.Patience != 0 {
		return n.Config.Patience
	}
	return patience
}

// errand finds the queue pair's errand for a task.
func (q *QP) errand(t task) *errand {
	if q.errands == nil {
		q.errands = &errands{}
		for i := range q.errands.of {
			q.errands.of[i].q = q
		}
	}
	return &q.errands.of[t]
}

// fetch reads the foreign pieces of s, a READ response that begins with packet psn. When the job is
// done, it replaces these pieces by the bytes that were read.
func (q *qpNIC) fetch(psn uint32, s *memory.Span) transport.Status {
	f := &q.loop.foreign
	f.recycle() // no burst is under way: this is the beginning of one
	e := q.qp().errand(taskAnswer)
	if e.state == errandDone {
		if ok, err := e.job.Stage(s, psn); ok {
			e.spend()
			if err != nil {
				return transport.RemOpErr
			}
			return transport.Success
		}
	}
	return e.begin(transport.RemOpErr, func(j *memory.Job) {
		j.Read()
		j.ReadMore(s, psn)
		j.Fetch()
	})
}

// put writes what of s goes to foreign memory in d. When that is done it copies the rest.
func (q *qpNIC) put(d, s *memory.Span, fail transport.Status) transport.Status {
	if s.Foreign() || d.Len() != s.Len() {
		return fail
	}
	e := q.qp().errand(taskTake)
	if e.state == errandDone {
		if ok, err := e.job.Wrote(d, s); ok {
			if e.job.Spent() {
				e.finish()
			}
			if err != nil {
				return fail
			}
			memory.CopyMapped(d, s)
			return transport.Success
		}
	}
	var to *memory.Buffer
	st := e.begin(fail, func(j *memory.Job) { to = j.Write(d, s) })
	if e.state == errandRunning && to != nil {
		q.errands.copied = copied{s, to}
	}
	return st
}

// Copied is the Buffer that holds a copy of data, the data of a burst that was offered to the
// queue pair just now and not taken; nil if there is none.
func (q *QP) Copied(data *memory.Span) *memory.Buffer {
	if q.errands == nil || data == nil || q.errands.copied.data != data {
		return nil
	}
	return q.errands.copied.to
}

// Offer is called by the loop before it offers a burst to the state machine.
func (q *QP) Offer() {
	if q.errands == nil {
		return
	}
	q.errands.copied = copied{}
	if q.errands.review && !q.errands.writes() {
		q.errands.review = false
		q.review(q.owner.Now())
	}
}

// Buffers returns the loop's Buffers, for the data of bursts that wait.
func (l *Loop) Buffers() *memory.Buffers { return &l.foreign.buffers }

// change starts a job for an atomic operation on a foreign word, at off of r, or returns the result
// of that job.
func (q *qpNIC) change(k transport.Kind, r *memory.Region, off uint64, d *memory.Span, compare, swap uint64) (uint64, transport.Status) {
	e := q.qp().errand(taskTake)
	isSwap := k == transport.KindCmpSwap
	if e.state == errandDone {
		old, same := uint64(0), false
		if k == transport.KindAtomicWrite {
			same = e.job.DidStore(d, swap)
		} else {
			old, same = e.job.DidAtomic(d, isSwap, compare, swap)
		}
		if same {
			if e.finish() != nil {
				return 0, transport.RemOpErr
			}
			return old, transport.Success
		}
	}
	return 0, e.begin(transport.RemOpErr, func(j *memory.Job) {
		if k == transport.KindAtomicWrite {
			j.Store(d, swap)
		} else {
			j.Atomic(d, isSwap, compare, swap)
		}
		if q.asideIn {
			j.HoldWord(r, off)
		}
	})
}

// begin begins a job, if it can be, and answers Later; or fails, if the last one did not
// come back.
func (e *errand) begin(fail transport.Status, fill func(*memory.Job)) transport.Status {
	f, user := &e.q.loop.foreign, e.q.session.tenant
	switch e.state {
	case errandRunning:
		return transport.Later
	case errandLate:
		e.rest()
		return fail
	case errandDone:
		e.finish() // it was for something else
	}
	if user.jobs >= tenantJobs || !f.pool.Free(user.uid) {
		e.wait()
		return transport.Later
	}
	j := f.newJob()
	fill(j) // it may fault, in a peer's memory
	j.Tag = e
	if e.state == errandIdle {
		f.time(e)
	}
	if !f.pool.Start(user.uid, j) {
		f.keep(j)
		e.wait()
		return transport.Later
	}
	f.started(e, j)
	return transport.Later
}

// started records that a thread has begun the errand's job.
func (f *foreign) started(e *errand, j *memory.Job) {
	e.state, e.job, e.orphan = errandRunning, j, false
	e.q.session.tenant.jobs++
	f.begun = e.q.owner.Now()
}

// ForeignBegun is when the last job was begun.
func (l *Loop) ForeignBegun() ib.Time { return l.foreign.begun }

// time sets the deadline of an errand and inserts it into the ring timed, which is sorted by deadline.
// All errands of a NIC have the same time limit, so the new one's place is near the end.
func (f *foreign) time(e *errand) {
	e.due = e.q.owner.Now() + e.q.nic.Patience()
	before := f.timed.last
	for before != &f.timed && before.due > e.due {
		before = before.last
	}
	e.last, e.next = before, before.next
	e.last.next, e.next.last = e, e
}

// rest makes the errand idle.
func (e *errand) rest() {
	e.state, e.job, e.orphan = errandIdle, nil, false
	e.last.next, e.next.last = e.next, e.last
	e.last, e.next = nil, nil
}

// wait puts the queue pair in its user's backlog.
func (e *errand) wait() {
	q := e.q
	if e.next == nil {
		q.loop.foreign.time(e)
	}
	e.state = errandWaiting
	if user := q.session.tenant; !q.errands.queued {
		q.errands.queued = true
		*user.backlog.Push() = q
		if !user.listed {
			user.listed = true
			q.loop.foreign.backlogged = append(q.loop.foreign.backlogged, user)
		}
	}
}

// finish ends an errand whose job is done, keeps the job for reuse, and returns its error.
func (e *errand) finish() error {
	err := e.job.Err()
	e.q.loop.foreign.keep(e.job)
	e.conclude()
	return err
}

// conclude ends an errand that has, or had, a job. The user may then start another job.
func (e *errand) conclude() {
	e.rest()
	e.q.session.tenant.jobs--
	if f := &e.q.loop.foreign; len(f.backlogged) > 0 {
		f.wake()
	}
}

// spend ends an errand whose data is in the burst that is about to be sent.
func (e *errand) spend() {
	f := &e.q.loop.foreign
	f.spent = append(f.spent, e.job)
	e.conclude()
}

// discard ends an errand whose result is not needed. A running job continues without it.
func (e *errand) discard() {
	switch e.state {
	case errandDone:
		e.finish()
	case errandRunning:
		e.job.Mute()
		e.conclude()
	case errandWaiting, errandLate:
		e.rest()
	}
}

// Taken is called by the loop when the state machine has taken a burst. If there is still a job for
// that burst, it was not needed, and its result must not be used for the next burst.
func (q *QP) Taken() {
	if q.errands != nil {
		q.errands.taken()
	}
}

// taken is Taken, with errands.
func (l *errands) taken() {
	e := &l.of[taskTake]
	switch {
	case e.state == errandIdle || e.q.tr.Stalled():
	case e.state == errandRunning:
		e.orphan = true
	case e.state == errandDone:
		e.finish()
	default:
		e.rest()
	}
}

// dismiss ends all errands; l may be nil. A running job continues without its errand.
func (l *errands) dismiss() {
	if l == nil {
		return
	}
	for t := range l.of {
		l.of[t].discard()
	}
}

// Delayed reports whether the queue pair waits for foreign memory.
func (q *QP) Delayed() bool {
	if q.errands == nil {
		return false
	}
	for i := range q.errands.of {
		if q.errands.of[i].state != errandIdle {
			return true
		}
	}
	return false
}

// Fetching reports whether a job reads the data that the queue pair sends next, or has read it and
// it is not sent yet.
func (q *QP) Fetching() bool {
	return q.errands != nil && q.errands.front().state != errandIdle && !q.tr.Blocked()
}

// newJob returns an empty job.
func (f *foreign) newJob() *memory.Job {
	if n := len(f.spare); n > 0 {
		j := f.spare[n-1]
		f.spare = f.spare[:n-1]
		return j
	}
	return &memory.Job{Buffers: &f.buffers}
}

// keep keeps a job for the next one.
func (f *foreign) keep(j *memory.Job) {
	j.Recycle()
	if len(f.spare) < spareJobs {
		f.spare = append(f.spare, j)
	}
}

// recycle keeps those whose data has been sent.
func (f *foreign) recycle() {
	for i, j := range f.spent {
		f.keep(j)
		f.spent[i] = nil
	}
	f.spent = f.spent[:0]
}

// CollectForeign collects the jobs that are done. NextAsk then returns the queue pairs to run again.
func (l *Loop) CollectForeign() {
	f := &l.foreign
	f.done = f.pool.Collect(f.done[:0])
	for i, j := range f.done {
		f.done[i] = nil
		if j.Muted() {
			continue // given up; its thread is back, and the queue pair may belong to another loop
		}
		e := j.Tag.(*errand)
		if e.job != j {
			continue
		}
		if e.orphan {
			e.finish()
		} else {
			e.state = errandDone
		}
		*f.asks.Push() = e.q
	}
	l.serveHandlers()
}

// serveHandlers moves queue pairs that wait for a thread to asks: at most one of each tenant that has a
// free thread.
func (l *Loop) serveHandlers() {
	f := &l.foreign
	still := f.backlogged[:0]
	for _, t := range f.backlogged {
		for k := 0; k < tenantJobs && t.backlog.Len() > 0 && t.jobs < tenantJobs && f.pool.Free(t.uid); k++ {
			q := t.backlog.Take()
			q.errands.queued = false
			if !q.gone {
				*f.asks.Push() = q
				break
			}
		}
		if t.backlog.Len() > 0 {
			still = append(still, t)
		} else {
			t.listed = false
		}
	}
	clear(f.backlogged[len(still):])
	f.backlogged = still
}

// NextAsk returns the next queue pair to run again, after CollectForeign; nil: there is none.
func (l *Loop) NextAsk() *QP {
	f := &l.foreign
	for {
		if f.asks.Len() == 0 && len(f.backlogged) > 0 {
			l.serveHandlers()
		}
		if f.asks.Len() == 0 {
			return nil
		}
		if q := f.asks.Take(); !q.gone {
			return q
		}
	}
}

// ForeignDue returns the time at which ExpireForeign has to be called; 0: never.
func (l *Loop) ForeignDue() ib.Time { return l.foreign.timed.next.due }

// ExpireForeign gives up errands that have taken too long. It returns a queue pair that fails because
// of that and has to run again; nil: there are no more.
func (l *Loop) ExpireForeign(now ib.Time) *QP {
	f := &l.foreign
	for e := f.timed.next; e != &f.timed && e.due <= now; e = f.timed.next {
		q := e.q
		switch e.state {
		case errandDone: // the result was not used for long
			e.finish()
			continue
		case errandLate: // nor was the failure
			e.rest()
			continue
		case errandRunning:
			e.job.Mute()
			e.conclude()
		default:
			e.rest()
		}
		f.time(e)
		e.state = errandLate
		return q
	}
	return nil
}

// EachTaking calls f for queue pairs with a job that writes, or has written, a part of a burst that is not taken, and for
// those that wait for such a job.
func (l *Loop) EachTaking(f func(*QP)) {
	var list []*QP // f may end any errand
	for e := l.foreign.timed.next; e != &l.foreign.timed; e = e.next {
		if e == &e.q.errands.of[taskTake] {
			list = append(list, e.q)
		}
	}
	for _, q := range list {
		f(q)
	}
}

// CloseForeign closes the pool of threads.
func (l *Loop) CloseForeign() { l.foreign.pool.Close() }

// Keep adds a burst with a Buffer of so many bytes to the bytes that the engine keeps for the queue
// pair's user. It returns false if that exceeds tenantKept. Unkeep subtracts the burst.
func (q *QP) Keep(bytes int) bool {
	t, size := q.session.tenant, burstState+uint64(bytes)
	if t.kept+size > tenantKept {
		return false
	}
	t.kept += size
	return true
}

// Crowded reports whether more than half of tenantKept is kept for the queue pair's user. Then senders
// that can wait should wait.
func (q *QP) Crowded() bool { return q.session.tenant.kept > tenantKept/2 }

// Unkeep is the reverse of Keep.
func (q *QP) Unkeep(bytes int) { q.session.tenant.kept -= burstState + uint64(bytes) }

const (
	// tenantKept is how many bytes of bursts are kept for a user.
	tenantKept = 32 << 20
	// burstState is the memory of a burst without its data, free slots of the ring included. It
	// is counted so that many short bursts are limited, too.
	burstState = 512
)
