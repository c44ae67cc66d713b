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

// Options select the device to open. The zero value selects the device that `vrdma run` set up, else this
// user's daemon, else the kernel's rxe.
type Options struct {
	// Socket is the path of a daemon's socket or of the socket of one of its NICs. If it is empty, Open uses
	// VRDMA_SOCKET, then the default paths of this user's daemon.
	Socket string
	// Kernel is the name of a kernel rxe device to open instead of a daemon's device; "any" selects the first.
	Kernel string
}

// A Device is an open RDMA device. Any goroutine may use it.
type Device struct {
	backend ipc.Backend
	name    string
	scratch ipc.Mapped

	mu     sync.Mutex // held during a command
	closed bool       // guarded by mu
	buf    []byte     // guarded by mu
	nextID uint64     // guarded by mu: the number of the next object, for events

	objects sync.Map // uint64 → *CQ, *QP or *SRQ: the objects that events can name

	async   *os.File
	events  chan Event
	lost    atomic.Uint64 // events dropped because no goroutine received them
	gone    atomic.Bool
	ended   chan struct{} // closed by Close, or when the daemon ends
	endOnce sync.Once

	channel   *os.File // completion channel; nil until the first use
	channelID int32
	reader    chan struct{} // a token, present once channel exists: the goroutine that holds it reads the channel
	reading   sync.Once     // starts readChannel
	event     [8]byte       // the reader's buffer for one abi.CompEvent
}

func init() {
	ipc.Of = func(device any) ipc.Backend { return device.(*Device).backend }
	ipc.Apply = func(qp any, a *abi.QPAttr) error { return qp.(*QP).apply(a) }
}

// Open opens a device with the default options.
func Open(ctx context.Context) (*Device, error) { return Options{}.Open(ctx) }

// Open opens the device that the options select.
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
		d.backend.Close()
		d.backend.Unmap()
		d.scratch.Unmap()
		return nil, fault(op, err)
	}
	// Unmap the memory only when no goroutine can reach it any more. The backend has no reference to the device.
	runtime.AddCleanup(d, func(m mappings) { m.backend.Unmap(); m.scratch.Unmap() }, mappings{d.backend, d.scratch})
	return d, nil
}

// mappings are the memory mappings of a device.
type mappings struct {
	backend ipc.Backend
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
		d.backend, d.name = way, deviceName(way.Tree())
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

// unanswered returns the advice for a configured socket at which no daemon answers.
func unanswered(socket string, err error) string {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return "no daemon serves " + socket + ": start one with `vrdma daemon --socket " + socket + "`, or correct Options.Socket or VRDMA_SOCKET"
	case errors.Is(err, syscall.EACCES):
		return "this user may not open " + socket + ": it belongs to another user, or is not mounted for this container"
	}
	return "check with `vrdma status --socket " + socket + "` that a vrdma daemon of this version serves the socket"
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
	d.backend, d.name = way, device
	return nil
}

// mounted is the socket of a container's NIC; system is the socket of root's daemon.
const (
	mounted = "/run/vrdma/vrdma.sock"
	system  = "/var/lib/vrdma/vrdma.sock"
)

// defaultSocket returns the socket at which programs look for the daemon. The interposer uses the same
// paths, except that it derives a container's socket from its own path.
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

// deviceName returns the name of the device that a sysfs tree describes.
func deviceName(tree string) string {
	if name := ipc.ReadLine(filepath.Join(tree, "class/infiniband_verbs/uverbs0/ibdev")); name != "" {
		return name
	}
	return "rxe0"
}

// begin runs the first command, GET_CONTEXT, which returns the descriptor for asynchronous events.
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

// eventFile returns the event descriptor that a command created. The daemon passes it as a file
// descriptor message; the kernel writes its number into the response.
func (d *Device) eventFile(fds []ipc.Descriptor, number uint32) (*os.File, error) {
	if _, ok := d.backend.(*ipc.Kernel); ok {
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

// Name returns the name of the device, such as "rxe0".
func (d *Device) Name() string { return d.name }

// response returns the address at which commands store their responses.
func (d *Device) response() uint64 { return uint64(d.scratch.At) }

// An answer describes a command's response. The response is valid during the call of take.
type answer struct {
	size   int
	take   func([]byte)
	driver []byte // driver-specific data that follows the command
}

// decode returns an answer that is decoded into v.
func decode[T abi.Struct](v *T) answer {
	return answer{size: abi.Size[T](), take: func(b []byte) { abi.Decode(b, v) }}
}

// decode2 returns an answer that is decoded into v, followed by driver-specific data decoded into w.
func decode2[T, D abi.Struct](v *T, w *D) answer {
	n := abi.Size[T]()
	return answer{size: n + abi.Size[D](), take: func(b []byte) {
		abi.Decode(b, v)
		if len(b) > n {
			abi.Decode(b[n:], w)
		}
	}}
}

// exec runs a command on the device.
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
	fds, err := d.backend.Command(d.buf, ext)
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

// track registers an object and returns the number by which events name it.
func (d *Device) track(o any) uint64 {
	d.mu.Lock()
	d.nextID++
	id := d.nextID
	d.mu.Unlock()
	d.objects.Store(id, o)
	return id
}

// end marks the device as gone and wakes all waiting goroutines.
func (d *Device) end() {
	d.gone.Store(true)
	d.endOnce.Do(func() { close(d.ended) })
}

// Close closes the device and every object of it. Memory from PD.Alloc stays mapped until MR.Close.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	err := d.backend.Close()
	channel := d.channel
	d.mu.Unlock()
	d.end()
	d.async.Close() // ends readAsync
	if channel != nil {
		channel.Close() // ends a pending read of the channel
	}
	return fault("close the device", err)
}

// Done returns a channel that is closed when the device is closed or its daemon ends.
func (d *Device) Done() <-chan struct{} { return d.ended }

// err returns the reason why the device cannot be used any more, or nil.
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
