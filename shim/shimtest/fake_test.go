package shimtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Commands, as in testdata/t.h.
const (
	cmdGetContext        = 0
	cmdRegMR             = 9
	cmdDeregMR           = 13
	cmdCreateCompChannel = 17
	cmdCreateCQ          = 18
	cmdReqNotifyCQ       = 23
	cmdPostSend          = 28
	cmdEcho              = 200
	cmdFail              = 201
	cmdSlow              = 202
	cmdEvent             = 203
	cmdDie               = 204
	cmdPeek              = 205
	cmdPoke              = 206
	cmdBells             = 207
	cmdSyncs             = 208
	cmdData              = 209
	cmdRefuse            = 210
	cmdAdd               = 211
	cmdSum               = 212

	channelID = 77
	notReady  = 5 // a queue pair whose posts go to the daemon
)

// fake is a daemon that understands the protocol and no RDMA.
type fake struct {
	t        *testing.T
	socket   string
	listener *net.UnixListener

	mu          sync.Mutex
	refusal     *protocol.Welcome // answer every hello with this
	mails       bool              // hand out mailboxes
	mailed      int               // requests that came there
	told        bool              // wants every command
	left        int               // commands that nobody waited for
	conns       map[*protocol.Conn]bool
	processes   map[protocol.Token]*os.File // memory, by token
	labels      []string
	syncs       uint64
	nextToken   byte
	nextChannel uint32
	wg          sync.WaitGroup
}

func startFake(t *testing.T) *fake {
	t.Helper()
	dir := t.TempDir()
	f := &fake{
		t:         t,
		socket:    filepath.Join(dir, "s"),
		conns:     map[*protocol.Conn]bool{},
		processes: map[protocol.Token]*os.File{},
	}
	f.makeTree(t)
	f.listen(t)
	t.Cleanup(func() {
		f.die()
		f.wg.Wait()
		for _, m := range f.processes {
			m.Close()
		}
	})
	return f
}

func (f *fake) listen(t *testing.T) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: f.socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.listener = l
	f.mu.Unlock()
	f.wg.Add(1)
	go f.accept(l)
}

func (f *fake) makeTree(t *testing.T) {
	t.Helper()
	for name, content := range map[string]string{
		"class/infiniband_verbs/abi_version":                    "6\n",
		"class/infiniband_verbs/uverbs0/ibdev":                  "rxe0\n",
		"class/infiniband_verbs/uverbs0/dev":                    "231:192\n",
		"class/infiniband_verbs/uverbs0/abi_version":            "1\n",
		"class/infiniband/rxe0/node_type":                       "1: CA\n",
		"class/infiniband/rxe0/node_guid":                       "0202:0304:0506:0708\n",
		"class/infiniband/rxe0/ports/1/state":                   "4: ACTIVE\n",
		"class/infiniband/rxe0/ports/1/counters/port_xmit_data": "0\n",
		"class/infiniband/rxe0/ports/1/hw_counters/sent_pkts":   "0\n",
		"class/infiniband/rxe0/device/net/lo/ifindex":           "1\n",
		"class/misc/rdma_cm/abi_version":                        "4\n",
		"class/infiniband_mad/abi_version":                      "5\n",
		"class/infiniband/rxe0/ports/1/gids/0":                  "0000:0000:0000:0000:0000:ffff:7f00:0001\n",
	} {
		path := filepath.Join(f.socket+".d", "sys", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// die closes the listener and every connection, like the end of a daemon.
func (f *fake) die() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listener.Close()
	for c := range f.conns {
		c.Close()
	}
}

func (f *fake) accept(l *net.UnixListener) {
	defer f.wg.Done()
	for {
		u, err := l.AcceptUnix()
		if err != nil {
			return
		}
		c := protocol.NewConn(u)
		f.mu.Lock()
		f.conns[c] = true
		f.mu.Unlock()
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			f.serve(c)
			c.Close()
			f.mu.Lock()
			delete(f.conns, c)
			f.mu.Unlock()
		}()
	}
}

// refuse answers every hello with w.
func (f *fake) refuse(w protocol.Welcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusal = &w
}

func (f *fake) sessions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

func memfd(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "memfd")
	if err := file.Truncate(size); err != nil {
		return nil, err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	return file, err
}

func (f *fake) serve(c *protocol.Conn) {
	buf := make([]byte, protocol.MaxMessage)
	n, _, err := c.ReadMessage(buf)
	if err != nil {
		return
	}
	hello, err := protocol.ParseHello(buf[:n])
	if err != nil {
		f.t.Errorf("hello: %v", err)
		return
	}
	w := protocol.Welcome{Magic: protocol.Magic, Protocol: protocol.Version, RdevMajor: 231, RdevMinor: 192}
	f.mu.Lock()
	refusal := f.refusal
	f.mu.Unlock()
	if refusal != nil {
		c.WriteMessage(refusal.Append(nil))
		return
	}
	switch hello.Kind {
	case protocol.KindProcess:
		f.serveProcess(c, buf, w, hello)
	case protocol.KindUverbs:
		f.serveDevice(c, buf, w, hello)
	case protocol.KindRDMACM:
		f.serveChannel(c, buf, w, hello)
	case protocol.KindNetlink:
		f.serveNetlink(c, buf, w)
	}
}

// serveNetlink answers every datagram with itself and one of twice its bytes.
func (f *fake) serveNetlink(c *protocol.Conn, buf []byte, w protocol.Welcome) {
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return
	}
	for {
		n, _, err := c.ReadMessage(buf)
		if err != nil {
			return
		}
		c.WriteMessage(buf[:n])
		c.WriteMessage(append(buf[:n:n], buf[:n]...))
	}
}

