package vm

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A frontEnd is the part of QEMU that tells which memory the guest has.
type frontEnd struct {
	t *testing.T
	u *net.UnixConn
}

func newFrontEnd(t *testing.T, p *Sockets) frontEnd {
	t.Helper()
	p.memory = p.card.memory
	f := frontEnd{t, dial(t, p, CardSocket)}
	const setProtocolFeatures, replyAck = 16, 1 << 3
	f.ask(setProtocolFeatures, 0, binary.LittleEndian.AppendUint64(nil, replyAck))
	return f
}

func (f frontEnd) ask(request, flags uint32, body []byte, fds ...int) {
	f.t.Helper()
	const version = 1
	b := binary.LittleEndian.AppendUint32(nil, request)
	b = binary.LittleEndian.AppendUint32(b, version|flags)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
	if _, _, err := f.u.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
		f.t.Fatal(err)
	}
}

// table sends n times that the guest has exactly this memory, and waits for the last answer.
func (f frontEnd) table(r testRAM, times int) {
	f.t.Helper()
	const setMemTable, needReply = 5, 1 << 3
	body := binary.LittleEndian.AppendUint64(nil, 1)
	for _, v := range []uint64{ramBase, ramSize, 0, 0} {
		body = binary.LittleEndian.AppendUint64(body, v)
	}
	for range times - 1 {
		f.ask(setMemTable, 0, body, r.fd)
	}
	f.ask(setMemTable, needReply, body, r.fd)
	reply := make([]byte, 12+8)
	if _, err := io.ReadFull(f.u, reply); err != nil || reply[12] != 0 {
		f.t.Fatalf("a table of memory is answered %x, %v", reply, err)
	}
}

// opens opens the device for a program with queues in this memory.
func (a *testAgent) opens(t *testing.T, r testRAM) {
	t.Helper()
	token := process(t, a, 11)
	if w := a.hello(12, protocol.Hello{Kind: protocol.KindUverbs, Token: token}, arena(pages(0, arenaPagesAtFirst))); w.Error != 0 {
		t.Fatalf("the device is answered %+v", w)
	}
	armed := r.mem[protocol.DoorbellArmed:][:4]
	for end := time.Now().Add(time.Minute); binary.NativeEndian.Uint32(armed) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon does not use the memory that the machine has now")
		}
	}
}

// TestManyTables: QEMU announces other memory again and again. While programs run, the daemon keeps all memory that
// they may use, up to a bound; then they lose their devices. Without programs it keeps only the last table.
func TestManyTables(t *testing.T) {
	for name, running := range map[string]bool{"programs": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			first, last := newTestRAM(t), newTestRAM(t)
			p := testPort(t, first)
			f := newFrontEnd(t, p)
			f.table(first, 1)
			a := newTestAgent(t, p)
			if w := a.greet(vmproto.Version); w.Text != "" {
				t.Fatal(w.Text)
			}
			if running {
				process(t, a, 1)
			}
			f.table(first, mostTables)
			f.table(last, 1)
			if running {
				a.awaitEnd("more tables are kept than there may be")
				a = newTestAgent(t, p)
				a.greet(vmproto.Version)
			}
			p.mu.Lock()
			n := len(*p.machine.ram.list.Load())
			p.mu.Unlock()
			if n != 1 {
				t.Errorf("%d tables are kept", n)
			}
			a.opens(t, last)
		})
	}
}
