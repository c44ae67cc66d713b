package course

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The two command lines have each other's wire, addresses of their own and a console each.
func TestCommand(t *testing.T) {
	m := &Guests{Image: "/image", Dir: "/dir"}
	var both []string
	for i, name := range names {
		argv := strings.Join(m.command(t.Context(), i, "/i").Args, " ")
		both = append(both, argv)
		for _, want := range []string{"unix:/dir/" + name + ",server=on", "local.path=/dir/" + name + ".wire", "remote.path=/dir/" + names[1-i] + ".wire", "guest.ip4=" + address(i) + "/24", "guest.program=" + program} {
			if !strings.Contains(argv, want) {
				t.Errorf("%s has no %q: %s", name, want, argv)
			}
		}
	}
	mac := func(argv string) string { return argv[strings.Index(argv, "mac="):][:21] }
	if mac(both[0]) == mac(both[1]) {
		t.Errorf("both have %s", mac(both[0]))
	}
}

// A console passes what is typed and shows what the machine says, until Ctrl-].
func TestConsole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	if err := Console(path, os.Stdin, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "vrdma lab vms prints the paths") {
		t.Errorf("no machine: %v", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	in, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	got := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Write([]byte("hello"))
		b := make([]byte, 4)
		n, _ := c.Read(b)
		got <- b[:n]
		typed.Write([]byte{leave})
	}()
	typed.Write([]byte("ls\n"))
	if err := Console(path, in, &strings.Builder{}); err != nil {
		t.Error(err)
	}
	if b := <-got; !slices.Equal(b, []byte("ls\n")) {
		t.Errorf("the machine got %q", b)
	}
	typed.Close()
}