func (f *fake) serveProcess(c *protocol.Conn, buf []byte, w protocol.Welcome, hello protocol.Hello) {
	memory, err := memfd(1 << 47)
	if err != nil {
		f.t.Errorf("memfd: %v", err)
		return
	}
	f.mu.Lock()
	f.nextToken++
	w.Token[0] = f.nextToken
	w.NumFDs = 1
	f.processes[w.Token] = memory
	f.labels = append(f.labels, hello.Program+" "+hello.Label)
	f.mu.Unlock()
	if err := c.WriteMessage(w.Append(nil), int(memory.Fd())); err != nil {
		return
	}
	var reply protocol.ReplyBuilder
	for {
		if _, _, err := c.ReadMessage(buf); err != nil {
			return
		}
		f.mu.Lock()
		f.syncs++
		f.mu.Unlock()
		reply.Reset(nil)
		b, _ := reply.Finish(0)
		c.WriteMessage(b)
	}
}

// answerAll passes every request of a connection to answer until one side ends.
func (f *fake) answerAll(c *protocol.Conn, buf []byte, answer func(*protocol.Request) bool) {
	var q protocol.Request
	for {
		n, _, err := c.ReadMessage(buf)
		if err != nil {
			return
		}
		if err := q.Parse(buf[:n]); err != nil {
			f.t.Errorf("request: %v", err)
			return
		}
		if !answer(&q) {
			return
		}
	}
}

// device is one opened uverbs0.
type device struct {
	f      *fake
	conn   *protocol.Conn
	memory *os.File
	bell   int
	ends   []int // our ends of event sockets

	refuse     bool // the next REG_MR
	lastHandle uint32
	regions    map[uint32]bool // by handle

	mail   *protocol.Mail // nil: none
	offer  *os.File       // of mail, to be sent with the next answer; nil: it was
	mailed bool           // the request under way is from there

	sum uint64 // of what was added
}

func (f *fake) serveDevice(c *protocol.Conn, buf []byte, w protocol.Welcome, hello protocol.Hello) {
	arena, err := memfd(2 << 20)
	if err != nil {
		f.t.Errorf("memfd: %v", err)
		return
	}
	defer arena.Close()
	ready := bytes.Repeat([]byte{0xff}, protocol.DoorbellBits/8)
	ready[0] &^= 1 << notReady
	if _, err := arena.WriteAt(ready, protocol.DoorbellReady); err != nil {
		f.t.Errorf("arena: %v", err)
		return
	}
	f.mu.Lock()
	err = describeSure(arena, f.told)
	f.mu.Unlock()
	if err != nil {
		f.t.Errorf("arena: %v", err)
		return
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		f.t.Errorf("eventfd: %v", err)
		return
	}
	defer unix.Close(bell)
	f.mu.Lock()
	d := &device{f: f, conn: c, memory: f.processes[hello.Token], bell: bell, regions: map[uint32]bool{}}
	mails := f.mails && hello.Flags&protocol.HelloMail != 0
	f.mu.Unlock()
	if d.memory == nil {
		f.t.Errorf("a device was opened with the unknown token %x", hello.Token)
		return
	}
	defer func() { protocol.CloseFDs(d.ends) }()
	w.NumFDs = 2
	if err := c.WriteMessage(w.Append(nil), int(arena.Fd()), bell); err != nil {
		return
	}
	if mails {
		d.serveMail(buf)
		return
	}
	f.answerAll(c, buf, d.answer)
}

