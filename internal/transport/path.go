package transport

import "vrdma/internal/ib"

// Path is what the engine knows of the way to a queue pair's peer. The zero Path leads
// to a queue pair of the same host: nothing is lost there, and whoever sends has seen
// the peer receive.
type Path struct {
	// Remote: packets travel to another host. They may be lost, marked or late, and
	// wait in a buffer of the receiver's.
	Remote bool
	// Own: the peer is a vrdma host. What rxe or a NIC would do is then known rather
	// than assumed.
	Own bool
	// MaxBurst is the most bytes of payload in one burst; 0 means Config.MaxBurst.
	MaxBurst uint32
	// Window is the most bytes that are sent or asked for and not yet acknowledged or
	// answered; 0 means 512 KiB. A congested path is given less. It does not count
	// where nothing is acknowledged (UC, UD), nor on a local path.
	Window uint32
}

const (
	defaultPathWindow = 512 << 10
	// firstWindow is what a path is given before anything is known of it.
	firstWindow = 128 << 10
)

// SetPath says how the peer is reached. It may be called at any time, and what is in flight
// stays so; only Remote must not change while requests are outstanding. When it changes,
// everything that was learnt of the path is forgotten.
func (q *QP) SetPath(p Path) {
	if p.Window == 0 {
		p.Window = defaultPathWindow
	}
	fresh := p.Remote != q.path.Remote
	q.path = p
	if fresh {
		q.cc = congestion{Seen: q.req.Una}
		q.pace = pacer{}
		if p.Remote {
			q.cc.start(p.Window)
			q.pace.start(q.conf.Type)
		}
	}
	q.fitPath()
}

// Path is how the peer is reached.
func (q *QP) Path() Path { return q.path }

// fitPath works out what the requester keeps to, after path or MTU changed.
func (q *QP) fitPath() {
	r := &q.req
	r.Burst = q.conf.MaxBurst
	if q.path.MaxBurst != 0 {
		r.Burst = q.path.MaxBurst
	}
	r.Burst = max(r.Burst, q.attr.MTU)
	r.Window = q.conf.Window
	if q.path.Remote {
		q.setWindow()
	}
	if r.Una == r.Max {
		r.Chunk = q.chunk()
	}
}

// setWindow makes what Cwnd and Share say what the requester keeps to.
func (q *QP) setWindow() {
	q.cc.Cwnd = max(min(q.cc.Cwnd, q.path.Window), q.attr.MTU)
	q.req.Window = min(q.allowed()/q.attr.MTU, q.conf.Window)
}

// allowed is how many bytes may be in flight.
func (q *QP) allowed() uint32 {
	if q.cc.Share == 0 {
		return q.cc.Cwnd
	}
	return max(min(q.cc.Cwnd, q.cc.Share), q.attr.MTU)
}

// takeShare takes note of what the host can spare for the queue pair.
func (q *QP) takeShare(share uint32) {
	if q.path.Remote && share != q.cc.Share {
		q.cc.Share = share
		q.setWindow()
	}
}

// InFlight is how many bytes have been sent or asked for and not been acknowledged or
// answered; packets count in full.
func (q *QP) InFlight() uint64 {
	return uint64(ib.PSNDist(q.req.Una, q.req.Max)) * uint64(q.attr.MTU)
}

// A READ of a remote path is asked for in pieces, so that the window bounds what the
// responder, which hears nothing until it has answered, may have on its way to us. To the
// responder each piece is a READ of its own. Their length follows the window, but changes
// only when nothing is outstanding: what is asked for again must be what was asked for
// before, or the responder would see more requests than it has resources for.
const (
	wholeRead     = ib.PSNHalf + 1 // packets: never reached
	shortestPiece = 4 << 10
	longestPiece  = 256 << 10
)

// chunk is how many packets a piece should have: so many that what may be outstanding
// fills the window, a quarter of it if so many may be. A piece that is nearly right stays.
func (q *QP) chunk() uint32 {
	if !q.path.Remote {
		return wholeRead
	}
	n := min(q.allowed(), longestPiece)
	switch d := q.attr.MaxRDAtomic; {
	case d >= 4:
		n /= 4
	case d >= 2:
		n /= 2
	}
	size := uint32(shortestPiece)
	for size*2 <= n {
		size *= 2
	}
	if now := q.req.Chunk; now < wholeRead && size < now*q.attr.MTU && n >= now*q.attr.MTU/2 {
		return now
	}
	return size / q.attr.MTU
}

// piece is how many packets of the READ in W, of which so many are left, to ask for next.
func (q *QP) piece(left uint32) uint32 {
	r := &q.req
	return min(left, r.Chunk-r.Off/q.attr.MTU%r.Chunk)
}
