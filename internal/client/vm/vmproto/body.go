package vmproto

import (
	"bytes"
	"fmt"
)

// Magics begin the bodies of Hello and Welcome, so that a reader can resynchronise with an interrupted stream.
var (
	helloMagic   = []byte("vrdma\x00agent\x00\xa5\x5a\xc3\x3c")
	welcomeMagic = []byte("vrdma\x00daemon\xa5\x5a\xc3\x3c")
)

const (
	nonceSize = 16
	nameSize  = 64
	textSize  = 256

	helloRest   = nonceSize + 4 + nameSize
	welcomeRest = nonceSize + 4 + 4 + textSize
)

// A Greeting is the content of a Hello.
type Greeting struct {
	Nonce   [nonceSize]byte
	Version uint32
	Name    string // the machine's own name
}

// AppendHello appends a Hello.
func AppendHello(b []byte, g Greeting) []byte {
	return Append(b, Hello, 0, helloMagic, g.Nonce[:], le.AppendUint32(nil, g.Version), padded(g.Name, nameSize))
}

// FindHello reads up to the next Hello, whatever precedes it.
func (r *Reader) FindHello() (Greeting, error) {
	b, err := r.Find(helloMagic, helloRest)
	if err != nil {
		return Greeting{}, err
	}
	return parseHello(b), nil
}

// ParseHello decodes the body of a Hello.
func ParseHello(b []byte) (Greeting, error) {
	if len(b) != len(helloMagic)+helloRest || !bytes.HasPrefix(b, helloMagic) {
		return Greeting{}, fmt.Errorf("%w: a hello of %d bytes", ErrMalformed, len(b))
	}
	return parseHello(b[len(helloMagic):]), nil
}

func parseHello(b []byte) (g Greeting) {
	copy(g.Nonce[:], b)
	g.Version = le.Uint32(b[nonceSize:])
	g.Name = text(b[nonceSize+4:])
	return g
}

// An Answer is the content of a Welcome. Text is the reason of a refusal, otherwise empty.
type Answer struct {
	Nonce   [nonceSize]byte
	Version uint32
	Text    string
}

// AppendWelcome appends a Welcome.
func AppendWelcome(b []byte, a Answer) []byte {
	return Append(b, Welcome, 0, welcomeMagic, a.Nonce[:], le.AppendUint32(nil, a.Version), make([]byte, 4), padded(a.Text, textSize))
}

// FindWelcome reads up to the next Welcome.
func (r *Reader) FindWelcome() (a Answer, err error) {
	b, err := r.Find(welcomeMagic, welcomeRest)
	if err != nil {
		return a, err
	}
	copy(a.Nonce[:], b)
	a.Version = le.Uint32(b[nonceSize:])
	a.Text = text(b[nonceSize+8:])
	return a, nil
}

// A Person is the process that opened a conversation, from the machine's kernel.
type Person struct{ Pid, UID, GID uint32 }

// OpenBody returns the body of an Open.
func OpenBody(p Person) []byte {
	return le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, p.Pid), p.UID), p.GID)
}

// ParseOpen decodes the body of an Open.
func ParseOpen(b []byte) (p Person, err error) {
	if len(b) != 12 {
		return p, fmt.Errorf("%w: an open of %d bytes", ErrMalformed, len(b))
	}
	return Person{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:])}, nil
}

// A Run is a range of the machine's memory: guest-physical.
type Run struct{ Addr, Size uint64 }

const (
	runSize = 16
	// MaxRuns is the maximum number of runs in one frame. More need several frames.
	MaxRuns = (MaxBody - 64) / runSize
	// MostRuns limits the mappings for the queues of one machine: each run is one, and the whole daemon may have 65530.
	MostRuns = 8192
	// HugePage is the usual size of huge pages in a machine's kernel. Queues of at least this size use them where possible: each
	// is one run.
	HugePage = 2 << 20
)

// RunsBody returns the body of an Arena, Grown or Pin: a number and runs. The number of a Pin is its identifier; of an Arena it
// says whether its doorbell is rung with frames (BellFrames); a Grown of 1 means that there are no more pages.
func RunsBody(number uint32, runs []Run) []byte {
	b := make([]byte, 0, 8+runSize*len(runs))
	b = le.AppendUint64(b, uint64(number))
	for _, r := range runs {
		b = le.AppendUint64(le.AppendUint64(b, r.Addr), r.Size)
	}
	return b
}

// BellFrames is the number of an Arena whose programs ring with frames, not at a bell port.
const BellFrames = 1

// ParseRuns decodes the body of an Arena, Grown or Pin.
func ParseRuns(b []byte) (number uint32, runs []Run, err error) {
	if len(b) < 8 || (len(b)-8)%runSize != 0 {
		return 0, nil, fmt.Errorf("%w: runs of %d bytes", ErrMalformed, len(b))
	}
	number = uint32(le.Uint64(b))
	for b = b[8:]; len(b) > 0; b = b[runSize:] {
		r := Run{le.Uint64(b), le.Uint64(b[8:])}
		if r.Size == 0 || r.Addr+r.Size < r.Addr {
			return 0, nil, fmt.Errorf("%w: a run of %#x bytes at %#x", ErrMalformed, r.Size, r.Addr)
		}
		runs = append(runs, r)
	}
	return number, runs, nil
}

// A Returning is an unread event.
type Returning struct {
	Handle uint32
	Event  [16]byte
	N      int
}

const returningSize = 24

// MaxReturned is the maximum number of events in one frame. An empty Returned is the last.
const MaxReturned = MaxBody / returningSize

// ReturnedBody returns the body of a Returned.
func ReturnedBody(list []Returning) []byte {
	b := make([]byte, 0, returningSize*len(list))
	for _, r := range list {
		b = le.AppendUint32(le.AppendUint32(b, r.Handle), uint32(r.N))
		b = append(b, r.Event[:]...)
	}
	return b
}

// ParseReturned decodes the body of a Returned.
func ParseReturned(b []byte) (list []Returning, err error) {
	if len(b)%returningSize != 0 {
		return nil, fmt.Errorf("%w: events of %d bytes", ErrMalformed, len(b))
	}
	for ; len(b) > 0; b = b[returningSize:] {
		r := Returning{Handle: le.Uint32(b), N: int(le.Uint32(b[4:])), Event: [16]byte(b[8:])}
		if r.N < 1 || r.N > 16 {
			return nil, fmt.Errorf("%w: an event of %d bytes", ErrMalformed, r.N)
		}
		list = append(list, r)
	}
	return list, nil
}

// FileBody returns the body of a File: a path below the sysfs tree, and the content.
func FileBody(path string, content []byte) []byte {
	b := le.AppendUint32(nil, uint32(len(path)))
	return append(append(b, path...), content...)
}

// ParseFile decodes the body of a File.
func ParseFile(b []byte) (path string, content []byte, err error) {
	if len(b) < 4 || uint64(le.Uint32(b)) > uint64(len(b)-4) {
		return "", nil, fmt.Errorf("%w: a file of %d bytes", ErrMalformed, len(b))
	}
	n := le.Uint32(b)
	return string(b[4 : 4+n]), b[4+n:], nil
}

// Number returns the body of a Grow: a number of bytes.
func Number(n uint64) []byte { return le.AppendUint64(nil, n) }

// ParseNumber decodes the body of a Grow.
func ParseNumber(b []byte) (uint64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: a number of %d bytes", ErrMalformed, len(b))
	}
	return le.Uint64(b), nil
}

// padded returns s in size bytes, cut if it is too long.
func padded(s string, size int) []byte {
	b := make([]byte, size)
	copy(b[:size-1], s)
	return b
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