// addSize is the size of CMD_ADD, as of every command in testdata/t.h.
const addSize = 32

// describeSure writes to the doorbell page that CMD_ADD with an even handle is sure.
func describeSure(arena *os.File, told bool) error {
	le := binary.NativeEndian
	page := make([]byte, protocol.DoorbellBitmap-protocol.ArmByCommand)
	at := func(off int) []byte { return page[off-protocol.ArmByCommand:] }
	if told {
		le.PutUint32(page, 1)
	}
	le.PutUint32(at(protocol.SureLength), addSize)
	le.PutUint32(at(protocol.SureHandleAt), 16)
	le.PutUint32(at(protocol.SureValue), cmdAdd)
	le.PutUint32(at(protocol.SureMask), ^uint32(0))
	copy(at(protocol.SureBits), bytes.Repeat([]byte{0x55}, protocol.SureHandles/8))
	_, err := arena.WriteAt(page, protocol.ArmByCommand)
	return err
}

// runLeft runs the commands in the mailbox.
func (d *device) runLeft() {
	var b [protocol.MaxLeft]byte
	n := d.mail.TakeLeft(b[:])
	for i := 0; i < n; i += addSize {
		if binary.NativeEndian.Uint32(b[i:]) != cmdAdd || b[i+16]%2 != 0 {
			d.f.t.Errorf("command %d was left, %d bytes in all", binary.NativeEndian.Uint32(b[i:]), n)
		}
		d.sum += binary.NativeEndian.Uint64(b[i+24:])
		d.f.mu.Lock()
		d.f.left++
		d.f.mu.Unlock()
	}
}

// eventFD makes an event socket and returns the client's end.
func (d *device) eventFD() (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	d.ends = append(d.ends, pair[0])
	return pair[1], nil
}

func (d *device) answer(q *protocol.Request) bool {
	le := binary.NativeEndian
	if q.Op == protocol.OpRoom {
		return d.room(q)
	}
	command := le.Uint32(q.Command)
	if command == cmdDeregMR {
		return d.deregister(le.Uint32(q.Command[8:]))
	}
	response := le.Uint64(q.Command[8:])
	word := func(at int) uint64 {
		if len(q.Command) < at+8 {
			return 0
		}
		return le.Uint64(q.Command[at:])
	}
	arg, arg2 := word(16), word(24)
	var reply protocol.ReplyBuilder
	reply.Reset(nil)
	store := func(v uint64) { reply.Store(response, le.AppendUint64(nil, v)) }
	var errno int32
	var fds []int
	switch command {
	case cmdGetContext, cmdCreateCompChannel:
		fd, err := d.eventFD()
		if err != nil {
			d.f.t.Errorf("socketpair: %v", err)
			return false
		}
		kind := uint32(protocol.FDAsync)
		if command == cmdCreateCompChannel {
			kind = protocol.FDComp
		}
		reply.FD(protocol.FD{Address: response, Kind: kind, ID: channelID})
		fds = append(fds, fd)
	case cmdCreateCQ:
		store(uint64(int64(int32(le.Uint32(q.Command[32:])))))
	case cmdCreateCQ | 0x80000000:
		store(uint64(int64(int32(le.Uint32(q.Command[40:])))))
	case cmdRegMR:
		d.storeExtents(&reply, q, response)
		if d.refuse {
			errno = int32(unix.ENOMEM)
		}
		d.refuse = false
	case cmdRefuse:
		d.refuse = true
	case cmdAdd:
		if arg%2 != 0 {
			errno = int32(unix.EPERM)
		} else {
			d.sum += arg2
		}
	case cmdSum:
		store(d.sum)
	case cmdReqNotifyCQ:
		errno = int32(unix.EDOM) // what nobody else answers
	case cmdPostSend:
		errno = int32(unix.ENOTCONN)
	case cmdEcho:
		store(arg + 1)
	case cmdFail:
		errno = int32(arg)
	case cmdSlow:
		time.Sleep(max(50*time.Millisecond, time.Duration(arg)*time.Millisecond))
		store(arg + 1)
	case cmdEvent:
		unix.Write(d.ends[0], le.AppendUint64(le.AppendUint64(nil, arg), 1))
	case cmdDie:
		d.f.die() // before the program learns of it; otherwise it meets the old one again
		return false
	case cmdPeek:
		var b [8]byte
		if _, err := d.memory.ReadAt(b[:], int64(arg)); err != nil {
			d.f.t.Errorf("read registered memory at %#x: %v", arg, err)
		}
		reply.Store(response, b[:])
	case cmdPoke:
		if _, err := d.memory.WriteAt(le.AppendUint64(nil, arg2), int64(arg)); err != nil {
			d.f.t.Errorf("write registered memory at %#x: %v", arg, err)
		}
	case cmdBells:
		var b [8]byte
		unix.Read(d.bell, b[:])
		reply.Store(response, b[:])
	case cmdSyncs:
		d.f.mu.Lock()
		store(d.f.syncs)
		d.f.mu.Unlock()
	case cmdData:
		var st syscall.Stat_t
		syscall.Fstat(int(d.memory.Fd()), &st)
		store(uint64(st.Blocks) * 512)
	default:
		errno = int32(unix.EINVAL)
	}
	b, err := reply.Finish(errno)
	if err == nil {
		err = d.reply(b, fds...)
	}
	protocol.CloseFDs(fds)
	return err == nil
}

