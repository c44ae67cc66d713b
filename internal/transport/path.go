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
	// Piece is how many bytes of a READ are asked for at once, in multiples of 4096; 0
	// means 64 to 256 KiB. It must not change while READs are outstanding.
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
	r.Window, r.Chunk = q.conf.Window, wholeRead
	if !q.path.Remote {
		return
	}
	q.cc.Cwnd = min(q.cc.Cwnd, q.path.Window)
	r.Window = min(max(q.cc.Cwnd/mtu, 1), q.conf.Window)
	r.Chunk = q.readChunk() / mtu
}

// A READ of a remote path is asked for in pieces of a fixed length, so that the window
// bounds what the responder, which hears nothing until it has answered, may have on its
// way to us. To the responder each piece is a READ of its own. Where a piece ends depends
// on nothing but its place in the message and the depth, so asking again asks the same.
const (
	wholeRead  = psnHalf + 1 // packets: never reached
	shortPiece = 64 << 10
	longPiece  = 256 << 10
)

// readChunk is the length of the pieces in bytes: longer the fewer may be outstanding.
func (q *QP) readChunk() uint32 {
	if p := q.path.Piece &^ 4095; p != 0 {
		return p
	}
	switch d := q.attr.MaxRDAtomic; {
	case d <= 1:
		return longPiece
	case d < 4:
		return longPiece / 2
	}
	return shortPiece
}
