package workload

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// Manager is a harness.Machine that knows which programs listen with rdma_cm.
type Manager interface {
	// AwaitManaged waits until p listens on a port of rdma_cm.
	AwaitManaged(t testing.TB, p harness.Program, port int)
	// AwaitVacant waits until no program listens there.
	AwaitVacant(t testing.TB, port int)
}

var _ Manager = (*harness.Daemon)(nil)

// Managed is a server and a client that connect through rdma_cm.
type Managed struct {
	Name           string
	Port           int
	Server, Client string // command lines; ADDR is the server's address, PORT the port
	Must           string // what both print
	Endless        bool   // the server goes on: it is ended
	// Apart sets the delay between the two hosts, if the test can do that.
	Apart func(time.Duration)
}

// A requestLoser is a machine that can lose the second connection request that arrives there, once. The client repeats
// the request about a second later. The function that it returns ends that.
type requestLoser interface {
	LoseSecondRequest(testing.TB) (end func())
}

// calls is how often a client of perftest may connect without success, and step is the head start that each attempt
// adds for the server: see refused.
const (
	calls = 10
	step  = 30 * time.Millisecond
)

// Run runs both sides and requires status 0.
func (m Managed) Run(t testing.TB, at, from Host, limit time.Duration) {
	t.Helper()
	if err := m.Try(t, at, from, limit); err != nil {
		t.Fatal(err)
	}
}

// Try is Run, but returns a failure as an error.
func (m Managed) Try(t testing.TB, at, from Host, limit time.Duration) error {
	t.Helper()
	for range calls - 1 {
		if err := m.try(t, at, from, limit); !errors.Is(err, errRpingEnd) {
			return err
		}
		t.Log("an rping closed its event channel while its own thread read from it: once more")
	}
	return m.try(t, at, from, limit)
}

// try is one call of Try.
func (m Managed) try(t testing.TB, at, from Host, limit time.Duration) error {
	t.Helper()
	fill := strings.NewReplacer("ADDR", at.IP, "PORT", fmt.Sprint(m.Port))
	manager := at.Machine.(Manager)
	start := func(before ...string) *harness.Conversation {
		manager.AwaitVacant(t, m.Port) // or we would wait for the server before this one
		c := &harness.Conversation{Server: at.Program(t, strings.Fields(fill.Replace(m.Server))...)}
		manager.AwaitManaged(t, c.Server, m.Port)
		c.Client = from.Program(t, append(before, strings.Fields(fill.Replace(m.Client))...)...)
		return c
	}
	c := start()
	for i := 1; i < calls; i++ {
		if !strings.HasPrefix(m.Client, "ib_") || !c.Client.Ended(limit) || c.Client.Code() == 0 || !refused(c.Client.Output()) {
			break
		}
		t.Logf("call %d of %d came before the server listened", i, calls)
		c.Server.End()
		c.Server.Ended(limit)
		switch loser, ok := at.Machine.(requestLoser); {
		case m.Apart != nil:
			m.Apart(time.Duration(i) * step)
			defer m.Apart(0)
			c = start()
		case ok:
			again := loser.LoseSecondRequest(t)
			c = start()
			c.Client.Ended(limit)
			again()
		default:
			c = start("nice", "-n", "19")
		}
	}
	defer func() {
		for _, p := range []harness.Program{c.Client, c.Server} {
			p.End()
			p.Ended(limit)
		}
	}()
	if m.Endless {
		if !c.Client.Ended(limit) || c.Client.Code() != 0 {
			return fmt.Errorf("failed (limit %v)\n%v", limit, c)
		}
		return nil
	}
	// A lost message may keep one side for a while after the other has ended.
	for _, p := range []harness.Program{c.Client, c.Server} {
		if !p.Ended(limit) || p.Code() != 0 {
			err := fmt.Errorf("failed (limit %v)\n%v", limit, c)
			if rpingEnd(p) {
				err = fmt.Errorf("%w\n%v", errRpingEnd, c)
			}
			return err
		}
	}
	for _, out := range []string{c.Server.Output(), c.Client.Output()} {
		if !strings.Contains(out, m.Must) || strings.Contains(out, "error") || strings.Contains(out, "mismatch") {
			return fmt.Errorf("want %q and no error\n%v", m.Must, c)
		}
	}
	return nil
}

