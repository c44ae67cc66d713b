package ipc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// ErrGone means that the daemon has ended.
var ErrGone = errors.New("the device is gone")

// A Backend is the connection to an open device: through the daemon's socket, or the kernel's device file.
type Backend interface {
	// Command runs one command. Responses are stored in the scratch page, whose addresses the commands
	// contain. The caller holds the device's lock.
	Command(cmd []byte, extents []protocol.Extent) ([]Descriptor, error)
	// Ring maps a queue; if own is true, the caller unmaps it.
	Ring(at *abi.MMInfo) (m Mapped, own bool, err error)
	// RingBell notifies the device of new work in the send queue of a queue pair.
	RingBell(qp uint32, command []byte) error
	// Arm requests a completion event; done is false if that needs a command.
	Arm(cq uint32, solicited bool) (done bool)
	// Yield yields the processor while the caller polls an empty queue; first marks the first call in
	// this wait. Only one goroutine at a time uses w.
	Yield(w *Waiter, first bool)
	// Allocate allocates memory that can be registered; Free frees it.
	Allocate(n uintptr) (Mapped, error)
	Free(m *Mapped)
	// Extents describes the memory that is to be registered.
	Extents(start, length uint64, ours bool, writable bool) []protocol.Extent
	// OpenChannel opens the rdma_cm device that belongs to this device.
	OpenChannel() (Channel, error)
	// Tree returns the directory that describes the device, in the layout of /sys.
	Tree() string
	// Close closes the connection. Its memory stays mapped, because goroutines may still read it.
	Close() error
	// Unmap unmaps that memory.
	Unmap()
}

// A Descriptor is a file descriptor in the reply to a command.
type Descriptor struct {
	File *os.File
	ID   int32 // how later commands refer to it
}

// ScratchSize is the size of the memory for responses.
const ScratchSize = 4096

// Daemon is the connection to a vrdma daemon.
type Daemon struct {
	socket  string
	process *process
	session *protocol.Session
	arena   Mapped
	bell    *os.File
	scratch Mapped // memory for responses
	buf     []byte
	out     []byte
	reply   protocol.Reply
	asleep  atomic.Int32 // number of threads that sleep on the doorbell page
}

// A process is this program's registration with a daemon. All devices of a process share one memory file.
type process struct {
	socket  string
	made    chan struct{} // closed when session is set, or when connecting failed
	session *protocol.Session
	users   int // guarded by processes.mu
}

// processes holds one registration for each daemon in use. Sharing it is invisible to callers: a daemon
// identifies a process by this connection.
var processes struct {
	mu sync.Mutex
	at map[string]*process
}

// joinProcess returns the registration with a daemon and connects if there is none. A daemon that does not
// answer delays only callers that want the same daemon.
func joinProcess(ctx context.Context, socket string) (*process, error) {
	for {
		processes.mu.Lock()
		p := processes.at[socket]
		if p == nil {
			p = &process{socket: socket, made: make(chan struct{}), users: 1}
			if processes.at == nil {
				processes.at = make(map[string]*process)
			}
			processes.at[socket] = p
			processes.mu.Unlock()
			if err := p.dial(ctx); err != nil {
				return nil, err
			}
			return p, nil
		}
		processes.mu.Unlock()
		select {
		case <-p.made:
		case <-ctx.Done():
			return nil, fmt.Errorf("no vrdma daemon answers: %w", ctx.Err())
		}
		if p.join() {
			return p, nil
		}
	}
}

// join adds a user; it returns false if the registration is dead and the caller must create another.
func (p *process) join() bool {
	processes.mu.Lock()
	defer processes.mu.Unlock()
	if processes.at[p.socket] != p {
		return false
	}
	if p.gone() {
		delete(processes.at, p.socket)
		return false
	}
	p.users++
	return true
}

