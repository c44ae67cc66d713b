package verbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// Options say which device to open. The zero value is what `vrdma run` set up, else the daemon of
// this user, else the kernel's rxe.
type Options struct {
	// Socket is that of a vrdma daemon, or of one of its NICs. Empty: VRDMA_SOCKET, else where the
	// daemon of this user is.
	Socket string
	// Kernel is the name of an rxe device of the kernel, to be opened instead; "any" is the first.
	Kernel string
}

// A Device is an open device. Any goroutine may use it.
type Device struct {
	door    ipc.Door
	name    string
	scratch ipc.Mapped

	mu     sync.Mutex // held during a command
	closed bool       // guarded by mu
	buf    []byte     // guarded by mu
	nextID uint64     // guarded by mu: of objects, in events

	objects sync.Map // uint64 → *CQ, *QP or *SRQ: whose events may come

	async   *os.File
	events  chan Event
	lost    atomic.Uint64 // events that nobody took
	gone    atomic.Bool
	ended   chan struct{} // closed when gone or closed
	endOnce sync.Once

	channel   *os.File // of completion events; nil: there is none yet
	channelID int32
	reader    chan struct{} // holds one once there is a channel: who has taken it reads the channel
	reading   sync.Once     // of a goroutine that does nothing else
	event     [8]byte       // the reader's: one abi.CompEvent
}

func init() {
	ipc.Of = func(device any) ipc.Door { return device.(*Device).door }
	ipc.Apply = func(qp any, a *abi.QPAttr) error { return qp.(*QP).apply(a) }
}

// Open opens a device with the default options.
func Open(ctx context.Context) (*Device, error) { return Options{}.Open(ctx) }

// Open opens the device that the options say.
func (o Options) Open(ctx context.Context) (*Device, error) {
	const op = "open the device"
	scratch, err := ipc.MapAnonymous(ipc.ScratchSize)
	if err != nil {
		return nil, fault(op, err)
	}
	d := &Device{scratch: scratch, events: make(chan Event, 64), ended: make(chan struct{}), reader: make(chan struct{}, 1)}
	if err := d.open(ctx, o); err != nil {
		d.scratch.Unmap()
		return nil, fault(op, err)
	}
	if err := d.begin(); err != nil {
		d.door.Close()
		d.door.Unmap()
		d.scratch.Unmap()
		return nil, fault(op, err)
	}
	// What is mapped goes when nobody can look at it any more. The door does not know the device.
	runtime.AddCleanup(d, func(m mappings) { m.door.Unmap(); m.scratch.Unmap() }, mappings{d.door, d.scratch})
	return d, nil
}

// mappings are those of a device.
type mappings struct {
	door    ipc.Door
	scratch ipc.Mapped
}

func (d *Device) open(ctx context.Context, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if o.Kernel != "" {
		name := o.Kernel
		if name == "any" {
			name = ""
		}
		return d.openKernel(name)
	}
	socket := o.Socket
	if socket == "" {
		socket = defaultSocket()
	}
	way, err := ipc.OpenDaemon(ctx, socket, d.scratch)
	if err == nil {
		d.door, d.name = way, deviceName(way.Tree())
		return nil
	}
	if o.Socket != "" || os.Getenv("VRDMA_SOCKET") != "" {
		return &Error{Op: "open the device", Err: err, Advice: unanswered(socket, err)}
	}
	kernel := d.openKernel("")
	if errors.Is(kernel, ipc.ErrNoKernel) {
		return &Error{Op: "open the device", Err: err, Advice: "start `vrdma daemon`, or set VRDMA_SOCKET to the socket of one"}
	}
	return kernel
}

// unanswered says what to do about a socket that was named and leads nowhere.
func unanswered(socket string, err error) string {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return "no daemon serves " + socket + ": start one with `vrdma daemon --socket " + socket + "`, or correct Options.Socket or VRDMA_SOCKET"
	case errors.Is(err, syscall.EACCES):
		return "this user may not open " + socket + ": it belongs to another, or is not mounted for you"
	}
	return "is a vrdma daemon of this version at " + socket + "? `vrdma status --socket " + socket + "` asks it"
}

func (d *Device) openKernel(name string) error {
	uverbs, device, err := ipc.FindKernel(ipc.KernelSys, name)
	if err != nil {
		return err
	}
	way, err := ipc.OpenKernel(uverbs)
	if err != nil {
		return err
	}
	d.door, d.name = way, device
	return nil
}

// mounted is where a container has its NIC, system is where root's daemon is.
const (
	mounted = "/run/vrdma/vrdma.sock"
	system  = "/var/lib/vrdma/vrdma.sock"
)