// room answers ROOM: ENOMEM for a tebibyte and more; smaller sizes are unknown to the fake.
func (d *device) room(q *protocol.Request) bool {
	errno := int32(unix.EINVAL)
	if len(q.Extents) == 1 && q.Extents[0].Length >= 1<<40 {
		errno = int32(unix.ENOMEM)
	}
	var reply protocol.ReplyBuilder
	reply.Reset(nil)
	b, err := reply.Finish(errno)
	return err == nil && d.conn.WriteMessage(b) == nil
}

// deregister answers DEREG_MR: EINVAL for an unknown region.
func (d *device) deregister(handle uint32) bool {
	var reply protocol.ReplyBuilder
	reply.Reset(nil)
	var errno int32
	if !d.regions[handle] {
		errno = int32(unix.EINVAL)
	}
	delete(d.regions, handle)
	b, err := reply.Finish(errno)
	return err == nil && d.reply(b) == nil
}

// storeExtents stores what the library said about the program's memory, after checking that the extents cover the
// buffer without gaps.
func (d *device) storeExtents(reply *protocol.ReplyBuilder, q *protocol.Request, response uint64) {
	le := binary.NativeEndian
	start, length := le.Uint64(q.Command[16:]), le.Uint64(q.Command[24:])
	at := start
	d.lastHandle++
	d.regions[d.lastHandle] = true
	out := le.AppendUint32(nil, d.lastHandle)
	out = append(out, make([]byte, 12)...) // keys
	out = le.AppendUint64(out, uint64(len(q.Extents)))
	for i, e := range q.Extents {
		if e.Start != at || e.Length == 0 {
			d.f.t.Errorf("extents of %#x+%#x: number %d is %#x+%#x, want it to start at %#x", start, length, i, e.Start, e.Length, at)
		}
		at = e.Start + e.Length
		if i < 64 {
			out = le.AppendUint64(out, e.Start)
			out = le.AppendUint64(out, e.Length)
			out = le.AppendUint32(out, e.Kind)
			out = le.AppendUint32(out, e.Prot)
		}
	}
	if at != start+length {
		d.f.t.Errorf("extents of %#x+%#x end at %#x, want %#x", start, length, at, start+length)
	}
	reply.Store(response, out)
}

func (f *fake) environment() []string {
	return []string{
		"VRDMA_SOCKET=" + f.socket,
		"SYSFS_PATH=" + f.socket + ".d/sys",
		fmt.Sprintf("PATH=%s", os.Getenv("PATH")),
	}
}
