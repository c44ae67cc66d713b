package memory

// A Buffer is memory of the daemon that holds bytes on their way between foreign memory and
// a queue pair. It counts its users: a Job that fills or empties it, and a burst that waits.
// The loop alone counts, so the count needs no lock:
//
//	Get ──▶ 1 user ── Hold ──▶ n users ── Drop ──▶ … ──▶ 0 users: free, for the next Get
//
// A user that the loop cannot wait for (the Job of a thread that is stuck) never drops its
// Buffer. Such a Buffer is left to the garbage collector.
type Buffer struct {
	mem   []byte
	users int
	of    *Buffers // nil: it is not used again
}

// Buffers are a loop's free Buffers. The one that was dropped last is used first, because it is
// most likely still in a cache. Its zero value is ready for use.
type Buffers struct {
	free [len(bufferSizes)][]*Buffer
}

// bufferSizes are the lengths that Buffers have: from a short message to the longest burst. A
// longer Buffer is made to measure and not used again.
var bufferSizes = [...]int{512, 4 << 10, 16 << 10, 64 << 10, 256 << 10}

// freeBuffers is how many Buffers of one length are kept.
const freeBuffers = 24

// Get returns a Buffer of at least n bytes with one user.
func (l *Buffers) Get(n int) *Buffer {
	for i, size := range bufferSizes {
		if n > size || l == nil {
			continue
		}
		if k := len(l.free[i]); k > 0 {
			b := l.free[i][k-1]
			l.free[i] = l.free[i][:k-1]
			b.users = 1
			return b
		}
		return &Buffer{mem: make([]byte, size), users: 1, of: l}
	}
	return &Buffer{mem: make([]byte, n), users: 1}
}

// Bytes are the bytes of b.
func (b *Buffer) Bytes() []byte { return b.mem }

// Hold adds a user.
func (b *Buffer) Hold() { b.users++ }

// Drop ends one use of b.
func (b *Buffer) Drop() {
	if b.users--; b.users > 0 || b.of == nil {
		return
	}
	for i, size := range bufferSizes {
		if len(b.mem) == size && len(b.of.free[i]) < freeBuffers {
			b.of.free[i] = append(b.of.free[i], b)
		}
	}
}