// refused reports whether a client of perftest found no listener. With -R the two sides handshake over a first
// connection; then the server listens for the second while the client already connects. A refused client wants to
// repeat the call, but has destroyed its identifier, and crashes. On a busy machine the server may lose that race every
// time. A longer delay between the hosts, a connection request that is lost once, or a low priority of the client gives
// the server a head start.
func refused(out string) bool {
	const invalidServiceID, serviceNotSupported = "REJECTED; error: 8.", "UNREACHABLE; error: 1."
	return strings.Contains(out, invalidServiceID) || strings.Contains(out, serviceNotSupported)
}

// errRpingEnd is a failure of rping itself, see rpingEnd.
var errRpingEnd = errors.New("rping failed at its end, after its work")

// rpingEnd reports whether an rping failed after its work. Its main thread destroys the event channel while its second
// thread may call rdma_get_cm_event: then that thread ends the program with status -1.
func rpingEnd(p harness.Program) bool {
	return p.Code() == 255 && strings.Contains(p.Output(), "rdma_get_cm_event: Bad file descriptor") && strings.Contains(p.Output(), "DISCONNECT EVENT")
}

// ManagedTools are the tools with rdma_cm that every machine has, the guest included. n is the number of messages.
func ManagedTools(n int) []Managed {
	count := fmt.Sprint(n)
	return []Managed{
		{Name: "rping", Port: 7174, Server: "rping -s -v -V -C " + count, Client: "rping -c -v -V -a ADDR -C " + count, Must: "ping data: rdma-ping"},
		{Name: "rping/large", Port: 7180, Server: "rping -s -V -S 60000 -p PORT -C " + count, Client: "rping -c -V -S 60000 -a ADDR -p PORT -C " + count},
		{Name: "ucmatose", Port: 7471, Server: "ucmatose -c 10 -C " + count, Client: "ucmatose -c 10 -s ADDR -C " + count, Must: "return status 0"},
		{Name: "ucmatose/migrate", Port: 7471, Server: "ucmatose -m", Client: "ucmatose -m -s ADDR", Must: "return status 0"},
		{Name: "udaddy", Port: 7174, Server: "udaddy -c 3", Client: "udaddy -c 3 -s ADDR", Must: "return status 0"},
		{Name: "rstream", Port: 7471, Server: "rstream -T v -S 65536 -I 2 -C " + count, Client: "rstream -T v -s ADDR -S 65536 -I 2 -C " + count, Must: "custom"},
		{Name: "rstream/blocking", Port: 7471, Server: "rstream -T b -T v -S 4096 -I 2 -C " + count, Client: "rstream -T b -T v -s ADDR -S 4096 -I 2 -C " + count, Must: "custom"},
		{Name: "riostream", Port: 7471, Server: "riostream -T v -S 1000 -I 2 -C " + count, Client: "riostream -T v -S 1000 -I 2 -s ADDR -C " + count, Must: "custom"},
		{Name: "cmtime", Port: 7471, Server: "cmtime", Client: "cmtime -c " + count + " -s ADDR", Endless: true},
		{Name: "send_bw -R", Port: 18515, Server: "ib_send_bw -R -F -n " + count, Client: "ib_send_bw -R -F -n " + count + " ADDR", Must: "65536"},
		{Name: "write_bw -R", Port: 18515, Server: "ib_write_bw -R -F -q 4 -n " + count, Client: "ib_write_bw -R -F -q 4 -n " + count + " ADDR", Must: "65536"},
		{Name: "read_lat -R", Port: 18515, Server: "ib_read_lat -R -F -n " + count, Client: "ib_read_lat -R -F -n " + count + " ADDR", Must: "rdma_cm"},
		{Name: "send_bw -R UD", Port: 18515, Server: "ib_send_bw -R -F -c UD -s 1024 -n " + count, Client: "ib_send_bw -R -F -c UD -s 1024 -n " + count + " ADDR", Must: "1024"},
	}
}