// defaultSocket is where programs look for the daemon; the shim looks in the same places, but a
// container's it knows by its own path.
func defaultSocket() string {
	if s := os.Getenv("VRDMA_SOCKET"); s != "" {
		return s
	}
	own := fmt.Sprintf("/tmp/vrdma-%d/vrdma.sock", os.Getuid())
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		own = filepath.Join(dir, "vrdma", "vrdma.sock")
	}
	if _, err := os.Stat(own); err != nil {
		for _, other := range []string{mounted, system} {
			if _, err := os.Stat(other); err == nil && (other == mounted || os.Getuid() == 0) {
				return other
			}
		}
	}
	return own
}

// deviceName is the name of the device that a tree describes.
func deviceName(tree string) string {
	if name := ipc.ReadLine(filepath.Join(tree, "class/infiniband_verbs/uverbs0/ibdev")); name != "" {
		return name
	}
	return "rxe0"
}

// begin makes the first command, which brings the descriptor of asynchronous events.
func (d *Device) begin() error {
	var r abi.GetContextResp
	fds, err := exec(d, abi.CmdGetContext, &abi.GetContext{Response: d.response()}, nil, decode(&r))
	if err != nil {
		return err
	}
	if d.async, err = d.eventFile(fds, r.AsyncFD); err != nil {
		return err
	}
	go d.readAsync()
	return nil
}

// eventFile is the descriptor that a command made: the daemon's came along, the kernel's is in the
// response.
func (d *Device) eventFile(fds []ipc.Descriptor, number uint32) (*os.File, error) {
	if _, ok := d.door.(*ipc.Kernel); ok {
		if err := unix.SetNonblock(int(number), true); err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(number), "verbs-events"), nil
	}
	if len(fds) != 1 {
		return nil, fmt.Errorf("the daemon sent %d descriptors, not one", len(fds))
	}
	return fds[0].File, nil
}

// Name is what the device is called.
func (d *Device) Name() string { return d.name }

// response is where commands want their answers.
func (d *Device) response() uint64 { return uint64(d.scratch.At) }

// An answer takes a response, which is valid during the call.
type answer struct {
	size   int
	take   func([]byte)
	driver []byte // what the driver wants behind the command
}

// decode is an answer that is stored in v.
func decode[T abi.Struct](v *T) answer {
	return answer{size: abi.Size[T](), take: func(b []byte) { abi.Decode(b, v) }}
}

// decode2 is one with what the driver adds to it.
func decode2[T, D abi.Struct](v *T, w *D) answer {
	n := abi.Size[T]()
	return answer{size: n + abi.Size[D](), take: func(b []byte) {
		abi.Decode(b, v)
		if len(b) > n {
			abi.Decode(b[n:], w)
		}
	}}
}

// exec has the device do a command.
func exec[Q abi.Struct](d *Device, cmd uint32, req *Q, ext []protocol.Extent, a answer) ([]ipc.Descriptor, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	d.buf = abi.Encode(d.buf[:0], &abi.CmdHeader{Command: cmd})
	d.buf = append(abi.Encode(d.buf, req), a.driver...)
	for len(d.buf)%4 != 0 {
		d.buf = append(d.buf, 0)
	}
	head := abi.CmdHeader{Command: cmd, InWords: uint16(len(d.buf) / 4), OutWords: uint16((a.size + 3) / 4)}
	copy(d.buf, abi.Encode(nil, &head))
	clear(d.scratch.Mem[:a.size])
	fds, err := d.door.Command(d.buf, ext)
	if err != nil {
		if errors.Is(err, ErrGone) {
			d.end()
		}
		return nil, err
	}
	if a.take != nil {
		a.take(d.scratch.Mem[:a.size])
	}
	return fds, nil
}

// track gives an object a number by which events name it.
func (d *Device) track(o any) uint64 {
	d.mu.Lock()
	d.nextID++
	id := d.nextID
	d.mu.Unlock()
	d.objects.Store(id, o)
	return id
}

// end says that the device is gone, to all who wait.
func (d *Device) end() {
	d.gone.Store(true)
	d.endOnce.Do(func() { close(d.ended) })
}

// Close closes the device and everything that was made with it. Memory that PD.Alloc handed out stays
// mapped until its own Close.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	err := d.door.Close()
	channel := d.channel
	d.mu.Unlock()
	d.end()
	d.async.Close() // ends readAsync
	if channel != nil {
		channel.Close() // ends who reads it
	}
	return fault("close the device", err)
}

// Done is closed when the device is closed, or gone with its daemon.
func (d *Device) Done() <-chan struct{} { return d.ended }

// err is why nothing can be done any more; nil: something can.
func (d *Device) err() error {
	if !d.gone.Load() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	return ErrGone
}
