package cm

import (
	"fmt"
	"os/exec"
	"regexp"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// `vrdma status` shows which programs are connected, in what state and in which port space.
func TestStatus(t *testing.T) {
	d, _ := device(t)
	stream := d.Launch(t, "rping", "-s", "-P", "-V")
	datagrams := d.Launch(t, "udaddy")
	member := d.Launch(t, "stdbuf", "-oL", "mckey", "-m", "224.1.2.9", "-b", "127.0.0.1")
	d.AwaitManaged(t, stream, 7174)
	member.Printed(t, "joined", minute)
	client := d.Launch(t, "rping", "-c", "-V", "-a", "127.0.0.1")
	defer client.End()

	var list []protocol.ConnectionStatus
	find := func(pid int, space, state string) *protocol.ConnectionStatus {
		for i := range list {
			if c := &list[i]; c.Pid == pid && c.PortSpace == space && c.State == state {
				return c
			}
		}
		return nil
	}
	var listener, waiting, group, near, far *protocol.ConnectionStatus
	ok := harness.Poll(minute, func() bool {
		list = d.Status(t).Connections
		listener, waiting = find(stream.PID(), "TCP", "LISTEN"), find(datagrams.PID(), "UDP", "LISTEN")
		group = find(member.PID(), "UDP", "RESOLVED")
		near, far = find(client.PID(), "TCP", "ESTABLISHED"), find(stream.PID(), "TCP", "ESTABLISHED")
		return listener != nil && waiting != nil && group != nil && near != nil && far != nil
	})
	if !ok {
		t.Fatalf("status shows %+v", list)
	}
	if listener.Local != "0.0.0.0:7174" || listener.Program != "rping" || listener.Remote != "" {
		t.Errorf("the listener: %+v", listener)
	}
	if waiting.Program != "udaddy" {
		t.Errorf("the listener for datagrams: %+v", waiting)
	}
	if group.Groups != 1 || group.Program != "mckey" {
		t.Errorf("the member of a group: %+v", group)
	}
	if near.Remote != "127.0.0.1:7174" || near.Local != far.Remote || far.Local != near.Remote || near.QPN == 0 || near.QPN != far.RemoteQPN || far.QPN != near.RemoteQPN {
		t.Errorf("the ends of a connection do not match:\n%+v\n%+v", near, far)
	}
	text, err := exec.Command(harness.Binary(), "status", "--socket", d.Socket).CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma status: %v\n%s", err, text)
	}
	for _, want := range []string{
		`TCP\s+0\.0\.0\.0:7174\s+-\s+LISTEN\s+rping, pid ` + fmt.Sprint(stream.PID()),
		`TCP\s+` + regexp.QuoteMeta(near.Local) + `\s+127\.0\.0\.1:7174\s+ESTABLISHED\s+rping, pid ` + fmt.Sprint(client.PID()) + fmt.Sprintf(", QP 0x%06x -> 0x%06x", near.QPN, near.RemoteQPN),
		`UDP\s+\S+\s+-\s+LISTEN\s+udaddy`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("vrdma status has no line like %q:\n%s", want, text)
		}
	}
	for _, p := range []*harness.Process{client, member, datagrams, stream} {
		p.End()
		p.Ended(minute)
	}
	d.Unmanaged(t)
}