// dial connects the registration. If it fails, it is removed, and waiting callers try again themselves.
func (p *process) dial(ctx context.Context) error {
	hello := protocol.Hello{Kind: protocol.KindProcess, Program: program(), Label: os.Getenv("VRDMA_TRACE"), Faults: os.Getenv("VRDMA_FAULT")}
	if hello.Faults != "" {
		hello.Flags |= protocol.HelloFaults
	}
	s, err := protocol.DialContext(ctx, p.socket, hello)
	if err == nil && len(s.Files) != 1 {
		err = fmt.Errorf("the daemon sent %d descriptors for a process, not one", len(s.Files))
		s.Close()
	}
	processes.mu.Lock()
	defer processes.mu.Unlock()
	if err != nil {
		delete(processes.at, p.socket)
	}
	p.session = s
	close(p.made)
	return err
}

// gone reports whether the daemon closed the connection. A daemon sends nothing on it while it lives.
func (p *process) gone() bool {
	raw, err := p.session.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) { gone = protocol.Ready(int(fd)) })
	return err != nil || gone
}

// stay and leave count the users of the registration.
func (p *process) stay() {
	processes.mu.Lock()
	p.users++
	processes.mu.Unlock()
}

func (p *process) leave() error {
	processes.mu.Lock()
	defer processes.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	if processes.at[p.socket] == p {
		delete(processes.at, p.socket)
	}
	return p.session.Close()
}

// memory returns the descriptor of the file with registered memory.
func (p *process) memory() int { return int(p.session.Files[0].Fd()) }

func program() string { return filepath.Base(os.Args[0]) }

// OpenDaemon opens a device of the daemon at socket.
func OpenDaemon(ctx context.Context, socket string, scratch Mapped) (*Daemon, error) {
	p, err := joinProcess(ctx, socket)
	if err != nil {
		return nil, err
	}
	s, err := protocol.DialContext(ctx, socket, protocol.Hello{
		Kind: protocol.KindUverbs, Token: p.session.Welcome.Token, Program: program(), Label: os.Getenv("VRDMA_TRACE"),
	})
	if err != nil {
		p.leave()
		return nil, err
	}
	d := &Daemon{socket: socket, process: p, session: s, scratch: scratch, buf: make([]byte, protocol.MaxMessage)}
	if len(s.Files) != 2 || s.Welcome.ArenaSize < protocol.SharedSize || s.Welcome.ArenaSize > 1<<40 {
		d.Close()
		return nil, fmt.Errorf("the daemon sent %d descriptors and an arena of %d bytes", len(s.Files), s.Welcome.ArenaSize)
	}
	d.bell = s.Files[1]
	// Map the whole arena at once, so that a queue needs no mapping of its own.
	if d.arena, err = mapFile(int(s.Files[0].Fd()), 0, uintptr(s.Welcome.ArenaSize)); err != nil {
		d.Close()
		return nil, fmt.Errorf("map the device's queues: %w", err)
	}
	return d, nil
}

func (d *Daemon) Command(cmd []byte, extents []protocol.Extent) ([]Descriptor, error) {
	req := protocol.Request{Op: protocol.OpCommand, Command: cmd, Extents: extents}
	d.out = req.Append(d.out[:0])
	if err := d.session.WriteMessage(d.out); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	n, fds, err := d.session.ReadMessage(d.buf)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err := d.reply.Parse(d.buf[:n]); err != nil {
		protocol.CloseFDs(fds)
		return nil, err
	}
	if err := store(&d.scratch, d.reply.Stores); err != nil {
		protocol.CloseFDs(fds)
		return nil, err
	}
	if d.reply.Error != 0 {
		protocol.CloseFDs(fds)
		return nil, syscall.Errno(d.reply.Error)
	}
	if len(fds) != len(d.reply.FDs) {
		protocol.CloseFDs(fds)
		return nil, syscall.EMFILE
	}
	var list []Descriptor
	for i, fd := range fds {
		_ = unix.SetNonblock(fd, true)
		list = append(list, Descriptor{os.NewFile(uintptr(fd), "verbs-events"), int32(d.reply.FDs[i].ID)})
	}
	return list, nil
}

