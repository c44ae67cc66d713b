package tcpcount

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// tcpCount has the fields of the struct in C, in the same order.
func TestLayout(t *testing.T) {
	header, err := os.ReadFile(filepath.Join("..", "..", "..", "shim", "sockets", "sockets.h"))
	if err != nil {
		t.Fatal(err)
	}
	body := regexp.MustCompile(`(?s)struct counts \{(.*?)\n\};`).FindSubmatch(header)
	if body == nil {
		t.Fatal("no struct counts in sockets.h")
	}
	var fields []string
	for _, m := range regexp.MustCompile(`_Atomic uint64_t (\w+);`).FindAllSubmatch(body[1], -1) {
		fields = append(fields, string(m[1]))
	}
	want := []string{"refused", "silent", "accepted", "unmade", "udp", "forked", "inherited"}
	if len(fields) != len(want) || size != int64(8*len(want)) {
		t.Fatalf("C has %v, Go has %d bytes, want %v", fields, size, want)
	}
	for i := range want {
		if fields[i] != want[i] {
			t.Errorf("field %d is %s in C, want %s", i, fields[i], want[i])
		}
	}
}

func TestReasons(t *testing.T) {
	for _, c := range []struct {
		name  string
		count Count
		want  []string
	}{
		{"nothing", Count{}, nil},
		{"one", Count{Refused: 1}, []string{"1 connection to a peer that does not listen on RDMA: run it with vrdma run --sockets too"}},
		{"forks", Count{Inherited: 2}, []string{"2 connections to a server that hands its connections to child processes: RDMA connections do not survive fork"}},
		{"several", Count{Silent: 2, UDP: 3, Forked: 2}, []string{
			"2 connections to a peer that RDMA does not reach", "3 UDP sockets left to the kernel",
			"2 processes made by fork that wanted to use an RDMA connection of the parent, which is not possible",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.count.reasons()
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("got %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}
