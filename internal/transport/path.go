package transport

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
	// Piece is how many bytes of a READ are asked for at once at least, in multiples of
	// 4096; 0 means 16 KiB. It must not change while READs are outstanding.
	Piece uint32
}

const (
	defaultPathWindow = 512 << 10
	// firstWindow is what a path is given before anything is known of it.
	firstWindow = 128 << 10
)

// SetPath says how the peer is reached. It may be called at any time; what is in flight
// stays so. Only when Remote changes, everything that was learnt of the path is forgotten.
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
	mtu := q.attr.MTU
	r.Burst = q.conf.MaxBurst
	if q.path.MaxBurst != 0 {
		r.Burst = q.path.MaxBurst
	}
	r.Burst = max(r.Burst, mtu)
	r.Window, r.Chunk, r.Unit = q.conf.Window, wholeRead, wholeRead
	if q.path.Remote {
		r.Unit = q.unit() / mtu
		q.setWindow()
	}
}

// setWindow makes what Cwnd says what the requester keeps to.
func (q *QP) setWindow() {
	r := &q.req
	q.cc.Cwnd = max(min(q.cc.Cwnd, q.path.Window), q.attr.MTU)
	r.Window = min(q.cc.Cwnd/q.attr.MTU, q.conf.Window)
	r.Chunk = q.chunk() / q.attr.MTU
}

// A READ of a remote path is asked for in pieces, so that the window bounds what the
// responder, which hears nothing until it has answered, may have on its way to us. To the
// responder each piece is a READ of its own. Pieces end at multiples of a unit, and what is
// asked for again is asked for unit by unit: part of a piece, never of two.
const (
	wholeRead    = psnHalf + 1 // packets: never reached
	defaultUnit  = 16 << 10
	longestPiece = 256 << 10
)

// unit is the shortest piece of a READ, in bytes.
func (q *QP) unit() uint32 {
	if u := q.path.Piece &^ 4095; u != 0 {
		return u
	}
	return defaultUnit
}

// chunk is how long pieces are now, in bytes: so that as many as may be outstanding fill
// the window, but at least four of them if so many may be.
func (q *QP) chunk() uint32 {
	n := q.cc.Cwnd
	switch d := q.attr.MaxRDAtomic; {
	case d >= 4:
		n = min(n/4, longestPiece/4)
	case d >= 2:
		n = min(n/2, longestPiece/2)
	}
	u := q.unit()
	n = max(min(n, longestPiece), u)
	return n - n%u
}

// piece is how many packets of the READ in W to ask for next.
func (q *QP) piece() uint32 {
	r := &q.req
	c := r.Chunk
	if r.PSN != r.Max {
		c = r.Unit
	}
	left := packetsOf(r.W.Length-r.Off, q.attr.MTU)
	if left == 1 {
		return 1
	}
	return min(left, c-r.Off/q.attr.MTU%c)
}