// store executes the stores of a reply. All of them must lie in the scratch page.
func store(scratch *Mapped, list []protocol.Store) error {
	for i := range list {
		s := &list[i]
		off := s.Address - uint64(scratch.At)
		if s.Address < uint64(scratch.At) || off > uint64(len(scratch.Mem)) || uint64(len(s.Data)) > uint64(len(scratch.Mem))-off {
			return fmt.Errorf("the daemon stores %d bytes outside of the response buffer", len(s.Data))
		}
		copy(scratch.Mem[off:], s.Data)
	}
	return nil
}

func (d *Daemon) Ring(at *abi.MMInfo) (Mapped, bool, error) {
	end := at.Offset + uint64(at.Size)
	if at.Offset < protocol.SharedSize || end < at.Offset || end > uint64(len(d.arena.Mem)) {
		return Mapped{}, false, fmt.Errorf("the device has a queue at %d to %d, outside of its %d bytes", at.Offset, end, len(d.arena.Mem))
	}
	return Mapped{Mem: d.arena.Mem[at.Offset:end:end], At: d.arena.At + uintptr(at.Offset)}, false, nil
}

// RingBell implements the protocol of "Doorbell page" in shim/protocol.h.
func (d *Daemon) RingBell(qp uint32, command []byte) error {
	bit := qp % protocol.DoorbellBits
	if protocol.Shared64(d.arena.Mem, protocol.DoorbellReady+int(bit/64*8)).Load()>>(bit%64)&1 == 0 {
		return syscall.EAGAIN // the daemon requires a command
	}
	protocol.Shared64(d.arena.Mem, protocol.DoorbellBitmap+int(bit/64*8)).Or(1 << (bit % 64))
	protocol.Shared64(d.arena.Mem, protocol.DoorbellSummary+int(bit/4096*8)).Or(1 << (bit / 64 % 64))
	protocol.Shared32(d.arena.Mem, protocol.DoorbellAny).Store(1)
	armed := protocol.Shared32(d.arena.Mem, protocol.DoorbellArmed)
	if armed.Load() != 0 && armed.Swap(0) != 0 {
		_, err := d.bell.Write(one[:])
		return err
	}
	return nil
}

// one is the value written to an eventfd.
var one = [8]byte{1}

func (d *Daemon) Arm(cq uint32, solicited bool) bool {
	if cq >= protocol.ArmCQs || protocol.Shared32(d.arena.Mem, protocol.ArmByCommand).Load() != 0 {
		return false
	}
	word := protocol.Shared32(d.arena.Mem, protocol.ArmWords+int(cq)*protocol.ArmStride)
	if word.Load()&protocol.ArmReady == 0 {
		return false
	}
	bit := uint32(protocol.ArmAll)
	if solicited {
		bit = protocol.ArmSolicited
	}
	return word.Or(bit)&protocol.ArmReady != 0
}

func (d *Daemon) Allocate(n uintptr) (Mapped, error) {
	m, err := mapAtOwnAddress(d.process.memory(), n)
	if err == nil {
		d.process.stay() // freeing the memory needs the file
	}
	return m, err
}

func (d *Daemon) Free(m *Mapped) {
	if m.Mem == nil {
		return
	}
	// Punch a hole: the file would keep the pages otherwise.
	_ = unix.Fallocate(d.process.memory(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(m.At), int64(len(m.Mem)))
	m.Unmap()
	d.process.leave()
}

func (d *Daemon) Extents(start, length uint64, ours, writable bool) []protocol.Extent {
	e := protocol.Extent{Start: start, Length: length, Kind: protocol.ExtentForeign, Prot: protocol.ProtRead}
	if writable {
		e.Prot |= protocol.ProtWrite
	}
	if ours {
		e.Kind = protocol.ExtentOwn
	}
	return []protocol.Extent{e}
}

func (d *Daemon) Unmap() { d.arena.Unmap() }

func (d *Daemon) Tree() string { return d.socket + ".d/sys" }

func (d *Daemon) Close() error {
	return errors.Join(d.session.Close(), d.process.leave())
}
